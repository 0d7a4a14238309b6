"""The Lorentz model of hyperbolic space: points, distances, maps, transport, centroid.

Convention: the curvature is −c with c > 0. A point is x = [x_time, x_space] in R^{n+1}, time first,

    ⟨x, y⟩ = −x_time y_time + x_space · y_space,    ⟨x, x⟩ = −1/c,    x_time = √(1/c + |x_space|²),

and a tangent vector v at x has ⟨x, v⟩ = 0. So either is determined by its space components, and
far from the origin its time component has lost to rounding what tells near points apart. Every
function here but `inner`, `pairwise_inner`, `project_tangent` and `centroid` therefore reads the
space components only: points must lie on the hyperboloid and tangent vectors in the tangent space,
and gradients reach the space components alone (that of a time component is 0).

All functions take any number of leading axes, the same number in all arguments; ``c`` is a number
or an array that broadcasts to them. Arrays narrower than float32 are computed, and returned, in
float32. Relative errors are below 1e-12 in float64 and 2e-5 in float32 for √c · norm up to 25,
unless a docstring says otherwise. Values and gradients are finite for points as far out as the
exponential maps go, √c times the distance from the origin 31.9 in float32 and 72.1 in float64.
Distances below 1e-19 (float32; 1e-154 in float64) times the smaller of 1 and the largest coordinate
of the two points come out as 0.

References:
  HLFormer, section 3.1, eqs. 1-6. Law, Liao, Snell and Zemel, Lorentzian distance learning for
  hyperbolic representations, ICML 2019, for the centroid.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.hyperboloid import Scalar, Space
from hlformer_jax.ops.numerics import (
    as_float,
    asinhc_sqrt,
    dot,
    largest_coordinate,
    limit_norm,
    max_hyperbolic_norm,
    per_batch,
    safe_sqrt,
    same_length,
    sinhc_sqrt,
)
from hlformer_jax.typing import Array

Point = Float[Array, "*batch n+1"]


def inner(x: Point, y: Point) -> Scalar:
    """Lorentzian inner product −x_time y_time + x_space · y_space, of the given coordinates.

    It cancels: its error is relative to x_time y_time, not to the result.

    Args:
      x: vectors of R^{n+1}.
      y: vectors of R^{n+1}.

    Returns:
      ⟨x, y⟩.

    References:
      HLFormer, eq. 2.
    """
    x, y = as_float(x), as_float(y)
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def pairwise_inner(
    x: Float[Array, "*batch L n+1"], y: Float[Array, "*batch M n+1"]
) -> Float[Array, "*batch L M"]:
    """Lorentzian inner products of all pairs, by one matrix product.

    It is computed at full float32 (or float64) precision whatever the device's default. As with
    `inner`, the error is relative to x_time y_time: where a squared distance between near points
    counts, use `squared_distance`.

    Args:
      x: vectors of R^{n+1}.
      y: vectors of R^{n+1}.

    Returns:
      ⟨x_i, y_j⟩.

    References:
      HLFormer, eq. 2.
    """
    x, y = as_float(x), as_float(y)
    x = jnp.concatenate([-x[..., :1], x[..., 1:]], axis=-1)
    return jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=jax.lax.Precision.HIGHEST)


def time(space: Space, c: ArrayLike = 1.0) -> Scalar:
    """Time component √(1/c + |space|²) of the point with these space components.

    Args:
      space: space components.
      c: curvature, positive.

    Returns:
      The time components.

    References:
      HLFormer, eq. 1.
    """
    space = as_float(space)
    return jnp.sqrt(1 / per_batch(c, space) + dot(space, space))


def from_space(space: Space, c: ArrayLike = 1.0) -> Point:
    """The point of the hyperboloid with these space components; see `time`."""
    space = as_float(space)
    return jnp.concatenate([time(space, c)[..., None], space], axis=-1)


def project(x: Point, c: ArrayLike = 1.0) -> Point:
    """Replaces the time component by the one that puts the point on the hyperboloid."""
    return from_space(as_float(x)[..., 1:], c)


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike = jnp.float32) -> Point:
    """The point [1/√c, 0, …, 0].

    Args:
      n: dimension of the hyperboloid; the point has n + 1 coordinates.
      c: curvature, positive; its shape is the batch.
      dtype: of the result; float32 for what is narrower.

    Returns:
      The origin, once for each entry of ``c``.
    """
    return from_space(jnp.zeros((*jnp.shape(c), n), dtype), c)


def _tangent(x: Space, v: Space, c: ArrayLike) -> Point:
    """Adds the time component x · v / x_time that makes v tangent at x; both given by space."""
    return jnp.concatenate([dot(x / time(x, c)[..., None], v)[..., None], v], axis=-1)


def tangent_norm(x: Point, v: Point, c: ArrayLike = 1.0) -> Scalar:
    """Length √⟨v, v⟩ of a tangent vector at x; gradient 0 at v = 0.

    Args:
      x: points.
      v: tangent vectors at ``x``.
      c: curvature, positive.

    Returns:
      The norms.
    """
    x, v = as_float(x)[..., 1:], as_float(v)[..., 1:]
    return hyperboloid.tangent_norm(x, v, per_batch(c, x))


def project_tangent(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Projects a vector of R^{n+1} onto the tangent space at x: v + c ⟨x, v⟩ x.

    Its error is relative to c x_time² |v|, not to the result: the two may cancel, and then the
    rounding of v's own coordinates has as large an effect.

    Args:
      x: points.
      v: vectors of R^{n+1}.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``x``.

    References:
      HLFormer, eq. 3.
    """
    x, v = jnp.broadcast_arrays(as_float(x), as_float(v))
    x = project(x, c)
    factor = per_batch(c, x) * inner(x, v)
    return _tangent(x[..., 1:], v[..., 1:] + factor[..., None] * x[..., 1:], c)


