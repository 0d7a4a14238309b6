"""The Lorentz model of hyperbolic space: points, distances, maps, transport, centroid.

Convention: the curvature is −c with c > 0. A point is x = [x_time, x_space] in R^{n+1}, time first,

    ⟨x, y⟩ = −x_time y_time + x_space · y_space,    ⟨x, x⟩ = −1/c,    x_time = √(1/c + |x_space|²),

and a tangent vector v at x has ⟨x, v⟩ = 0. So either is determined by its space components, and
far from the origin its time component has lost to rounding what tells near points apart. Every
function here but `inner`, `pairwise_inner` and `centroid` with ``exact=False`` therefore reads the
space components of points only, and of tangent vectors too: they must lie on the hyperboloid and in
the tangent space, and gradients reach the space components alone (that of a time component is 0).
An optimiser that updates whole points leaves their time components behind, which those functions
and Lorentz attention use and the others do not see: optimise tangent vectors or space components,
or apply `project` after each update. `time_error` measures what has become of them.

Shapes: all functions take any number of leading axes, ``*batch``, the same number in all arguments,
in which axes of length 1 broadcast. ``c`` is a number or an array that broadcasts to ``*batch``: it
has no more axes than that, is aligned with the last of them, never with the coordinates, and does
not lengthen any. For points [N, n+1] it is [], [1] or [N]; [N, 1] is an error. It is the same rule
in `cones` and `poincare`.

Points are arrays, not lists. Arrays narrower than float32 are computed, and returned, in float32;
so are integers, those of 64 bits (JAX's x64 mode) in float64; complex numbers are refused.

Relative errors, in the norm of a result that is a vector, are below 1e-12 in float64 and 2e-5 in
float32 for √c · norm up to 25, unless a docstring says otherwise. Values and gradients are finite
for points as far out as the exponential maps go, √c times the distance from the origin 31.9 in
float32 and 72.1 in float64, and, in float32, for c from 1e-22 to 1e18, where they can be
represented (the gradient in c of a squared distance m is of the size of m / c). Distances below
1e-19 (float32; 1e-154 in float64) times the smaller of 1 and the largest coordinate of the two
points come out as 0.

References:
  HLFormer, section 3.1, eqs. 1-6. Law, Liao, Snell and Zemel, Lorentzian distance learning for
  hyperbolic representations, ICML 2019, for the centroid.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import geodesic, hyperboloid
from hlformer_jax.ops.centroid import centroid as centroid
from hlformer_jax.ops.hyperboloid import Scalar, Space
from hlformer_jax.ops.numerics import (
    as_float,
    asinhc_sqrt,
    dot,
    largest_coordinate,
    limit_norm,
    max_hyperbolic_norm,
    per_batch,
    same_length,
    sinhc_sqrt,
)
from hlformer_jax.ops.pairwise import pairwise_distance as pairwise_distance
from hlformer_jax.ops.pairwise import pairwise_inner as pairwise_inner
from hlformer_jax.typing import Array

Point = Float[Array, "*#batch n1"]


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
    return hyperboloid.time(space, per_batch(c, space))


def from_space(space: Space, c: ArrayLike = 1.0) -> Point:
    """The point of the hyperboloid with these space components; see `time`."""
    space = as_float(space)
    return hyperboloid.from_space(space, per_batch(c, space))


def project(x: Point, c: ArrayLike = 1.0) -> Point:
    """Replaces the time component by the one that puts the point on the hyperboloid."""
    return from_space(as_float(x)[..., 1:], c)


def time_error(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """How far a point is off the hyperboloid: |x_time − time(x_space)| / time(x_space).

    Args:
      x: points, time components included.
      c: curvature, positive.

    Returns:
      Relative errors of the time components, a few eps for points of the hyperboloid.
    """
    x = as_float(x)
    want = time(x[..., 1:], c)
    return jnp.abs(x[..., 0] - want) / want


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike | None = None) -> Point:
    """The point [1/√c, 0, …, 0].

    Args:
      n: dimension of the hyperboloid; the point has n + 1 coordinates.
      c: curvature, positive; its shape is the batch.
      dtype: dtype of the result, float32 for what is narrower; None: that of ``c`` as a JAX array
        if it is one, else JAX's default (float64 in x64 mode).

    Returns:
      The origin, once for each entry of ``c``.
    """
    if dtype is None:
        dtype = jnp.asarray(c).dtype if isinstance(c, jax.Array | np.ndarray) else float
    return from_space(as_float(jnp.zeros((*jnp.shape(c), n), dtype)), c)


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
    x, v = _space(x, v)
    return hyperboloid.tangent_norm(x, v, per_batch(c, x))


def project_tangent(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Projects a vector of R^{n+1} onto the tangent space at x: v + c ⟨x, v⟩ x.

    Its error is relative to c x_time² |v|, not to the result: the two may cancel, and then the
    rounding of v's own coordinates has as large an effect. What is too large to be represented is
    infinite, with its sign.

    Args:
      x: points.
      v: vectors of R^{n+1}.
      c: curvature, positive.

    Returns:
      Tangent vectors at ``x``.

    References:
      HLFormer, eq. 3.
    """
    x, v = as_float(x), as_float(v)
    same_length(x, v)
    x, v = jnp.broadcast_arrays(x, v)
    x = project(x, c)
    # It is linear in v, of which a long one would overflow halfway: infinity less infinity.
    scale = jnp.maximum(largest_coordinate(v), 1)
    v = v / scale
    factor = per_batch(c, x) * inner(x, v)
    return _tangent(x[..., 1:], v[..., 1:] + factor[..., None] * x[..., 1:], c) * scale


