"""Distance, logarithm and transport of pairs of points, by formulas of few sums.

The formulas of `pairs` have small rounding errors for all pairs, but take many passes over the
coordinates. Most pairs do not need them. With τ = √(1 + c |x_space|²), a pair is

  apart  if the directions of x and y, seen from the origin, differ by more than 41 degrees, and
         neither τ is more than 4 times the other; then (τ_x τ_y − 1) / c − x · y does not cancel;
  near   if √c |x_space| < √8 for both points; then m = |D|² − (x_time − y_time)² cancels by a
         factor of at most 9, where D = x − y in space components;
  usual  if it is apart or near, and its sizes are far from overflow (and underflow, for distances).

If all pairs of a batch are usual, a function uses the short formulas, otherwise those of `pairs`
for all of them. In 130,000 random usual pairs in float32 the largest errors of values were 15 eps
(distance), 4 eps (logarithm) and 33 eps (transport towards the origin). So other pairs of a batch
change a result by rounding alone.
Arrays are as in `pairs`, and points have a time component.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hlformer_jax.ops.lorentz import pairs
from hlformer_jax.ops.lorentz.pairs import DistanceGradient, Mask, Point, Scalar, Space, lift
from hlformer_jax.ops.numerics import (
    asinhc_sqrt,
    dot,
    inverse,
    is_any,
    safe_sqrt,
    scaled_asinh,
    smallest,
)
from hlformer_jax.typing import Array

_APART = 0.75
"""Largest cosine of pairs that are apart, for which lift − x · y is at least a quarter of lift."""
_APART_RATIO = 4.0**2
"""Largest ratio of τ² of two points that are apart. D loses digits of y if x is much longer."""
_APART_RISE = 2.0**20
"""Largest c |x|² of points that are apart: for larger ones products of factors could overflow."""
_NEAR_RISE = 8
"""Largest c |x|² of near points. The error of m for radial pairs grows with τ² = 1 + c |x|²."""
_TIME_ERROR = 8
"""Largest relative error of the square of a right time component, in eps."""


class Products(NamedTuple):
    """Inner products of the space components of a pair, constants for derivatives."""

    xx: Scalar
    yy: Scalar
    xy: Scalar


class Sums(NamedTuple):
    """Sums over the coordinates of a usual pair, with D = x − y.

    Attributes:
      m: the squared Lorentzian distance ⟨x − y, x − y⟩.
      g: x · D.
      rise: D · (x + y) = x · x − y · y.
      xx: x · x.
      yy: y · y.
    """

    m: Scalar
    g: Scalar
    rise: Scalar
    xx: Scalar
    yy: Scalar


@jax.custom_jvp
def distance(x: Point, y: Point, c: Scalar) -> Scalar:
    """Compute `lorentz.distance` from points of one shape and a curvature per pair."""
    all_products = Products(dot(x, x), dot(y, y), dot(x, y))

    def by_products() -> Scalar:
        xx, yy, xy = _without_time(all_products, c)
        tau = jnp.sqrt(1 + c * xx) * jnp.sqrt(1 + c * yy)
        return length_of_chord(2 * ((tau - 1) / c - xy), c)

    return jax.lax.cond(
        is_any(~_products_suffice(x, y, c, all_products)),
        lambda: distance_of_pair(x[..., 1:], y[..., 1:], c),
        by_products,
    )


@distance.defjvp
def _distance_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    (x, y, c), (dx, dy, dc) = primals, tangents
    all_products = jax.lax.stop_gradient(Products(dot(x, x), dot(y, y), dot(x, y)))
    exact = _products_suffice(x, y, c, all_products) & _are_usual(_without_time(all_products, c), c)
    gradient = jax.lax.cond(
        is_any(~exact),
        lambda: _gradient_of_pair(x[..., 1:], y[..., 1:], c),
        lambda: _distance_gradient(1, x, y, c, _without_time(all_products, c)),
    )
    moved = dx[..., 1:], dy[..., 1:], dc
    return gradient.value, gradient.apply(x[..., 1:], y[..., 1:], *moved)


def _without_time(all_products: Products, c: Scalar) -> Products:
    """Return products of the space components, from sums over all coordinates of points.

    To copy the space components, and to sum their products, would take twice as long. The sum of
    the squares of a point is 1/c + 2 |x_space|², so none is computed from a time component.
    """
    xx, yy = (all_products.xx - 1 / c) / 2, (all_products.yy - 1 / c) / 2
    times = jnp.sqrt(1 + c * all_products.xx) * jnp.sqrt(1 + c * all_products.yy) / (2 * c)
    return Products(xx, yy, all_products.xy - times)


def _products_suffice(x: Point, y: Point, c: Scalar, all_products: Products) -> Mask:
    """Return which pairs have products without time that give the distance without cancelling.

    Their time components are right, they are apart, and 2 c |x_space|² > 1 for both points.
    """
    xx, yy, xy = _without_time(all_products, c)
    exact = (2 * c * jnp.minimum(xx, yy) > 1) & (jnp.maximum(xx, yy) < _range(c)[1])
    exact &= xy * jnp.abs(xy) < _APART**2 * xx * yy
    for time, square in ((x[..., 0], all_products.xx), (y[..., 0], all_products.yy)):
        want = 1 + c * square  # twice the square of √c time
        error = jnp.abs(2 * c * time * time - want)
        exact &= (time > 0) & (error < _TIME_ERROR * float(jnp.finfo(c.dtype).eps) * want)
    return exact


@jax.custom_jvp
def distance_of_pair(x: Space, y: Space, c: Scalar) -> Scalar:
    """Compute `lorentz.distance` from space components of one shape and a curvature per pair."""
    products = _products(x, y)
    return jax.lax.cond(
        is_any(~_are_usual(products, c, of_distance=True)),
        lambda: pairs.distance(x, y, c),
        lambda: length_of_chord(_sums(0, x, y, c, products).m, c),
    )


@distance_of_pair.defjvp
def _distance_of_pair_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    (x, y, c), moved = primals, tangents
    gradient = _gradient_of_pair(x, y, c)
    return gradient.value, gradient.apply(x, y, *moved)


def _gradient_of_pair(x: Space, y: Space, c: Scalar) -> DistanceGradient:
    products = _products(x, y)
    return jax.lax.cond(
        is_any(~_are_usual(products, c, of_distance=True)),
        lambda: pairs.distance_gradient(x, y, c),
        lambda: _distance_gradient(0, x, y, c, products),
    )


def _distance_gradient(
    first: int, x: Point | Space, y: Point | Space, c: Scalar, products: Products
) -> DistanceGradient:
    """Compute `pairs.distance_gradient` of usual pairs; ``first`` is as in `_sums`."""
    m, _, rise, xx, yy = _sums(first, x, y, c, products)
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    step = rise / (tau_x + tau_y)  # (τ_x − τ_y) / c
    value, by_c = jax.jvp(lambda c: length_of_chord(m, c), (c,), (jnp.ones_like(c),))
    distinct = m >= smallest(c.dtype)
    m = jnp.where(distinct, m, 1)
    # √c / sinh(√c d)
    size = jnp.where(distinct, 1 / (jnp.sqrt(m) * jnp.sqrt(1 + c * m / 4)), 0)
    by_c = by_c - size * step * (step / (2 * tau_x * tau_y))  # step² may underflow
    turn, gap = size * c * step, x[..., first:] - y[..., first:]
    return DistanceGradient(
        value, size, gap, -gap, turn / tau_x, -turn / tau_y, jnp.ones_like(value), by_c
    )


def length_of_chord(m: Scalar, c: Scalar) -> Scalar:
    """Return the geodesic distance of points with the squared Lorentzian distance m."""
    return 2 * scaled_asinh(safe_sqrt(m) / 2, c)


def squared_distance(x: Space, y: Space, c: Scalar) -> Scalar:
    """Compute `lorentz.squared_distance` from space components, smooth at y = x.

    If c m is tiny for near points, its relative error may be large.
    """

    def by_sums(x: Space, y: Space, c: Scalar, products: Products) -> Scalar:
        return _sums(0, x, y, c, products).m

    def by_pairs(x: Space, y: Space, c: Scalar, _products: Products) -> Scalar:
        return pairs.squared_distance_of_pair(x, y, c)

    return _choose(by_sums, by_pairs, x, y, c, _products(x, y))


def logarithm(x: Point, y: Point, c: Scalar) -> Point:
    """Compute `lorentz.log_map` from points of one shape and a curvature of the same rank."""

    def by_sums(x: Point, y: Point, c: Scalar, products: Products) -> Point:
        """Compute −f D − 2 z f x with z = c m / 4 and f = asinh √z / √z / √(1 + z)."""
        m, g, _, xx, _ = _sums(1, x, y, c, products)
        x, y = x[..., 1:], y[..., 1:]
        z = c * m / 4
        by_gap = -asinhc_sqrt(z) / jnp.sqrt(1 + z)
        by_x = 2 * z * by_gap
        space = by_gap[..., None] * (x - y) + by_x[..., None] * x
        x_time = jnp.sqrt(inverse(c) + xx)
        time = by_gap * (g / x_time) + by_x * (xx / x_time)
        return jnp.concatenate([time[..., None], space], axis=-1)

    def by_pairs(x: Point, y: Point, c: Scalar, _products: Products) -> Point:
        return pairs.logarithm(x[..., 1:], y[..., 1:], c)

    return _choose(by_sums, by_pairs, x, y, c, _products(x[..., 1:], y[..., 1:]))


def transport(x: Point, y: Point, v: Point, c: Scalar) -> Point:
    """Compute `lorentz.parallel_transport` from arrays of one shape and a curvature."""

    def by_sums(x: Point, y: Point, c: Scalar, products: Products, v: Point) -> Point:
        """Compute v + factor (x + y) with factor = c ⟨y, v⟩ / (2 + c m / 2)."""
        m, g, rise, xx, yy = _sums(1, x, y, c, products)
        x, y, v = x[..., 1:], y[..., 1:], v[..., 1:]
        tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
        along, end = dot(x, v), dot(y, v)
        # ⟨y, v⟩. The first form loses digits if the points are near. The second form loses digits
        # of y if y is much nearer to the origin than x.
        by_end = end - tau_y / tau_x * along
        by_gap = c * rise / ((tau_x + tau_y) * tau_x) * along - dot(x - y, v)
        inner = jnp.where(_are_apart(products, c), by_end, by_gap)
        factor = c * inner / (2 + c * m / 2)
        space = v + factor[..., None] * (x + y)
        time = (end + factor * (xx - g + yy)) / jnp.sqrt(inverse(c) + yy)
        return jnp.concatenate([time[..., None], space], axis=-1)

    def by_pairs(x: Point, y: Point, c: Scalar, _products: Products, v: Point) -> Point:
        return pairs.transport(x[..., 1:], y[..., 1:], v[..., 1:], c)

    return _choose(by_sums, by_pairs, x, y, c, _products(x[..., 1:], y[..., 1:]), v)


def _choose(
    by_sums: Callable[..., Array],
    by_pairs: Callable[..., Array],
    x: Point | Space,
    y: Point | Space,
    c: Scalar,
    products: Products,
    *vectors: Any,
) -> Array:
    """Call one of two functions: ``by_sums`` if all pairs are usual.

    Gradients compute it again (`jax.checkpoint`). Otherwise `jax.lax.cond` would store arrays of
    zeros in place of the intermediate results of the other function.
    """
    return jax.lax.cond(
        is_any(~_are_usual(products, c)),
        jax.checkpoint(by_pairs),
        jax.checkpoint(by_sums),
        *(x, y, c, products, *vectors),
    )


def _products(x: Space, y: Space) -> Products:
    x, y = jax.lax.stop_gradient((x, y))
    return Products(dot(x, x), dot(y, y), dot(x, y))


def _range(c: Scalar) -> tuple[float, float]:
    """Return bounds of c and of squared norms, for which products of several stay in range."""
    least = float(jnp.finfo(c.dtype).eps) ** 1.25
    return least, 1 / least


def _are_apart(products: Products, c: Scalar) -> Mask:
    """Return which pairs are apart; false if a product is infinite or NaN."""
    xx, yy, xy = products
    tau2_x, tau2_y = 1 + c * xx, 1 + c * yy
    is_similar = (tau2_x < _APART_RATIO * tau2_y) & (tau2_y < _APART_RATIO * tau2_x)
    in_range = (jnp.minimum(xx, yy) > _range(c)[0]) & (c * jnp.maximum(xx, yy) < _APART_RISE)
    return is_similar & in_range & (xy * jnp.abs(xy) < _APART**2 * xx * yy)


def _are_usual(products: Products, c: Scalar, of_distance: bool = False) -> Mask:
    """Return which pairs are usual.

    Args:
      products: products of the pairs.
      c: curvature.
      of_distance: whether near pairs must also be large enough that squares of differences of
        relative size eps do not underflow. In the logarithm and the transport c times such a square
        is added to 1.
    """
    largest = jnp.maximum(products.xx, products.yy)
    is_near = c * largest < _NEAR_RISE
    if of_distance:
        is_near &= largest > smallest(c.dtype) / float(jnp.finfo(c.dtype).eps) ** 3
    least, most = _range(c)
    return (_are_apart(products, c) | is_near) & (c > least) & (c < most) & (largest < most)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums(first: int, x: Point | Space, y: Point | Space, c: Scalar, products: Products) -> Sums:
    """Return the `Sums` of usual pairs, with derivatives that do not cancel.

    Args:
      first: index of the first space component: 1 for points, 0 for space components. Copies of the
        space components of points are made only in the branch that needs them.
      x: points or space components.
      y: points or space components.
      c: curvature.
      products: products of the pairs.
    """
    xx, yy, xy = products
    tau_x, tau_y = jnp.sqrt(1 + c * xx), jnp.sqrt(1 + c * yy)
    is_apart = _are_apart(products, c)
    of_apart = 2 * (lift(xx, yy, tau_x * tau_y, c) - xy), xx - xy, xx - yy

    def of_near() -> tuple[Scalar, Scalar, Scalar]:
        gap = x[..., first:] - y[..., first:]
        square, g = dot(gap, gap), dot(gap, x[..., first:])
        rise = 2 * g - square
        # m = |D|² − (x_time − y_time)²
        return square - c * (rise / (tau_x + tau_y)) ** 2, g, rise

    m, g, rise = jax.lax.cond(
        is_any(~is_apart),
        lambda: jax.tree.map(lambda *both: jnp.where(is_apart, *both), of_apart, of_near()),
        lambda: of_apart,
    )
    return Sums(m, g, rise, xx, yy)


@_sums.defjvp
def _sums_jvp(first: int, primals: tuple, tangents: tuple) -> tuple[Sums, Sums]:
    """Return tangents: dm = 2 D · (dx − dy) − 2 Δt (x · dx / t_x − y · dy / t_y) for a constant c.

    Here t are time components, and Δt is their difference.
    """
    (x, y, c, products), (dx, dy, dc, _) = primals, tangents
    sums = _sums(first, x, y, c, products)
    x, y, dx, dy = (v[..., first:] for v in (x, y, dx, dy))
    tau_x, tau_y = jnp.sqrt(1 + c * sums.xx), jnp.sqrt(1 + c * sums.yy)
    step = sums.rise / (tau_x + tau_y)  # (τ_x − τ_y) / c = Δt / √c
    along_x, along_y, gap = dot(x, dx), dot(y, dy), x - y
    dm = dot(gap, dx) - dot(gap, dy) - c * step * (along_x / tau_x - along_y / tau_y)
    dm = 2 * dm - step * step / (tau_x * tau_y) * dc
    dg = dot(gap, dx) + along_x - dot(x, dy)
    return sums, Sums(dm, dg, 2 * along_x - 2 * along_y, 2 * along_x, 2 * along_y)
