"""The Poincaré ball of curvature −c: points, maps, distances, algebra, layers, hyperplanes.

Convention: p in R^n with √c |p| < 1; p = x_space / (1 + √c x_time), the stereographic projection of
the hyperboloid from [−1/√c, 0, …, 0] (see `lorentz`). A tangent vector v at p has n coordinates,
and its length is λ_p |v| with the conformal factor λ_p = 2 / (1 − c |p|²), which is 2 at the
origin. As c → 0 the distance becomes 2 |p − q|. Floating-point numbers cover only a small part of
the space: at a distance d from the origin 1 − √c |p| = 2 / (e^{√c d} + 1), so beyond
√c d = −log(eps) (15.9 in float32, 36.0 in float64) points would be rounded to the sphere. Points
farther out, whether arguments or results, are moved inside (`project`).

Textbook formulas subtract squares that are nearly equal near the rim of the ball. With

    γ_p = 1 − c |p|²,   D = p + q,    den = 1 + 2 c p · q + c² |p|² |q|²

they become sums of positive terms, or of terms that are at most a few times the result:

    den = c |D|² + γ_p γ_q,    1 + c p · q = (γ_p + γ_q + c |D|²) / 2,
    p ⊕ q = (γ_p D + c |D|² p) / den,    1 − c |p ⊕ q|² = γ_p γ_q / den.

D is exact if q is near −p, so (−p) ⊕ q is as exact as the difference of near points. The remaining
error is that of γ, a relative error of about eps / γ from rounding p. In the same way, with
z = c |p − q|² / (γ_p γ_q), the distance 2 asinh(√z) / √c of near points is as exact as their
difference; arcosh(1 + 2 z) / √c would lose those digits.

Arguments: p and q are points; v is a tangent vector at the point before it in the argument list, or
at the origin. Shapes, the rule for ``c``, dtypes and errors are as in `lorentz`. A function with
the same name as one in `lorentz` does the same in the ball.

Relative errors (of a vector: in its norm) are below 1e-12 in float64 and 2e-5 in float32, or below
16 eps / (1 − √c |p|) for the outermost point p if that is larger, which is the effect of rounding
p. If a result can vanish while the arguments do not (a geodesic through the origin), errors are
relative to 1/√c. Values and gradients are finite everywhere.

References:
  HOVER, section 3. Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018. Ungar, A
  gyrovector space approach to hyperbolic geometry, 2009. Shimizu, Mukuta and Harada, Hyperbolic
  neural networks++, ICLR 2021.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.arguments import (
    align,
    align_sets,
    as_float,
    as_floats,
    as_matrix,
    as_sets,
    as_vectors,
    broadcast_number,
    check_positive,
    check_shape,
    per_batch,
    split_coordinates,
    without_time,
)
from hlformer_jax.ops.lorentz import Scalar
from hlformer_jax.ops.numerics import (
    Shortening,
    artanhc_sqrt,
    asinhc_sqrt,
    bounded_norm,
    bounded_scale,
    combine_ends,
    cosh_sqrt,
    dot,
    is_any,
    is_between,
    limit_norm,
    limit_norm_and_square,
    logits,
    max_hyperbolic_norm,
    mean_weights,
    over_norm,
    precise_matmul,
    replace_near,
    safe_normalize,
    safe_sqrt,
    scaled_asinh,
    shortening,
    shortest_direction,
    sinhc_sqrt,
    smallest,
    squares_between,
    sum_products,
    tanhc_sqrt,
    unit,
    weights_between,
    with_norm,
    within_reach,
)
from hlformer_jax.typing import Array

Ball = Float[Array, "*#batch n"]


def project(p: Ball, c: ArrayLike = 1.0, max_radius: ArrayLike | None = None) -> Ball:
    """Move points with √c |p| > max_radius radially to √c |p| = max_radius.

    The gradient of a point that was moved has no radial part.

    Args:
      p: points.
      c: curvature, positive; broadcasts to ``*batch``.
      max_radius: number between 0 and 1 that broadcasts to ``*batch`` (default: 1 − 4 eps). With
        the default, √c times the distance of a result from the origin is at most log(1 / (2 eps))
        (15.2 in float32, 35.4 in float64) before rounding, and below 16.3 and 36.4 after it.

    Raises:
      ValueError: for a radius outside (0, 1) or a curvature that is not positive, if known.
    """
    p = as_vectors(p)
    if max_radius is None:
        max_radius = 1 - 4 * float(jnp.finfo(p.dtype).eps)
    else:
        check_positive("max_radius", max_radius)
        check_positive("1 - max_radius", 1 - as_float(max_radius))
    radius, c = per_batch(max_radius, p, "max_radius"), per_batch(c, p)
    _check_curvature(c)
    return limit_norm(p, radius / jnp.sqrt(c))


def inside(p: Ball, c: Scalar) -> tuple[Ball, Scalar]:
    """Move points with √c |p| > 1 − 2 eps to that radius; return them and their gaps.

    The gap is 1 − c |p|², which is 2 / λ for the conformal factor λ, and positive in spite of
    rounding. Points that `project` returned stay unchanged, even if they were rounded outwards.
    """
    _check_curvature(c)
    p, square = limit_norm_and_square(p, _max_radius(p.dtype) / jnp.sqrt(c))
    return p, _gap(c * square)


@jax.custom_jvp
def _gap_ratio(p: Ball, q: Ball, gap_p: Scalar, gap_q: Scalar, c: Scalar) -> Scalar:
    """Return γ_p / γ_q for points that are `inside`, with their gaps.

    The derivative of the quotient in c would be a difference of numbers as large as 1 / γ, which
    are nearly equal for near points. It is (q − p) · (q + p) / γ_q².
    """
    del p, q, c
    return gap_p / gap_q


@_gap_ratio.defjvp
def _gap_ratio_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    (p, q, gap_p, gap_q, c), (dp, dq, _, _, dc) = primals, tangents
    ratio = gap_p / gap_q
    by_c = dc * (dot(q - p, q + p) / gap_q)
    return ratio, (by_c + 2 * c * (ratio * dot(q, dq) - dot(p, dp))) / gap_q


def _max_radius(dtype: DTypeLike) -> float:
    """Return the largest √c |p| of points `inside`."""
    return 1 - 2 * float(jnp.finfo(dtype).eps)


def _gap(z: Scalar) -> Scalar:
    """Return 1 − z for z = c |p|², positive even if z was rounded up."""
    return 1 - (z - jax.lax.stop_gradient(jnp.maximum(z - _max_radius(z.dtype), 0)))


@jax.custom_jvp
def _divide(x: Array, gaps: Array) -> Array:
    """Divide by a product of gaps, whose cube would underflow in second derivatives."""
    return x / gaps


@_divide.defjvp
def _divide_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    value = _divide(*primals)
    return value, (tangents[0] - value * tangents[1]) / primals[1]


def origin(n: int, c: ArrayLike = 1.0, dtype: DTypeLike | None = None) -> Ball:
    """Return the point 0 with n coordinates, once for each entry of c; see `lorentz.origin`."""
    return jnp.zeros_like(lorentz.origin(n, c, dtype)[..., 1:])


def _check_curvature(c: Scalar) -> None:
    check_positive("c", c, hint=": for curvature 0 use manifolds.Euclidean")


def from_lorentz(x: Float[Array, "*#batch n1"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n"]:
    """Map points of the hyperboloid to the ball: x_space / (1 + √c x_time).

    It is the inverse of HLFormer's eq. 23. Points must not be farther out than exponential maps
    reach; results are moved inside by `project`.
    """
    space = without_time(x)
    curvature = per_batch(c, space)
    tau = jnp.sqrt(1 + curvature * dot(space, space))
    return project(space / (1 + tau)[..., None], c)


def to_lorentz(p: Float[Array, "*#batch n"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n1"]:
    """Map points of the ball to the hyperboloid: space components 2 p / (1 − c |p|²).

    The error is relative to eps · √c x_time, the effect of rounding p: near the sphere the ball
    cannot represent near points as different ones (HLFormer, eq. 23).
    """
    p = as_vectors(p)
    root = jnp.sqrt(per_batch(c, p))[..., None]
    # Scale to the unit ball, where moving points inside does not depend on c.
    p, square = limit_norm_and_square(p * root, 1 - 4 * float(jnp.finfo(p.dtype).eps))
    room = 1 - square
    return lorentz.from_space(2 * p / room[..., None] / root, c)


def antipode(p: Ball) -> Ball:
    """Return −p, the reflection of p in the origin and its Möbius inverse."""
    return -as_vectors(p)


def conformal_factor(p: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the conformal factor λ = 2 / (1 − c |p|²): lengths at p are λ times Euclidean ones.

    It is HOVER's eq. 1.
    """
    p = as_vectors(p)
    c = per_batch(c, p)
    return 2 / inside(p, c)[1]


