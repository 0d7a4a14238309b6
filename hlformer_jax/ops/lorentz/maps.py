"""Points of the Lorentz model, tangent vectors, and the maps between them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike

from hlformer_jax.ops.arguments import (
    as_float,
    as_vectors,
    broadcast_number,
    common_batch,
    per_batch,
    shard_together,
    without_time,
)
from hlformer_jax.ops.lorentz import usual
from hlformer_jax.ops.lorentz.pairs import (
    Point,
    Scalar,
    Space,
    boost_to_origin,
    chord_of,
    displace,
    gradient,
    logarithm,
    point_from_space,
    rescale,
    space_components,
    split_tangent,
    squared_distance_of_pair,
    sum_pair,
    tangent_length,
    time_component,
    with_tangent_time,
)
from hlformer_jax.ops.numerics import (
    asinhc_sqrt,
    combine_ends,
    dot,
    is_between,
    largest_coordinate,
    limit_norm,
    limit_norm_and_square,
    max_hyperbolic_norm,
    safe_norm,
    safe_normalize,
    shortest_direction,
    sinhc_sqrt,
    weights_between,
    within_reach,
)
from hlformer_jax.typing import Array


def inner(x: Point, y: Point) -> Scalar:
    """Return the Lorentzian inner product of vectors of R^{n+1} (HLFormer, eq. 2).

    It uses the time components as given and may cancel: the error is relative to x_time y_time.
    """
    x, y = common_batch(x, y, least=2)
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def time(space: Space, c: ArrayLike = 1.0) -> Scalar:
    """Return the time component √(1/c + |space|²) of the point with these space components (eq. 1).

    Args:
      space: space components [*batch, n].
      c: curvature, positive; broadcasts to ``*batch``.
    """
    return from_space(space, c)[..., 0]


def from_space(space: Space, c: ArrayLike = 1.0) -> Point:
    """Return the point of the hyperboloid with these space components; see `time`."""
    space = as_vectors(space)
    return point_from_space(space, per_batch(c, space))


def project(x: Point, c: ArrayLike = 1.0) -> Point:
    """Replace the time component by the one that puts the point on the hyperboloid."""
    return from_space(without_time(x), c)


def time_error(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the relative error of the time component: |x_time − time(x_space)| / time(x_space)."""
    x = as_vectors(x, least=2)
    want = time(x[..., 1:], c)
    return jnp.abs(x[..., 0] - want) / want


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike | None = None) -> Point:
    """Return the point [1/√c, 0, …, 0] with n + 1 coordinates, once for each entry of c.

    Args:
      n: dimension of the space.
      c: curvature, positive; a number or an array of any shape.
      dtype: dtype of the result; float32 if it is narrower. By default it is the dtype of ``c`` if
        that is an array, else JAX's default (float64 in x64 mode).

    Returns:
      Points [*c.shape, n + 1].
    """
    if dtype is None:
        dtype = jnp.asarray(c).dtype if isinstance(c, jax.Array | np.ndarray) else float
    return from_space(as_float(jnp.zeros((*jnp.shape(c), n), dtype)), c)


def antipode(x: Point, c: ArrayLike = 1.0) -> Point:
    """Return the reflection of x in the origin: the space components are negated."""
    return from_space(-without_time(x), c)


