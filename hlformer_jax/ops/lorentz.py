"""The Lorentz model of hyperbolic space: points, distances, maps, transport, centroid, hyperplanes.

Convention: the curvature is −c with c > 0. A point is x = [x_time, x_space] in R^{n+1}, time first,

    ⟨x, y⟩ = −x_time y_time + x_space · y_space,    ⟨x, x⟩ = −1/c,    x_time = √(1/c + |x_space|²),

and a tangent vector v at x has ⟨x, v⟩ = 0. Space components determine either, and far from the
origin time components have lost to rounding what tells near points apart. So all functions but
`inner`, `pairwise_inner` and `centroid` with ``exact=False`` read space components only, and
gradients reach these alone. An optimiser of whole points leaves their time components behind, which
those three and Lorentz attention use: optimise tangent vectors or space components, `project` after
each update, or use `optim.riemannian`. `time_error` measures what has become of them.

Arguments: x, y and the like are points, v tangent vectors at the point before them, u the space
components of tangent vectors at the origin, whose time component is 0, and c is the curvature,
positive; docstrings name the others. All arguments have the same number of leading axes,
``*batch``, in which axes of length 1 broadcast. ``c`` is a number or an array that broadcasts to
``*batch``: it has no more axes than that, is aligned with the last of them, never with the
coordinates, and does not lengthen any. For points [N, n+1] it is [], [1] or [N]; [N, 1] is an
error. It is the same rule in `cones` and `poincare`.

Points are arrays, not lists (TypeError). Arrays narrower than float32 are computed, and returned,
in float32; so are integers, those of 64 bits (JAX's x64 mode) in float64; complex numbers are
refused. ValueError is raised for vectors of different lengths and batches that do not broadcast.

Relative errors, in the norm of a result that is a vector, are below 1e-12 in float64 and 2e-5 in
float32 for √c · norm up to 25, unless a docstring says otherwise. Values and gradients are finite
for points as far out as the exponential maps go, √c times the distance from the origin 31.9 in
float32 and 72.1 in float64, and, in float32, for c from 1e-22 to 1e18, where they can be
represented (the gradient in c of a squared distance m is of the size of m / c). Distances below
1e-19 (float32; 1e-154 in float64) times the smaller of 1 and the largest coordinate of the two
points come out as 0. Docs/geometry.md has the forms, in "How formulas keep their digits".

References:
  HLFormer, section 3.1, eqs. 1-6. Law, Liao, Snell and Zemel, Lorentzian distance learning for
  hyperbolic representations, ICML 2019, for the centroid. Bdeir, Schwethelm and Landwehr, Fully
  hyperbolic convolutional neural networks, ICLR 2024, for hyperplanes.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops.numerics import (
    align_sets,
    as_float,
    asinhc_sqrt,
    broadcast_number,
    check_positive,
    common_batch,
    cosh_sqrt,
    dot,
    inverse,
    largest_coordinate,
    limit_norm,
    limit_norm_and_square,
    logits,
    max_hyperbolic_norm,
    mean_weights,
    per_batch,
    replace_near,
    safe_norm,
    safe_normalize,
    safe_sqrt,
    same_length,
    scaled_asinh,
    shortest_direction,
    sinhc_sqrt,
    smallest,
    split_coordinates,
    sum_products,
    unit,
)
from hlformer_jax.typing import Array

Space = Float[Array, "*#batch n"]
Scalar = Float[Array, "*#batch"]
Point = Float[Array, "*#batch n1"]

# Pairs of a set whose m / 2 is a smaller share of (τ_x τ_y − 1) / c are computed one by one: of
# random pairs none is.
_NEAR = 1 / 16


def inner(x: Point, y: Point) -> Scalar:
    """Lorentzian inner product of vectors of R^{n+1} (HLFormer, eq. 2).

    It is that of the given coordinates, and cancels: its error is relative to x_time y_time.
    """
    x, y = as_float(x), as_float(y)
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def time(space: Space, c: ArrayLike = 1.0) -> Scalar:
    """Time component √(1/c + |space|²) of the point with these space components (eq. 1)."""
    return from_space(space, c)[..., 0]


def from_space(space: Space, c: ArrayLike = 1.0) -> Point:
    """The point of the hyperboloid with these space components; see `time`."""
    space = as_float(space)
    return _from_space(space, per_batch(c, space))


def project(x: Point, c: ArrayLike = 1.0) -> Point:
    """Replaces the time component by the one that puts the point on the hyperboloid."""
    return from_space(as_float(x)[..., 1:], c)


def time_error(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """How far a point is off the hyperboloid: |x_time − time(x_space)| / time(x_space)."""
    x = as_float(x)
    want = time(x[..., 1:], c)
    return jnp.abs(x[..., 0] - want) / want


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike | None = None) -> Point:
    """The point [1/√c, 0, …, 0] with n + 1 coordinates, once for each entry of c.

    ``dtype`` is float32 for what is narrower; None is that of ``c`` if it is an array, else JAX's
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
    x, v = _spaces(x, v)
    return _tangent_norm(x, v, per_batch(c, x))


