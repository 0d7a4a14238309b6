"""The Lorentz model of hyperbolic space: points, distances, maps, transport, centroid, hyperplanes.

Convention: the curvature is −c with c > 0. A point is x = [x_time, x_space] in R^{n+1}, time first,

    ⟨x, y⟩ = −x_time y_time + x_space · y_space,    ⟨x, x⟩ = −1/c,    x_time = √(1/c + |x_space|²),

and a tangent vector v at x has ⟨x, v⟩ = 0. So either is determined by its space components, and
far from the origin its time component has lost to rounding what tells near points apart. Every
function here but `inner`, `pairwise_inner` and `centroid` with ``exact=False`` therefore reads the
space components of points only, and of tangent vectors too: they must lie on the hyperboloid and in
the tangent space, and gradients reach the space components alone (that of a time component is 0).
An optimiser that updates whole points leaves their time components behind, which those functions
and Lorentz attention use and the others do not see: optimise tangent vectors or space components,
apply `project` after each update, or use `optim.riemannian`. `time_error` measures what has
become of them.

Arguments: x, y and the like are points, v tangent vectors at the point before them, u the space
components of tangent vectors at the origin, whose time component is 0, and c is the curvature,
positive; docstrings name the others. All functions take any number of leading axes, ``*batch``, the
same number in all arguments, in which axes of length 1 broadcast. ``c`` is a number or an array
that broadcasts to ``*batch``: it has no more axes than that, is aligned with the last of them,
never with the coordinates, and does not lengthen any. For points [N, n+1] it is [], [1] or [N];
[N, 1] is an error. It is the same rule in `cones` and `poincare`.

Points are arrays, not lists. Arrays narrower than float32 are computed, and returned, in float32;
so are integers, those of 64 bits (JAX's x64 mode) in float64; complex numbers are refused.
ValueError is raised for vectors of different lengths, which arithmetic would broadcast, and for
batch axes that do not broadcast.

Relative errors, in the norm of a result that is a vector, are below 1e-12 in float64 and 2e-5 in
float32 for √c · norm up to 25, unless a docstring says otherwise. Values and gradients are finite
for points as far out as the exponential maps go, √c times the distance from the origin 31.9 in
float32 and 72.1 in float64, and, in float32, for c from 1e-22 to 1e18, where they can be
represented (the gradient in c of a squared distance m is of the size of m / c). Distances below
1e-19 (float32; 1e-154 in float64) times the smaller of 1 and the largest coordinate of the two
points come out as 0.

References:
  HLFormer, section 3.1, eqs. 1-6. Law, Liao, Snell and Zemel, Lorentzian distance learning for
  hyperbolic representations, ICML 2019, for the centroid. Bdeir, Schwethelm and Landwehr, Fully
  hyperbolic convolutional neural networks, ICLR 2024, for hyperplanes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.hyperboloid import Scalar, Space
from hlformer_jax.ops.numerics import (
    align_sets,
    as_float,
    asinhc_sqrt,
    common_batch,
    dot,
    inverse,
    largest_coordinate,
    limit_norm,
    max_hyperbolic_norm,
    per_batch,
    replace_near,
    safe_norm,
    safe_normalize,
    safe_sqrt,
    same_length,
    shortest_direction,
    sinhc_sqrt,
    sum_products,
    unit,
)
from hlformer_jax.typing import Array

Point = Float[Array, "*#batch n1"]

# As a share of lift: of random pairs none is near.
_NEAR = 1 / 16


def inner(x: Point, y: Point) -> Scalar:
    """Lorentzian inner product −x_time y_time + x_space · y_space of vectors of R^{n+1}.

    It is that of the given coordinates, and cancels: its error is relative to x_time y_time, not to
    the result.

    References:
      HLFormer, eq. 2.
    """
    x, y = as_float(x), as_float(y)
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def time(space: Space, c: ArrayLike = 1.0) -> Scalar:
    """Time component √(1/c + |space|²) of the point with these space components (eq. 1)."""
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
    """How far a point is off the hyperboloid: |x_time − time(x_space)| / time(x_space)."""
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


def antipode(x: Point, c: ArrayLike = 1.0) -> Point:
    """The point as far from the origin on the other side: the space components are negated."""
    return from_space(-as_float(x)[..., 1:], c)


def tangent_norm(x: Point, v: Point, c: ArrayLike = 1.0) -> Scalar:
    """Length √⟨v, v⟩ of a tangent vector at x; gradient 0 at v = 0."""
    x, v = _spaces(x, v)
    return hyperboloid.tangent_norm(x, v, per_batch(c, x))


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
    """Logarithmic map at the origin, the inverse of `exp_map0` (HLFormer, eqs. 5 and 16).

    Returns:
      Space components of the tangent vectors at the origin; their time component is 0.
    """
    space = as_float(x)[..., 1:]
    return space * asinhc_sqrt(per_batch(c, space) * dot(space, space))[..., None]


def exp_map(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Exponential map at x (HLFormer, eq. 4).

    Where the geodesic passes near the origin the relative error is up to 6 eps · c x_time²: that is
    the effect of rounding v, whose space components are up to √c x_time times as long as v. Vectors
    are shortened where √c times their length plus the distance of ``x`` from the origin exceeds
    `max_hyperbolic_norm`, by a factor held constant.

    Returns:
      Points cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|).
    """
    x, v = _spaces(x, v)
    c = per_batch(c, x)
    return hyperboloid.from_space(hyperboloid.displace(x, v, c), c)