def tangent_norm(x: Point, v: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the length √⟨v, v⟩ of a tangent vector at x; its gradient is 0 at v = 0."""
    x, v = space_components(x, v)
    return tangent_length(x, v, per_batch(c, x))


def tangent_inner(x: Point, v: Point, w: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the inner product ⟨v, w⟩ of tangent vectors at x.

    The error is relative to eps √c x_time |v| |w|, the effect of rounding v and w. The error of
    `inner`, which takes any vectors, is relative to eps v_time w_time.
    """
    x, v, w = space_components(x, v, w)
    x = x * jnp.sqrt(per_batch(c, x))[..., None]
    is_near, tau = dot(x, x) <= 1, jnp.sqrt(1 + dot(x, x))
    part_v, part_w = split_tangent(x, v), split_tangent(x, w)
    lean_v = jnp.where(is_near, dot(x, v), part_v.along) / tau
    lean_w = jnp.where(is_near, dot(x, w), part_w.along) / tau
    rest = lean_v * lean_w
    return dot(part_v.across, part_w.across) + jnp.where(is_near, -rest, rest)


def project_tangent(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Project a vector of R^{n+1} onto the tangent space at x: v + c ⟨x, v⟩ x (HLFormer, eq. 3).

    The error is relative to c x_time² |v|, not to the result: the two terms may cancel, and then
    rounding the coordinates of v has an equally large effect. Results that are too large for the
    dtype are infinite, with the right sign.
    """
    x, v = common_batch(x, v, least=2)
    x = project(x, c)
    # The map is linear in v. Scale a long v down: intermediate results might overflow to inf - inf.
    scale = jnp.maximum(largest_coordinate(v), 1)
    v = v / scale
    factor = per_batch(c, x) * inner(x, v)
    return with_tangent_time(x[..., 1:], v[..., 1:] + factor[..., None] * x[..., 1:], c) * scale


def exp_map0(u: Space, c: ArrayLike = 1.0) -> Point:
    """Apply the exponential map at the origin: space components sinh(√c |u|) u / (√c |u|).

    If √c |u| exceeds `max_hyperbolic_norm` (31.9 in float32, 72.1 in float64), u is shortened to
    that length, and the gradient is taken through the shortening (HLFormer, eqs. 4 and 11).
    """
    u = as_vectors(u)
    curvature = per_batch(c, u)
    u, square = limit_norm_and_square(u, max_hyperbolic_norm(u.dtype) / jnp.sqrt(curvature))
    return point_from_space(u * sinhc_sqrt(curvature * square)[..., None], curvature)


def log_map0(x: Point, c: ArrayLike = 1.0) -> Space:
    """Apply the logarithmic map at the origin, the inverse of `exp_map0` (HLFormer, eqs. 5, 16)."""
    space = without_time(x)
    return space * asinhc_sqrt(per_batch(c, space) * dot(space, space))[..., None]


def exp_map(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Apply the exponential map cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|) at x (HLFormer, eq. 4).

    If the geodesic passes near the origin, the relative error is up to 6 eps · c x_time². That is
    the effect of rounding v, whose space components are up to √c x_time times as long as v. The
    vector is shortened if √c times the sum of its length and of the distance of x from the origin
    exceeds `max_hyperbolic_norm`; the gradient treats the factor of the shortening as a constant.
    """
    x, v = space_components(x, v)
    c = per_batch(c, x)
    return point_from_space(displace(x, v, c), c)


def log_map(x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """Return the tangent vector at x that leads to y, as long as their distance (HLFormer, eq. 5).

    This logarithmic map is the inverse of `exp_map`, and smooth at y = x.
    """
    x, y = common_batch(x, y, least=2)
    return usual.logarithm(x, y, per_batch(c, x))


def retract(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Return the point with space components x + v, which equals `exp_map` to first order in v."""
    x, v = space_components(x, v)
    return point_from_space(x + v, per_batch(c, x))


def geodesic(t: ArrayLike, x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """Return the point at the fraction t of the way from x to y.

    It is exp_map(x, t log_map(x, y)), computed as the sum of x and y with the weights of
    `numerics.weights_between`, because a rounded tangent vector would lead far from the geodesic.

    Args:
      t: fractions; outside [0, 1] the point lies beyond x or y. Far beyond an end, by more than the
        whole way or for ends that are more than 0.96/√c apart, the error is that of `exp_map`. It
        broadcasts with ``*batch`` and may have more axes: shape [50] gives 50 points of one
        geodesic, and [50, 1] gives 50 points of each of N geodesics.
      x: starts.
      y: ends.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    x, y = space_components(x, y)
    c = per_batch(c, x)
    rise = c * usual.squared_distance(x, y, c) / 4
    t, x, y, rise, c = broadcast_number(t, x, y, rise[..., None], c[..., None])
    c = c[..., 0]
    a, b, rest = weights_between(t, rise)
    # Near an end, that end plus small terms: in the sum of both, derivatives would cancel.
    near_x, near_y = (a >= b) & (a > 0.4), (b > a) & (b > 0.4)
    by_x = jnp.where(near_x, 1 - rest, jnp.where(near_y, 0, a))
    by_y = jnp.where(near_y, 1 - rest, jnp.where(near_x, 0, b))
    by_difference = jnp.where(near_x, b, jnp.where(near_y, -a, 0))
    weights = by_x, by_y, by_difference

    def move(x: Space, y: Space, t: Array) -> Space:
        return displace(x, t * logarithm(x, y, c)[..., 1:], c)

    return point_from_space(combine_ends(weights, is_between(t, rise), t, x, y, move), c)


def geodesic_unit(t: ArrayLike, x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Return the point exp_map(x, t v / |v|) at a distance t from x in the direction v.

    Args:
      t: distances, of a shape as in `geodesic`.
      x: starts.
      v: tangent vectors at x, of any length; a zero vector gives x. A vector whose coordinates are
        all below 1e-18 (float32; 2e-153 in float64) counts as zero.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    x, v = space_components(x, v)
    c = per_batch(c, x)
    along, _ = safe_normalize(v, shortest_direction(v.dtype))
    length = tangent_length(x, along, c)
    along = along / jnp.where(length == 0, 1, length)[..., None]
    t, along, x = broadcast_number(t, along, x)
    x, way = jnp.broadcast_arrays(x, t * along)
    return point_from_space(displace(x, way, per_batch(c, x)), per_batch(c, x))


def parallel_transport(x: Point, y: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Transport v from x to y along the geodesic: v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩)."""
    x, y, v = common_batch(x, y, v, least=2)
    return usual.transport(x, y, v, per_batch(c, x))


def transport0(y: Point, u: Space, c: ArrayLike = 1.0) -> Point:
    """Transport a tangent vector from the origin to y: u + (c y · u / (1 + τ_y)) y, τ = √c time."""
    y, u = common_batch(without_time(y), u)
    curvature = per_batch(c, y)
    factor = curvature * dot(y, u) / (1 + jnp.sqrt(1 + curvature * dot(y, y)))
    return with_tangent_time(y, u + factor[..., None] * y, c)


def egrad_to_rgrad(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Point:
    """Return the Riemannian gradient of a function at x, from its gradient in all coordinates.

    The time component depends on the space components, so the gradient in the space components is
    h = gradient_space + gradient_time x / x_time. The Riemannian gradient is the tangent vector
    with space components h + c (x · h) x. It equals the projection of the gradient with its time
    component negated, and its inner product with a tangent vector is the derivative along that
    vector (Nickel and Kiela, Learning continuous hierarchies in the Lorentz model, ICML 2018).
    """
    x, space, c = _chart_gradient(x, gradient, c)
    return with_tangent_time(x, space + (c * dot(x, space))[..., None] * x, c)


def gradient_in_frame(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Space:
    """Return the Riemannian gradient at x in the frame that is transported from the origin.

    With h as in `egrad_to_rgrad`, the coordinates are h + c (x · h) x / (1 + τ_x). Their norm is
    the length of the Riemannian gradient.
    """
    x, space, c = _chart_gradient(x, gradient, c)
    share = c * dot(x, space) / (1 + jnp.sqrt(1 + c * dot(x, x)))
    return space + share[..., None] * x


def _chart_gradient(x: Point, gradient: Point, c: ArrayLike) -> tuple[Space, Space, Scalar]:
    """Return the space components of x, the gradient in them, and the curvature per point."""
    x, gradient = common_batch(x, gradient, least=2)
    x = x[..., 1:]
    c = per_batch(c, x)
    return x, gradient[..., 1:] + gradient[..., :1] * (x / time_component(x, c)[..., None]), c


def direction(x: Point, y: Point, c: ArrayLike = 1.0) -> tuple[Scalar, Space]:
    """Split the tangent vector at x towards y into a radial and a transverse component.

    The vector is y + c ⟨x, y⟩ x, of length sinh(√c d) / √c for the distance d. With r = |x_space|
    and p = y_space · x_space / r, the radial component is τ_x p − τ_y r, along the unit tangent
    vector that points away from the origin. The transverse component is the part of y_space
    orthogonal to x_space. Both are 0 at y = x. Errors are relative to the length of the vector, not
    to each component.

    At the origin no direction is radial: the radial component is 0, with gradient 0, and all of
    ``y`` is transverse. Points nearer to the origin than 1e-18 (float32; 2e-153 in float64) count
    as the origin, because second derivatives there would overflow.

    Returns:
      The radial components [*batch] and the transverse components [*batch, n].
    """
    x, y = space_components(x, y)
    pair = rescale(x, y, per_batch(c, x))
    outward, r = safe_normalize(pair.x, shortest_direction(x.dtype) / pair.scale[..., None])
    slope, chord = gradient(pair)
    aligned = chord.aligned & (r > 0)
    p = dot(outward, pair.y)
    radial = jnp.where(aligned, slope.turn * r, chord.tau_x * p - chord.tau_y * r)
    end = jnp.where(r[..., None] > 0, pair.y, -pair.difference)
    across = jnp.where(aligned[..., None], -slope.vector, end - p[..., None] * outward)
    return radial * pair.scale, across * pair.scale[..., None]


def squared_distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the squared Lorentzian distance ⟨x − y, x − y⟩ = −2/c − 2⟨x, y⟩; smooth everywhere.

    It is (4/c) sinh²(√c d / 2) for the geodesic distance d (HLFormer, below eq. 15). At y = x it
    has the first and second derivatives of d².
    """
    x, y = space_components(x, y)
    return squared_distance_of_pair(x, y, per_batch(c, x))


def distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the geodesic distance arcosh(−c ⟨x, y⟩) / √c, with gradient 0 at the kink y = x.

    So the second derivatives of its square are 0 there, too. Where they matter use
    `squared_distance`, which is the square to second order, or the square of the logarithm,
    ``tangent_inner(x, v, v, c)`` with ``v = log_map(x, y, c)``.
    """
    x, y = common_batch(x, y, least=2)
    c = jnp.broadcast_to(per_batch(c, x), x.shape[:-1])
    return usual.distance(*shard_together(c.ndim, x, y, c))


def distance0(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the distance from the origin, arsinh(√c |x_space|) / √c, with gradient 0 there."""
    space = without_time(x)
    return safe_norm(space) * asinhc_sqrt(per_batch(c, space) * dot(space, space))


def limit_distance0(x: Point, limit: ArrayLike, c: ArrayLike = 1.0) -> Point:
    """Move points that are farther than ``limit`` from the origin radially to that distance.

    Other points keep their space components bit for bit. The gradient of a point that was moved has
    no radial part.

    Args:
      x: points.
      limit: largest geodesic distance from the origin, positive, may be infinite; broadcasts like
        ``c``.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    space = without_time(x)
    limit, c = per_batch(limit, space, "limit"), per_batch(c, space)
    limit = within_reach(limit, c)
    return point_from_space(limit_norm(space, limit * sinhc_sqrt(c * limit * limit)), c)


def boost(to: Point, x: Point, c: ArrayLike = 1.0) -> Point:
    """Apply the boost that takes the origin to ``to``: Möbius addition in the Lorentz model.

    With a = to_space and τ = √c time, the space components of the result are
    x + (τ_x + c a · x / (1 + τ_a)) a. `boost(antipode(to), x)` is x as seen from ``to``, and is
    exact for near points, because it is computed from coordinate differences as in `direction`
    (Chen et al., Fully hyperbolic neural networks, ACL 2022). Results farther out than exponential
    maps reach (`max_hyperbolic_norm`) are moved radially to that distance; the gradient
    treats the factor as a constant.

    Args:
      to: points that the origin is moved to.
      x: points to move.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    to, x = space_components(to, x)
    curvature = per_batch(c, x)
    pair = rescale(-to, x, curvature)
    moved, chord = boost_to_origin(pair)
    tau = jax.lax.stop_gradient(1 + pair.c * chord.m / 2)  # √c time of the result
    shorten = jnp.minimum(math.cosh(max_hyperbolic_norm(tau.dtype)) / tau, 1)
    return point_from_space(moved * (pair.scale * shorten)[..., None], curvature)


def transport_in_frame(x: Point, y: Point, u: Space, c: ArrayLike = 1.0) -> Space:
    """Transport u from x to y, with coordinates in the frames transported from the origin.

    It is a rotation in the plane of x_space and y_space, which is `poincare.gyration` by y and −x:
    u + 2 (T + T²) u / (1 + s²), where T u = c ((y_⊥ · u) x − (x · u) y_⊥) / R for the part y_⊥ of
    y_space orthogonal to x_space, R = τ_x + τ_y + 1 − c ⟨x, y⟩, and s = c |x_space| |y_⊥| / R is
    the tangent of half the angle. In the ball far points would be rounded to the sphere.
    """
    x, y, u = common_batch(without_time(x), without_time(y), u)
    pair = rescale(x, y, per_batch(c, x))
    sums, across = sum_pair(pair.x, pair.y)
    chord = chord_of(sums, pair.c)
    # Both vectors times √c; y_⊥ is also divided by R, which may be as large as τ_x τ_y.
    root = jnp.sqrt(pair.c)
    start = pair.x * root[..., None]
    size = chord.tau_x + chord.tau_y + 2 + pair.c * chord.m / 2
    side = across * -(root / size)[..., None]

    def turn(u: Space) -> Space:
        return dot(side, u)[..., None] * start - dot(start, u)[..., None] * side

    once = turn(u)
    factor = 2 / (1 + dot(start, start) * dot(side, side))
    return u + factor[..., None] * (once + turn(once))


def log_map_in_frame(x: Point, y: Point, c: ArrayLike = 1.0) -> Space:
    """Return the logarithm of y at x, in the frame that is parallel transported from the origin."""
    x, y = space_components(x, y)
    pair = rescale(x, y, per_batch(c, x))
    moved, chord = boost_to_origin(pair)
    # The factors of `logarithm`, one by one: `moved` may be so long that its square overflows.
    z = pair.c * chord.m / 4
    return moved / jnp.sqrt(1 + z)[..., None] * (asinhc_sqrt(z) * pair.scale)[..., None]
