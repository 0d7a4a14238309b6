"""Distances of the Poincaré ball; `poincare` has its conventions, and is its front.

With γ_p = 1 − c |p|² and z = c |p − q|² / (γ_p γ_q), the distance is 2 asinh(√z) / √c, which is as
exact for near points as their difference; arcosh(1 + 2 z) / √c would lose it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops.gyrovectors import Ball, Scalar, align, gap, inside, square
from hlformer_jax.ops.hyperbolic_functions import artanhc_sqrt, asinhc_sqrt
from hlformer_jax.ops.numerics import as_float, dot, per_batch, safe_normalize, safe_sqrt, smallest
from hlformer_jax.ops.pairwise import align_sets, replace_near
from hlformer_jax.typing import Array

# As a share of |p|² + |q|².
_NEAR = 1 / 16


def distance(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance.

    Args:
      p: points.
      q: points. At q = p, where the distance has no derivative, the gradient is 0.
      c: curvature, positive.

    Returns:
      (2 / √c) asinh(√c |p − q| / √((1 − c|p|²)(1 − c|q|²))).

    References:
      HOVER, eq. 3, the arcosh of which cancels for near points.
    """
    c, (p, q) = align(c, p, q)
    return _distance(inside(p, c), inside(q, c), c)


def _distance(p: Ball, q: Ball, c: Scalar) -> Scalar:
    room = gap(p, c) * gap(q, c)
    difference = p - q
    z = c * dot(difference, difference) / room
    return 2 * length(difference) / jnp.sqrt(room) * asinhc_sqrt(z)


def length(v: Ball, room: Scalar | float = 1.0) -> Scalar:
    """`safe_norm` down to 1e-35 / room in float32, so that λ_p / |v| is finite for γ_p = room."""
    room = jnp.broadcast_to(jax.lax.stop_gradient(jnp.asarray(room, v.dtype)), v.shape[:-1])
    least = 1024 * smallest(v.dtype) / room
    return safe_normalize(v, least[..., None])[1]


def squared_distance(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Squared Lorentzian distance, that of `lorentz.squared_distance`; smooth everywhere.

    Args:
      p: points.
      q: points.
      c: curvature, positive.

    Returns:
      4 |p − q|² / ((1 − c|p|²)(1 − c|q|²)), which is (4/c) sinh²(√c d / 2) for the geodesic
      distance d.
    """
    c, (p, q) = align(c, p, q)
    p, q = inside(p, c), inside(q, c)
    difference = p - q
    return 4 * dot(difference, difference) / (gap(p, c) * gap(q, c))


def distance0(p: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Geodesic distance from the origin; gradient 0 there.

    Args:
      p: points.
      c: curvature, positive.

    Returns:
      (2 / √c) artanh(√c |p|).
    """
    p = as_float(p)
    c = per_batch(c, p)
    p = inside(p, c)
    return 2 * length(p) * artanhc_sqrt(square(p, c))


def pairwise_distance(
    p: Float[Array, "*#batch M n"], q: Float[Array, "*#batch N n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Geodesic distances of all pairs, by one matrix product and, for near points, `distance`.

    Near is where |p − q|² is less than a sixteenth of |p|² + |q|²: there |p|² + |q|² − 2 p · q
    would amplify rounding by more than that. Elsewhere the product adds a relative error of at most
    16 times that of p · q in units of |p| |q|, some eps. Time and memory are those of
    `lorentz.pairwise_distance`.

    Args:
      p: points.
      q: points. Where two are the same the distance and its gradient are 0.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      distance(p_i, q_j).
    """
    p, q, c, apart, room, near = _apart(p, q, c)
    apart = apart / room
    far = 2 * safe_sqrt(apart) * asinhc_sqrt(c[..., None, None] * apart)
    return replace_near(far, near, p, q, c, _distance)


def pairwise_squared_distance(
    p: Float[Array, "*#batch M n"], q: Float[Array, "*#batch N n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Squared Lorentzian distances of all pairs; time, memory and error as `pairwise_distance`.

    Args:
      p: points.
      q: points.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      squared_distance(p_i, q_j).
    """
    p, q, c, apart, room, near = _apart(p, q, c)
    return replace_near(4 * apart / room, near, p, q, c, squared_distance)


def _apart(
    p: Float[Array, "*#batch M n"], q: Float[Array, "*#batch N n"], c: ArrayLike
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """All pairs by one matrix product.

    Args:
      p: points.
      q: points.
      c: curvature.

    Returns:
      p and q inside the ball and c, all of the same batch axes; |p_i − q_j|², 1 where they are
      near; γ γ'; and which pairs are near.
    """
    p, q, c = align_sets(as_float(p), as_float(q), c)
    p, q = inside(p, c[..., None]), inside(q, c[..., None])
    room = gap(p, c[..., None])[..., :, None] * gap(q, c[..., None])[..., None, :]
    size = dot(p, p)[..., :, None] + dot(q, q)[..., None, :]
    product = jnp.matmul(p, jnp.swapaxes(q, -1, -2), precision=jax.lax.Precision.HIGHEST)
    apart = size - 2 * product
    # Of tiny points the squares have lost digits. NaN is near.
    tiny = smallest(p.dtype) / float(jnp.finfo(p.dtype).eps)
    near = ~((apart > _NEAR * size) & (apart > tiny))
    return p, q, c, jnp.where(near, 1, apart), room, near
