"""Similarities of queries and videos, ranks, and the metrics of partially relevant retrieval.

The score of a video is the best of its positions (HLFormer eq. 8, 9). Zero vectors, which padded
frames are, have cosine 0 with everything and take part in the maximum, as released.

Ranks: 1 + the number of videos scored strictly higher + half the number of other videos scored
equal, rounded up. Without ties this is the position in the sorted list; a model that scores all
videos equal gets chance, not R@1 = 100.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.ops.fused_similarity import max_similarities
from hlformer_jax.ops.numerics import inverse_norm
from hlformer_jax.typing import Array

RECALLS = (1, 5, 10, 100)


class Similarities(NamedTuple):
    """Maxima over positions, [Q, V] each; those of a branch that is off are None.

    With guided vectors the frame's are [Q, Q]: column r is the vector of caption r's best clip.
    """

    clip_cosine: Float[Array, "Q V"] | None
    clip_dot: Float[Array, "Q V"] | None
    frame_cosine: Float[Array, "Q V"] | None
    frame_dot: Float[Array, "Q V"] | None


def similarities(
    queries: Float[Array, "Q H"],
    clips: Float[Array, "V C H"] | None,
    frames: Float[Array, "V F H"] | None,
    kernels: str = "xla",
    guided: Float[Array, "V C H"] | None = None,
    video: Int[Array, " Q"] | None = None,
) -> Similarities:
    """Cosine and dot-product maxima of both branches, as the training losses need them.

    One product serves both: the cosines are the dot products over the norms. With "pallas" it is
    never written to memory, and the gradient of a tie goes to the first of the positions.

    Args:
      queries: sentence embeddings.
      clips: encoded clips.
      frames: encoded frames.
      kernels: "xla" or "pallas".
      guided: a vector for each clip, in place of frames (MS-SL).
      video: row of each caption's video; needed with `guided`.

    Returns:
      The maxima; with `guided`, of every caption against the vector that every other caption's
      best clip has in its own video.
    """
    query_norm = inverse_norm(queries)
    if guided is not None and clips is not None and video is not None:
        products = jnp.einsum("qh,vlh->qvl", queries, clips)
        scaled = products * inverse_norm(clips)[None]
        own = jnp.take_along_axis(scaled, video[:, None, None], axis=1)[:, 0]
        vectors = guided[video, jnp.argmax(own, axis=-1)]
        dots = jnp.einsum("qh,rh->qr", queries, vectors)
        cosines = dots * query_norm[:, None] * inverse_norm(vectors)[None]
        clip_cosine = jnp.max(scaled, axis=-1) * query_norm[:, None]
        return Similarities(clip_cosine, jnp.max(products, axis=-1), cosines, dots)

    def both(positions: Array | None) -> tuple[Array | None, Array | None]:
        if positions is None:
            return None, None
        if kernels == "pallas":
            return max_similarities(queries, positions)
        dots = jnp.einsum("qh,vlh->qvl", queries, positions)
        cosines = jnp.max(dots * inverse_norm(positions)[None], axis=-1) * query_norm[:, None]
        return cosines, jnp.max(dots, axis=-1)

    return Similarities(*both(clips), *both(frames))


def ranks(scores: Float[Array, "Q V"], relevant: Int[Array, " Q"]) -> Int[Array, " Q"]:
    """Rank of each query's own video, from 1.

    Args:
      scores: higher is better; a NaN anywhere in a row gives that query the worst rank.
      relevant: column of each query's video.

    Returns:
      int32 ranks, see the module's docstring for ties.
    """
    chex.assert_rank(scores, 2)
    chex.assert_shape(relevant, scores.shape[:1])
    columns = jnp.arange(scores.shape[-1], dtype=relevant.dtype)
    own = jnp.take_along_axis(scores, relevant[:, None], axis=-1)
    other = columns[None] != relevant[:, None]
    higher = jnp.sum(other & (scores > own), axis=-1, dtype=jnp.int32)
    equal = jnp.sum(other & (scores == own), axis=-1, dtype=jnp.int32)
    rank = 1 + higher + (equal + 1) // 2
    broken = jnp.any(jnp.isnan(scores), axis=-1)
    return jnp.where(broken, scores.shape[-1], rank)


def recall_at_k(rank: Int[Array, " Q"] | np.ndarray, k: int) -> float:
    """Share of queries, in percent, whose video is among the first k."""
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
