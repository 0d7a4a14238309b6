"""The wrapped normal distribution: a normal vector at the origin, carried to the mean and followed.

u ~ N(0, diag(scale²)) in the tangent space at the origin, transported to the mean, leads to
exp_mean(u). Its density, with respect to the volume of the space, is that of u over the factor by
which the exponential map stretches volumes:

    log p(x) = log N(u; 0, diag(scale²)) − (n − 1) log(sinh(√c |u|) / (√c |u|)).

Lengths of u are those of the space in both models, so both give the same distribution: in the ball,
where a tangent vector at the origin has the length 2 |v|, u is 2 v.

References:
  Nagano, Yamaguchi, Fujita and Koyama, A wrapped normal distribution on hyperbolic space for
  gradient-based learning, ICML 2019.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.lorentz import Scalar, Space
from hlformer_jax.ops.numerics import as_float, common_batch, dot, per_batch, sinhc_sqrt
from hlformer_jax.typing import Array


def lorentz_sample(
    key: Array,
    mean: Float[Array, "*batch n1"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draws points of the Lorentz model; differentiable in mean, scale and curvature.

    Args:
      key: a random key.
      mean: means.
      scale: standard deviations, positive; broadcast to [*batch, n].
      c: curvature, positive.
      shape: axes of draws, put before ``*batch``.
    """
    mean = as_float(mean)
    u = _normal(key, mean[..., 1:], scale, shape)
    mean = mean.reshape((1,) * len(shape) + mean.shape)
    c = per_batch(c, mean)
    return lorentz.exp_map(mean, lorentz.transport0(mean, u, c), c)


def poincare_sample(
    key: Array,
    mean: Float[Array, "*batch n"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draws points of the Poincaré ball, by the same key the same as `lorentz_sample`."""
    mean = as_float(mean)
    u = _normal(key, mean, scale, shape)
    mean = mean.reshape((1,) * len(shape) + mean.shape)
    c = per_batch(c, mean)
    return poincare.exp_map(mean, poincare.transport0(mean, u / 2, c), c)


def lorentz_log_density(
    x: Float[Array, "*#batch n1"],
    mean: Float[Array, "*#batch n1"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
) -> Scalar:
    """Logarithm of the density at points x, with respect to the volume; see `lorentz_sample`."""
    x, mean = common_batch(x, mean)
    u = lorentz.log_map0(lorentz.boost(lorentz.antipode(mean, c), x, c), c)
    return _log_density(u, scale, c)


def poincare_log_density(
    p: Float[Array, "*#batch n"],
    mean: Float[Array, "*#batch n"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
) -> Scalar:
    """`lorentz_log_density` of the Poincaré ball: by the space's volume, not the coordinates'."""
    v = poincare.log_map(mean, p, c)
    mean = jnp.broadcast_to(as_float(mean), v.shape)
    return _log_density(v * poincare.conformal_factor(mean, c)[..., None], scale, c)


def _normal(key: Array, like: Array, scale: ArrayLike, shape: tuple[int, ...]) -> Array:
    scale = jnp.asarray(as_float(scale), like.dtype)
    drawn = jax.random.normal(key, (*shape, *like.shape), like.dtype)
    return drawn * jnp.broadcast_to(scale, like.shape).reshape((1,) * len(shape) + like.shape)


def _log_density(u: Space, scale: ArrayLike, c: ArrayLike) -> Scalar:
    n = u.shape[-1]
    scale = jnp.broadcast_to(jnp.asarray(as_float(scale), u.dtype), u.shape)
    flat = -jnp.sum(jnp.square(u / scale) / 2 + jnp.log(scale), axis=-1)
    flat = flat - n / 2 * math.log(2 * math.pi)
    return flat - (n - 1) * jnp.log(sinhc_sqrt(per_batch(c, u) * dot(u, u)))