def tangent_inner(x: Point, v: Point, w: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the inner product ⟨v, w⟩ of tangent vectors at x.

    Its error is relative to eps √c x_time |v| |w|, the effect of rounding v and w; that of `inner`,
    the product of any vectors, to eps v_time w_time.
    """
    x, v, w = _spaces(x, v, w)
    x = x * jnp.sqrt(per_batch(c, x))[..., None]
    near, tau = dot(x, x) <= 1, jnp.sqrt(1 + dot(x, x))
    (along_v, across_v), (along_w, across_w) = (_split(x, u)[2:4] for u in (v, w))
    lean_v, lean_w = (jnp.where(near, dot(x, u), a) / tau for u, a in ((v, along_v), (w, along_w)))
    rest = lean_v * lean_w
    return dot(across_v, across_w) + jnp.where(near, -rest, rest)


def project_tangent(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Projects a vector of R^{n+1} onto the tangent space at x: v + c ⟨x, v⟩ x (HLFormer, eq. 3).

    Its error is relative to c x_time² |v|, not to the result: the two may cancel, and then the
    rounding of v's own coordinates has as large an effect. What is too large to be represented is
    infinite, with its sign.
    """
    x, v = common_batch(x, v)
    x = project(x, c)
    # It is linear in v, of which a long one would overflow halfway: infinity less infinity.
    scale = jnp.maximum(largest_coordinate(v), 1)
    v = v / scale
    factor = per_batch(c, x) * inner(x, v)
    return _with_tangent_time(x[..., 1:], v[..., 1:] + factor[..., None] * x[..., 1:], c) * scale


def exp_map0(u: Space, c: ArrayLike = 1.0) -> Point:
    """Exponential map at the origin: space components sinh(√c |u|) u / (√c |u|).

    Where √c |u| exceeds `max_hyperbolic_norm` (31.9 in float32, 72.1 in float64) the vector is
    shortened to it, and the gradient is that of the shortened vector (HLFormer, eqs. 4 and 11).
    """
    u = as_float(u)
    curvature = per_batch(c, u)
    u, square = limit_norm_and_square(u, max_hyperbolic_norm(u.dtype) / jnp.sqrt(curvature))
    return _from_space(u * sinhc_sqrt(curvature * square)[..., None], curvature)


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
    x, v = _spaces(x, v)
    c = per_batch(c, x)
    return _from_space(_displace(x, v, c), c)


def log_map(x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """Logarithmic map at x, the inverse of `exp_map`; smooth at y = x (HLFormer, eq. 5).

    Tangent vectors at x that lead to y, with the distance for length.
    """
    x, y = _spaces(x, y)
    scale, *pair = _rescale(x, y, per_batch(c, x))
    return _with_tangent_time(pair[0] * scale, _towards(*pair) * scale, c)


def retract(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point with space components x + v, to first order in v that of the exponential map."""
    x, v = _spaces(x, v)
    return _from_space(x + v, per_batch(c, x))


def geodesic(t: ArrayLike, x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """The point exp_map(x, t log_map(x, y)) at the share t of the way from x to y.

    ``t`` broadcasts with ``*batch`` and may have more axes: 50 points of one way are those at t
    [50], and of N ways those at t [50, 1]. Outside [0, 1] the point is beyond x or y.
    """
    t, v, x = broadcast_number(t, log_map(x, y, c), as_float(x))
    return exp_map(x, t * v, c)


def geodesic_unit(t: ArrayLike, x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point exp_map(x, t v / |v|) at a distance t from x in the direction v.

    ``t`` is that of `geodesic`; ``v`` has any length, and where it is 0 the result is x.
    Coordinates below 1e-18 (float32; 2e-153 in float64) count as 0.
    """
    x, v = _spaces(x, v)
    c = per_batch(c, x)
    along, _ = safe_normalize(v, shortest_direction(v.dtype))
    length = _tangent_norm(x, along, c)
    along = along / jnp.where(length == 0, 1, length)[..., None]
    t, along, x = broadcast_number(t, along, x)
    x, way = jnp.broadcast_arrays(x, t * along)
    return _from_space(_displace(x, way, per_batch(c, x)), per_batch(c, x))


def parallel_transport(x: Point, y: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Transports v to y along the geodesic: v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩)."""
    x, y, v = _spaces(x, y, v)
    scale, x, y, difference, curvature = _rescale(x, y, per_batch(c, x))
    rise = _inner_from(x, y, difference, v, curvature)
    # As a root, which is applied twice: squared it would underflow.
    root = 1 / jnp.sqrt(2 + curvature * _gradient(x, y, difference, curvature)[2][0] / 2)
    factor = curvature * (rise * root) * root
    return _with_tangent_time(y * scale, v + factor[..., None] * (x + y), c)


def transport0(y: Point, u: Space, c: ArrayLike = 1.0) -> Point:
    """Transports a tangent vector from the origin to y, where it is u + (c y · u / (1 + τ_y)) y."""
    y, u = common_batch(as_float(y)[..., 1:], u)
    curvature = per_batch(c, y)
    factor = curvature * dot(y, u) / (1 + jnp.sqrt(1 + curvature * dot(y, y)))
    return _with_tangent_time(y, u + factor[..., None] * y, c)


def egrad_to_rgrad(x: Point, gradient: Point, c: ArrayLike = 1.0) -> Point:
    """Riemannian gradient of a function at x, from its gradient in the coordinates.

    With h = gradient_space + gradient_time x / x_time, the gradient in the space components as
    `jax.grad` gives it (the time component depends on them), it is the tangent vector with space
    components h + c (x · h) x: the projection of the gradient with its time component negated. Its
    inner product with a tangent vector is the derivative along that (Nickel and Kiela, Learning
    continuous hierarchies in the Lorentz model, ICML 2018).
    """
    x, space, c = _chart_gradient(x, gradient, c)
    return _with_tangent_time(x, space + (c * dot(x, space))[..., None] * x, c)


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
    return x, gradient[..., 1:] + gradient[..., :1] * (x / _time(x, c)[..., None]), c


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
    x, y = _spaces(x, y)
    scale, x, y, difference, c = _rescale(x, y, per_batch(c, x))
    outward, r = safe_normalize(x, shortest_direction(x.dtype) / scale)
    back, turn, (_, aligned, tau_x, tau_y, _, _) = _gradient(x, y, difference, c)
    aligned = aligned & (r > 0)
    p = dot(outward, y)
    radial = jnp.where(aligned, turn * r, tau_x * p - tau_y * r)
    end = jnp.where(r[..., None] > 0, y, -difference)
    across = jnp.where(aligned[..., None], -back, end - p[..., None] * outward)
    return radial * jnp.squeeze(scale, -1), across * scale


def squared_distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Squared Lorentzian distance ⟨x − y, x − y⟩ = −2/c − 2⟨x, y⟩; smooth everywhere.

    It is (4/c) sinh²(√c d / 2) for the geodesic distance d (HLFormer, below eq. 15).
    """
    x, y = _spaces(x, y)
    return _squared_distance(x, y, per_batch(c, x))


def distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance arcosh(−c ⟨x, y⟩) / √c; at y = x, where it has none, its gradient is 0."""
    x, y = _spaces(x, y)
    return _distance(x, y, jnp.broadcast_to(per_batch(c, x), x.shape[:-1]))


def distance0(x: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance from the origin, arsinh(√c |x_space|) / √c; gradient 0 there."""
    space = as_float(x)[..., 1:]
    return safe_norm(space) * asinhc_sqrt(per_batch(c, space) * dot(space, space))


def limit_distance0(x: Point, limit: ArrayLike, c: ArrayLike = 1.0) -> Point:
    """Moves points farther than ``limit`` from the origin radially to that distance.

    The limit is positive and broadcasts as ``c`` does. What is near enough keeps its space
    components bit for bit; the gradient of a point that was moved is tangential.
    """
    space = as_float(x)[..., 1:]
    limit, c = per_batch(limit, space, "limit"), per_batch(c, space)
    return _from_space(limit_norm(space, limit * sinhc_sqrt(c * limit * limit)), c)


def pairwise_inner(
    x: Float[Array, "*#batch L n1"], y: Float[Array, "*#batch M n1"]
) -> Float[Array, "*#batch L M"]:
    """Lorentzian inner products ⟨x_i, y_j⟩ of all pairs, by one matrix product.

    At full float32 (or float64) precision whatever the device's default; with the error of `inner`:
    where a squared distance between near points counts, use `squared_distance`.
    """
    x, y = as_float(x), as_float(y)
    x = jnp.concatenate([-x[..., :1], x[..., 1:]], axis=-1)
    return jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=jax.lax.Precision.HIGHEST)


def pairwise_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Geodesic distances of all pairs, by one matrix product and, for near points, `distance`.

    With lift = (τ_x τ_y − 1) / c half the squared Lorentzian distance is lift − x · y. Where that
    is less than a sixteenth of lift the difference would amplify rounding by more than that; there
    the distance is taken from exact differences of coordinates, and costs what
    `numerics.replace_near` says; that of two equal points, and its gradient, is 0. Elsewhere its
    relative error is below 8 eps times the error of x · y in units of eps |x| |y|: a few, at most
    n / 2, for n coordinates.
    """
    x, y, c = align_sets(as_float(x)[..., 1:], as_float(y)[..., 1:], c)
    m, near = _chords(x, y, c)
    far = safe_sqrt(m) * asinhc_sqrt(c[..., None, None] * m / 4)
    return replace_near(far, near, x, y, c, _distance)


def pairwise_squared_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Squared Lorentzian distances of all pairs; time, memory and error as `pairwise_distance`."""
    x, y, c = align_sets(as_float(x)[..., 1:], as_float(y)[..., 1:], c)
    m, near = _chords(x, y, c)
    return replace_near(m, near, x, y, c, _squared_distance)


def _squared_distance(x: Array, y: Array, c: Array) -> Array:
    scale, *pair = _rescale(x, y, c)
    return _gradient(*pair)[2][0] * jnp.squeeze(scale, -1) ** 2


def _chords(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: Float[Array, "*#batch"]
) -> tuple[Float[Array, "*#batch M N"], Bool[Array, "*#batch M N"]]:
    """Squared Lorentzian distances of all pairs, 2 where points are near, and whether they are."""
    curvature = c[..., None, None]
    xx, yy = dot(x, x)[..., :, None], dot(y, y)[..., None, :]
    tau_x, tau_y = jnp.sqrt(1 + curvature * xx), jnp.sqrt(1 + curvature * yy)
    xy = jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=jax.lax.Precision.HIGHEST)
    lift = _lift(xx, yy, tau_x * tau_y, curvature)
    near = ~(lift - xy > _NEAR * lift)  # NaN is near
    return 2 * jnp.where(near, 1, lift - xy), near


def centroid(
    points: Float[Array, "*#batch L n1"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    exact: bool = True,
) -> Float[Array, "*#batch M n1"]:
    """Centroid: the points μ that minimise Σ_i weight_i ⟨x_i − μ, x_i − μ⟩ (HLFormer, eq. 6).

    The weighted sum over its Lorentzian norm, which is a difference of squares. The exact form
    takes that from terms that do not cancel, one for each point and centroid, by M L n operations,
    of which a gradient may keep as many numbers; it reads space components only. Errors of values
    and gradients are a few eps as far out as points go, whether they coincide or lie far apart;
    those of gradients in weights and in c are relative to the centroid. Not so of points at several
    distances along nearly one ray: from √c times the distance 12 (float64: 20) gradients in them
    are lost to rounding, from 18 (35) values.

    The other form is one matrix product of the points as they are, time components included. The
    rounding of the sum is amplified: its relative error is up to L eps · c x_time², in float32 at
    √c x_time = 16 1e-3 for 32 points (1e-4 was seen) and 0.03 for 1,000 (3e-3 was seen). The norm
    is at least the sum of the weights over √c, and is set to that where rounding leaves less.

    Args:
      points: points.
      weights: non-negative, their scale is free; None for one centroid with equal weights. Where
        all are 0 the result is the origin.
      c: curvature, positive; broadcasts to ``*batch``.
      exact: whether the error is that of the module's other functions, or time and memory are those
        of a matrix product.

    Raises:
      ValueError: for weights that do not have the axes [*batch, M, L] for points [*batch, L, n+1]:
        those of a single centroid are [*batch, 1, L].
    """
    points = as_float(points)
    weights = mean_weights(weights, points, relative=exact)
    curvature = per_batch(c, points[..., 0])[..., None]
    if exact:
        return _from_space(_exact_centroid(points[..., 1:], weights, curvature), curvature)
    # Behind a barrier: for the gradient XLA would write that of a sum of weights out for each of
    # them, for a GPU's product to be added to.
    factor = jax.lax.optimization_barrier(weights)
    total = jnp.matmul(factor, points, precision=jax.lax.Precision.HIGHEST)
    scale = largest_coordinate(total)
    scale = jnp.where(scale == 0, 1, scale)
    mass = jnp.sum(weights, axis=-1) / jnp.squeeze(scale, -1)
    total = total / scale
    # −⟨total, total⟩
    norm2 = -(dot(total[..., 1:], total[..., 1:]) - total[..., 0] * total[..., 0]) * curvature
    norm2 = jnp.where(2 * norm2 < mass * mass, mass * mass, norm2)
    norm2 = jnp.where(norm2 == 0, 1, norm2)
    return _from_space(total[..., 1:] / jnp.sqrt(norm2)[..., None], curvature)


@jax.custom_jvp
def _exact_centroid(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
) -> Float[Array, "*#batch M n"]:
    """Space components of the centroid of points given by theirs."""
    total, norm = _weighted_sum(x, weights, c)[:2]
    return total / (norm * jnp.sqrt(c))[..., None]


def _weighted_sum(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
) -> tuple[Array, ...]:
    """The sum of points in units in which c is 1, split along itself.

    With S and T the sums of the space and time components and u = S / |S|, the Lorentzian norm is
    the root of (T − |S|) (T + |S|), and T − |S| is the sum of t − p, with t = x_time, r = |x_space|
    and p = u · x_space. Of that t − r is 1 / (t + r), and r − p is |x_⊥|² / (r + p) for the part
    x_⊥ of x_space across S. The sum of all x_⊥ is 0, so they are not left to the rounding of u: of
    points beside the one that weighs most they are those of the differences from it, which are
    exact, less what makes the sum 0.

    Where T² − |S|² does not cancel nothing is split: u = 0 and x_⊥ = x. Returns S [*batch, M, n],
    its norm [*batch, M], |S|, or 0 where nothing is split, u, x_⊥ [*batch, M, L, n],
    t [*batch, 1, L], p [*batch, M, L] and t − p.
    """
    root = jnp.sqrt(c)[..., None]
    scaled = x * root
    xx = dot(scaled, scaled)[..., None, :]
    small = xx <= 1
    r, t = jnp.sqrt(jnp.where(small, 1, xx)), jnp.sqrt(1 + xx)
    total = sum_products(weights, scaled)
    total_time = sum_products(weights, jnp.swapaxes(t, -1, -2))[..., 0]
    square, time_square = dot(total, total), total_time * total_time
    split = 2 * square > time_square
    length = jnp.sqrt(jnp.where(split, square, 1))
    axis = jnp.where(split, 1 / length, 0)[..., None] * total

    heaviest = jnp.argmax(weights * r, axis=-1)[..., None]
    apart = x[..., None, :, :] - jnp.take_along_axis(x, heaviest, axis=-2)[..., :, None, :]
    apart = apart * root[..., None]
    beside = split[..., None] & (dot(apart, apart) <= xx)
    apart = jnp.where(beside[..., None], apart, scaled[..., None, :, :])
    across = apart - dot(apart, axis[..., None, :])[..., None] * axis[..., None, :]
    mass = jnp.sum(jnp.where(beside, weights, 0), axis=-1)
    rest = jnp.sum(weights[..., None] * across, axis=-2) / jnp.where(mass == 0, 1, mass)[..., None]
    across = across - jnp.where(beside[..., None], rest[..., None, :], 0)

    p = jnp.matmul(axis, jnp.swapaxes(scaled, -1, -2), precision=jax.lax.Precision.HIGHEST)
    turn = jnp.where(p > 0, dot(across, across) / jnp.where(p > 0, r + p, 1), r - p)
    rise = jnp.where(small | ~split[..., None], t - p, 1 / (t + r) + turn)  # t − p
    gap = sum_products(weights[..., :, None, :], rise[..., None])[..., 0, 0]
    square = jnp.where(split, gap * (total_time + length), time_square - square)
    norm = jnp.sqrt(jnp.where(square == 0, 1, square))
    return total, norm, jnp.where(split, length, 0), axis, across, t, p, rise


@_exact_centroid.defjvp
def _exact_centroid_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Σ weight_i (dx_i + ⟨μ, dx_i⟩ μ) / N and Σ dweight_i (x_i + ⟨μ, x_i⟩ μ) / N for c = 1.

    N = −Σ weight_i ⟨μ, x_i⟩ is the norm of the weighted sum. Split along it, in terms of
    `_weighted_sum` and of m = |μ_space|, where −⟨μ, x_i⟩ = m (t − p) + t / (μ_time + m) and
    lean = m t − μ_time p = m (t − p) − p / (μ_time + m),

        ⟨μ, dx_i⟩ = (lean / t) u · dx_i − (μ_time / t) x_⊥ · dx_i
        x_i + ⟨μ, x_i⟩ μ = x_⊥ − μ_time lean u.
    """
    (x, weights, c), (dx, dweights, dc) = primals, tangents
    total, norm, length, axis, across, t, p, rise = _weighted_sum(x, weights, c)
    root = jnp.sqrt(c)[..., None]
    mean = total / norm[..., None]
    split = (length > 0)[..., None]
    m, tau = (length / norm)[..., None], jnp.sqrt(1 + dot(mean, mean))[..., None]
    lean = m * rise - p / (tau + m)
    # Where nothing is split: of μ itself, with −⟨μ, x_i⟩ = μ_time t − μ · x_i.
    along = jnp.matmul(mean, jnp.swapaxes(x * root, -1, -2), precision=jax.lax.Precision.HIGHEST)
    height = jnp.where(split, m * rise + t / (tau + m), tau * t - along)
    ahead = jnp.where(split, axis, mean)
    pull, push = jnp.where(split, lean / t, 1), jnp.where(split, tau * lean, height)

    moved = dx * root
    towards = jnp.matmul(ahead, jnp.swapaxes(moved, -1, -2), precision=jax.lax.Precision.HIGHEST)
    grown = pull * towards - tau / t * dot(across, moved[..., None, :, :])
    # With c grow the time components of points, and √c μ.
    grown = grown + (tau / t - height) * (dc * inverse(c) / 2)[..., None]
    grown = jnp.sum(weights * grown, axis=-1)
    change = jnp.matmul(weights, moved, precision=jax.lax.Precision.HIGHEST)
    change = change + jnp.sum(dweights[..., None] * across, axis=-2)
    change = change - jnp.sum(dweights * push, axis=-1)[..., None] * ahead
    change = (change + grown[..., None] * mean) / norm[..., None]
    return mean / root, change / root


def boost(to: Point, x: Point, c: ArrayLike = 1.0) -> Point:
    """The boost that takes the origin to a point; it is Möbius addition in the Lorentz model.

    It moves x to the space components x + (τ_x + c a · x / (1 + τ_a)) a for a = to_space and
    τ = √c time. `boost(antipode(to), x)` is what is left of x as seen from ``to``: its polar
    coordinates there are those of `direction`, from differences that are exact for near points
    (Chen et al., Fully hyperbolic neural networks, ACL 2022).
    """
    to, x = _spaces(to, x)
    curvature = per_batch(c, x)
    scale, a, y, difference, c = _rescale(-to, x, curvature)
    back, turn, (_, aligned, tau_a, tau_y, _, _) = _gradient(a, y, difference, c)
    # As a root, which is applied twice: far out the gradient in a single factor would overflow.
    root = 1 / jnp.sqrt(1 + tau_a)
    reach = jnp.where(aligned, turn, c * (dot(a, y) * root) * root - tau_y)
    return _from_space((reach[..., None] * a - back) * scale, curvature)


def rotate(matrix: Float[Array, "n n"], x: Point, c: ArrayLike = 1.0) -> Point:
    """Rotates space components by an orthogonal matrix; the origin stays.

    Another matrix maps the space components, and the time component follows from them.
    """
    matrix, space = as_float(matrix), as_float(x)[..., 1:]
    same_length(matrix, space)
    space = jnp.matmul(space, matrix.T, precision=jax.lax.Precision.HIGHEST)
    return _from_space(space, per_batch(c, space))


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Point:
    """The point of a larger space with the space components of several, of any dimensions.

    See Qu and Zou, Autoencoding hyperbolic representation for adversarial generation, 2022.
    """
    return from_space(jnp.concatenate([as_float(x)[..., 1:] for x in points], axis=-1), c)


def split(x: Point, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Points with ``dims`` consecutive space components each: it undoes `concatenate`.

    ValueError is raised for dimensions whose sum is not that of ``x``.
    """
    space = as_float(x)[..., 1:]
    return [from_space(part, c) for part in split_coordinates(space, dims)]


def from_linear(z: Float[Array, "*#batch d"], scale: Float[Array, ""]) -> Float[Array, "*#batch d"]:
    """The last step of a fully Lorentzian linear map: any vector becomes a point of curvature −1.

    [time, space] with time = sigmoid(z_0) exp(scale) + 1.1 and space along z_1.., |space|² =
    time² − 1; the origin where z_1.. is zero. The dtype is that of ``z``, which a layer chooses
    (HLFormer eqs. 13 and 14, as in the released code).
    """
    time = jax.nn.sigmoid(z[..., :1]) * jnp.exp(scale).astype(z.dtype) + 1.1
    squared_norm = jnp.sum(jnp.square(z[..., 1:]), axis=-1, keepdims=True)
    directed = squared_norm > jnp.finfo(z.dtype).tiny
    radius = jnp.sqrt((time - 1) * (time + 1))
    space = z[..., 1:] * (radius * jax.lax.rsqrt(jnp.where(directed, squared_norm, 1.0)))
    space = jnp.where(directed, space, 0.0)
    return jnp.concatenate([jnp.where(directed, time, 1.0), space], axis=-1)


def hyperplane_distance(x: Point, point: Point, normal: Point, c: ArrayLike = 1.0) -> Scalar:
    """Signed distance arsinh(√c ⟨x, normal⟩ / |normal|) / √c to the hyperplane through a point.

    It is positive where the normal points to, a tangent vector at ``point`` of any length; where
    that is 0 the distance is 0.
    """
    point, x, normal = _spaces(point, x, normal)
    normal = unit(normal)
    length = _tangent_norm(point, normal, per_batch(c, x))
    scale, point, x, difference, curvature = _rescale(point, x, per_batch(c, x))
    rise = _inner_from(point, x, difference, normal, curvature)
    rise = rise * jnp.squeeze(scale, -1) / jnp.where(length == 0, 1, length)
    return scaled_asinh(rise, per_batch(c, x))


def mlr(
    x: Float[Array, "*#batch n1"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Logits of multinomial logistic regression, by one matrix product.

    The logit of a class is the length of its normal times the signed distance to its hyperplane,
    which is given by space components of a normal z, tangent at the origin, and a signed distance b
    from there, at which it crosses the geodesic along z orthogonally:

        |z| arsinh(√c (cosh(√c b) ⟨z / |z|, x_space⟩ − sinh(√c b) x_time)) / √c;

    as c → 0 it is the linear |z| (⟨z / |z|, x⟩ − b). Errors are relative to
    eps · cosh(√c b) √c x_time, before the arsinh. A zero normal gives 0, and offsets are cut at
    `max_hyperbolic_norm` (Bdeir, Schwethelm and Landwehr, 2024).
    """
    space = as_float(x)[..., 1:]
    c = per_batch(c, space)
    return logits(space, jnp.sqrt(1 + c * dot(space, space)), normals, offsets, c)


def _with_tangent_time(x: Space, v: Space, c: ArrayLike) -> Point:
    """Adds the time component x · v / x_time that makes v tangent at x; both given by space."""
    v_time = dot(x / _time(x, per_batch(c, x))[..., None], v)
    return jnp.concatenate([v_time[..., None], v], axis=-1)


def _spaces(*points: Point) -> Sequence[Space]:
    """Space components of points and tangent vectors, with the same batch axes."""
    parts = [as_float(point)[..., 1:] for point in points]
    for other in points[1:]:
        same_length(points[0], other)
    return jnp.broadcast_arrays(*parts)


# Formulas that do not cancel, in space components; ``c`` has the dtype and the rank of the batch.


def _time(x: Space, c: Scalar) -> Scalar:
    return jnp.sqrt(inverse(c) + dot(x, x))


def _from_space(x: Space, c: Scalar) -> Point:
    check_positive("c", c, hint=": at 0 time components are infinite")
    return jnp.concatenate([_time(x, c)[..., None], x], axis=-1)


def _split(x: Space, v: Space) -> tuple[Array, ...]:
    """A tangent vector v at √c x, split along x; its squared length cancels nowhere.

    Far out v · v − (x · v)² / τ² would, and v_⊥ · v_⊥ + v_∥² / τ² does not; near the origin, where
    directions mean nothing, nothing is along x. Returns |x|, τ, v_∥, v_⊥, v_⊥ · v_⊥ and the squared
    length.
    """
    xx = dot(x, x)
    near, tau = xx <= 1, jnp.sqrt(1 + xx)
    r = jnp.sqrt(jnp.where(near, 1, xx))
    per_r = 1 / r  # twice a factor: not divided by xx, whose square is no number far out
    outward = x * per_r[..., None]
    lean = dot(outward, v)
    along = jnp.where(near, 0, lean)
    # By multiples of x, for the rounding of x / |x| would leave eps v_∥; again for that of these.
    across = v - x * (along * per_r)[..., None]
    for _ in range(2):
        across = across - x * jnp.where(near, 0, dot(outward, across) * per_r)[..., None]
    square, rest = dot(across, across), (lean / tau) ** 2
    return r, tau, along, across, square, jnp.where(near, square - rest, square + rest)


def _tangent_norm(x: Space, v: Space, c: Scalar) -> Scalar:
    """√⟨v, v⟩ without under- or overflow; 0 with gradient 0 at v = 0."""
    scale = largest_coordinate(v, smallest(v.dtype))
    v = v / jnp.where(scale == 0, 1, scale)
    return jnp.squeeze(scale, -1) * safe_sqrt(_split(x * jnp.sqrt(c)[..., None], v)[-1])


def _rescale(x: Space, y: Space, c: Scalar) -> tuple[Array, Space, Space, Space, Scalar]:
    """Space components of a pair, brought to size 1 if smaller, so that no square underflows.

    Dividing lengths by s and multiplying c by s² leaves the geometry as it was. Returns the scale
    s <= 1, a constant to differentiation; x / s, y / s, (x − y) / s; c s².
    """
    x, y = jnp.broadcast_arrays(x, y)
    scale, x, y, difference = _rescale_pair(x, y, None)
    return scale[..., None], x, y, difference, c * scale**2


def _lift(xx: Scalar, yy: Scalar, tau: Scalar, c: Scalar) -> Scalar:
    """(τ_x τ_y − 1) / c from x · x, y · y and τ_x τ_y: exact near the origin, finite far out."""
    curved = tau > 2
    xx, yy = jnp.where(curved, 0, xx), jnp.where(curved, 0, yy)
    flat = (xx + yy + c * xx * yy) / (tau + 1)
    return jnp.where(curved, (tau - 1) * inverse(jnp.where(curved, c, 1)), flat)


def _across(x: Space, y: Space, difference: Space) -> Space:
    """What of x − y lies across x; 0 where x is so near the origin that it has no direction."""
    xx = dot(x, x)
    # Of the difference from a y that is small beside x nothing of y would be left.
    gap = jnp.where((4 * dot(y, y) < xx)[..., None], -y, difference)
    real = xx > math.sqrt(smallest(x.dtype))
    per_r = 1 / jnp.sqrt(jnp.where(real, xx, 1))  # see `_split`
    share = jnp.where(real, dot(x, gap) * per_r * per_r, 0)
    return gap - share[..., None] * x


def _sums(x: Space, y: Space, difference: Space, across: Space) -> tuple[Array, ...]:
    """Sums of a pair from `_rescale_pair`: x · x, y · y, x · y, D · (x + y) and |D_⊥|²."""
    rise = dot(difference, x + y)
    return dot(x, x), dot(y, y), dot(x, y), rise, dot(across, across)


def _chord(sums: tuple[Array, ...], c: Scalar) -> tuple[Array, ...]:
    """The squared distance m from `_sums`, and what its gradient needs; else r = q = 1."""
    xx, yy, xy, rise, across2 = sums
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    height = _lift(xx, yy, tau_x * tau_y, c)
    aligned = 2 * xy > height  # so neither is 0, nor much smaller than the other
    r, q = (jnp.sqrt(jnp.where(aligned, v, 1)) for v in (xx, yy))
    gap = jnp.where(aligned, rise, 0) / (r + q)
    across2 = jnp.where(aligned, across2, 0)
    # (1 + c r² + c q²) / (τ_x τ_y), of which the numerator's square would overflow.
    ratio = tau_x / tau_y + tau_y / tau_x - (1 / tau_x) * (1 / tau_y)
    ratio = ratio / (1 + (c * r / tau_x) * (q / tau_y))
    away = 2 * (gap / (tau_x + tau_y)) ** 2 * (1 + ratio)
    around = across2 * (2 * r / (q + jnp.where(aligned, xy, 1) / r))
    m = jnp.where(aligned, away + around, 2 * (height - xy))
    return m, aligned, tau_x, tau_y, r, q


@jax.custom_jvp
def _distance(x: Space, y: Space, c: Scalar) -> Scalar:
    """`distance` of space components of the same shape, and a curvature for each pair."""
    scale, x, y, difference = _rescale_pair(x, y, smallest(x.dtype))
    return _length(_sums(x, y, difference, _across(x, y, difference)), scale, c)


def _rescale_pair(x: Space, y: Space, negligible: float | None) -> tuple[Array, ...]:
    """`_rescale` of what is not negligible to `largest_coordinate`, without the curvature."""
    scale = jnp.maximum(*(largest_coordinate(v, negligible) for v in (x, y)))
    scale = jnp.where((scale == 0) | (scale > 1), 1, scale)
    shrink = 1 / scale
    return jnp.squeeze(scale, -1), x * shrink, y * shrink, (x - y) * shrink


def _length(sums: tuple[Scalar, ...], scale: Scalar, c: Scalar) -> Scalar:
    c = c * scale**2
    m = _chord(sums, c)[0]
    return scale * safe_sqrt(m) * asinhc_sqrt(c * m / 4)


@_distance.defjvp
def _distance_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    (x, y, c), (dx, dy, dc) = primals, tangents
    scale, x, y, difference = _rescale_pair(x, y, smallest(x.dtype))
    across = _across(x, y, difference)
    sums = xx, yy, xy, rise, across2 = _sums(x, y, difference, across)
    value, growth = jax.jvp(lambda c: _length(sums, scale, c), (c,), (dc,))
    c = c * scale**2
    chord = m, aligned, tau_x, tau_y, r, q = _chord(sums, c)
    apart = m >= smallest(m.dtype)
    m = jnp.where(apart, m, 1)
    inverse_s = jnp.where(apart, 1 / (jnp.sqrt(m) * jnp.sqrt(1 + c * m / 4)), 0)
    share = jnp.where(aligned, r / q, 1)
    other_sums = (yy, xx, xy, -rise, across2 * share**2)
    other_chord = (m, aligned, tau_y, tau_x, q, r)
    for moved, start, tau, (back, turn) in (
        (dx, x, tau_x, _gradient_of(across, y, sums, chord)),
        (dy, y, tau_y, _gradient_of(_across(y, x, -difference), x, other_sums, other_chord)),
    ):
        turn = inverse_s * turn / tau
        growth = growth + inverse_s * dot(back, moved) - turn * dot(start, moved)
    return value, growth


def _gradient(x: Space, y: Space, difference: Space, c: Scalar) -> tuple[Space, Scalar, tuple]:
    """`_gradient_of`, and the `_chord`; arguments from `_rescale`."""
    across = _across(x, y, difference)
    sums = _sums(x, y, difference, across)
    chord = _chord(sums, c)
    return *_gradient_of(across, y, sums, chord), chord


def _gradient_of(across: Space, y: Space, sums: tuple, chord: tuple) -> tuple[Space, Scalar]:
    """The gradient of the distance in x times sinh(√c d) / √c: the first, less the second x / τ."""
    _, aligned, tau_x, tau_y, r, q = chord
    xy, rise, across2 = (jnp.where(aligned, value, 0) for value in sums[2:])
    # Not divided twice, for which XLA divides by a product: its derivative has the cube of τ.
    per_x, per_y = 1 / tau_x, 1 / tau_y
    # Roots, applied twice, for the derivative in 1 / r may be the cube of r.
    per_r = jax.lax.rsqrt(r)
    per_sum = jax.lax.rsqrt(q + xy * per_r * per_r)
    # τ_x q − r τ_y, and what τ_x (q − p) is made of, either divided by r.
    outward = -(rise * per_x * per_y) / (q * per_y + r * per_x)
    bend = (tau_x * per_r * per_r) * (across2 * per_sum * per_sum)
    turn = jnp.where(aligned, outward * per_r * per_r - bend, -tau_y)
    # The part across alone: beside it the radial one, divided by τ, would be lost to rounding.
    return jnp.where(aligned[..., None], across, -y), turn


def _towards(x: Space, y: Space, difference: Space, c: Scalar) -> Space:
    """Space components of the logarithmic map of y at x; arguments from `_rescale`.

    It is arcosh β / √(β² − 1) times y − β x, where β = 1 + c m / 2; with z = c m / 4 the factor is
    asinh √z / √z / √(1 + z), smooth at y = x.
    """
    back, turn, (m, aligned, tau, *_) = _gradient(x, y, difference, c)
    z = c * m / 4
    flat, bent = 1 / jnp.sqrt(1 + z), asinhc_sqrt(z)
    # The factors one by one, for far away their product underflows and y − β x overflows.
    way = jnp.where(aligned[..., None], back, difference) * flat[..., None]
    along = jnp.where(aligned, flat * turn * tau, -2 * flat * z)
    return bent[..., None] * (along[..., None] * x - way)


def _displace(x: Space, v: Space, c: Scalar) -> Space:
    """Space components of the exponential map cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|) at x.

    v is shortened, by a factor held constant, where the result would lie beyond
    `max_hyperbolic_norm`. Towards the origin from afar the terms cancel along x; there they are
    rewritten as (r² − s²) / (r cosh + τ s) + τ s (1 + cos φ), where s = sinh(√c |v|) / √c, cos φ is
    the radial component of v / |v|, and 1 + cos φ comes from its transverse component.
    """
    # A tangent vector with a larger coordinate is shortened in any case.
    root, largest = jnp.sqrt(c)[..., None], largest_coordinate(v)
    longest = float(jnp.finfo(v.dtype).eps) ** -2.5 / jax.lax.stop_gradient(root)
    long = largest > longest
    # Not times longest / largest, for which XLA multiplies √c and largest: that may overflow.
    v = jnp.where(long, v / jnp.where(long, largest, 1) * longest, v)
    r, tau, along, across, square, z = _split(x * root, v * root)
    limit = jnp.maximum(max_hyperbolic_norm(x.dtype) - jnp.arccosh(jax.lax.stop_gradient(tau)), 0)
    over = z > limit * limit
    shorten = jax.lax.stop_gradient(jnp.where(over, limit / jnp.sqrt(jnp.where(over, z, 1)), 1))
    # All shortened at once: computed again from the shortened v, small differences would change.
    z, square, along = z * shorten**2, square * shorten**2, along * shorten
    v, across = v * shorten[..., None], across * shorten[..., None]

    cosh, sinhc = cosh_sqrt(z), sinhc_sqrt(z)
    inward = -2 * sinhc * along > cosh * r  # so v is not 0, nor x near the origin
    size = jnp.sqrt(jnp.where(inward, z, 1))
    s = sinhc * size
    gap = (r - s) * ((r + s) / jnp.where(inward, r * cosh + tau * s, 1))
    bend = sinhc * tau * square / jnp.where(inward, size - along / tau, 1)
    return jnp.where(
        inward[..., None],
        sinhc[..., None] * (across / root) + ((gap + bend) / r)[..., None] * x,
        cosh[..., None] * x + sinhc[..., None] * v,
    )


def _inner_from(x: Space, y: Space, difference: Space, v: Space, c: Scalar) -> Scalar:
    """⟨y, v⟩ for v tangent at x, less half the derivative of m; the points come from `_rescale`."""
    back, turn, chord = _gradient(x, y, difference, c)
    # A tiny pair, brought to size 1, may have left nothing of c.
    c = jnp.maximum(c, smallest(c.dtype))
    # What back leaves along x would be multiplied by that part of v, which far out is long.
    across = jnp.where(chord[1][..., None], _split(x * jnp.sqrt(c)[..., None], v)[3], v)
    return turn * dot(x / chord[2][..., None], v) - dot(back, across)
