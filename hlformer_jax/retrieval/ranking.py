"""Ranks, and the metrics of partially relevant retrieval.

Ranks: 1 + the number of candidates scored strictly higher + half the number of other candidates
scored equal, rounded up. Without ties this is the index in the sorted list, from 1; a model that
scores all candidates equal gets chance, not R@1 = 100.
"""

import chex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.typing import Array

RECALLS = (1, 5, 10, 100)


def ranks(scores: Float[Array, "Q V"], relevant: Int[Array, " Q"]) -> Int[Array, " Q"]:
    """Rank of each query's own candidate, from 1.

    Args:
      scores: scores of queries and candidates, higher is better; a NaN anywhere in a row gives that
        query the worst rank.
      relevant: column of each query's candidate.

    Returns:
      int32 ranks, see the module's docstring for ties.
    """
    chex.assert_rank(scores, 2)
    chex.assert_shape(relevant, scores.shape[:1])
    columns = jnp.arange(scores.shape[-1], dtype=relevant.dtype)
    own = jnp.take_along_axis(scores, relevant[:, None], axis=-1)
    return rank_among(scores, own, columns[None] != relevant[:, None])


def ranks_of_any(scores: Float[Array, "Q V"], relevant: Bool[Array, "Q V"]) -> Int[Array, " Q"]:
    """Rank of the best of each query's relevant candidates, as in video-to-text retrieval.

    Args:
      scores: scores of queries and candidates, as for `ranks`.
      relevant: True for relevant candidates, at least one in a row.

    Returns:
      int32 ranks among the candidates that are not relevant.
    """
    chex.assert_equal_shape([scores, relevant])
    best = jnp.max(jnp.where(relevant, scores, -jnp.inf), axis=-1, keepdims=True)
    return rank_among(scores, best, ~jnp.asarray(relevant))


def rank_among(
    scores: Float[Array, "Q V"], own: Float[Array, "Q 1"], other: Bool[Array, "Q V"]
) -> Int[Array, " Q"]:
    """Rank of one candidate of each query among others.

    Args:
      scores: scores of queries and candidates, as for `ranks`.
      own: score of the candidate.
      other: True for the others.

    Returns:
      int32 ranks, see the module's docstring for ties.
    """
    higher = jnp.sum(other & (scores > own), axis=-1, dtype=jnp.int32)
    equal = jnp.sum(other & (scores == own), axis=-1, dtype=jnp.int32)
    rank = 1 + higher + (equal + 1) // 2
    broken = jnp.any(jnp.isnan(scores), axis=-1)
    return jnp.where(broken, scores.shape[-1], rank)


def recall_at_k(rank: Int[Array, " Q"] | np.ndarray, k: int) -> float:
    """Share of queries, in percent, whose candidate is among the first k."""
    return 100.0 * float(np.mean(np.asarray(rank) <= k))


def sum_recall(rank: Int[Array, " Q"] | np.ndarray) -> float:
    """SumR: the sum of R@1, R@5, R@10 and R@100, in percent."""
    return sum(recall_at_k(rank, k) for k in RECALLS)


def mean_reciprocal_rank(rank: Int[Array, " Q"] | np.ndarray) -> float:
    """Mean of 1 / rank, between 0 and 1."""
    return float(np.mean(1.0 / np.asarray(rank, np.float64)))


def metrics(rank: Int[Array, " Q"] | np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10, R@100 and SumR, in percent, by the names the field uses."""
    return {f"R@{k}": recall_at_k(rank, k) for k in RECALLS} | {"SumR": sum_recall(rank)}
