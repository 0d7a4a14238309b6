"""The wrapped normal distribution of both models of hyperbolic space.

A sample is drawn as a normal vector u ~ N(0, Σ) at the origin, transported to the mean and mapped
to exp_mean(u). Its density, with respect to the volume of the space, is the density of u divided by
the factor by which the exponential map stretches volumes:

    log p(x) = log N(u; 0, Σ) − (n − 1) log(sinh(√c |u|) / (√c |u|)).

Σ is diag(scale²). In the functions with "full" in their names it is factor factorᵀ, with a lower
triangular Cholesky factor. Σ refers to the axes of the frame at the mean that is parallel
transported from the origin. Lengths of u are lengths of the space, so both models give the same
distribution. In the ball a tangent vector v at the origin has the length 2 |v|, so there u = 2 v.

References:
  Nagano, Yamaguchi, Fujita and Koyama, A wrapped normal distribution on hyperbolic space for
  gradient-based learning, ICML 2019.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.arguments import (
    as_float,
    as_floats,
    as_vectors,
    auto_sharded,
    check_positive,
    common_batch,
    per_batch,
    shard_together,
)
from hlformer_jax.ops.lorentz import Scalar, Space
from hlformer_jax.ops.lorentz.maps import log_map_in_frame
from hlformer_jax.ops.numerics import dot, precise_matmul, sinhc_sqrt
from hlformer_jax.typing import Array


def lorentz_sample(
    key: Array,
    mean: Float[Array, "*batch n1"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draw points of the Lorentz model; differentiable in mean, scale and curvature.

    Args:
      key: a random key.
      mean: means.
      scale: standard deviations in lengths of the space, positive; broadcast to [*batch, n].
      c: curvature, positive; broadcasts to ``*batch``.
      shape: shape of the samples of each mean, put before ``*batch``.

    Returns:
      Points [*shape, *batch, n + 1].

    Raises:
      ValueError: for a scale that is not positive, if its value is known.
    """
    mean = as_vectors(mean, least=2)
    return _lorentz_points(_scaled_normal(key, mean[..., 1:], scale, shape), mean, c)


