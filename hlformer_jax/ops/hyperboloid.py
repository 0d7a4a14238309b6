"""Formulas of the hyperboloid that do not cancel, in space components; `lorentz` calls them.

With D = x − y of the space components, exact for near points, r = |x|, q = |y|, p the component of
y along x, D_⊥ that of D across x, and τ = √c x_time = √(1 + c r²), the squared Lorentzian distance
m = −2/c − 2⟨x, y⟩ of two points is a sum of positive terms,

    m = 2 (r − q)² (1 + (1 + c r² + c q²) / (τ_x τ_y + c r q)) / (τ_x + τ_y)² + 2 r |D_⊥|² / (q + p)

where q + p > 0, and m = 2 (r² + q² + c r² q²) / (τ_x τ_y + 1) − 2 x · y is one where x · y < 0. The
first is used where the second cancels; the second, which is smooth at the origin, elsewhere. The
inner product of tangent vectors and the direction from one point to another are split likewise.

The gradient of the distance in x is less the unit vector towards y: with S = sinh(√c d) / √c,

    (τ_y / τ_x x − y) / S = (D_⊥ − radial / (τ_x |x|) x) / S,

where radial is that component of the way to y (see `components`), and likewise in y. It is written
out: differentiating the formulas, each with its choices, would keep several times as many arrays.

Here ``c`` is an array of the dtype and the rank of the batch.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.ops.numerics import (
    as_float,
    asinhc_sqrt,
    cosh_sqrt,
    dot,
    inverse,
    largest_coordinate,
    max_hyperbolic_norm,
    safe_norm,
    safe_normalize,
    safe_sqrt,
    same_length,
    sinhc_sqrt,
    smallest,
)
from hlformer_jax.typing import Array

Space = Float[Array, "*#batch n"]
Scalar = Float[Array, "*#batch"]


def time(x: Space, c: Scalar) -> Scalar:
    """Time component √(1/c + |x|²)."""
    return jnp.sqrt(inverse(c) + dot(x, x))


def from_space(x: Space, c: Scalar) -> Float[Array, "*#batch n1"]:
    """The point [time, x]."""
    return jnp.concatenate([time(x, c)[..., None], x], axis=-1)


def _along_and_across(unit: Space, v: Space) -> tuple[Scalar, Space]:
    """The component of v along a unit vector, and the rest, across it.

    The rest is taken twice: a compiled program multiplies by the inverse of a norm, which rounds
    the unit vector and leaves 2 eps of the component in the rest. Far out that is much.
    """
    along = dot(unit, v)
    across = v - unit * along[..., None]
    return along, across - unit * dot(unit, across)[..., None]


def tangent_inner(x: Space, v: Space, w: Space, c: Scalar) -> Scalar:
    """⟨v, w⟩ for v, w tangent at x, from the space components of all three.

    v · w − c (x · v)(x · w) / τ² cancels far out, where v_⊥ · w_⊥ + v_∥ w_∥ / τ² does not; the
    latter has no direction to split along at the origin.
    """
    tau2 = 1 + c * dot(x, x)
    near = tau2 <= 2
    x_near = jnp.where(near[..., None], x, 0)
    flat = dot(v, w) - c * (dot(x_near, v) / tau2) * dot(x_near, w)
    unit, _ = safe_normalize(jnp.where(near[..., None], 1, x))
    (v_along, v_across), (w_along, w_across) = (
        _along_and_across(unit, v),
        _along_and_across(unit, w),
    )
    tau = jnp.sqrt(tau2)
    return jnp.where(near, flat, dot(v_across, w_across) + (v_along / tau) * (w_along / tau))


def tangent_norm(x: Space, v: Space, c: Scalar) -> Scalar:
    """√⟨v, v⟩ without under- or overflow; 0 with gradient 0 at v = 0."""
    scale = largest_coordinate(v, smallest(v.dtype))
    v = v / jnp.where(scale == 0, 1, scale)
    return jnp.squeeze(scale, -1) * safe_sqrt(tangent_inner(x, v, v, c))


def rescale(
    x: Space, y: Space, c: Scalar
) -> tuple[Float[Array, "*#batch 1"], Space, Space, Space, Scalar]:
    """Space components of a pair, brought to size 1 if smaller, so that no square underflows.

    Dividing lengths by s and multiplying c by s² leaves the geometry as it was.

    Args:
      x: space components of points.
      y: space components of points.
      c: curvature.

    Returns:
      The scale s <= 1, a constant to differentiation; x / s, y / s, (x − y) / s; c s².
    """
    x, y = jnp.broadcast_arrays(x, y)
    scale = largest_coordinate(jnp.concatenate([x, y], axis=-1))
    scale = jnp.where((scale == 0) | (scale > 1), 1, scale)
    c = c * jnp.squeeze(scale, -1) ** 2
    return scale, x / scale, y / scale, (x - y) / scale, c


def lift(xx: Scalar, yy: Scalar, tau: Scalar, c: Scalar) -> Scalar:
    """(τ_x τ_y − 1) / c from x · x, y · y and τ_x τ_y, exact near the origin and finite far out."""
    curved = tau > 2
    xx, yy = jnp.where(curved, 0, xx), jnp.where(curved, 0, yy)
    flat = (xx + yy + c * xx * yy) / (tau + 1)
    return jnp.where(curved, (tau - 1) * inverse(jnp.where(curved, c, 1)), flat)


def squared_chord(x: Space, y: Space, difference: Space, c: Scalar) -> Scalar:
    """⟨x − y, x − y⟩ by the formulas above; arguments from `rescale`."""
    xx, yy, xy = dot(x, x), dot(y, y), dot(x, y)
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    height = lift(xx, yy, tau_x * tau_y, c)
    aligned = 2 * xy > height  # so neither is 0
    x, y, difference = (jnp.where(aligned[..., None], v, 1) for v in (x, y, difference))
    unit, r = safe_normalize(x)
    q = safe_norm(y)
    gap = dot(difference, x + y) / (r + q)  # r − q
    across = difference - unit * dot(unit, difference)[..., None]
    # (1 + c r² + c q²) / (τ_x τ_y), of which the numerator's square would overflow.
    ratio = tau_x / tau_y + tau_y / tau_x - 1 / tau_x / tau_y
    ratio = ratio / (1 + (c * r / tau_x) * (q / tau_y))
    along = 2 * (gap / (tau_x + tau_y)) ** 2 * (1 + ratio)
    opening = r / (q + dot(unit, y))
    return jnp.where(aligned, along + 2 * opening * dot(across, across), 2 * (height - xy))


class _Sums(NamedTuple):
    """Sums over the coordinates of a pair, brought to size 1 if smaller."""

    xx: Scalar
    yy: Scalar
    xy: Scalar
    rise: Scalar  # D · (x + y)
    along: Scalar  # x · D
    across2: Scalar  # |D_⊥|²


class _Chord(NamedTuple):
    """What value and gradient are made of; where not `aligned`, r and q are 1."""

    m: Scalar
    aligned: Scalar
    tau_x: Scalar
    tau_y: Scalar
    r: Scalar
    q: Scalar


def _sums(x: Space, y: Space, difference: Space) -> _Sums:
    xx, along = dot(x, x), dot(x, difference)
    across = difference - (along / jnp.where(xx == 0, 1, xx))[..., None] * x
    rise = dot(difference, x + y)
    return _Sums(xx, dot(y, y), dot(x, y), rise, along, dot(across, across))


def _chord(sums: _Sums, c: Scalar) -> _Chord:
    """`squared_chord` of a pair from its sums, as `distance` and its derivative take it."""
    xx, yy, xy, rise, _, across2 = sums
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    height = lift(xx, yy, tau_x * tau_y, c)
    aligned = 2 * xy > height  # so neither is 0, nor much smaller than the other
    r, q = (jnp.sqrt(jnp.where(aligned, v, 1)) for v in (xx, yy))
    gap = jnp.where(aligned, rise, 0) / (r + q)
    across2 = jnp.where(aligned, across2, 0)
    # (1 + c r² + c q²) / (τ_x τ_y), of which the numerator's square would overflow.
    ratio = tau_x / tau_y + tau_y / tau_x - 1 / tau_x / tau_y
    ratio = ratio / (1 + (c * r / tau_x) * (q / tau_y))
    away = 2 * (gap / (tau_x + tau_y)) ** 2 * (1 + ratio)
    around = across2 * (2 * r / (q + jnp.where(aligned, xy, 1) / r))
    m = jnp.where(aligned, away + around, 2 * (height - xy))
    return _Chord(m, aligned, tau_x, tau_y, r, q)


@jax.custom_jvp
def distance(x: Space, y: Space, c: Scalar) -> Scalar:
    """Geodesic distance 2 asinh(√(c m) / 2) / √c; at y = x its gradient is 0.

    Args:
      x: space components of points.
      y: space components of points, of the same shape.
      c: curvature, one for each pair.
    """
    scale, *pair = _rescale_pair(x, y)
    return _length(_sums(*pair), scale, c)


def _rescale_pair(x: Space, y: Space) -> tuple[Scalar, Space, Space, Space]:
    """`rescale` without the curvature; as small as numbers go."""
    tiny = smallest(x.dtype)
    scale = jnp.maximum(largest_coordinate(x, tiny), largest_coordinate(y, tiny))
    scale = jnp.where((scale == 0) | (scale > 1), 1, scale)
    shrink = 1 / scale
    return jnp.squeeze(scale, -1), x * shrink, y * shrink, (x - y) * shrink


def _length(sums: _Sums, scale: Scalar, c: Scalar) -> Scalar:
    c = c * scale**2
    m = _chord(sums, c).m
    return scale * safe_sqrt(m) * asinhc_sqrt(c * m / 4)


@distance.defjvp
def _distance_jvp(
    primals: tuple[Space, Space, Scalar], tangents: tuple[Space, Space, Scalar]
) -> tuple[Scalar, Scalar]:
    (x, y, c), (dx, dy, dc) = primals, tangents
    scale, x, y, difference = _rescale_pair(x, y)
    sums = _sums(x, y, difference)
    value, growth = jax.jvp(lambda c: _length(sums, scale, c), (c,), (dc,))
    c = c * scale**2
    m, aligned, tau_x, tau_y, r, q = _chord(sums, c)
    apart = m >= smallest(m.dtype)
    m = jnp.where(apart, m, 1)
    inverse_s = jnp.where(apart, 1 / jnp.sqrt(m * (1 + c * m / 4)), 0)
    xy = jnp.where(aligned, sums.xy, 1)
    # τ_x q − r τ_y, and what τ_x (q − p) and τ_y (r − p) are made of.
    outward = -(sums.rise / tau_x / tau_y) / (q / tau_y + r / tau_x)
    radial_x = outward - tau_x / (q + xy / r) * sums.across2
    radial_y = -outward - tau_y / (r + xy / q) * (sums.across2 * (r / q) ** 2)
    for moved, start, end, gap, share, radial, lean in (
        (
            dx,
            x,
            y,
            difference,
            sums.along / jnp.where(aligned, sums.xx, 1),
            radial_x / tau_x / r,
            -tau_y / tau_x,
        ),
        (
            dy,
            y,
            x,
            -difference,
            -dot(y, difference) / jnp.where(aligned, sums.yy, 1),
            radial_y / tau_y / q,
            -tau_x / tau_y,
        ),
    ):
        # The part across first: beside it the radial one, divided by τ, would be lost to rounding.
        across = gap - share[..., None] * start
        back = jnp.where(aligned[..., None], across, -end)
        turn = jnp.where(aligned, radial, lean)
        growth = growth + inverse_s * dot(back, moved) - inverse_s * turn * dot(start, moved)
    return value, growth


class Components(NamedTuple):
    """The way from x to y, split at x as `lorentz.direction` describes.

    Attributes:
      unit: unit vector along x.
      tau: τ_x.
      radial: the radial component.
      across: the transverse component.
    """

    unit: Space
    tau: Scalar
    radial: Scalar
    across: Space


def components(
    x: Space,
    y: Space,
    difference: Space,
    c: Scalar,
    negligible: Float[Array, "*#batch 1"] | None = None,
) -> Components:
    """The way from x to y, split at x.

    The arguments come from `rescale`. At the origin the unit vector is 0; so it is where no
    coordinate of x is larger than `negligible`.
    """
    unit, r = safe_normalize(x, negligible)
    q = safe_norm(y)
    tau_x, tau_y = jnp.sqrt(1 + c * dot(x, x)), jnp.sqrt(1 + c * dot(y, y))
    p = dot(unit, y)
    # Of x − y, exact for near points, unless y is so small that nothing of it would be left.
    end = jnp.where((2 * q < r)[..., None], y, -difference)
    across = end - unit * dot(unit, end)[..., None]
    # τ_x p − r τ_y, where that cancels as (τ_x q − r τ_y) − τ_x (q − p), either from differences.
    outward = 2 * tau_x * p > r * tau_y  # so y is not 0, nor p
    along = -dot(difference / tau_x[..., None], (x + y) / tau_y[..., None])
    along = along / jnp.where(outward, q / tau_y + r / tau_x, 1)
    bend = dot((tau_x / jnp.where(outward, q + p, 1))[..., None] * across, across)
    radial = jnp.where(outward, along - bend, tau_x * p - r * tau_y)
    return Components(unit, tau_x, radial, across)


def _is_near(x: Space, c: Scalar) -> Bool[Array, "*#batch"]:
    """Whether a point is so near to the origin that nothing needs to be split along it."""
    return c * dot(x, x) <= 1


def _components_afar(x: Space, y: Space, difference: Space, c: Scalar) -> Components:
    """`components` where x is not near the origin; there, some of other points."""
    near = _is_near(x, c)[..., None]
    x, y, difference = (jnp.where(near, 1, v) for v in (x, y, difference))
    return components(x, y, difference, c)


def towards(x: Space, y: Space, difference: Space, c: Scalar) -> Space:
    """Space components of the logarithmic map of y at x; arguments from `rescale`.

    It is arcosh β / √(β² − 1) times y − β x, where β = 1 + c m / 2; with z = c m / 4 the factor is
    asinh √z / √z / √(1 + z), smooth at y = x.
    """
    z = c * squared_chord(x, y, difference, c) / 4
    is_near = _is_near(x, c)[..., None]
    unit, tau, radial, across = _components_afar(x, y, difference, c)
    bent = asinhc_sqrt(z)
    flat = 1 / jnp.sqrt(1 + z)
    near = -difference - 2 * z[..., None] * jnp.where(is_near, x, 0)
    # The factors one by one, for far away their product underflows and y − β x overflows.
    far = (flat[..., None] * across) + (tau * (flat * radial))[..., None] * unit
    return bent[..., None] * jnp.where(is_near, flat[..., None] * near, far)


def displace(x: Space, v: Space, c: Scalar) -> Space:
    """Space components of the exponential map cosh(√c |v|) x + sinh(√c |v|) v / (√c |v|) at x.

    v is shortened, by a factor held constant, where the result would lie beyond
    `max_hyperbolic_norm`. Towards the origin from afar the terms cancel along x; there they are
    rewritten as (r² − s²) / (r cosh + τ s) + τ s (1 + cos φ), where s = sinh(√c |v|) / √c, cos φ is
    the radial component of v / |v|, and 1 + cos φ comes from its transverse component.
    """
    # A tangent vector with a larger coordinate is shortened in any case.
    largest = largest_coordinate(v)
    longest = float(jnp.finfo(v.dtype).eps) ** -2.5 / jnp.sqrt(jax.lax.stop_gradient(c))[..., None]
    long = largest > longest
    # Not times longest / largest, for which XLA multiplies √c and largest: that may overflow.
    v = jnp.where(long, v / jnp.where(long, largest, 1) * longest, v)
    afar = ~_is_near(x, c)
    unit, r = safe_normalize(jnp.where(afar[..., None], x, 1))
    tau = jnp.sqrt(1 + c * dot(x, x))
    along, across = _along_and_across(unit, v)

    # The scale, a constant of which z does not depend, is for squares that would overflow.
    scale = jnp.where(largest > 1e15, jnp.minimum(largest, longest), 1)
    size = jnp.squeeze(scale, -1)
    z = c * size * size * tangent_inner(x, v / scale, v / scale, c)
    radius = jnp.arcsinh(jnp.sqrt(c) * safe_norm(x))
    limit = jnp.maximum(max_hyperbolic_norm(x.dtype) - radius, 0)
    over = z > limit * limit
    shorten = jax.lax.stop_gradient(jnp.where(over, limit / jnp.sqrt(jnp.where(over, z, 1)), 1))
    # All shortened at once: computed again from the shortened v, small differences would change.
    z, along = z * shorten**2, along * shorten
    v, across = v * shorten[..., None], across * shorten[..., None]

    cosh, sinhc = cosh_sqrt(z), sinhc_sqrt(z)
    inward = afar & (-2 * sinhc * along > cosh * r)  # so v is not 0
    length = jnp.sqrt(jnp.where(inward, z, 1)) / jnp.sqrt(c)
    s = sinhc * length
    gap = (r - s) * ((r + s) / jnp.where(inward, r * cosh + tau * s, 1))
    bend = sinhc * tau * dot(across, across) / jnp.where(inward, length - along / tau, 1)
    return jnp.where(
        inward[..., None],
        sinhc[..., None] * across + (gap + bend)[..., None] * unit,
        cosh[..., None] * x + sinhc[..., None] * v,
    )


def inner_from(x: Space, y: Space, difference: Space, v: Space, c: Scalar) -> Scalar:
    """⟨y, v⟩ for v tangent at x, split as in `tangent_inner`; the points come from `rescale`."""
    tau_x, tau_y = jnp.sqrt(1 + c * dot(x, x)), jnp.sqrt(1 + c * dot(y, y))
    # ⟨y − x, v⟩, with the time component of y − x from its space components.
    rise = dot(difference, (x + y) / (tau_x + tau_y)[..., None])
    near = c * rise * (dot(x, v) / tau_x) - dot(difference, v)
    unit, tau, radial, across = _components_afar(x, y, difference, c)
    v_along, v_across = _along_and_across(unit, v)
    far = dot(across, v_across) + radial * (v_along / tau)
    return jnp.where(_is_near(x, c), near, far)


def transport(x: Space, y: Space, difference: Space, v: Space, c: Scalar) -> Space:
    """Space components of v, tangent at x, transported to y; the points come from `rescale`.

    It is v + c ⟨y, v⟩ (x + y) / (1 − c ⟨x, y⟩).
    """
    rise = inner_from(x, y, difference, v, c)
    # As a root, which is applied twice: squared it would underflow.
    root = 1 / jnp.sqrt(2 + c * squared_chord(x, y, difference, c) / 2)
    factor = c * (rise * root) * root
    return v + factor[..., None] * (x + y)


def logits(space: Array, tau: Scalar, normals: Array, offsets: Array, c: Scalar) -> Array:
    """Logits of hyperplanes, from points' space components and √c times their time components.

    Args:
      space: space components [*batch, n].
      tau: √c times the time components [*batch].
      normals: normals of the classes at the origin [classes, n].
      offsets: signed distances of their hyperplanes from the origin [classes].
      c: curvature [*batch].

    Returns:
      |z| arsinh(√c (cosh(√c b) ⟨z / |z|, x⟩ − sinh(√c b) x_time)) / √c [*batch, classes].
    """
    normals, offsets = as_float(normals), as_float(offsets)
    same_length(space, normals)
    directions, length = safe_normalize(normals)
    along = jnp.matmul(space, directions.T, precision=jax.lax.Precision.HIGHEST)
    c = c[..., None]
    limit = max_hyperbolic_norm(space.dtype) / jnp.sqrt(c)
    offsets = jnp.clip(offsets.reshape((1,) * (space.ndim - 1) + offsets.shape), -limit, limit)
    z = c * offsets * offsets
    rise = cosh_sqrt(z) * along - sinhc_sqrt(z) * offsets * tau[..., None]
    return length.reshape((1,) * (space.ndim - 1) + length.shape) * scaled_asinh(rise, c)


def scaled_asinh(rise: Scalar, c: Scalar) -> Scalar:
    """The value of arsinh(√c rise) / √c, smooth as c → 0, where the square may overflow."""
    root = jnp.sqrt(c)
    size = root * jnp.abs(rise)
    steep = size > 1 / math.sqrt(float(jnp.finfo(rise.dtype).eps))  # where arsinh is log(2 size)
    gentle = jnp.where(steep, 0, rise)
    far = jnp.sign(rise) * jnp.log(2 * jnp.where(steep, size, 1)) / root
    return jnp.where(steep, far, gentle * asinhc_sqrt(c * gentle * gentle))
