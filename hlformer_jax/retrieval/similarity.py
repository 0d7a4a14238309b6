"""Similarities of queries and videos: maxima over positions (HLFormer eq. 8)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Int

from hlformer_jax.ops.fused_similarity import max_similarities
from hlformer_jax.ops.numerics import inverse_norm
from hlformer_jax.typing import Array


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
