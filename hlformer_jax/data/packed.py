"""Features of many videos packed without padding, and the batch that a step gathers from them.

Packed features lie on the devices: those of a whole split, or of the steps just ahead. The same
function reads both: where features come from does not change a batch. `packing` makes them.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from hlformer_jax import parallel
from hlformer_jax.typing import Array, Batch, Captions, Videos


class Features(NamedTuple):
    """Packed features; frames and words of all videos and captions stand one after the other.

    Attributes:
      clips: C clips of every video, normalised.
      frames: at most F frames of every video, normalised.
      frame_start: row of each video's first frame.
      frame_count: number of each video's frames.
      words: at most W words of every caption, normalised.
      word_start: row of each caption's first word.
      word_count: number of each caption's words.
      teacher: a teacher's cosines of every caption and the frames of its video, float32, zero
        beyond the last; None without one.
    """

    clips: Float[Array, "V C D"]
    frames: Float[Array, "rows D"]
    frame_start: Int[Array, " V"]
    frame_count: Int[Array, " V"]
    words: Float[Array, "rows E"]
    word_start: Int[Array, " Q"]
    word_count: Int[Array, " Q"]
    teacher: Float[Array, "Q F"] | None = None


class GatherIndices(NamedTuple):
    """Rows that a step gathers; -1 is padding.

    Attributes:
      videos: rows of the batch's videos in `Features`.
      captions: rows of the batch's captions in `Features`.
      video: row of each caption's video among the batch's videos; 0 where padded.
    """

    videos: Int[Array, " V"]
    captions: Int[Array, " Q"]
    video: Int[Array, " Q"]


def gather(
    features: Features,
    indices: GatherIndices,
    step: Int[Array, ""],
    max_frames: int,
    max_words: int,
    mesh: Mesh,
) -> Batch:
    """The batch of one step, in the dtype of the features; padding is zero (inside of jit).

    Args:
      features: packed features, sharded over the devices.
      indices: the gather indices of several steps, stacked on a leading axis.
      step: index of the step among them, from 0.
      max_frames: F.
      max_words: W.
      mesh: the devices.

    Returns:
      Videos padded to F frames and captions padded to W words, sharded over the devices.
    """
    index = jax.tree.map(lambda x: x[step], indices)
    take = lambda rows, row: parallel.take_rows(mesh, rows, row)
    videos, captions = index.videos >= 0, index.captions >= 0
    video_rows, caption_rows = jnp.maximum(index.videos, 0), jnp.maximum(index.captions, 0)
    clips = _masked(videos, take(features.clips, video_rows))
    frames, frame_mask = _ragged(
        features.frames,
        take(features.frame_start, video_rows),
        jnp.where(videos, take(features.frame_count, video_rows), 0),
        max_frames,
        take,
    )
    words, word_mask = _ragged(
        features.words,
        take(features.word_start, caption_rows),
        jnp.where(captions, take(features.word_count, caption_rows), 0),
        max_words,
        take,
    )
    teacher = None
    if features.teacher is not None:
        teacher = _masked(captions, take(features.teacher, caption_rows))
    batch = Batch(
        Videos(clips, frames, frame_mask, videos),
        Captions(words, word_mask, jnp.asarray(index.video), captions, teacher),
    )
    return parallel.constrain(mesh, batch)


def _ragged(
    rows: Float[Array, "rows D"],
    start: Int[Array, " M"],
    count: Int[Array, " M"],
    length: int,
    take: Callable[[Array, Array], Array],
) -> tuple[Float[Array, "M L D"], Bool[Array, "M L"]]:
    position = jnp.arange(length, dtype=jnp.int32)
    mask = position[None] < count[:, None]
    return _masked(mask, take(rows, jnp.where(mask, start[:, None] + position[None], 0))), mask


def _masked(mask: Bool[Array, "*rows"], values: Array) -> jax.Array:
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(mask, values, jnp.zeros((), values.dtype))