def log_map(x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """Logarithmic map at x, the inverse of `exp_map`; smooth at y = x (HLFormer, eq. 5).

    Returns:
      Tangent vectors at ``x`` that lead to ``y``, with the distance for length.
    """
    scale, *pair = _rescaled(x, y, c)
    return _with_tangent_time(pair[0] * scale, hyperboloid.towards(*pair) * scale, c)


def retract(x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point with space components x + v, to first order in v that of the exponential map."""
    x, v = _spaces(x, v)
    return hyperboloid.from_space(x + v, per_batch(c, x))


def geodesic(t: ArrayLike, x: Point, y: Point, c: ArrayLike = 1.0) -> Point:
    """The point exp_map(x, t log_map(x, y)) at the share t of the way from x to y.

    Args:
      t: shares; a number or array that broadcasts to ``*batch``; beyond the points outside [0, 1].
      x: points, reached at t = 0.
      y: points, reached at t = 1.
      c: curvature, positive.
    """
    v = log_map(x, y, c)
    return exp_map(x, per_batch(t, v, "t")[..., None] * v, c)


def geodesic_unit(t: ArrayLike, x: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """The point exp_map(x, t v / |v|) at a distance t from x in the direction v.

    Args:
      t: distances; a number or array that broadcasts to ``*batch``.
      x: points.
      v: tangent vectors at ``x``, of any length; where it is 0 the result is ``x``. Coordinates
        below 1e-18 (float32; 2e-153 in float64) count as 0.
      c: curvature, positive.
    """
    x, v = _spaces(x, v)
    c = per_batch(c, x)
    along, _ = safe_normalize(v, shortest_direction(v.dtype))
    length = hyperboloid.tangent_norm(x, along, c)
    size = per_batch(t, v, "t") / jnp.where(length == 0, 1, length)
    return hyperboloid.from_space(hyperboloid.displace(x, size[..., None] * along, c), c)


def parallel_transport(x: Point, y: Point, v: Point, c: ArrayLike = 1.0) -> Point:
    """Transports a tangent vector along the geodesic from x to y.

    Returns:
      Tangent vectors v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩) at ``y``.
    """
    x, y, v = _spaces(x, y, v)
    scale, x, y, difference, curvature = hyperboloid.rescale(x, y, per_batch(c, x))
    space = hyperboloid.transport(x, y, difference, v, curvature)
    return _with_tangent_time(y * scale, space, c)


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
    inner product with a tangent vector is the derivative along that.

    References:
      Nickel and Kiela, Learning continuous hierarchies in the Lorentz model, ICML 2018.
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
    return x, gradient[..., 1:] + gradient[..., :1] * (x / hyperboloid.time(x, c)[..., None]), c


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
    negligible = shortest_direction(x.dtype) / scale
    _, _, radial, across = hyperboloid.components(x, y, difference, c, negligible)
    return radial * jnp.squeeze(scale, -1), across * scale


def squared_distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Squared Lorentzian distance ⟨x − y, x − y⟩ = −2/c − 2⟨x, y⟩; smooth everywhere.

    It is (4/c) sinh²(√c d / 2) for the geodesic distance d (HLFormer, below eq. 15).
    """
    scale, *pair = _rescaled(x, y, c)
    return hyperboloid.squared_chord(*pair) * jnp.squeeze(scale, -1) ** 2


def distance(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance arcosh(−c ⟨x, y⟩) / √c; at y = x, where it has none, its gradient is 0."""
    x, y = _spaces(x, y)
    return hyperboloid.distance(x, y, jnp.broadcast_to(per_batch(c, x), x.shape[:-1]))


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
    return hyperboloid.from_space(limit_norm(space, limit * sinhc_sqrt(c * limit * limit)), c)


def pairwise_inner(
    x: Float[Array, "*#batch L n1"], y: Float[Array, "*#batch M n1"]
) -> Float[Array, "*#batch L M"]:
    """Lorentzian inner products ⟨x_i, y_j⟩ of all pairs, by one matrix product.

    It is computed at full float32 (or float64) precision whatever the device's default. As with
    `inner`, the error is relative to x_time y_time: where a squared distance between near points
    counts, use `squared_distance`.
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
    `numerics.replace_near` says. Elsewhere its relative error is below 8 eps times the error of
    x · y in units of eps |x| |y|: a few, at most n / 2, for n coordinates.

    Args:
      x: points.
      y: points. Where two are the same the distance and its gradient are 0.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      distance(x_i, y_j).
    """
    x, y, c = align_sets(as_float(x)[..., 1:], as_float(y)[..., 1:], c)
    m, near = _chords(x, y, c)
    far = safe_sqrt(m) * asinhc_sqrt(c[..., None, None] * m / 4)
    return replace_near(far, near, x, y, c, hyperboloid.distance)


def pairwise_squared_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Squared Lorentzian distances of all pairs; time, memory and error as `pairwise_distance`."""
    x, y, c = align_sets(as_float(x)[..., 1:], as_float(y)[..., 1:], c)
    m, near = _chords(x, y, c)
    return replace_near(m, near, x, y, c, _squared_chord)


def _squared_chord(x: Array, y: Array, c: Array) -> Array:
    scale, *pair = hyperboloid.rescale(x, y, c)
    return hyperboloid.squared_chord(*pair) * jnp.squeeze(scale, -1) ** 2


def _chords(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: Float[Array, "*#batch"]
) -> tuple[Float[Array, "*#batch M N"], Bool[Array, "*#batch M N"]]:
    """Squared Lorentzian distances of all pairs, 2 where points are near, and whether they are."""
    curvature = c[..., None, None]
    xx, yy = dot(x, x)[..., :, None], dot(y, y)[..., None, :]
    tau_x, tau_y = jnp.sqrt(1 + curvature * xx), jnp.sqrt(1 + curvature * yy)
    xy = jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=jax.lax.Precision.HIGHEST)
    lift = hyperboloid.lift(xx, yy, tau_x * tau_y, curvature)
    near = ~(lift - xy > _NEAR * lift)  # NaN is near
    return 2 * jnp.where(near, 1, lift - xy), near


def centroid(
    points: Float[Array, "*#batch L n1"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    exact: bool = True,
) -> Float[Array, "*#batch M n1"]:
    """Centroid under the squared Lorentzian distance.

    It is the weighted sum over its Lorentzian norm, which is a difference of squares. The exact
    form takes that from terms that do not cancel, one for each point and centroid, by M L n
    operations, of which a gradient may keep as many numbers; it reads space components only.

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

    Returns:
      The points μ that minimise Σ_i weight_i ⟨x_i − μ, x_i − μ⟩.

    Raises:
      ValueError: for weights that do not have the axes [*batch, M, L] for points [*batch, L, n+1]:
        those of a single centroid are [*batch, 1, L].

    References:
      HLFormer, eq. 6.
    """
    points = as_float(points)
    if weights is None:
        weights = jnp.ones((*points.shape[:-2], 1, points.shape[-2]), points.dtype)
    weights = as_float(weights)
    if weights.ndim != points.ndim or weights.shape[-1] != points.shape[-2]:
        raise ValueError(
            f"weights {weights.shape} of points {points.shape}: give [*batch, M, L] for"
            " [*batch, L, n+1], with M = 1 for one centroid"
        )
    curvature = per_batch(c, points[..., 0])[..., None]
    if exact:
        return _exact_centroid(points[..., 1:], weights, curvature)
    total = jnp.matmul(weights, points, precision=jax.lax.Precision.HIGHEST)
    scale = largest_coordinate(total)
    scale = jnp.where(scale == 0, 1, scale)
    mass = jnp.sum(weights, axis=-1) / jnp.squeeze(scale, -1)
    total = total / scale
    # −⟨total, total⟩
    norm2 = -(dot(total[..., 1:], total[..., 1:]) - total[..., 0] * total[..., 0]) * curvature
    norm2 = jnp.where(2 * norm2 < mass * mass, mass * mass, norm2)
    norm2 = jnp.where(norm2 == 0, 1, norm2)
    return hyperboloid.from_space(total[..., 1:] / jnp.sqrt(norm2)[..., None], curvature)


def _exact_centroid(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
) -> Float[Array, "*#batch M n1"]:
    """Centroid of points given by their space components.

    With S and T the sums of the space and time components and u = S / |S|, the norm is the root of
    (T − |S|) (T + |S|), and T − |S| the sum of x_time − u · x_space, in which
    x_time − |x_space| = 1 / (c (x_time + |x_space|)) and, with e = x_space / |x_space|,
    |x_space| − u · x_space = |x_space| |e − u|² / 2. Near the origin, where a direction means
    nothing, both differences are taken as they are.
    """
    largest = largest_coordinate(weights)
    weights = weights / jnp.where(largest == 0, 1, largest)
    t = hyperboloid.time(x, c)
    total, total_time = sum_products(weights, x), sum_products(weights, t[..., None])[..., 0]
    square, time_square = dot(total, total), total_time * total_time
    near = 2 * square <= time_square
    ahead = unit(jnp.where(near[..., None], 1, total))  # u
    is_near = c * dot(x, x) <= 1
    e, r = safe_normalize(jnp.where(is_near[..., None], 1, x))
    turn = e[..., None, :, :] - ahead[..., :, None, :]
    # Its root is applied twice: far out the gradient of the product would overflow.
    turn = turn * jnp.sqrt(r)[..., None, :, None]
    split = (inverse(c) / (t + r))[..., None, :] + dot(turn, turn) / 2
    along = jnp.matmul(ahead, jnp.swapaxes(x, -1, -2), precision=jax.lax.Precision.HIGHEST)
    terms = jnp.where(is_near[..., None, :], t[..., None, :] - along, split)
    gap = sum_products(weights[..., :, None, :], terms[..., None])[..., 0, 0]
    length = jnp.sqrt(jnp.where(near, 1, square))
    norm2 = c * jnp.where(near, time_square - square, gap * (total_time + length))
    norm2 = jnp.where(norm2 == 0, 1, norm2)
    return hyperboloid.from_space(total / jnp.sqrt(norm2)[..., None], c)


def boost(to: Point, x: Point, c: ArrayLike = 1.0) -> Point:
    """The boost that takes the origin to a point; it is Möbius addition in the Lorentz model.

    It moves x to the space components x + (τ_x + c a · x / (1 + τ_a)) a for a = to_space and
    τ = √c time. `boost(antipode(to), x)` is what is left of x as seen from ``to``: its polar
    coordinates there are those of `direction`, from differences that are exact for near points.

    References:
      Chen et al., Fully hyperbolic neural networks, ACL 2022.
    """
    to, x = _spaces(to, x)
    curvature = per_batch(c, x)
    scale, a, y, difference, c = hyperboloid.rescale(-to, x, curvature)
    near = c * dot(a, a) <= 1
    tau_a, tau_y = (jnp.sqrt(1 + c * dot(v, v)) for v in (a, y))
    # y − f a with f − 1 from the difference of a and y, exact where they are near.
    fall = dot(difference, (a + y) / (tau_a + tau_y)[..., None])
    lean = c * (dot(a, y) / (1 + tau_y)) * (fall / (1 + tau_a)) - dot(y, difference) / (1 + tau_y)
    flat = -difference - (c * lean)[..., None] * a
    start, end, gap = (jnp.where(near[..., None], 1, v) for v in (a, y, difference))
    unit, _, radial, across = hyperboloid.components(start, end, gap, c)
    space = jnp.where(near[..., None], flat, across + radial[..., None] * unit)
    return hyperboloid.from_space(space * scale, curvature)


def rotate(matrix: Float[Array, "n n"], x: Point, c: ArrayLike = 1.0) -> Point:
    """Rotates space components by an orthogonal matrix; the origin stays.

    Of another matrix the space components are the linear map's, and the time component puts the
    point on the hyperboloid.
    """
    matrix, space = as_float(matrix), as_float(x)[..., 1:]
    same_length(matrix, space)
    space = jnp.matmul(space, matrix.T, precision=jax.lax.Precision.HIGHEST)
    return hyperboloid.from_space(space, per_batch(c, space))


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Point:
    """The point of a larger space with the space components of several, of any dimensions.

    References:
      Qu and Zou, Autoencoding hyperbolic representation for adversarial generation, 2022.
    """
    return from_space(jnp.concatenate([as_float(x)[..., 1:] for x in points], axis=-1), c)


def split(x: Point, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Points with consecutive space components each: it undoes `concatenate`.

    Args:
      x: points.
      dims: dimensions, whose sum is that of ``x``; ValueError is raised for another.
      c: curvature, positive.
    """
    space = as_float(x)[..., 1:]
    if sum(dims) != space.shape[-1]:
        raise ValueError(f"dimensions {tuple(dims)} of a point of dimension {space.shape[-1]}")
    ends = [sum(dims[: k + 1]) for k in range(len(dims) - 1)]
    return [from_space(part, c) for part in jnp.split(space, ends, axis=-1)]


def from_linear(z: Float[Array, "*#batch d"], scale: Float[Array, ""]) -> Float[Array, "*#batch d"]:
    """The last step of a fully Lorentzian linear map: any vector becomes a point of curvature −1.

    Args:
      z: coordinates, the first for the time.
      scale: logarithm of the range of the time.

    Returns:
      [time, space] with time = sigmoid(z_0) exp(scale) + 1.1 and space along z_1.., |space|² =
      time² − 1; the origin where z_1.. is zero. The dtype is that of ``z``, which a layer chooses.

    References:
      HLFormer eq. 13, 14, as in the released code.
    """
    time = jax.nn.sigmoid(z[..., :1]) * jnp.exp(scale).astype(z.dtype) + 1.1
    squared_norm = jnp.sum(jnp.square(z[..., 1:]), axis=-1, keepdims=True)
    directed = squared_norm > jnp.finfo(z.dtype).tiny
    radius = jnp.sqrt((time - 1) * (time + 1))
    space = z[..., 1:] * (radius * jax.lax.rsqrt(jnp.where(directed, squared_norm, 1.0)))
    space = jnp.where(directed, space, 0.0)
    return jnp.concatenate([jnp.where(directed, time, 1.0), space], axis=-1)


def hyperplane_distance(x: Point, point: Point, normal: Point, c: ArrayLike = 1.0) -> Scalar:
    """Signed distance to the hyperplane through a point, positive where the normal points to.

    Args:
      x: points.
      point: points of the hyperplanes.
      normal: tangent vectors at ``point``, of any length; where it is 0 the distance is 0.
      c: curvature, positive.

    Returns:
      arsinh(√c ⟨x, normal⟩ / |normal|) / √c.
    """
    point, x, normal = _spaces(point, x, normal)
    normal = unit(normal)
    length = hyperboloid.tangent_norm(point, normal, per_batch(c, x))
    scale, point, x, difference, curvature = hyperboloid.rescale(point, x, per_batch(c, x))
    rise = hyperboloid.inner_from(point, x, difference, normal, curvature)
    rise = rise * jnp.squeeze(scale, -1) / jnp.where(length == 0, 1, length)
    return hyperboloid.scaled_asinh(rise, per_batch(c, x))


def mlr(
    x: Float[Array, "*#batch n1"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Logits of multinomial logistic regression, by one matrix product.

    The logit of a class is the length of its normal times the signed distance to its hyperplane,
    which is given by a normal z in the tangent space at the origin and a signed distance b from the
    origin, at which it crosses the geodesic along z orthogonally; as c → 0 it is the linear
    |z| (⟨z / |z|, x⟩ − b). Errors are relative to eps · cosh(√c b) √c x_time, before the arsinh.

    Args:
      x: points.
      normals: space components of the normals of the classes, tangent at the origin; a zero gives
        the logit 0.
      offsets: signed distances of the hyperplanes from the origin, cut at `max_hyperbolic_norm`.
      c: curvature, positive.

    Returns:
      |z| arsinh(√c (cosh(√c b) ⟨z / |z|, x_space⟩ − sinh(√c b) x_time)) / √c for normals z and
      offsets b.

    References:
      Bdeir, Schwethelm and Landwehr, 2024.
    """
    space = as_float(x)[..., 1:]
    c = per_batch(c, space)
    return hyperboloid.logits(space, jnp.sqrt(1 + c * dot(space, space)), normals, offsets, c)


def _with_tangent_time(x: Space, v: Space, c: ArrayLike) -> Point:
    """Adds the time component x · v / x_time that makes v tangent at x; both given by space."""
    return jnp.concatenate(
        [dot(x / hyperboloid.time(x, per_batch(c, x))[..., None], v)[..., None], v], axis=-1
    )


def _spaces(*points: Point) -> Sequence[Space]:
    """Space components of points and tangent vectors, with the same batch axes."""
    parts = [as_float(point)[..., 1:] for point in points]
    for other in points[1:]:
        same_length(points[0], other)
    return jnp.broadcast_arrays(*parts)


def _rescaled(
    x: Point, y: Point, c: ArrayLike
) -> tuple[Float[Array, "*#batch 1"], Space, Space, Space, Scalar]:
    """`hyperboloid.rescale` of two points."""
    x, y = _spaces(x, y)
    return hyperboloid.rescale(x, y, per_batch(c, x))
