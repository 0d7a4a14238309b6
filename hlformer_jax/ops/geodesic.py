"""Length of the geodesic between two points, in space components, and its gradient written out.

The squared Lorentzian distance m is that of `hyperboloid.squared_chord`, from six sums over the
coordinates: x · x, y · y, x · y, D · (x + y), x · D and |D_⊥|², with D = x − y and D_⊥ its part
across x. The gradient in x is less the unit vector towards y: with S = sinh(√c d) / √c,

    (τ_y / τ_x x − y) / S = (D_⊥ − radial / (τ_x |x|) x) / S,

where radial is that component of the way to y (see `hyperboloid.components`), and likewise in y.
The second form is used where the first cancels. Differentiating the formulas of `hyperboloid`, each
with its choices, would make and keep several times as many arrays.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hlformer_jax.ops.hyperbolic_functions import asinhc_sqrt
from hlformer_jax.ops.hyperboloid import Scalar, Space
from hlformer_jax.ops.numerics import dot, inverse, largest_coordinate, safe_sqrt, smallest


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


@jax.custom_jvp
def distance(x: Space, y: Space, c: Scalar) -> Scalar:
    """Geodesic distance 2 asinh(√(c m) / 2) / √c; at y = x its gradient is 0.

    Args:
      x: space components of points.
      y: space components of points, of the same shape.
      c: curvature, one for each pair.

    Returns:
      The distances.
    """
    scale, *pair = _rescale(x, y)
    return _length(_sums(*pair), scale, c)


def _rescale(x: Space, y: Space) -> tuple[Scalar, Space, Space, Space]:
    """The scale s <= 1, a constant to differentiation; x / s, y / s and (x − y) / s."""
    tiny = smallest(x.dtype)
    scale = jnp.maximum(largest_coordinate(x, tiny), largest_coordinate(y, tiny))
    scale = jnp.where((scale == 0) | (scale > 1), 1, scale)
    shrink = 1 / scale
    return jnp.squeeze(scale, -1), x * shrink, y * shrink, (x - y) * shrink


def _sums(x: Space, y: Space, difference: Space) -> _Sums:
    xx, along = dot(x, x), dot(x, difference)
    across = difference - (along / jnp.where(xx == 0, 1, xx))[..., None] * x
    rise = dot(difference, x + y)
    return _Sums(xx, dot(y, y), dot(x, y), rise, along, dot(across, across))


def _chord(sums: _Sums, c: Scalar) -> _Chord:
    """The squared Lorentzian distance, as in `hyperboloid.squared_chord`."""
    xx, yy, xy, rise, _, across2 = sums
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    # (τ_x τ_y − 1) / c, written without cancellation where the points are near the origin.
    curved = tau_x * tau_y > 2
    xx_flat, yy_flat = jnp.where(curved, 0, xx), jnp.where(curved, 0, yy)
    flat = (xx_flat + yy_flat + c * xx_flat * yy_flat) / (tau_x * tau_y + 1)
    lift = jnp.where(curved, (tau_x * tau_y - 1) * inverse(jnp.where(curved, c, 1)), flat)
    aligned = 2 * xy > lift  # so neither is 0, nor much smaller than the other
    r, q = (jnp.sqrt(jnp.where(aligned, v, 1)) for v in (xx, yy))
    gap = jnp.where(aligned, rise, 0) / (r + q)
    across2 = jnp.where(aligned, across2, 0)
    # (1 + c r² + c q²) / (τ_x τ_y), of which the numerator's square would overflow.
    ratio = tau_x / tau_y + tau_y / tau_x - 1 / tau_x / tau_y
    ratio = ratio / (1 + (c * r / tau_x) * (q / tau_y))
    away = 2 * (gap / (tau_x + tau_y)) ** 2 * (1 + ratio)
    around = across2 * (2 * r / (q + jnp.where(aligned, xy, 1) / r))
    m = jnp.where(aligned, away + around, 2 * (lift - xy))
    return _Chord(m, aligned, tau_x, tau_y, r, q)


def _length(sums: _Sums, scale: Scalar, c: Scalar) -> Scalar:
    c = c * scale**2
    m = _chord(sums, c).m
    return scale * safe_sqrt(m) * asinhc_sqrt(c * m / 4)


@distance.defjvp
def _distance_jvp(
    primals: tuple[Space, Space, Scalar], tangents: tuple[Space, Space, Scalar]
) -> tuple[Scalar, Scalar]:
    (x, y, c), (dx, dy, dc) = primals, tangents
    scale, x, y, difference = _rescale(x, y)
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
    for moved, start, end, way, share, radial, lean in (
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
        across = way - share[..., None] * start
        back = jnp.where(aligned[..., None], across, -end)
        turn = jnp.where(aligned, radial, lean)
        growth = growth + inverse_s * dot(back, moved) - inverse_s * turn * dot(start, moved)
    return value, growth