def _space(*points: Point) -> Sequence[Space]:
    """Space components of points and tangent vectors, with the same batch axes.

    Raises:
      ValueError: for different dimensions, which arithmetic would broadcast.
    """
    spaces = [as_float(point)[..., 1:] for point in points]
    for other in points[1:]:
        same_length(points[0], other)
    return jnp.broadcast_arrays(*spaces)


def _rescaled(
    x: Point, y: Point, c: ArrayLike
) -> tuple[Float[Array, "*#batch 1"], Space, Space, Space, Scalar]:
    """`hyperboloid.rescale` of two points; raises ValueError for different dimensions."""
    x, y = _space(x, y)
    return hyperboloid.rescale(x, y, per_batch(c, x))


def direction(x: Point, y: Point, c: ArrayLike = 1.0) -> tuple[Scalar, Space]:
    """The way from x to y, split at x into radial and transverse: polar coordinates of a cone.

    y + c ⟨x, y⟩ x is the tangent vector at x that points to y, of length sinh(√c d) / √c. Its
    radial component is along the unit tangent vector that points away from the origin. Errors are
    relative to the length of the whole: either component may vanish where the other does not.

    Args:
      x: points. At the origin, where no direction is radial, the radial component is 0, with
        gradient 0, and all of ``y`` is transverse. Points nearer to it than 1e-18 (float32; 2e-153
        in float64) count as the origin, for the second derivatives there are beyond the numbers.
      y: points.
      c: curvature, positive.

    Returns:
      The radial component τ_x p − τ_y r, and the transverse one, which is the part of y_space
      orthogonal to x_space. Both are 0 at y = x.
    """
    scale, x, y, difference, c = _rescaled(x, y, c)
    negligible = 16 / math.sqrt(float(jnp.finfo(x.dtype).max))
    _, _, radial, across = hyperboloid.components(x, y, difference, c, negligible / scale)
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
      arcosh(−c ⟨x, y⟩) / √c.
    """
    x, y = _space(x, y)
    return geodesic.distance(x, y, jnp.broadcast_to(per_batch(c, x), x.shape[:-1]))


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
    x, v = _space(x, v)
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
    x, y, v = _space(x, y, v)
    scale, x, y, difference, curvature = hyperboloid.rescale(x, y, per_batch(c, x))
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
    same_length(y, u)
    y, u = jnp.broadcast_arrays(y, u)
    curvature = per_batch(c, y)
    factor = curvature * dot(y, u) / (1 + jnp.sqrt(1 + curvature * dot(y, y)))
    return _tangent(y, u + factor[..., None] * y, c)