def lorentz_full_sample(
    key: Array,
    mean: Float[Array, "*batch n1"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draw points of the Lorentz model with a full covariance matrix; see `lorentz_sample`.

    Args:
      key: a random key.
      mean: means.
      factor: lower triangular Cholesky factors of the covariance matrices, as
        `jnp.linalg.cholesky` returns them, with a positive diagonal; entries above it are ignored.
        They refer to the axes of the frame that is transported from the origin to the mean.
      c: curvature, positive; broadcasts to ``*batch``.
      shape: shape of the samples of each mean, put before ``*batch``.

    Returns:
      Points [*shape, *batch, n + 1]; differentiable in mean, factor and curvature.

    Raises:
      ValueError: for a factor that is not square or has another dimension than the mean, and for a
        diagonal that is not positive, if its values are known.
    """
    mean, factor = as_floats(mean, factor)
    mean = as_vectors(mean, least=2)
    return _lorentz_points(_correlated_normal(key, mean[..., 1:], factor, shape), mean, c)


def _lorentz_points(u: Array, mean: Array, c: ArrayLike) -> Array:
    """Return exp_mean of vectors u, transported from the origin; the mean may have fewer axes."""
    mean = _with_axes_of(u, mean)
    c = per_batch(c, mean)
    return lorentz.exp_map(mean, lorentz.transport0(mean, u, c), c)


def poincare_sample(
    key: Array,
    mean: Float[Array, "*batch n"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draw points of the Poincaré ball; the same key gives the same points as `lorentz_sample`."""
    mean = as_vectors(mean)
    return _poincare_points(_scaled_normal(key, mean, scale, shape), mean, c)


def poincare_full_sample(
    key: Array,
    mean: Float[Array, "*batch n"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draw points of the ball; the same key gives the same points as `lorentz_full_sample`."""
    mean, factor = as_floats(mean, factor)
    mean = as_vectors(mean)
    return _poincare_points(_correlated_normal(key, mean, factor, shape), mean, c)


def _poincare_points(u: Array, mean: Array, c: ArrayLike) -> Array:
    """Return exp_mean of vectors u, transported from the origin; the mean may have fewer axes."""
    mean = _with_axes_of(u, mean)
    c = per_batch(c, mean)
    return poincare.exp_map(mean, poincare.transport0(mean, u / 2, c), c)


def _with_axes_of(u: Array, mean: Array) -> Array:
    return mean.reshape((1,) * (u.ndim - mean.ndim) + mean.shape)


def lorentz_log_density(
    x: Float[Array, "*#batch n1"],
    mean: Float[Array, "*#batch n1"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
) -> Scalar:
    """Return the logarithm of the density at points, with respect to the volume of the space.

    Args:
      x: points.
      mean: means.
      scale: standard deviations in lengths of the space, positive; broadcast to [*batch, n].
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      The logarithm at each point, [*batch].

    Raises:
      ValueError: for a scale that is not positive, if its value is known.
    """
    return _log_density(_lorentz_vectors(x, mean, c), scale, c)


def lorentz_full_log_density(
    x: Float[Array, "*#batch n1"],
    mean: Float[Array, "*#batch n1"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
) -> Scalar:
    """Return the logarithm of the density with a full covariance matrix, as in the diagonal form.

    Args:
      x: points.
      mean: means.
      factor: Cholesky factors of the covariance matrices; see `lorentz_full_sample`.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      The logarithm at each point, [*batch].

    Raises:
      ValueError: as in `lorentz_full_sample`.
    """
    x, mean, factor = as_floats(x, mean, factor)
    return _full_log_density(_lorentz_vectors(x, mean, c), factor, c)


def _lorentz_vectors(x: Array, mean: Array, c: ArrayLike) -> Space:
    """Return the logarithms of points at the mean, in the frame transported from the origin."""
    x, mean = common_batch(x, mean)
    return log_map_in_frame(mean, x, c)


def poincare_log_density(
    p: Float[Array, "*#batch n"],
    mean: Float[Array, "*#batch n"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
) -> Scalar:
    """Return `lorentz_log_density` for the ball, with respect to the volume of the space."""
    return _log_density(_poincare_vectors(p, mean, c), scale, c)


def poincare_full_log_density(
    p: Float[Array, "*#batch n"],
    mean: Float[Array, "*#batch n"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
) -> Scalar:
    """Return `lorentz_full_log_density` for the ball, with respect to the volume of the space."""
    p, mean, factor = as_floats(p, mean, factor)
    return _full_log_density(_poincare_vectors(p, mean, c), factor, c)


def _poincare_vectors(p: Array, mean: Array, c: ArrayLike) -> Array:
    """Return the logarithms of points at the mean, in its frame and in lengths of the space."""
    p, mean = common_batch(p, mean)
    v = poincare.log_map(mean, p, c)
    return v * poincare.conformal_factor(mean, c)[..., None]


def _scaled_normal(key: Array, like: Array, scale: ArrayLike, shape: tuple[int, ...]) -> Array:
    check_positive("scale", scale)
    scale = jnp.asarray(as_float(scale), like.dtype)
    drawn = jax.random.normal(key, (*shape, *like.shape), like.dtype)
    return drawn * jnp.broadcast_to(scale, like.shape).reshape((1,) * len(shape) + like.shape)


def _correlated_normal(key: Array, like: Array, factor: Array, shape: tuple[int, ...]) -> Array:
    factor = _as_factor(factor, like)
    drawn = jax.random.normal(key, (*shape, *like.shape), like.dtype)
    factor = factor.reshape((1,) * len(shape) + factor.shape)
    factor, column = shard_together(drawn.ndim - 1, factor, drawn[..., None])
    return precise_matmul(factor, column)[..., 0]


def _as_factor(factor: Array, like: Array) -> Float[Array, "*batch n n"]:
    """Broadcast a factor to the batch of vectors, with zeros above the diagonal.

    Raises:
      ValueError: for a wrong shape, and for a diagonal that is not positive, if its values are
        known.
    """
    n = like.shape[-1]
    given_shape = jnp.shape(factor)
    if given_shape[-2:] != (n, n):
        raise ValueError(
            f"factor must have shape [..., {n}, {n}] for {n} dimensions, got {given_shape}"
        )
    check_positive("the diagonal of factor", jnp.diagonal(factor, axis1=-2, axis2=-1))
    factor = jnp.broadcast_to(jnp.tril(factor), (*like.shape[:-1], n, n))
    return shard_together(like.ndim - 1, factor, like)[0]


def _log_density(u: Space, scale: ArrayLike, c: ArrayLike) -> Scalar:
    check_positive("scale", scale)
    scale = jnp.broadcast_to(jnp.asarray(as_float(scale), u.dtype), u.shape)
    flat = -jnp.sum(jnp.square(u / scale) / 2 + jnp.log(scale), axis=-1)
    return _wrap(flat, u, c)


def _full_log_density(u: Space, factor: Array, c: ArrayLike) -> Scalar:
    factor = _as_factor(factor, u)
    solve = partial(jax.lax.linalg.triangular_solve, left_side=True, lower=True)
    white = auto_sharded(solve, u[..., None])(factor, u[..., None])
    logarithms = jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1))
    return _wrap(-jnp.sum(jnp.square(white[..., 0]) / 2 + logarithms, axis=-1), u, c)


def _wrap(flat: Scalar, u: Space, c: ArrayLike) -> Scalar:
    """Add the constant of the normal density and the volume factor of the exponential map."""
    n = u.shape[-1]
    flat = flat - n / 2 * math.log(2 * math.pi)
    return flat - (n - 1) * jnp.log(sinhc_sqrt(per_batch(c, u) * dot(u, u)))