def tangent_norm(p: Ball, v: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the length λ_p |v| of a tangent vector at p; its gradient is 0 at v = 0."""
    c, (p, v) = align(c, p, v)
    room = inside(p, c)[1]
    # Vectors shorter than 1e-35 / γ_p (float32) count as zero, so that λ_p / |v| is finite.
    least = 1024 * smallest(v.dtype) / jax.lax.stop_gradient(room)
    return 2 * safe_normalize(v, least[..., None])[1] / room


def tangent_inner(p: Ball, v: Ball, w: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the inner product λ_p² v · w of tangent vectors at p."""
    c, (p, v, w) = align(c, p, v, w)
    factor = (2 / inside(p, c)[1])[..., None]
    return dot(factor * v, factor * w)


def exp_map0(v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Apply the exponential map tanh(√c |v|) v / (√c |v|) at the origin (HOVER, eq. 2).

    The result is moved inside by `project`. The conformal factor at the origin is 2, so the point
    is at the distance 2 |v| from the origin, and `exp_map0(v, c)` equals
    `from_lorentz(lorentz.exp_map0(2 v, c), c)`.
    """
    v = as_vectors(v)
    curvature = per_batch(c, v)
    v, square = limit_norm_and_square(v, max_hyperbolic_norm(v.dtype) / jnp.sqrt(curvature))
    return project(v * tanhc_sqrt(curvature * square)[..., None], curvature)


def log_map0(p: Ball, c: ArrayLike = 1.0) -> Ball:
    """Apply the logarithmic map at the origin: artanh(√c |p|) p / (√c |p|).

    The norm of the result is half the distance of p from the origin.
    """
    p = as_vectors(p)
    curvature = per_batch(c, p)
    p, room = inside(p, curvature)
    return p * artanhc_sqrt(1 - room)[..., None]


def exp_map(p: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Apply the exponential map p ⊕ (tanh(√c λ_p |v| / 2) v / (√c |v|)).

    The result is moved inside by `project`. With a = √c λ_p |v|, u = v / |v| and γ = 1 − c |p|² it
    is (A p + γ sinh a / (2 √c) u) / B where

        A = cosh a + √c p · u sinh a,    2 B = γ + (2 − γ) cosh a + 2 √c p · u sinh a.

    If v leads inwards from far out, these terms cancel. Then, with r = √c |p|, e = p / |p| and
    b = e + u, the denominator is computed as a sum of positive terms:

        2 B = γ + (1 − r)² cosh a + 2 r e^{−a} + r |b|² sinh a.

    The numerator is split into γ sinh a b / 2 and a multiple of e, with the factor

        A r − γ sinh a / 2 = ((1 + r)² e^{−a} − (1 − r)² e^{a}) / 4 + r² |b|² sinh a / 2.

    Vectors for which √c λ_p |v| exceeds `max_hyperbolic_norm` are shortened to that length; they
    lead to the rim of the ball in any case.
    """
    c, (p, v) = align(c, p, v)
    p, room = inside(p, c)
    longest = max_hyperbolic_norm(p.dtype) / jnp.sqrt(c)
    v, square = limit_norm_and_square(v, longest * room / 2)
    z = c * square * (2 / room) ** 2
    cosh, sinhc = cosh_sqrt(z), sinhc_sqrt(z)
    lean = c * dot(p, v) * (2 / room) * sinhc  # √c p · u sinh a
    steep = 2 * lean < -cosh  # then neither p nor v is 0

    a, r = jnp.sqrt(jnp.where(steep, z, 1)), jnp.sqrt(jnp.where(steep, 1 - room, 1))
    # The result is a combination of p and w, which is v or, if v is steep, a multiple of b.
    w = v + jnp.where(steep, room / 2 * (a / r), 0)[..., None] * p
    bend2 = c * dot(w, w) * (2 / room / a) ** 2  # |b|²
    slack = jnp.where(steep, room, 1) / (1 + r)  # 1 − r
    grow, shrink, sinh = jnp.exp(a), jnp.exp(-a), jnp.sinh(a)
    turn = r * bend2 * sinh
    steep_below = room + slack**2 * cosh + 2 * r * shrink + turn
    along = ((1 + r) ** 2 * shrink - slack**2 * grow) / 2 + r * turn

    denominator = jnp.where(steep, steep_below, (room + (2 - room) * cosh) / 2 + lean)
    # The factor of p is 1 for v = 0, so that p stays unchanged, bit for bit.
    by_p = jnp.where(steep, along / r, 0) / denominator
    by_p = jnp.where(steep, by_p, 1 + room * (cosh - 1) / (2 * denominator))
    by_w = jnp.where(steep, 2 * sinh / a, sinhc) / denominator
    return project(by_p[..., None] * p + by_w[..., None] * w, c)


def log_map(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Ball:
    """Apply the logarithmic map at p: (2 / (√c λ_p)) artanh(√c |w|) w / |w|, with w = (−p) ⊕ q.

    The length of the result is the distance of p and q; the map is smooth at q = p.
    """
    c, (p, q) = align(c, p, q)
    (p, gap_p), (q, gap_q) = inside(p, c), inside(q, c)
    difference = q - p
    size2 = c * dot(difference, difference)
    # artanh(√c |w|) is the asinh of √z, and w = (γ_p D − c |D|² p) / (γ_p γ_q (1 + z)).
    z = _divide(size2, gap_p * gap_q)
    size = asinhc_sqrt(z) / jnp.sqrt(1 + z)
    ratio, by_p = _gap_ratio(p, q, gap_p, gap_q, c), size2 / gap_q
    return size[..., None] * (ratio[..., None] * difference - by_p[..., None] * p)


def retract(p: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return p + v, moved inside by `project`, which equals `exp_map` to first order in v."""
    c, (p, v) = align(c, p, v)
    return project(p + v, c)


def geodesic(t: ArrayLike, p: Ball, q: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return the point at the fraction t of the way from p to q, as `lorentz.geodesic`.

    The result is moved inside by `project`. For the weights a and b of `numerics.weights_between`
    it is (a λ_p p + b λ_q q) / (a λ_p + b λ_q + 1 − a − b): the sum of the points of the Lorentz
    model, taken to the ball. It is computed as the end of the larger weight plus a multiple of the
    difference of the ends and a multiple of that end.
    """
    c, (p, q) = align(c, p, q)
    (p, gap_p), (q, gap_q) = inside(p, c), inside(q, c)
    difference = q - p
    rise = _divide(c * dot(difference, difference), gap_p * gap_q)
    t, p, q, *numbers = broadcast_number(
        t, p, q, *(number[..., None] for number in (gap_p, gap_q, rise, c))
    )
    gap_p, gap_q, rise, c = numbers
    a, b, rest = weights_between(t, rise)
    by_p, by_q, rest = a * gap_q, b * gap_p, rest * gap_p * gap_q / 2
    total = by_p + by_q + rest
    is_near, share = by_p >= by_q, 1 - rest / total
    by_difference = jnp.where(is_near, by_q, -by_p) / total
    weights = jnp.where(is_near, share, 0), jnp.where(is_near, 0, share), by_difference
    c = c[..., 0]

    def move(p: Ball, q: Ball, t: Array) -> Ball:
        return exp_map(p, t * log_map(p, q, c), c)

    return project(combine_ends(weights, is_between(t, rise), t, p, q, move), c)


def geodesic_unit(t: ArrayLike, p: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return exp_map(p, t v / (λ_p |v|)); arguments are as in `lorentz.geodesic_unit`."""
    curvature, (p, v) = align(c, p, v)
    direction, _ = safe_normalize(v, shortest_direction(v.dtype))
    unit_vector = direction * (inside(p, curvature)[1] / 2)[..., None]
    t, unit_vector, p = broadcast_number(t, unit_vector, p)
    return exp_map(p, t * unit_vector, curvature)


def limit_distance0(p: Ball, limit: ArrayLike, c: ArrayLike = 1.0) -> Ball:
    """Move points that are farther than ``limit`` from the origin radially to that distance.

    Arguments are as in `lorentz.limit_distance0`; results are moved inside by `project`.
    """
    p = as_vectors(p)
    limit, curvature = per_batch(limit, p, "limit"), per_batch(c, p)
    root = jnp.sqrt(curvature)
    return project(
        limit_norm(p, jnp.tanh(root * within_reach(limit, curvature) / 2) / root), curvature
    )


def parallel_transport(p: Ball, q: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Transport v from p to q along the geodesic: (λ_p / λ_q) gyr[q, −p] v (Ungar, 2009)."""
    c, (p, q, v) = align(c, p, q, v)
    (p, gap_p), (q, gap_q) = inside(p, c), inside(q, c)
    ratio = _gap_ratio(q, p, gap_q, gap_p, c)
    return ratio[..., None] * _rotate(q, p, v, gap_q, gap_p, c)[0]


def transport0(q: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Transport a tangent vector from the origin to q: (1 − c |q|²) v."""
    c, (q, v) = align(c, q, v)
    return inside(q, c)[1][..., None] * v


def from_frame(p: Ball, u: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return the tangent vector u / λ_p at p that has the coordinates u in the frame at p.

    It is also the Riemannian gradient in the frame, for the gradient u in coordinates.
    """
    c, (p, u) = align(c, p, u)
    return (inside(p, c)[1] / 2)[..., None] * u


def egrad_to_rgrad(p: Ball, gradient: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return the Riemannian gradient at p, from the gradient in coordinates: gradient / λ_p².

    Source: Nickel and Kiela, Poincaré embeddings, NeurIPS 2017.
    """
    c, (p, gradient) = align(c, p, gradient)
    half_gap = inside(p, c)[1][..., None] / 2
    return gradient * half_gap * half_gap


def distance(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the geodesic distance, with gradient 0 at the kink q = p.

    It is (2 / √c) asinh(√c |p − q| / √((1 − c|p|²)(1 − c|q|²))), which equals the arcosh form of
    HOVER's eq. 3 and does not cancel. The second derivatives of its square are 0 at q = p, too; see
    `lorentz.distance`.
    """
    c, (p, q) = align(c, p, q)
    return _distance(p, q, c)


@jax.custom_jvp
def _distance(p: Ball, q: Ball, c: Scalar) -> Scalar:
    """Compute `distance` of points of the same shape, with c that broadcasts to the batch."""
    _check_curvature(c)
    chord, short_p, short_q = _chord(p, q, c)
    return _length(chord, c * short_p.square, c * short_q.square, c)


def _chord(p: Ball, q: Ball, c: Scalar) -> tuple[Scalar, Shortening, Shortening]:
    """Return |p − q| of points moved inside, and how they were moved; see `bounded_norm`."""
    limit = _max_radius(p.dtype) / jnp.sqrt(c)
    difference = jax.lax.stop_gradient(p - q)
    pp, qq, square = dot(p, p), dot(q, q), dot(difference, difference)
    least = smallest(p.dtype) / float(jnp.finfo(p.dtype).eps) ** 2
    is_inside = (pp <= limit * limit) & (qq <= limit * limit)
    is_usual = is_inside & (square > least) & (square < 1 / least)

    def by_moving(_pp: Scalar, _qq: Scalar, _square: Scalar) -> tuple:
        short_p, short_q = shortening(p, limit), shortening(q, limit)
        # Multiply each vector by one factor that includes the scale: XLA then stores only the sum.
        per_scale = 1 / bounded_scale(2 / jnp.sqrt(c), p.dtype)
        rows = [(short.factor * per_scale)[..., None] for short in (short_p, short_q)]
        scaled = jax.lax.stop_gradient(p * rows[0] - q * rows[1])
        return jnp.sqrt(dot(scaled, scaled)) / per_scale, short_p, short_q

    def by_difference(pp: Scalar, qq: Scalar, square: Scalar) -> tuple:
        is_long, factor = jnp.zeros_like(pp, bool), jnp.ones_like(pp)
        short_p, short_q = Shortening(is_long, factor, pp), Shortening(is_long, factor, qq)
        return jnp.sqrt(square), short_p, short_q

    norm, short_p, short_q = jax.lax.cond(
        is_any(~is_usual), by_moving, by_difference, pp, qq, square
    )
    difference = p * short_p.factor[..., None] - q * short_q.factor[..., None]
    return with_norm(difference, norm), short_p, short_q


def _length(chord: Scalar, z_p: Scalar, z_q: Scalar, c: Scalar) -> Scalar:
    """Return the distance from |p − q|, c |p|², c |q|² and c."""
    return 2 * scaled_asinh(chord / jnp.sqrt(_gap(z_p) * _gap(z_q)), c)


@_distance.defjvp
def _distance_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    """Compute gradients as combinations of p − q and p, with factors that need only three sums.

    The gradient of a point that was moved inside has no component along the point.
    """
    (p, q, c), (dp, dq, dc) = primals, tangents
    chord, short_p, short_q = _chord(p, q, c)
    p, q = (v * short.factor[..., None] for v, short in ((p, short_p), (q, short_q)))
    pp, qq = short_p.square, short_q.square
    c = jnp.broadcast_to(c, chord.shape)
    value, pullback = jax.vjp(_length, chord, c * pp, c * qq, c)
    by_chord, by_p, by_q, by_c = pullback(jnp.ones_like(value))
    growth = by_c * dc
    for v, dv, short, partner, by_square, partner2 in (
        (p, dp, short_p, q, by_p, qq),
        (q, dq, short_q, p, by_q, pp),
    ):
        is_apart = chord > 0
        # For a point at the rim: the component of the difference along it, times its radius.
        lean = (short.square - partner2 + chord * chord) / jnp.where(is_apart, chord, 1) / 2
        pull = by_chord * jnp.where(short.is_long & is_apart, lean, 0)
        square = jnp.where(short.is_long, short.square, 1)  # 0 at the origin, which is not long
        along = jnp.where(short.is_long, -pull / square, 2 * c * by_square)
        slope = by_chord[..., None] * over_norm(v - partner, chord) + along[..., None] * v
        growth = growth + dot(slope, short.factor[..., None] * dv)
        # The derivative in c. Inside, c |v|² grows with c. At the rim it is constant and the radius
        # shrinks.
        growth = growth + jnp.where(short.is_long, -pull / (2 * c), by_square * short.square) * dc
    return value, growth


def squared_distance(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the squared Lorentzian distance 4 |p − q|² / ((1 − c|p|²)(1 − c|q|²)), smooth.

    At q = p it has the first and second derivatives of the squared geodesic distance.
    """
    c, (p, q) = align(c, p, q)
    (p, gap_p), (q, gap_q) = inside(p, c), inside(q, c)
    difference = p - q
    return _divide(4 * dot(difference, difference), gap_p * gap_q)


def distance0(p: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the distance from the origin, (2 / √c) artanh(√c |p|), with gradient 0 there."""
    p = as_vectors(p)
    c = per_batch(c, p)
    p, room = inside(p, c)
    return 2 * bounded_norm(p, 1 / jnp.sqrt(c)) * artanhc_sqrt(1 - room)


def pairwise_distance(
    p: Float[Array, "*#batch M n"], q: Float[Array, "*#batch N n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Return geodesic distances of all pairs, by one matrix product and `distance` for near points.

    A pair is near if |p − q|² is less than a sixteenth of |p|² + |q|². Then |p|² + |q|² − 2 p · q
    would amplify rounding more than 16 times. For other pairs the product adds a relative error of
    at most 16 times the error of p · q in units of |p| |q|, a few eps. See
    `lorentz.pairwise_distance`.
    """
    pairs = _rise_between(p, q, c)
    by_product = 2 * scaled_asinh(safe_sqrt(pairs.rise), pairs.c[..., None, None])
    return replace_near(by_product, pairs.is_near, pairs.p, pairs.q, pairs.c, _distance)


def pairwise_squared_distance(
    p: Float[Array, "*#batch M n"], q: Float[Array, "*#batch N n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Return squared Lorentzian distances of all pairs, computed as in `pairwise_distance`."""
    pairs = _rise_between(p, q, c)
    return replace_near(4 * pairs.rise, pairs.is_near, pairs.p, pairs.q, pairs.c, squared_distance)


class _PairRises(NamedTuple):
    """The quotients |p_i − q_j|² / (γ_i γ_j) of all pairs of two sets."""

    rise: Array  # 1 for near pairs
    is_near: Array
    p: Array  # the points, moved inside, and c, with the same batch axes
    q: Array
    c: Array


def _rise_between(
    p: Float[Array, "*#batch M n"], q: Float[Array, "*#batch N n"], c: ArrayLike
) -> _PairRises:
    """Compute |p_i − q_j|² / (γ_i γ_j) of all pairs by one matrix product."""
    p, q, c = align_sets(as_sets(p), as_sets(q), c)
    (p, gap_p), (q, gap_q) = inside(p, c[..., None]), inside(q, c[..., None])
    room = gap_p[..., :, None] * gap_q[..., None, :]
    squares, is_near = squares_between(p, q)
    rise = jnp.where(is_near, 1, _divide(squares, room))
    return _PairRises(rise, is_near, p, q, c)


def mobius_add(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return the Möbius sum p ⊕ q: q translated by p along geodesics. It does not commute.

    It is ((1 + 2c p·q + c|q|²) p + (1 − c|p|²) q) / (1 + 2c p·q + c²|p|²|q|²), moved inside by
    `project` (Ungar, 2009; Ganea, Bécigneul and Hofmann, 2018).
    """
    curvature, (p, q) = align(c, p, q)
    (p, gap_p), (q, gap_q) = inside(p, curvature), inside(q, curvature)
    total = p + q
    total2 = curvature * dot(total, total)
    pp, qq = curvature * dot(p, p), curvature * dot(q, q)
    # If one point is much shorter, the result is the longer one plus a small term. So adding 0
    # leaves a point unchanged, bit for bit.
    short_p, short_q = (4 * pp < qq)[..., None], (4 * qq <= pp)[..., None]
    pq = curvature * dot(p, q)
    add_q = gap_p[..., None] * (q + qq[..., None] * p)
    add_p = (gap_p + total2)[..., None] * p - (pp * (1 + qq) + 2 * pq)[..., None] * q
    numerator = jnp.where(short_p, add_p, gap_p[..., None] * total + total2[..., None] * p)
    den = (total2 + gap_p * gap_q)[..., None]
    added = _divide(jnp.where(short_q, add_q, numerator), den)
    return project(jnp.where(short_q, p, jnp.where(short_p, q, 0)) + added, curvature)


def mobius_scalar_mul(r: ArrayLike, p: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return the Möbius product exp_map0(r log_map0(p)), r times as far from the origin as p.

    ``r`` broadcasts with ``*batch`` like the argument t of `geodesic`.
    """
    r, v = broadcast_number(r, log_map0(p, c), name="r")
    return exp_map0(r * v, c)


def mobius_matvec(
    matrix: Float[Array, "m n"], p: Float[Array, "*#batch n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch m"]:
    """Return the Möbius product exp_map0(matrix log_map0(p)) with a matrix: points [*batch, m]."""
    matrix, p = as_matrix("matrix", matrix, as_vectors(p))
    return exp_map0(precise_matmul(log_map0(p, c), matrix.T), c)


def mobius_linear(
    matrix: Float[Array, "m n"],
    p: Float[Array, "*#batch n"],
    bias: Float[Array, " m"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch m"]:
    """Apply the Möbius linear map (matrix ⊗ p) ⊕ exp_map0(bias).

    Sources: Ganea, Bécigneul and Hofmann, 2018; HOVER, section 3.

    Args:
      matrix: matrix of `mobius_matvec`.
      p: points.
      bias: a tangent vector at the origin, so a Euclidean optimiser may train it.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    p, matrix, bias = as_floats(p, matrix, bias)
    moved = mobius_matvec(matrix, p, c)
    if bias.ndim:
        check_shape("bias", bias, moved.shape[-1:])
    bias = jnp.broadcast_to(bias.reshape((1,) * (moved.ndim - 1) + bias.shape), moved.shape)
    return mobius_add(moved, exp_map0(bias, c), c)


def gyration(p: Ball, q: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Return gyr[p, q] v: the rotation by which Möbius addition fails to be associative.

    It equals ⊖(p ⊕ q) ⊕ (p ⊕ (q ⊕ v)) if v is a point, and is linear in v. With
    W v = (q · v) p − (p · v) q and α = 1 + c p · q it is v + 2 c (α W v + c W² v) / den.

    Args:
      p: points.
      q: points.
      v: vectors of any length, which the gyration preserves.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    c, (p, q, v) = align(c, p, q, v)
    (p, gap_p), (q, gap_q) = inside(p, c), inside(q, c)
    return _gyrate(p, -q, v, gap_p, gap_q, c)


def transport_in_frame(p: Ball, q: Ball, u: Ball, c: ArrayLike = 1.0) -> Ball:
    """Apply `parallel_transport` to coordinates u in the frame at p; return those in that at q.

    It is gyr[q, −p] u. The frames are that at the origin, transported along the rays to the points.
    """
    c, (p, q, u) = align(c, p, q, u)
    (p, gap_p), (q, gap_q) = inside(p, c), inside(q, c)
    return _gyrate(q, p, u, gap_q, gap_p, c)


def _gyrate(p: Ball, q: Ball, v: Ball, gap_p: Scalar, gap_q: Scalar, c: Scalar) -> Ball:
    """Return gyr[p, −q] v for points that are `inside`, with their gaps and the same batch axes."""
    # If one point is much shorter, derivatives of `_rotate` in the longer point lose digits, and W
    # does not cancel.
    pp, qq, pq, pv, qv = c * dot(p, p), c * dot(q, q), c * dot(p, q), dot(p, v), dot(q, v)
    rotated, factor = _rotate(p, q, v, gap_p, gap_q, c)
    by_p, by_q = factor * ((2 * pq - 1) * qv - qq * pv), factor * (pv - pp * qv)
    is_short = ((4 * pp < qq) | (4 * qq < pp))[..., None]
    by_lengths = v + by_p[..., None] * p + by_q[..., None] * q
    return jnp.where(is_short, by_lengths, rotated)


def _rotate(
    p: Ball, q: Ball, v: Ball, gap_p: Scalar, gap_q: Scalar, c: Scalar
) -> tuple[Ball, Scalar]:
    """Compute `_gyrate` for two points of similar length.

    For D = p − q, the terms in W of `gyration` (by p and −q) are 2 c / den times

        (γ_q D · v − c |D|² q · v) p − (D · v + γ_p q · v) D.

    Returns:
      The vector, and 2 c / den.
    """
    difference = p - q
    square = c * dot(difference, difference)
    along, lean = dot(difference, v), dot(q, v)
    factor = _divide(2 * c, square + gap_p * gap_q)
    by_p = factor * (gap_q * along - square * lean)
    by_difference = factor * (along + gap_p * lean)
    return v + by_p[..., None] * p - by_difference[..., None] * difference, factor


def gyromidpoint(
    points: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch M n"]:
    """Return weighted midpoints ½ ⊗ (Σ_i weight_i λ_i p_i / Σ_i weight_i (λ_i − 1)) of points.

    The midpoint is the centroid in the Lorentz model (Ungar, 2009; Shimizu, Mukuta and Harada,
    2021). Let a_i = weight_i / γ_i, W and A the sums of the weights and of a, and
    m = Σ_i a_i p_i / A. Then the Lorentzian norm N of the sum of the points is the root of a sum of
    squares, and the midpoint is a quotient in which nothing cancels:

        V = c Σ_i a_i |p_i − m|²,    N² = W² + 4 A V,    m / (1 + 2 V / (N + W)).

    Args:
      points: points.
      weights: as in `lorentz.centroid`.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Midpoints [*batch, M, n].

    Raises:
      ValueError: for weights of other axes, as in `lorentz.centroid`.
    """
    points = as_sets(points, least=1)
    curvature = per_batch(c, points[..., 0])[..., None]
    return _midpoint(points, mean_weights(weights, points), curvature)


@jax.custom_jvp
def _midpoint(points: Array, weights: Array, c: Array) -> Array:
    """Compute `gyromidpoint` with 2 V / (N + W) = (N − W) / (2 A), from N² as a difference.

    With T = 2 A − W and S = 2 Σ_i a_i p_i, N² is T² − c |S|². If that cancels for any of the sets,
    all sets are computed from V. The derivative is always that of the form with V.
    """
    short = shortening(points, _max_radius(points.dtype) / jnp.sqrt(c))
    gap = _gap(c * short.square)
    mass, share, total = _shares(weights, gap)
    time, space = 2 * total - mass, 2 * sum_products(share * short.factor[..., None, :], points)
    square = c * dot(space, space)

    def by_difference() -> Array:
        norm = jnp.sqrt(jnp.where(mass == 0, 1, time * time - square))
        return jnp.where(mass == 0, 0, 1 / (time + norm))[..., None] * space

    return jax.lax.cond(
        is_any(2 * square > time * time),
        lambda: _midpoint_by_spread(points, weights, c),
        by_difference,
    )


@_midpoint.defjvp
def _midpoint_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return jax.jvp(_midpoint_by_spread, primals, tangents)


def _shares(weights: Array, gap: Array) -> tuple[Array, Array, Array]:
    """Return W, the shares a, and A of `gyromidpoint`; A is 1 where all weights are 0."""
    share = weights / gap[..., None, :]
    total = jnp.sum(share, axis=-1)
    return jnp.sum(weights, axis=-1), share, jnp.where(total == 0, 1, total)


def _midpoint_by_spread(points: Array, weights: Array, c: Array) -> Array:
    """Compute `gyromidpoint` from V, a sum of squares of differences."""
    points, gap = inside(points, c)
    mass, share, total = _shares(weights, gap)
    # Sum differences from a base point that derivatives treat as a constant. The mean m is the same
    # for any base point, and its gradient does not cancel.
    heaviest = jnp.argmax(jax.lax.stop_gradient(share), axis=-1)[..., None]
    base = jax.lax.stop_gradient(jnp.take_along_axis(points, heaviest, axis=-2))
    gaps = points[..., None, :, :] - base[..., None, :]
    # CPUs sum rows slowly, so these are matrix products.
    mean = precise_matmul(share[..., None, :], gaps)[..., 0, :] / total[..., None]
    across = (gaps - mean[..., None, :]) * jnp.sqrt(c)[..., None, None]
    spread = jnp.sum(share * dot(across, across), axis=-1)
    norm = jnp.sqrt(jnp.where(mass == 0, 1, mass * mass + 4 * total * spread))
    middle = (base + mean) / (1 + 2 * spread / (norm + mass))[..., None]
    return jnp.where(mass[..., None] == 0, 0, middle)


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Ball:
    """Concatenate rescaled tangent vectors at the origin, which gives points of a larger ball.

    The tangent vector `log_map0` of each point is multiplied by B(n/2, 1/2) / B(n_i/2, 1/2), where
    n is the sum of the dimensions n_i and B the beta function. So a random tangent vector keeps its
    expected length (Shimizu, Mukuta and Harada, 2021).

    Args:
      points: points with the same batch axes, of any dimensions.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    points = as_floats(*map(as_vectors, points))
    n = sum(p.shape[-1] for p in points)
    parts = [log_map0(p, c) * _beta_ratio(n, p.shape[-1]) for p in points]
    return exp_map0(jnp.concatenate(parts, axis=-1), c)


def split(p: Ball, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Split points into points of the dimensions ``dims``, to undo `concatenate`.

    Args:
      p: points.
      dims: dimensions of the parts.
      c: curvature, positive; broadcasts to ``*batch``.

    Raises:
      ValueError: for dimensions that do not add up to the dimension of ``p``.
    """
    v = log_map0(p, c)
    parts = split_coordinates(v, dims)
    return [exp_map0(part * _beta_ratio(part.shape[-1], sum(dims)), c) for part in parts]


def _beta_ratio(numerator: int, denominator: int) -> float:
    """Return B(numerator / 2, 1/2) / B(denominator / 2, 1/2)."""

    def log_beta(n: int) -> float:
        return math.lgamma(n / 2) - math.lgamma((n + 1) / 2)

    return math.exp(log_beta(numerator) - log_beta(denominator))


def hyperplane_distance(p: Ball, point: Ball, normal: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return the signed distance to a hyperplane; arguments as in `lorentz.hyperplane_distance`.

    It is arsinh(2 √c w · a / ((1 − c |w|²) |a|)) / √c for w = (−point) ⊕ p and the normal a (Ganea,
    Bécigneul and Hofmann, 2018, without the absolute value).
    """
    c, (p, point, normal) = align(c, p, point, normal)
    (p, gap_p), (point, room) = inside(p, c), inside(point, c)
    normal, difference = unit(normal), p - point
    rise = room * dot(difference, normal) - c * dot(difference, difference) * dot(point, normal)
    return scaled_asinh(2 * rise / room / gap_p, c)


def mlr(
    p: Float[Array, "*#batch n"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Return logits of multinomial logistic regression, by one matrix product.

    They equal `lorentz.mlr` of the same points and offsets with the normals 2 z, because a tangent
    vector z at the origin of the ball has the length 2 |z|:

        2 |z| arsinh(λ_p √c ⟨z / |z|, p⟩ cosh(√c b) − (λ_p − 1) sinh(√c b)) / √c

    (Shimizu, Mukuta and Harada, 2021, where the offset b is 2 r).

    Args:
      p: points.
      normals: normals z, tangent at the origin; a zero normal gives 0.
      offsets: signed distances b of the hyperplanes from the origin.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    normals, p = as_matrix("normals", normals, as_vectors(p))
    c = per_batch(c, p)
    p, room = inside(p, c)
    return logits(p, 2 / room - 1, 2 * normals, offsets, c, scale=2 / room)
