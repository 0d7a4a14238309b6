"""Maps of the Lorentz model along geodesics; `lorentz` has its conventions, and is its front."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.hyperbolic_functions import asinhc_sqrt, sinhc_sqrt
from hlformer_jax.ops.hyperboloid import Scalar, Space
from hlformer_jax.ops.numerics import (
    as_float,
    common_batch,
    dot,
    limit_norm,
    max_hyperbolic_norm,
    per_batch,
    safe_normalize,
    same_length,
    shortest_direction,
)
from hlformer_jax.typing import Array

Point = Float[Array, "*#batch n1"]


def with_tangent_time(x: Space, v: Space, c: ArrayLike) -> Point:
    """Adds the time component x · v / x_time that makes v tangent at x; both given by space."""
    return jnp.concatenate(
        [dot(x / hyperboloid.time(x, per_batch(c, x))[..., None], v)[..., None], v], axis=-1
    )


def spaces(*points: Point) -> Sequence[Space]:
    """Space components of points and tangent vectors, with the same batch axes.

    Raises:
      ValueError: for different dimensions, which arithmetic would broadcast.
    """
    parts = [as_float(point)[..., 1:] for point in points]
    for other in points[1:]:
        same_length(points[0], other)
    return jnp.broadcast_arrays(*parts)


def rescaled(
    x: Point, y: Point, c: ArrayLike
) -> tuple[Float[Array, "*#batch 1"], Space, Space, Space, Scalar]:
    """`hyperboloid.rescale` of two points; raises ValueError for different dimensions."""
    x, y = spaces(x, y)
    return hyperboloid.rescale(x, y, per_batch(c, x))


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
    return hyperboloid.from_space(u * sinhc_sqrt(curvature * dot(u, u))[..., None], curvature)


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
    x, v = spaces(x, v)
    c = per_batch(c, x)
    return hyperboloid.from_space(hyperboloid.displace(x, v, c), c)


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
    scale, *pair = rescaled(x, y, c)
    return with_tangent_time(pair[0] * scale, hyperboloid.towards(*pair) * scale, c)


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
    x, y, v = spaces(x, y, v)
    scale, x, y, difference, curvature = hyperboloid.rescale(x, y, per_batch(c, x))
    space = hyperboloid.transport(x, y, difference, v, curvature)
    return with_tangent_time(y * scale, space, c)


def transport0(y: Point, u: Space, c: ArrayLike = 1.0) -> Point:
    """Transports a tangent vector from the origin to y.

    Args:
      y: points.
      u: space components of tangent vectors at the origin.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``y``.
    """
    y, u = common_batch(as_float(y)[..., 1:], u)
    curvature = per_batch(c, y)
    factor = curvature * dot(y, u) / (1 + jnp.sqrt(1 + curvature * dot(y, y)))
    return with_tangent_time(y, u + factor[..., None] * y, c)


def egrad_to_rgrad(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Point:
    """Riemannian gradient of a function at x, from its gradient in the coordinates.

    Args:
      x: points.
      gradient: gradients in the coordinates, time first, as `jax.grad` gives them; that in the time
        component counts by its dependence on the others.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``x``, with space components h + c (x · h) x for the gradient
      h = gradient_space + gradient_time x / x_time in the space components: the projection of the
      gradient with its time component negated. The inner product with a tangent vector is the
      derivative along it.

    References:
      Nickel and Kiela, Learning continuous hierarchies in the Lorentz model, ICML 2018.
    """
    x, space, c = _chart_gradient(x, gradient, c)
    return with_tangent_time(x, space + (c * dot(x, space))[..., None] * x, c)


def gradient_in_frame(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Space:
    """The Riemannian gradient at x, transported to the origin: its coordinates in that frame.

    Args:
      x: points.
      gradient: gradients in the coordinates, see `egrad_to_rgrad`.
      c: curvature, positive.

    Returns:
      Space components h + c (x · h) x / (1 + τ_x) of tangent vectors at the origin, as long as the
      gradient, for h as above and τ = √c x_time.
    """
    x, space, c = _chart_gradient(x, gradient, c)
    share = c * dot(x, space) / (1 + jnp.sqrt(1 + c * dot(x, x)))
    return space + share[..., None] * x


def _chart_gradient(x: Point, gradient: Point, c: ArrayLike) -> tuple[Space, Space, Scalar]:
    """Space components of x, the gradient in them, and the curvature."""
    x, gradient = common_batch(x, gradient)
    x = x[..., 1:]
    c = per_batch(c, x)
    return x, gradient[..., 1:] + gradient[..., :1] * (x / hyperboloid.time(x, c)[..., None]), c


def retract(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point with space components x + v, to first order in v that of the exponential map."""
    x, v = spaces(x, v)
    return hyperboloid.from_space(x + v, per_batch(c, x))


def geodesic(t: ArrayLike, x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """The point at the share t of the way from x to y; beyond them for t outside [0, 1].

    Args:
      t: shares; a number or array that broadcasts to ``*batch``.
      x: points, reached at t = 0.
      y: points, reached at t = 1.
      c: curvature, positive.

    Returns:
      Points exp_map(x, t log_map(x, y)), with the error of `exp_map`.
    """
    v = log_map(x, y, c)
    return exp_map(x, per_batch(t, v, "t")[..., None] * v, c)


def geodesic_unit(t: ArrayLike, x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point at a distance t from x in the direction v.

    Args:
      t: distances; a number or array that broadcasts to ``*batch``.
      x: points.
      v: tangent vectors at ``x``, of any length; where it is 0 the result is ``x``. Coordinates
        below 1e-18 (float32; 2e-153 in float64) count as 0.
      c: curvature, positive.

    Returns:
      Points exp_map(x, t v / |v|), with the error of `exp_map`.
    """
    x, v = spaces(x, v)
    c = per_batch(c, x)
    way, _ = safe_normalize(v, shortest_direction(v.dtype))
    length = hyperboloid.tangent_norm(x, way, c)
    size = per_batch(t, v, "t") / jnp.where(length == 0, 1, length)
    return hyperboloid.from_space(hyperboloid.displace(x, size[..., None] * way, c), c)
