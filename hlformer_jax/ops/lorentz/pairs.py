"""Formulas for pairs of points of the Lorentz model that do not cancel, in space components.

All arrays have the same batch axes, and c has the dtype and the rank of the batch. docs/geometry.md
derives the formulas ("How formulas keep their digits").
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops.arguments import check_positive, common_batch, per_batch, without_time
from hlformer_jax.ops.numerics import (
    asinhc_sqrt,
    cosh_sqrt,
    dot,
    inverse,
    largest_coordinate,
    max_hyperbolic_norm,
    power_of_two,
    safe_sqrt,
    sinhc_sqrt,
    smallest,
    subtract_multiple,
)
from hlformer_jax.typing import Array

Space = Float[Array, "*#batch n"]
Scalar = Float[Array, "*#batch"]
Point = Float[Array, "*#batch n1"]
Mask = Bool[Array, "*#batch"]


class TangentParts(NamedTuple):
    """A tangent vector v at x, split along x_space and across it.

    Attributes:
      r: |x_space|, or 1 near the origin.
      tau: √(1 + |x_space|²).
      along: component of v_space along x_space, 0 near the origin.
      across: the part of v_space across x_space; all of it near the origin.
      rest: the multiple of x that rounding left in ``across``.
      across2: the squared length of ``across`` without it.
      length2: the squared length ⟨v, v⟩.
    """

    r: Scalar
    tau: Scalar
    along: Scalar
    across: Space
    rest: Scalar
    across2: Scalar
    length2: Scalar


class Pair(NamedTuple):
    """Two points x and y and the curvature, in a unit of length that makes tiny points size 1.

    Attributes:
      scale: the unit, at most 1; derivatives treat it as a constant.
      x: x_space divided by the unit.
      y: y_space divided by the unit.
      difference: x_space - y_space, divided by the unit.
      c: the curvature times the squared unit.
    """

    scale: Scalar
    x: Space
    y: Space
    difference: Space
    c: Scalar


class PairSums(NamedTuple):
    """Sums over the coordinates of a pair, with D = x - y and D_⊥ its part orthogonal to x.

    Attributes:
      xx: x · x.
      yy: y · y.
      xy: x · y.
      rise: D · (x + y).
      across2: |D_⊥|².
    """

    xx: Scalar
    yy: Scalar
    xy: Scalar
    rise: Scalar
    across2: Scalar


class Chord(NamedTuple):
    """The squared Lorentzian distance of a pair, and the quantities that its gradient needs.

    Attributes:
      m: the squared distance ⟨x - y, x - y⟩.
      aligned: whether x · y was large enough to use the formula for near points.
      tau_x: √(1 + c |x|²).
      tau_y: √(1 + c |y|²).
      r: |x|, or 1 where the points are not aligned.
      q: |y|, or 1 where the points are not aligned.
    """

    m: Scalar
    aligned: Mask
    tau_x: Scalar
    tau_y: Scalar
    r: Scalar
    q: Scalar


class ChordGradient(NamedTuple):
    """The gradient of the distance in x, times sinh(√c d) / √c: vector - (turn / τ_x) x.

    Attributes:
      vector: the first term, D_⊥ or -y.
      turn: the factor of the second term.
    """

    vector: Space
    turn: Scalar


class DistanceGradient(NamedTuple):
    """The distance of two points and its gradient, size · vector − turn x / scale in x.

    Attributes:
      value: the distance.
      size: the factor of both vectors.
      vector_x: the vector of the gradient in x.
      vector_y: the vector of the gradient in y.
      turn_x: the factor of x, divided by the scale, in the gradient in x.
      turn_y: the same for y.
      shrink: 1 / scale.
      by_c: the derivative in c.
    """

    value: Scalar
    size: Scalar
    vector_x: Space
    vector_y: Space
    turn_x: Scalar
    turn_y: Scalar
    shrink: Scalar
    by_c: Scalar

    def apply(self, x: Space, y: Space, dx: Space, dy: Space, dc: Scalar) -> Scalar:
        """Return the tangent of the distance of x and y, from tangents of them and of c."""
        shrink, result = self.shrink[..., None], self.by_c * dc
        for point, moved, vector, turn in (
            (x, dx, self.vector_x, self.turn_x),
            (y, dy, self.vector_y, self.turn_y),
        ):
            result = result + self.size * dot(vector, moved) - turn * dot(point * shrink, moved)
        return result


def space_components(*points: Point) -> Sequence[Space]:
    """Return the space components of points and tangent vectors, prepared by `common_batch`."""
    return common_batch(*(without_time(point) for point in points))


def with_tangent_time(x: Space, v: Space, c: ArrayLike) -> Point:
    """Add the time component x · v / x_time that makes v tangent at x, from space components."""
    v_time = dot(x / time_component(x, per_batch(c, x))[..., None], v)
    return jnp.concatenate([v_time[..., None], v], axis=-1)


def time_component(x: Space, c: Scalar) -> Scalar:
    """Return √(1/c + |x|²)."""
    return jnp.sqrt(inverse(c) + dot(x, x))


def point_from_space(x: Space, c: Scalar) -> Point:
    """Add the time component of a point; raise ValueError if c is known not to be positive."""
    check_positive("c", c, hint=": at 0 time components are infinite")
    return jnp.concatenate([time_component(x, c)[..., None], x], axis=-1)


def split_tangent(x: Space, v: Space) -> TangentParts:
    """Split a tangent vector v into parts along and across x, where x is already times √c.

    Far from the origin the squared length is v_⊥ · v_⊥ + v_∥² / τ², which does not cancel as
    v · v − (x · v)² / τ² would. Near the origin the second form is used, with all of v across x.
    """
    xx = dot(x, x)
    is_near, tau = xx <= 1, jnp.sqrt(1 + xx)
    r = jnp.sqrt(jnp.where(is_near, 1, xx))
    per_r = 1 / r  # a factor applied twice, because the square of xx would overflow far out
    outward = x * per_r[..., None]
    lean = dot(outward, v)
    along = jnp.where(is_near, 0, lean)
    # Subtract multiples of x, because rounding x / |x| would leave an error of eps v_∥. Then remove
    # the rounding error of the multiple, which has no derivative.
    across = subtract_multiple(v, along * per_r, x)
    again = jnp.where(is_near, 0, dot(outward, across) * per_r)[..., None]
    across = across + jax.lax.stop_gradient(-again * x)
    rest = jnp.where(is_near, 0, dot(outward, across))
    square, slant = dot(across, across) - rest**2, (lean / tau) ** 2
    length2 = jnp.where(is_near, square - slant, square + slant)
    return TangentParts(r, tau, along, across, rest * per_r, square, length2)


def tangent_length(x: Space, v: Space, c: Scalar) -> Scalar:
    """Return √⟨v, v⟩ without underflow or overflow; 0 with gradient 0 at v = 0."""
    scale = largest_coordinate(v, smallest(v.dtype))
    v = v / jnp.where(scale == 0, 1, scale)
    return jnp.squeeze(scale, -1) * safe_sqrt(split_tangent(x * jnp.sqrt(c)[..., None], v).length2)


def rescale(x: Space, y: Space, c: Scalar, negligible: float | None = None) -> Pair:
    """Rescale a pair to about size 1 if it is smaller, so that no square underflows.

    Dividing lengths by s and multiplying c by s² does not change the geometry. ``negligible`` is as
    in `largest_coordinate`.
    """
    x, y = jnp.broadcast_arrays(x, y)
    scale = largest_coordinate(jnp.maximum(jnp.abs(x), jnp.abs(y)), negligible)
    # A power of two, so that differences of near points stay exact.
    scale = power_of_two(jnp.where((scale == 0) | (scale > 1), 1, scale))
    shrink = 1 / scale
    scale = jnp.squeeze(scale, -1)
    return Pair(scale, x * shrink, y * shrink, (x - y) * shrink, c * scale**2)


def lift(xx: Scalar, yy: Scalar, tau: Scalar, c: Scalar) -> Scalar:
    """Return (τ_x τ_y − 1) / c from x · x, y · y and τ = τ_x τ_y, without cancelling near 0."""
    curved = tau > 2
    xx, yy = jnp.where(curved, 0, xx), jnp.where(curved, 0, yy)
    flat = (xx + yy + c * xx * yy) / (tau + 1)
    return jnp.where(curved, (tau - 1) * inverse(jnp.where(curved, c, 1)), flat)


def sum_pair(x: Space, y: Space) -> tuple[PairSums, Space]:
    """Return the `PairSums` of a pair and its vector D_⊥, from five sums over the coordinates.

    D_⊥ is 0 for an x too near 0 to have a direction.

    Let k = 0 if y is much shorter than x, so that x − y would lose the digits of y, and else k = 1.
    With g = x · (k x − y), D_⊥ is (k x − y) − (g / x · x) x. The other sums follow without
    cancelling: x · y = k x · x − g, and for k = 1, D · (x + y) = 2 g − |D|² with
    |D|² = |D_⊥|² + g² / x · x.
    """
    xx, yy = dot(x, x), dot(y, y)
    is_far = 4 * yy < xx
    start = jnp.where(is_far, 0, 1).astype(x.dtype)[..., None] * x
    gap = start - y
    g = dot(gap, x)
    real = xx > math.sqrt(smallest(x.dtype))
    per_r = 1 / jnp.sqrt(jnp.where(real, xx, 1))  # see `split_tangent`
    share = jnp.where(real, g * per_r * per_r, 0)
    across = subtract_multiple(gap, share, x) + jax.lax.stop_gradient(
        _rounding_of_difference(start, y, gap)
    )
    rest = dot(across, x * per_r[..., None]) * per_r
    # A negated number per row costs nothing, but the gradient would negate an array.
    across = across + jnp.where(real, -rest, 0)[..., None] * x
    across2 = dot(across, across)
    rise = jnp.where(is_far | ~real, xx - yy, g * (2 - share) - across2)
    return PairSums(xx, yy, jnp.where(is_far, -g, xx - g), rise, across2), across


def _rounding_of_difference(x: Space, y: Space, difference: Space) -> Space:
    """Return the rounding error of x − y, exactly (Knuth's two-sum)."""
    minus_y = difference - x
    return (x - (difference - minus_y)) - (y + minus_y)


def chord_of(sums: PairSums, c: Scalar) -> Chord:
    """Compute the squared distance of a pair from its sums."""
    xx, yy, xy, rise, across2 = sums
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    height = lift(xx, yy, tau_x * tau_y, c)
    aligned = 2 * xy > height  # then neither point is 0 or much nearer to the origin than the other
    r, q = (jnp.sqrt(jnp.where(aligned, v, 1)) for v in (xx, yy))
    gap = jnp.where(aligned, rise, 0) / (r + q)
    across2 = jnp.where(aligned, across2, 0)
    # (1 + c r² + c q²) / (τ_x τ_y), from quotients: the square of the numerator would overflow.
    ratio = tau_x / tau_y + tau_y / tau_x - (1 / tau_x) * (1 / tau_y)
    ratio = ratio / (1 + (c * r / tau_x) * (q / tau_y))
    radial = 2 * (gap / (tau_x + tau_y)) ** 2 * (1 + ratio)
    tangential = across2 * (2 * r / (q + jnp.where(aligned, xy, 1) / r))
    m = jnp.where(aligned, radial + tangential, 2 * (height - xy))
    return Chord(m, aligned, tau_x, tau_y, r, q)


def distance(x: Space, y: Space, c: Scalar) -> Scalar:
    """Compute the geodesic distance from points of one shape and a curvature per pair."""
    pair = rescale(x, y, c, smallest(x.dtype))
    return _length_of_chord(sum_pair(pair.x, pair.y)[0], pair.scale, c)


def _length_of_chord(sums: PairSums, scale: Scalar, c: Scalar) -> Scalar:
    c = c * scale**2
    m = chord_of(sums, c).m
    return scale * safe_sqrt(m) * asinhc_sqrt(c * m / 4)


def distance_gradient(x: Space, y: Space, c: Scalar) -> DistanceGradient:
    """Compute the geodesic distance, and its gradient, which is 0 at y = x."""
    pair = rescale(x, y, c, smallest(x.dtype))
    sums, across = sum_pair(pair.x, pair.y)
    # The reverse mode multiplies by small factors first, so no product overflows for a tiny c.
    value, pullback = jax.vjp(lambda c: _length_of_chord(sums, pair.scale, c), c)
    (by_c,) = pullback(jnp.ones_like(value))
    chord = chord_of(sums, pair.c)
    distinct = chord.m >= smallest(x.dtype)
    m = jnp.where(distinct, chord.m, 1)
    per_m = jnp.where(distinct, 1 / (jnp.sqrt(m) * jnp.sqrt(1 + pair.c * m / 4)), 0)
    share = jnp.where(chord.aligned, chord.r / chord.q, 1)
    # The same quantities with x and y exchanged, for the gradient in y.
    swapped = PairSums(sums.yy, sums.xx, sums.xy, -sums.rise, sums.across2 * share**2)
    chord_y = Chord(m, chord.aligned, chord.tau_y, chord.tau_x, chord.q, chord.r)
    by_x = gradient_from_sums(across, pair.y, sums, chord)
    _, across_y = sum_pair(pair.y, pair.x)
    by_y = gradient_from_sums(across_y, pair.x, swapped, chord_y)
    turns = per_m * by_x.turn / chord.tau_x, per_m * by_y.turn / chord.tau_y
    return DistanceGradient(value, per_m, by_x.vector, by_y.vector, *turns, 1 / pair.scale, by_c)


def squared_distance_of_pair(x: Space, y: Space, c: Scalar) -> Scalar:
    """Compute `squared_distance` from space components of one shape and a curvature per pair."""
    pair = rescale(x, y, c)
    return gradient(pair)[1].m * pair.scale**2


def gradient(pair: Pair) -> tuple[ChordGradient, Chord]:
    """Compute the gradient of the distance in x, and the chord."""
    sums, across = sum_pair(pair.x, pair.y)
    chord = chord_of(sums, pair.c)
    return gradient_from_sums(across, pair.y, sums, chord), chord


def gradient_from_sums(across: Space, y: Space, sums: PairSums, chord: Chord) -> ChordGradient:
    """Compute the gradient of the distance in x from the sums of the pair."""
    aligned, tau_x, r, q = chord.aligned, chord.tau_x, chord.r, chord.q
    xy, rise, across2 = (jnp.where(aligned, value, 0) for value in sums[2:])
    # Multiply by reciprocals. XLA turns two divisions into one by a product, whose derivative
    # contains the cube of τ and overflows.
    per_x, per_y = 1 / tau_x, 1 / chord.tau_y
    # Roots, applied twice, because the derivative in 1 / r may contain the cube of r.
    per_r = jax.lax.rsqrt(r)
    per_sum = jax.lax.rsqrt(q + xy * per_r * per_r)
    # τ_x q − r τ_y, and the terms of τ_x (q − p), both divided by r.
    outward = -(rise * per_x * per_y) / (q * per_y + r * per_x)
    bend = (tau_x * per_r * per_r) * (across2 * per_sum * per_sum)
    turn = jnp.where(aligned, outward * per_r * per_r - bend, -chord.tau_y)
    # The vector has only the part across x: rounding would lose the radial part added to it.
    return ChordGradient(jnp.where(aligned[..., None], across, -y), turn)


def boost_to_origin(pair: Pair) -> tuple[Space, Chord]:
    """Return the space components of y after the boost of x to the origin, and the chord."""
    slope, chord = gradient(pair)
    # The root is applied twice: far out the gradient of a single factor would overflow.
    root = 1 / jnp.sqrt(1 + chord.tau_x)
    farther = pair.c * (dot(pair.x, pair.y) * root) * root - chord.tau_y
    reach = jnp.where(chord.aligned, slope.turn, farther)
    return reach[..., None] * pair.x - slope.vector, chord


def logarithm(x: Space, y: Space, c: Scalar) -> Point:
    """Compute the logarithmic map of y at x.

    Its space components are arcosh β / √(β² − 1) times y − β x, where β = 1 + c m / 2; with
    z = c m / 4 the factor is asinh √z / √z / √(1 + z), smooth at y = x.
    """
    pair = rescale(x, y, c)
    slope, chord = gradient(pair)
    aligned = chord.aligned
    z = pair.c * chord.m / 4
    flat, bent = 1 / jnp.sqrt(1 + z), asinhc_sqrt(z)
    # Apply the factors one by one: far out their product underflows and y − β x overflows.
    way = jnp.where(aligned[..., None], slope.vector, pair.difference) * flat[..., None]
    along = jnp.where(aligned, flat * slope.turn * chord.tau_x, -2 * flat * z)
    scale = pair.scale[..., None]
    space = bent[..., None] * (along[..., None] * pair.x - way) * scale
    return with_tangent_time(pair.x * scale, space, c)


def displace(x: Space, v: Space, c: Scalar) -> Space:
    """Compute cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|), the exponential map of v at x.

    v is shortened if the result would lie beyond `max_hyperbolic_norm`; derivatives treat the
    factor as a constant. If v leads from far out towards the origin, the terms cancel along x.
    Then they are rewritten as (r² − s²) / (r cosh + τ s) + τ s (1 + cos φ), where
    s = sinh(√c |v|) / √c, cos φ is the radial component of v / |v|, and 1 + cos φ is computed from
    the transverse component.
    """
    # A tangent vector with a larger coordinate is shortened in any case.
    root, largest = jnp.sqrt(c)[..., None], largest_coordinate(v)
    longest = float(jnp.finfo(v.dtype).eps) ** -2.5 / jax.lax.stop_gradient(root)
    long = largest > longest
    # Two factors: for the factor longest / largest, XLA would multiply √c by largest and overflow.
    v = v * jnp.where(long, 1 / largest, 1) * jnp.where(long, longest, 1)
    parts = split_tangent(x * root, v * root)
    r, tau, z = parts.r, parts.tau, parts.length2
    limit = jnp.maximum(max_hyperbolic_norm(x.dtype) - jnp.arccosh(jax.lax.stop_gradient(tau)), 0)
    over = z > limit * limit
    shorten = jax.lax.stop_gradient(jnp.where(over, limit / jnp.sqrt(jnp.where(over, z, 1)), 1))
    # Shorten all parts, because small differences would change if computed from the shortened v.
    z, square, along = z * shorten**2, parts.across2 * shorten**2, parts.along * shorten

    cosh, sinhc = cosh_sqrt(z), sinhc_sqrt(z)
    inward = -2 * sinhc * along > cosh * r  # then v is not 0, and x is not near the origin
    size = jnp.sqrt(jnp.where(inward, z, 1))
    s = sinhc * size
    gap = (r - s) * ((r + s) / jnp.where(inward, r * cosh + tau * s, 1))
    bend = sinhc * tau * square / jnp.where(inward, size - along / tau, 1)
    # Select one number per row, not vectors, because gradients of selected vectors are copies.
    by_v = jnp.where(inward, 0, sinhc) * shorten
    by_across = jnp.where(inward, sinhc, 0) * shorten
    by_x = jnp.where(inward, (gap + bend) / r - by_across * parts.rest, cosh)
    by_across = by_across / jnp.squeeze(root, -1)
    return by_across[..., None] * parts.across + by_v[..., None] * v + by_x[..., None] * x


def inner_with_end(pair: Pair, v: Space) -> tuple[Scalar, Scalar]:
    """Compute ⟨y, v⟩ for v tangent at x, and the squared distance of x and y.

    The inner product is minus half the derivative of the squared distance along v.
    """
    slope, chord = gradient(pair)
    # Rescaling a tiny pair to size 1 may underflow c to 0.
    c = jnp.maximum(pair.c, smallest(v.dtype))
    # Use only the part of v across x: far out the part along x is long, and would multiply the
    # rounding error of the vector along x.
    across = split_tangent(pair.x * jnp.sqrt(c)[..., None], v).across
    across = jnp.where(chord.aligned[..., None], across, v)
    rise = slope.turn * dot(pair.x / chord.tau_x[..., None], v) - dot(slope.vector, across)
    return rise, chord.m


def transport(x: Space, y: Space, v: Space, c: Scalar) -> Point:
    """Compute v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩), the transport of v from x to y."""
    pair = rescale(x, y, c)
    rise, m = inner_with_end(pair, v)
    # The root is applied twice, because its square would underflow.
    root = 1 / jnp.sqrt(2 + pair.c * m / 2)
    factor = pair.c * (rise * root) * root
    moved = v + factor[..., None] * (pair.x + pair.y)
    return with_tangent_time(pair.y * pair.scale[..., None], moved, c)
