"""Mathematics of layers on the Poincaré ball; `poincare` has its conventions, and is its front."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops.gyrovectors import Ball, exp_map0, log_map0, mobius_add, mobius_matvec
from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array


def mobius_linear(
    matrix: Float[Array, "m n"],
    p: Float[Array, "*#batch n"],
    bias: Float[Array, " m"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch m"]:
    """Möbius linear map: the product with a matrix, translated.

    Args:
      matrix: the matrix.
      p: points.
      bias: tangent vector at the origin, so that a Euclidean optimiser may train it.
      c: curvature, positive; the same before and after.

    Returns:
      Points (matrix ⊗ p) ⊕ exp_map0(bias) of dimension m.

    References:
      Ganea, Bécigneul and Hofmann, 2018. HOVER, section 3.
    """
    moved = mobius_matvec(matrix, p, c)
    bias = as_float(bias)
    bias = jnp.broadcast_to(bias.reshape((1,) * (moved.ndim - 1) + bias.shape), moved.shape)
    return mobius_add(moved, exp_map0(bias, c), c)


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Ball:
    """The point whose tangent vector at the origin has the coordinates of several, rescaled.

    A random tangent vector keeps its expected length if coordinates are scaled with the beta
    function of their number.

    Args:
      points: points of any dimensions n_i, with the same batch axes.
      c: curvature, positive; the same for all.

    Returns:
      Points exp_map0([B(n/2, 1/2) / B(n_i/2, 1/2) log_map0(p_i)]_i), n the sum of the dimensions.

    References:
      Shimizu, Mukuta and Harada, Hyperbolic neural networks++, ICLR 2021.
    """
    dims = [p.shape[-1] for p in points]
    parts = [log_map0(p, c) * _beta_ratio(sum(dims), p.shape[-1]) for p in points]
    return exp_map0(jnp.concatenate(parts, axis=-1), c)


def split(p: Ball, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Points with consecutive coordinates each, the inverse of `concatenate`.

    Args:
      p: points.
      dims: dimensions, whose sum is that of ``p``.
      c: curvature, positive.

    Returns:
      Points of those dimensions.

    Raises:
      ValueError: if the dimensions have another sum.
    """
    v = log_map0(p, c)
    if sum(dims) != v.shape[-1]:
        raise ValueError(f"dimensions {tuple(dims)} of a point of dimension {v.shape[-1]}")
    ends = [sum(dims[: k + 1]) for k in range(len(dims) - 1)]
    parts = jnp.split(v, ends, axis=-1)
    return [exp_map0(part * _beta_ratio(part.shape[-1], sum(dims)), c) for part in parts]


def _beta_ratio(above: int, below: int) -> float:
    """B(above / 2, 1/2) / B(below / 2, 1/2)."""
    log_beta = lambda n: math.lgamma(n / 2) - math.lgamma((n + 1) / 2)
    return math.exp(log_beta(above) - log_beta(below))
