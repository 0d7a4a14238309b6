"""Points of the Lorentz model, tangent vectors, and the maps between them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike

from hlformer_jax.ops.lorentz.pairs import (
    Point,
    Scalar,
    Space,
    displace,
    distance_of_pair,
    gradient,
    inner_with_end,
    logarithm,
    point_from_space,
    rescale,
    space_components,
    split_tangent,
    squared_distance_of_pair,
    tangent_length,
    time_component,
    with_tangent_time,
)
from hlformer_jax.ops.numerics import (
    as_float,
    asinhc_sqrt,
    broadcast_number,
    common_batch,
    dot,
    largest_coordinate,
    limit_norm,
    limit_norm_and_square,
    max_hyperbolic_norm,
    per_batch,
    safe_norm,
    safe_normalize,
    shortest_direction,
    sinhc_sqrt,
)


def inner(x: Point, y: Point) -> Scalar:
    """Lorentzian inner product of vectors of R^{n+1} (HLFormer, eq. 2).

    It uses the given coordinates, and cancels: its error is relative to x_time y_time.
    """
    x, y = as_float(x), as_float(y)
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def time(space: Space, c: ArrayLike = 1.0) -> Scalar:
    """Time component √(1/c + |space|²) of the point with these space components (eq. 1)."""
    return from_space(space, c)[..., 0]


def from_space(space: Space, c: ArrayLike = 1.0) -> Point:
    """The point of the hyperboloid with these space components; see `time`."""
    space = as_float(space)
    return point_from_space(space, per_batch(c, space))


def project(x: Point, c: ArrayLike = 1.0) -> Point:
    """Replaces the time component by the one that puts the point on the hyperboloid."""
    return from_space(as_float(x)[..., 1:], c)


def time_error(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """Relative error of the time component: |x_time − time(x_space)| / time(x_space)."""
    x = as_float(x)
    want = time(x[..., 1:], c)
    return jnp.abs(x[..., 0] - want) / want


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike | None = None) -> Point:
    """The point [1/√c, 0, …, 0] with n + 1 coordinates, once for each entry of c.

    ``dtype`` is float32 for narrower ones; None takes it from ``c`` if it is an array, else JAX's
    default (float64 in x64 mode).
    """
    if dtype is None:
        dtype = jnp.asarray(c).dtype if isinstance(c, jax.Array | np.ndarray) else float
    return from_space(as_float(jnp.zeros((*jnp.shape(c), n), dtype)), c)


def antipode(x: Point, c: ArrayLike = 1.0) -> Point:
    """The point as far from the origin on the other side: the space components are negated."""
    return from_space(-as_float(x)[..., 1:], c)


def tangent_norm(x: Point, v: Point, c: ArrayLike = 1.0) -> Scalar:
    """Length √⟨v, v⟩ of a tangent vector at x; gradient 0 at v = 0."""
    x, v = space_components(x, v)
    return tangent_length(x, v, per_batch(c, x))


def tangent_inner(x: Point, v: Point, w: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the inner product ⟨v, w⟩ of tangent vectors at x.

    Its error is relative to eps √c x_time |v| |w|, the effect of rounding v and w; that in `inner`,
    the product of any vectors, to eps v_time w_time.
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
    """Projects a vector of R^{n+1} onto the tangent space at x: v + c ⟨x, v⟩ x (HLFormer, eq. 3).

    Its error is relative to c x_time² |v|, not to the result: the two may cancel, and then the
    rounding of v's own coordinates has as large an effect. Results too large to be represented are
    infinite, with their sign.
    """
    x, v = common_batch(x, v)
    x = project(x, c)
    # It is linear in v, and a long v would overflow halfway: infinity less infinity.
    scale = jnp.maximum(largest_coordinate(v), 1)
    v = v / scale
    factor = per_batch(c, x) * inner(x, v)
    return with_tangent_time(x[..., 1:], v[..., 1:] + factor[..., None] * x[..., 1:], c) * scale


def exp_map0(u: Space, c: ArrayLike = 1.0) -> Point:
    """Exponential map at the origin: space components sinh(√c |u|) u / (√c |u|).

    Where √c |u| exceeds `max_hyperbolic_norm` (31.9 in float32, 72.1 in float64) the vector is
    shortened to it, and the gradient belongs to the shortened vector (HLFormer, eqs. 4 and 11).
    """
    u = as_float(u)
    curvature = per_batch(c, u)
    u, square = limit_norm_and_square(u, max_hyperbolic_norm(u.dtype) / jnp.sqrt(curvature))
    return point_from_space(u * sinhc_sqrt(curvature * square)[..., None], curvature)


def log_map0(x: Point, c: ArrayLike = 1.0) -> Space:
    """Logarithmic map at the origin, the inverse of `exp_map0` (HLFormer, eqs. 5 and 16)."""
    space = as_float(x)[..., 1:]
    return space * asinhc_sqrt(per_batch(c, space) * dot(space, space))[..., None]


def exp_map(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Exponential map cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|) at x (HLFormer, eq. 4).

    Where the geodesic passes near the origin the relative error is up to 6 eps · c x_time²: that is
    the effect of rounding v, whose space components are up to √c x_time times as long as v. Vectors
    are shortened where √c times their length plus the distance of x from the origin exceeds
    `max_hyperbolic_norm`, by a factor held constant.
    """
    x, v = space_components(x, v)
    c = per_batch(c, x)
    return point_from_space(displace(x, v, c), c)


