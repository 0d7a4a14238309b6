"""Features of many videos packed without padding, and the batch that a step gathers from them.

A packed set lies on the devices: that of a whole split, or of the steps just ahead. The same
function reads both: where features come from does not change a batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from hlformer_jax.parallel import devices
from hlformer_jax.typing import Array, Batch, Captions, Videos


class Features(NamedTuple):
    """Packed features; frames and words of all videos and captions stand one after the other.

    Attributes:
      clips: of every video, normalised.
      frames: of every video, at most F, normalised.
      frame_start: row of each video's first frame.
      frame_count: number of its frames.
      words: of every caption, at most W, normalised.
      word_start: row of each caption's first word.
      word_count: number of its words.
    """

    clips: Float[Array, "V C D"]
    frames: Float[Array, "rows D"]
    frame_start: Int[Array, " V"]
    frame_count: Int[Array, " V"]
    words: Float[Array, "rows E"]
    word_start: Int[Array, " Q"]
    word_count: Int[Array, " Q"]


class Plan(NamedTuple):
    """What a step gathers; -1 is padding.

    Attributes:
      videos: rows of the batch's videos in `Features`.
      captions: rows of its captions.
      video: row of each caption's video among the batch's; 0 where padded.
    """

    videos: Int[Array, " V"]
    captions: Int[Array, " Q"]
    video: Int[Array, " Q"]


def gather(
    features: Features,
    plans: Plan,
    number: Int[Array, ""],
    max_frames: int,
    max_words: int,
    mesh: Mesh,
) -> Batch:
    """The batch of one plan, in the dtype of the features; padding is zero (inside of jit).

    Args:
      features: packed features, sharded over the devices.
      plans: what each step gathers, stacked on a leading axis.
      number: which of them, from 0.
      max_frames: F.
      max_words: W.
      mesh: the devices.

    Returns:
      Videos padded to F frames and captions padded to W words, sharded over the devices.
    """
    plan = jax.tree.map(lambda x: x[number], plans)
    take = lambda rows, index: devices.take(mesh, rows, index)
    videos, captions = plan.videos >= 0, plan.captions >= 0
    video_rows, caption_rows = jnp.maximum(plan.videos, 0), jnp.maximum(plan.captions, 0)
    clips = _kept(videos, take(features.clips, video_rows))
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
    batch = Batch(
        Videos(clips, frames, frame_mask, videos),
        Captions(words, word_mask, jnp.asarray(plan.video), captions),
    )
    return devices.constrain(mesh, batch)


def _ragged(
    rows: Float[Array, "rows D"],
    start: Int[Array, " M"],
    count: Int[Array, " M"],
    length: int,
    take: Callable[[Array, Array], Array],
) -> tuple[Float[Array, "M L D"], Bool[Array, "M L"]]:
    place = jnp.arange(length, dtype=jnp.int32)
    mask = place[None] < count[:, None]
    return _kept(mask, take(rows, jnp.where(mask, start[:, None] + place[None], 0))), mask


def _kept(mask: Bool[Array, "*rows"], values: Array) -> jax.Array:
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(mask, values, jnp.zeros((), values.dtype))
