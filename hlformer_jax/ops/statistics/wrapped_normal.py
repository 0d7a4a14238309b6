"""The wrapped normal distribution of both models of hyperbolic space.

A draw is a normal vector at the origin, u ~ N(0, Σ), transported to the mean and followed to
exp_mean(u). Its density, with respect to the volume of the space, is the density of u over the
factor by which the exponential map stretches volumes:

    log p(x) = log N(u; 0, Σ) − (n − 1) log(sinh(√c |u|) / (√c |u|)).

Σ is diag(scale²), or, in the functions with "full" in their names, factor factorᵀ with a lower
triangular Cholesky factor. It has its axes in the frame that parallel transport brings from the
origin to the mean. Lengths of u are lengths of the space, so both models give the same
distribution: in the ball, where a tangent vector at the origin has the length 2 |v|, u is 2 v.

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
from hlformer_jax.ops.lorentz.maps import log_map_in_frame
from hlformer_jax.ops.numerics import (
    as_float,
    check_positive,
    common_batch,
    dot,
    per_batch,
    sinhc_sqrt,
)
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
    return _lorentz_points(_scaled_normal(key, mean[..., 1:], scale, shape), mean, c)


def lorentz_full_sample(
    key: Array,
    mean: Float[Array, "*batch n1"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draws points of the Lorentz model with a full covariance matrix; see `lorentz_sample`.

    Args:
      key: a random key.
      mean: means.
      factor: lower triangular Cholesky factors of the covariance matrices, as
        `jnp.linalg.cholesky` returns them, with a positive diagonal; coordinates above it are
        not read. Axes are those of the frame that is transported from the origin to the mean.
      c: curvature, positive.
      shape: axes of draws, put before ``*batch``.

    Returns:
      Points [*shape, *batch, n + 1]; differentiable in mean, factor and curvature.

    Raises:
      ValueError: for a factor that is not square, or of another dimension than the mean, and for
        a diagonal that is not positive, where its values are known.
    """
    mean = as_float(mean)
    return _lorentz_points(_correlated_normal(key, mean[..., 1:], factor, shape), mean, c)


def _lorentz_points(u: Array, mean: Array, c: ArrayLike) -> Array:
    """Points that transported vectors lead to from a mean with fewer axes."""
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
    """Draws points of the Poincaré ball, by the same key the same as `lorentz_sample`."""
    mean = as_float(mean)
    return _poincare_points(_scaled_normal(key, mean, scale, shape), mean, c)


def poincare_full_sample(
    key: Array,
    mean: Float[Array, "*batch n"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
    shape: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Draws points of the Poincaré ball, by the same key the same as `lorentz_full_sample`."""
    mean = as_float(mean)
    return _poincare_points(_correlated_normal(key, mean, factor, shape), mean, c)


def _poincare_points(u: Array, mean: Array, c: ArrayLike) -> Array:
    """Points that transported vectors lead to from a mean with fewer axes."""
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
    """Logarithm of the density at points x, with respect to the volume; see `lorentz_sample`."""
    return _log_density(_lorentz_vectors(x, mean, c), scale, c)


def lorentz_full_log_density(
    x: Float[Array, "*#batch n1"],
    mean: Float[Array, "*#batch n1"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
) -> Scalar:
    """Logarithm of the density with a full covariance matrix, with respect to the volume.

    Args:
      x: points.
      mean: means.
      factor: Cholesky factors of the covariance matrices; see `lorentz_full_sample`.
      c: curvature, positive.

    Returns:
      The logarithm at each point.

    Raises:
      ValueError: as `lorentz_full_sample`.
    """
    return _full_log_density(_lorentz_vectors(x, mean, c), factor, c)


def _lorentz_vectors(x: Array, mean: Array, c: ArrayLike) -> Space:
    """Logarithms of points at the mean, in the frame that is transported from the origin."""
    x, mean = common_batch(x, mean)
    return log_map_in_frame(mean, x, c)


def poincare_log_density(
    p: Float[Array, "*#batch n"],
    mean: Float[Array, "*#batch n"],
    scale: ArrayLike,
    c: ArrayLike = 1.0,
) -> Scalar:
    """`lorentz_log_density` of the Poincaré ball: by the space's volume, not the coordinates'."""
    return _log_density(_poincare_vectors(p, mean, c), scale, c)


def poincare_full_log_density(
    p: Float[Array, "*#batch n"],
    mean: Float[Array, "*#batch n"],
    factor: Float[Array, "*#batch n n"],
    c: ArrayLike = 1.0,
) -> Scalar:
    """`lorentz_full_log_density` of the Poincaré ball: by the space's volume."""
    return _full_log_density(_poincare_vectors(p, mean, c), factor, c)


def _poincare_vectors(p: Array, mean: Array, c: ArrayLike) -> Array:
    """Logarithms of points at the mean, in the frame, in lengths of the space."""
    v = poincare.log_map(mean, p, c)
    mean = jnp.broadcast_to(as_float(mean), v.shape)
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
    return _times(factor, drawn[..., None])


def _times(matrix: Array, column: Array) -> Array:
    return jnp.matmul(matrix, column, precision=jax.lax.Precision.HIGHEST)[..., 0]


def _as_factor(factor: Array, like: Array) -> Float[Array, "*batch n n"]:
    """Cast a factor to the dtype and the batch of vectors, with zeros above the diagonal.

    Raises:
      ValueError: for another shape; for a diagonal that is not positive, if its values are known.
    """
    n = like.shape[-1]
    given_shape = jnp.shape(factor)
    if given_shape[-2:] != (n, n):
        raise ValueError(f"factor {given_shape}: give [..., {n}, {n}] for {n} dimensions")
    factor = as_float(factor)
    check_positive("the diagonal of factor", jnp.diagonal(factor, axis1=-2, axis2=-1))
    factor = jnp.tril(jnp.asarray(factor, like.dtype))
    return jnp.broadcast_to(factor, (*like.shape[:-1], n, n))


def _log_density(u: Space, scale: ArrayLike, c: ArrayLike) -> Scalar:
    check_positive("scale", scale)
    scale = jnp.broadcast_to(jnp.asarray(as_float(scale), u.dtype), u.shape)
    flat = -jnp.sum(jnp.square(u / scale) / 2 + jnp.log(scale), axis=-1)
    return _wrap(flat, u, c)


def _full_log_density(u: Space, factor: Array, c: ArrayLike) -> Scalar:
    factor = _as_factor(factor, u)
    white = jax.lax.linalg.triangular_solve(factor, u[..., None], left_side=True, lower=True)
    logarithms = jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1))
    return _wrap(-jnp.sum(jnp.square(white[..., 0]) / 2 + logarithms, axis=-1), u, c)


def _wrap(flat: Scalar, u: Space, c: ArrayLike) -> Scalar:
    """Add what all normal densities have in common, and the stretch of the exponential map."""
    n = u.shape[-1]
    flat = flat - n / 2 * math.log(2 * math.pi)
    return flat - (n - 1) * jnp.log(sinhc_sqrt(per_batch(c, u) * dot(u, u)))