def log_map(x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """Logarithmic map at x, the inverse of `exp_map`; smooth at y = x (HLFormer, eq. 5).

    Tangent vectors at x that lead to y, with the distance for length.
    """
    x, y = space_components(x, y)
    pair = rescale(x, y, per_batch(c, x))
    scale = pair.scale[..., None]
    return with_tangent_time(pair.x * scale, logarithm(pair) * scale, c)


def retract(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point with space components x + v, to first order in v the exponential map."""
    x, v = space_components(x, v)
    return point_from_space(x + v, per_batch(c, x))


def geodesic(t: ArrayLike, x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """The point exp_map(x, t log_map(x, y)) at the share t of the way from x to y.

    ``t`` broadcasts with ``*batch`` and may have more axes: 50 points of one way are those at t
    [50], and of N ways those at t [50, 1]. Outside [0, 1] the point is beyond x or y.
    """
    t, v, x = broadcast_number(t, log_map(x, y, c), as_float(x))
    return exp_map(x, t * v, c)


def geodesic_unit(t: ArrayLike, x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point exp_map(x, t v / |v|) at a distance t from x in the direction v.

    ``t`` is as in `geodesic`; ``v`` has any length, and where it is 0 the result is x.
    Coordinates below 1e-18 (float32; 2e-153 in float64) count as 0.
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
    """Transports v to y along the geodesic: v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩)."""
    x, y, v = space_components(x, y, v)
    pair = rescale(x, y, per_batch(c, x))
    rise = inner_with_end(pair, v)
    # As a root, which is applied twice: squared it would underflow.
    root = 1 / jnp.sqrt(2 + pair.c * gradient(pair)[1].m / 2)
    factor = pair.c * (rise * root) * root
    moved = v + factor[..., None] * (pair.x + pair.y)
    return with_tangent_time(pair.y * pair.scale[..., None], moved, c)


def transport0(y: Point, u: Space, c: ArrayLike = 1.0) -> Point:
    """Transports a tangent vector from the origin to y, where it is u + (c y · u / (1 + τ_y)) y."""
    y, u = common_batch(as_float(y)[..., 1:], u)
    curvature = per_batch(c, y)
    factor = curvature * dot(y, u) / (1 + jnp.sqrt(1 + curvature * dot(y, y)))
    return with_tangent_time(y, u + factor[..., None] * y, c)


def egrad_to_rgrad(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Point:
    """Riemannian gradient of a function at x, from its gradient in the coordinates.

    With h = gradient_space + gradient_time x / x_time, the gradient in the space components as
    `jax.grad` gives it (the time component depends on them), it is the tangent vector with space
    components h + c (x · h) x: the projection of the gradient with its time component negated. Its
    inner product with a tangent vector is the derivative along that (Nickel and Kiela, Learning
    continuous hierarchies in the Lorentz model, ICML 2018).
    """
    x, space, c = _chart_gradient(x, gradient, c)
    return with_tangent_time(x, space + (c * dot(x, space))[..., None] * x, c)


def gradient_in_frame(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Space:
    """The Riemannian gradient at x, transported to the origin: its coordinates in that frame.

    With h as in `egrad_to_rgrad` they are h + c (x · h) x / (1 + τ_x), as long as the gradient.
    """
    x, space, c = _chart_gradient(x, gradient, c)
    share = c * dot(x, space) / (1 + jnp.sqrt(1 + c * dot(x, x)))
    return space + share[..., None] * x


def _chart_gradient(x: Point, gradient: Point, c: ArrayLike) -> tuple[Space, Space, Scalar]:
    """Space components of x, the gradient in them, and the curvature."""
    x, gradient = common_batch(x, gradient)
    x = x[..., 1:]
    c = per_batch(c, x)
    return x, gradient[..., 1:] + gradient[..., :1] * (x / time_component(x, c)[..., None]), c


def direction(x: Point, y: Point, c: ArrayLike = 1.0) -> tuple[Scalar, Space]:
    """The way from x to y, split at x into radial and transverse: polar coordinates of a cone.

    y + c ⟨x, y⟩ x is the tangent vector at x that points to y, of length sinh(√c d) / √c. Its
    radial component τ_x p − τ_y r is along the unit tangent vector that points away from the
    origin, and its transverse one is the part of y_space orthogonal to x_space; both are 0 at y =
    x. Errors are relative to the length of the whole: either component may vanish where the other
    does not.

    At the origin, where no direction is radial, the radial component is 0, with gradient 0, and all
    of ``y`` is transverse. Points nearer to it than 1e-18 (float32; 2e-153 in float64) count as the
    origin, for the second derivatives there are beyond the numbers.
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
    """Squared Lorentzian distance ⟨x − y, x − y⟩ = −2/c − 2⟨x, y⟩; smooth everywhere.

    It is (4/c) sinh²(√c d / 2) for the geodesic distance d (HLFormer, below eq. 15).
    """
    x, y = space_components(x, y)
    return squared_distance_of_pair(x, y, per_batch(c, x))


def distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance arcosh(−c ⟨x, y⟩) / √c; at y = x, where it has none, its gradient is 0."""
    x, y = space_components(x, y)
    return distance_of_pair(x, y, jnp.broadcast_to(per_batch(c, x), x.shape[:-1]))


def distance0(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance from the origin, arsinh(√c |x_space|) / √c; gradient 0 there."""
    space = as_float(x)[..., 1:]
    return safe_norm(space) * asinhc_sqrt(per_batch(c, space) * dot(space, space))


def limit_distance0(x: Point, limit: ArrayLike, c: ArrayLike = 1.0) -> Point:
    """Moves points farther than ``limit`` from the origin radially to that distance.

    The limit is positive and broadcasts as ``c`` does. Points near enough keep their space
    components bit for bit; the gradient of a point that was moved is tangential.
    """
    space = as_float(x)[..., 1:]
    limit, c = per_batch(limit, space, "limit"), per_batch(c, space)
    return point_from_space(limit_norm(space, limit * sinhc_sqrt(c * limit * limit)), c)


def boost(to: Point, x: Point, c: ArrayLike = 1.0) -> Point:
    """The boost that takes the origin to a point; it is Möbius addition in the Lorentz model.

    It moves x to the space components x + (τ_x + c a · x / (1 + τ_a)) a for a = to_space and
    τ = √c time. `boost(antipode(to), x)` is x as seen from ``to``: its polar
    coordinates there come from `direction`, from differences that are exact for near points
    (Chen et al., Fully hyperbolic neural networks, ACL 2022).
    """
    to, x = space_components(to, x)
    curvature = per_batch(c, x)
    pair = rescale(-to, x, curvature)
    slope, chord = gradient(pair)
    # As a root, which is applied twice: far out the gradient in a single factor would overflow.
    root = 1 / jnp.sqrt(1 + chord.tau_x)
    farther = pair.c * (dot(pair.x, pair.y) * root) * root - chord.tau_y
    reach = jnp.where(chord.aligned, slope.turn, farther)
    moved = reach[..., None] * pair.x - slope.vector
    return point_from_space(moved * pair.scale[..., None], curvature)


def log_map_in_frame(x: Point, y: Point, c: ArrayLike = 1.0) -> Space:
    """The logarithm of y at x, in the frame that parallel transport brings from the origin to x."""
    return log_map0(boost(antipode(x, c), y, c), c)
