"""Busemann functions, and the projection along horospheres that figures of hyperbolic space need.

An ideal point, a point of the sphere at infinity, is the unit vector ξ that points to it from the
origin. The Busemann function of ξ is the distance from ξ, up to the constant that makes it 0 at the
origin: −t at a distance t towards ξ. Its level sets are horospheres. Projecting along them keeps
distances to several ideal points, and so, unlike an orthogonal projection, keeps apart what is
apart far out.

References:
  Chami, Gu, Nguyen and Ré, HoroPCA, ICML 2021.
"""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import poincare
from hlformer_jax.ops.gyrovectors import Ball, Scalar, align, gap, inside
from hlformer_jax.ops.hyperboloid import from_space
from hlformer_jax.ops.numerics import as_float, dot, per_batch, safe_sqrt, same_length, unit
from hlformer_jax.typing import Array


def lorentz_busemann(
    x: Float[Array, "*#batch n1"], ideal: Float[Array, "*#batch n"], c: ArrayLike = 1.0
) -> Scalar:
    """Busemann function in the Lorentz model.

    Args:
      x: points.
      ideal: directions of ideal points, of any length that is no zero to `numerics.unit`.
      c: curvature, positive.

    Returns:
      log(√c x_time − √c ξ · x_space) / √c.
    """
    c, (x, ideal) = align(c, as_float(x)[..., 1:], ideal)
    ideal, root = unit(ideal), jnp.sqrt(c)
    square, along = c * dot(x, x), root * dot(ideal, x)
    tau = jnp.sqrt(1 + square)
    near = square < 1
    close = jnp.log1p(jnp.where(near, square / (1 + tau) - along, 0))
    # τ − √c r + √c r (1 − cos), in terms that do not cancel.
    x = jnp.where(near[..., None], 1, x)
    turn, r = unit(x) - ideal, jnp.sqrt(c * dot(x, x))
    far = jnp.log(1 / (jnp.sqrt(1 + r * r) + r) + r * dot(turn, turn) / 2)
    return jnp.where(near, close, far) / root


def poincare_busemann(p: Ball, ideal: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Busemann function in the Poincaré ball.

    Args:
      p: points.
      ideal: directions of ideal points, of any length that is no zero to `numerics.unit`.
      c: curvature, positive.

    Returns:
      log(|ξ − √c p|² / (1 − c |p|²)) / √c.
    """
    c, (p, ideal) = align(c, p, ideal)
    p, root = inside(p, c), jnp.sqrt(c)
    room, x, ideal = gap(p, c), root[..., None] * p, unit(ideal)
    way = x - ideal
    near = room > 0.5
    close = jnp.log1p(jnp.where(near, 2 * dot(x, way) / room, 0))
    far = jnp.log(jnp.where(near, 1, dot(way, way))) - jnp.log(room)
    return jnp.where(near, close, far) / root


def lorentz_horospherical(
    x: Float[Array, "*#batch n1"], directions: Float[Array, "k n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch k1"]:
    """Projection along horospheres to a hyperbolic space of fewer dimensions, Lorentz model.

    It keeps the Busemann functions of k ideal points, and points of the subspace that the origin
    and those span, on the origin's side of the hyperplane that the ideal points span. With
    b_i = exp(√c B_i(x)) the time of the result is (1 + Σ b_i²) / (Σ b_i + √Δ), where
    Δ = (√c x_time − √c Σ ξ_i · x_space)² + (k − 1) c |x_⊥|² for the part of x_space orthogonal to
    the directions. Its error is relative to eps · √c x_time.

    Args:
      x: points.
      directions: orthonormal directions of k ideal points.
      c: curvature, positive.

    Returns:
      Points of the space of dimension k, with the directions for axes.

    References:
      Chami, Gu, Nguyen and Ré, 2021, section 3.
    """
    x, directions = as_float(x)[..., 1:], as_float(directions)
    same_length(x, directions)
    c = per_batch(c, x)
    root, count = jnp.sqrt(c)[..., None], len(directions)
    x = x * root  # of curvature −1
    product = lambda one, other: jnp.matmul(one, other, precision=jax.lax.Precision.HIGHEST)
    along = product(x, directions.T)
    across = x - product(along, directions)
    tau = jnp.sqrt(1 + dot(x, x))[..., None]
    exponentials = tau - along
    spine = tau - jnp.sum(along, axis=-1, keepdims=True)
    delta = spine * spine + (count - 1) * dot(across, across)[..., None]
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    squares = jnp.sum(exponentials * exponentials, axis=-1, keepdims=True)
    time = (1 + squares) / (total + safe_sqrt(delta))
    return from_space((time - exponentials) / root, c)


def poincare_horospherical(
    p: Float[Array, "*#batch n"], directions: Float[Array, "k n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch k"]:
    """Projection along horospheres to a ball of fewer dimensions, see `lorentz_horospherical`.

    Args:
      p: points.
      directions: orthonormal directions of k ideal points; two of them give points of the disc.
      c: curvature, positive.

    Returns:
      Points of the ball of dimension k, with the directions for axes.
    """
    return poincare.from_lorentz(lorentz_horospherical(poincare.to_lorentz(p, c), directions, c), c)