def _rescaled(
    x: Point, y: Point, c: ArrayLike
) -> tuple[Float[Array, "*batch 1"], Space, Space, Space, Scalar]:
    """`hyperboloid.rescale` of two points; raises ValueError for different dimensions."""
    same_length(x, y)
    x, y = as_float(x)[..., 1:], as_float(y)[..., 1:]
    return hyperboloid.rescale(x, y, per_batch(c, x))


def direction(x: Point, y: Point, c: ArrayLike = 1.0) -> tuple[Scalar, Space]:
    """The way from x to y, split at x into radial and transverse: polar coordinates of a cone.

    y + c ⟨x, y⟩ x is the tangent vector at x that points to y, of length sinh(√c d) / √c. Its
    radial component is along the unit tangent vector that points away from the origin.

    Args:
      x: points. At the origin, where no direction is radial, the radial component is 0, with
        gradient 0, and all of ``y`` is transverse.
      y: points.
      c: curvature, positive.

    Returns:
      The radial component τ_x p − τ_y r, and the transverse one, which is the part of y_space
      orthogonal to x_space. Both are 0 at y = x.
    """
    scale, x, y, difference, c = _rescaled(x, y, c)
    _, _, radial, across = hyperboloid.components(x, y, difference, c)
    return radial * jnp.squeeze(scale, -1), across * scale


def squared_distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Squared Lorentzian distance ⟨x − y, x − y⟩ = −2/c − 2⟨x, y⟩; smooth everywhere.

    Args:
      x: points.
      y: points.
      c: curvature, positive.

    Returns:
      (4/c) sinh²(√c d / 2) for the geodesic distance d.

    References:
      HLFormer, below eq. 15.
    """
    scale, *pair = _rescaled(x, y, c)
    return hyperboloid.squared_chord(*pair) * jnp.squeeze(scale, -1) ** 2


def distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance.

    Args:
      x: points.
      y: points. At y = x, where the distance has no derivative, the gradient is 0.
      c: curvature, positive.

    Returns:
      arcosh(−c ⟨x, y⟩) / √c, computed as 2 asinh(√(c m) / 2) / √c from the squared Lorentzian
      distance m.
    """
    scale, x, y, difference, c = _rescaled(x, y, c)
    m = hyperboloid.squared_chord(x, y, difference, c)
    return jnp.squeeze(scale, -1) * safe_sqrt(m) * asinhc_sqrt(c * m / 4)


def exp_map0(u: Space, c: ArrayLike = 1.0) -> Point:
    """Exponential map at the origin.

    Args:
      u: space components of tangent vectors at the origin, whose time component is 0. Where
        √c |u| exceeds `max_hyperbolic_norm` (31.9 in float32, 72.1 in float64) the vector is
        shortened to it, and the gradient is that of the shortened vector.
      c: curvature, positive.

    Returns:
      Points with space components sinh(√c |u|) u / (√c |u|).

    References:
      HLFormer, eqs. 4 and 11.
    """
    u = as_float(u)
    curvature = per_batch(c, u)
    u = limit_norm(u, max_hyperbolic_norm(u.dtype) / jnp.sqrt(curvature))
    return from_space(u * sinhc_sqrt(curvature * dot(u, u))[..., None], c)


