"""Unit vectors as a corpus keeps them: float32, bfloat16, or int8 with one scale per vector."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float

from hlformer_jax.ops.numerics import unit
from hlformer_jax.typing import Array

DTYPES = ("float32", "bfloat16", "int8")


class Vectors(NamedTuple):
    """Unit vectors in the dtype of a corpus.

    Attributes:
      values: coordinates, [..., H].
      scale: what int8 values are multiplied by, [...]; None for other dtypes.
    """

    values: Array
    scale: Array | None


Stored = dict[str, Vectors]
"""Vectors of every position of videos, [B, L, H], by the name of their branch."""


def positions(stored: Stored) -> int:
    """Number of positions of all branches of a video."""
    return sum(branch.values.shape[-2] for branch in stored.values())


def width(stored: Stored) -> int:
    """Width H of the vectors."""
    branch = next(iter(stored.values()))
    return int(branch.values.shape[-1])


def store(vectors: Float[Array, "*batch H"], dtype: DTypeLike) -> Vectors:
    """Unit vectors in the dtype of a corpus.

    int8 rounds each coordinate to a 127th of its vector's largest: an error of at most half of
    that, 0.4 % of the largest coordinate.

    Args:
      vectors: vectors of any norm; zero vectors stay zero.
      dtype: float32, bfloat16 or int8.
    """
    units = unit(vectors)
    if jnp.dtype(dtype) != jnp.int8:
        return Vectors(units.astype(dtype), None)
    largest = jnp.max(jnp.abs(units), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0) / 127
    return Vectors(jnp.round(units / scale).astype(jnp.int8), scale[..., 0])


def cosines(query: Vectors, vectors: Vectors) -> Float[Array, "Q B L"]:
    """Cosines of queries [Q, H] and the positions of videos [B, L, H].

    Inner products are accumulated in float32, or in int32 for int8.
    """
    wide = jnp.int32 if vectors.scale is not None else jnp.float32
    exact = jax.lax.Precision.HIGHEST  # of float32 vectors; a GPU may round them to fewer bits
    if len(query.values) == 1:  # a matrix by a vector, for which XLA has a better program on CPUs
        rows = vectors.values.reshape(-1, vectors.values.shape[-1])
        products = jnp.dot(rows, query.values[0], precision=exact, preferred_element_type=wide)
        products = products.reshape(1, *vectors.values.shape[:-1])
    else:
        products = jnp.einsum(
            "qh,blh->qbl",
            query.values,
            vectors.values,
            precision=exact,
            preferred_element_type=wide,
        )
    if vectors.scale is None or query.scale is None:
        return products
    return products.astype(jnp.float32) * vectors.scale[None] * query.scale[:, None, None]


def own_cosines(query: Vectors, own: Vectors) -> Float[Array, "Q L"]:
    """Cosines of queries [Q, H] and a video each, [Q, L, H]."""
    products = jnp.einsum(
        "qh,qlh->ql", query.values.astype(jnp.float32), own.values.astype(jnp.float32)
    )
    if own.scale is None or query.scale is None:
        return products
    return products * own.scale * query.scale[:, None]