def log_map0(x: Point, c: ArrayLike = 1.0) -> Space:
    """Logarithmic map at the origin, the inverse of `exp_map0`.

    Args:
      x: points.
      c: curvature, positive.

    Returns:
      Space components of the tangent vectors at the origin; their time component is 0.

    References:
      HLFormer, eqs. 5 and 16.
    """
    space = as_float(x)[..., 1:]
    return space * asinhc_sqrt(per_batch(c, space) * dot(space, space))[..., None]


def exp_map(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Exponential map at x.

    Where the geodesic passes near the origin the relative error is up to 6 eps · c x_time²: that is
    the effect of rounding v, whose space components are up to √c x_time times as long as v.

    Args:
      x: points.
      v: tangent vectors at ``x``, shortened where √c times their length plus the distance of
        ``x`` from the origin exceeds `max_hyperbolic_norm`, by a factor held constant.
      c: curvature, positive.

    Returns:
      Points cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|).

    References:
      HLFormer, eq. 4.
    """
    x, v = jnp.broadcast_arrays(as_float(x)[..., 1:], as_float(v)[..., 1:])
    return from_space(hyperboloid.displace(x, v, per_batch(c, x)), c)


def log_map(x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """Logarithmic map at x, the inverse of `exp_map`; smooth at y = x.

    Args:
      x: points.
      y: points.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``x`` that lead to ``y``, with the distance for length.

    References:
      HLFormer, eq. 5.
    """
    scale, *pair = _rescaled(x, y, c)
    return _tangent(pair[0] * scale, hyperboloid.towards(*pair) * scale, c)


def parallel_transport(x: Point, y: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Transports a tangent vector along the geodesic from x to y.

    Args:
      x: points.
      y: points.
      v: tangent vectors at ``x``.
      c: curvature, positive.

    Returns:
      Tangent vectors v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩) at ``y``.
    """
    v = as_float(v)[..., 1:]
    scale, x, y, difference, curvature = _rescaled(x, y, c)
    space = hyperboloid.transport(x, y, difference, v, curvature)
    return _tangent(y * scale, space, c)


def transport0(y: Point, u: Space, c: ArrayLike = 1.0) -> Point:
    """Transports a tangent vector from the origin to y.

    Args:
      y: points.
      u: space components of tangent vectors at the origin.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``y``.
    """
    y, u = as_float(y)[..., 1:], as_float(u)
    curvature = per_batch(c, y)
    factor = curvature * dot(y, u) / (1 + jnp.sqrt(1 + curvature * dot(y, y)))
    return _tangent(y, u + factor[..., None] * y, c)


def centroid(
    points: Float[Array, "*batch L n+1"],
    weights: Float[Array, "*batch M L"] | None = None,
    c: ArrayLike = 1.0,
) -> Float[Array, "*batch M n+1"]:
    """Centroid under the squared Lorentzian distance, by one matrix product.

    The sum's Lorentzian norm is a difference of squares: the relative error is up to eps · c
    x_time² (8e-5 in float32 at √c x_time = 25), the effect of rounding the points. The norm is at
    least the sum of the weights over √c, and is set to that where rounding leaves nothing of it.

    Args:
      points: points, time components included.
      weights: non-negative, their scale is free; None for one centroid with equal weights. Where
        all are 0 the result is the origin.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      The points μ that minimise Σ_i weight_i ⟨x_i − μ, x_i − μ⟩.

    References:
      HLFormer, eq. 6.
    """
    points = as_float(points)
    if weights is None:
        weights = jnp.ones((*points.shape[:-2], 1, points.shape[-2]), points.dtype)
    weights = as_float(weights)
    total = jnp.matmul(weights, points, precision=jax.lax.Precision.HIGHEST)
    scale = largest_coordinate(total)
    scale = jnp.where(scale == 0, 1, scale)
    mass = jnp.sum(weights, axis=-1) / jnp.squeeze(scale, -1)
    total = total / scale
    curvature = per_batch(per_batch(c, points[..., 0])[..., None], total)
    norm2 = -inner(total, total) * curvature
    norm2 = jnp.where(2 * norm2 < mass * mass, mass * mass, norm2)
    norm2 = jnp.where(norm2 == 0, 1, norm2)
    return from_space(total[..., 1:] / jnp.sqrt(norm2)[..., None], curvature)
