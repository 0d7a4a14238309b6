"""Videos and captions of a split encoded by a run's model, those alone that a figure shows.

Every model is asked for its positions: clips and frames as its branches encode them. (MS-SL ranks
by proposals, which are means of these clips.)
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax import models
from hlformer_jax.data.split import Split
from hlformer_jax.models.two_branch import TwoBranch
from hlformer_jax.training.finished import Finished
from hlformer_jax.typing import Captions, Videos

CAPTIONS = 256
"""Captions that are encoded together."""


class EncodedVideos(NamedTuple):
    """Encoded videos, float32.

    Attributes:
      clips: encoded clips; None for a model without them, and DL-DKD, which reads frames alone.
      frames: encoded frames, zero where there is none; None for a model without them, or with one
        vector a video in their place.
      num_frames: number of real frames of each.
    """

    clips: Float[np.ndarray, "V C H"] | None
    frames: Float[np.ndarray, "V F H"] | None
    num_frames: Int[np.ndarray, " V"]


class Batch(NamedTuple):
    """Videos that were encoded together.

    Attributes:
      indices: their indices in the split.
      encoded: the videos.
      intermediates: what the model's modules noted on the way (`Module.sow`), by their names; of
        the padded batch, the videos first.
    """

    indices: np.ndarray
    encoded: EncodedVideos
    intermediates: Any


class Encoder:
    """The model of a run, and compiled programs that encode with it."""

    def __init__(self, run: Finished) -> None:
        self._run = run
        model, hyperparameters = run.family.model, run.family.model.hyperparameters
        self._video_level = run.config.model.video_level
        self._reads_clips = not model.module.query_per_branch

        @jax.jit
        def videos(params: Any, videos: Videos) -> Any:
            return model.module.apply(
                {"params": params},
                videos,
                hyperparameters,
                method=TwoBranch.encode_video,
                mutable=["intermediates"],
            )

        self._encode_videos = videos
        self._encode_captions = jax.jit(
            lambda params, captions: models.encode_query(model, params, captions)
        )
        self._encode_ranked = jax.jit(
            lambda params, videos: models.encode_video(model, params, videos)
        )

    def videos(
        self, split: Split, indices: Sequence[int] | np.ndarray, params: Any = None
    ) -> EncodedVideos:
        """Encodes some videos.

        Args:
          split: their split.
          indices: their indices there, one at least.
          params: other parameters than those of the run's best epoch.
        """
        batches = [batch.encoded for batch in self.batches(split, indices, params)]
        join = lambda *parts: np.concatenate(parts)
        clips, frames = (
            None if part[0] is None else join(*part)
            for part in zip(*((one.clips, one.frames) for one in batches), strict=True)
        )
        return EncodedVideos(clips, frames, join(*(one.num_frames for one in batches)))

    def batches(
        self, split: Split, indices: Sequence[int] | np.ndarray, params: Any = None
    ) -> Iterator[Batch]:
        """Encodes some videos, a batch at a time.

        Args:
          split: their split.
          indices: their indices there, one at least.
          params: other parameters than those of the run's best epoch.
        """
        params = self._run.params if params is None else params
        indices = np.asarray(indices)
        size = min(self._run.config.eval.video_batch, len(indices))
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            batch = collate_videos(split, chosen, size)
            (clips, frames), noted = self._encode_videos(params, batch)
            count = len(chosen)
            cut = lambda x, count=count: None if x is None else np.asarray(x, np.float32)[:count]
            encoded = EncodedVideos(
                cut(clips) if self._reads_clips else None,
                None if self._video_level else cut(frames),
                split.frames_per_video[chosen],
            )
            yield Batch(chosen, encoded, jax.device_get(noted.get("intermediates", {})))

    def ranked(self, split: Split, index: int) -> Any:
        """One video as the model is ranked by: a `VideoEncoding`, or what it has in its place."""
        return self._encode_ranked(self._run.params, collate_videos(split, [index], 1))

    def captions(
        self, split: Split, indices: Sequence[int] | np.ndarray, params: Any = None
    ) -> list[Float[np.ndarray, "captions H"]]:
        """Encodes all captions of some videos; arguments of `videos`.

        Returns:
          The sentence embeddings of each video, float32.
        """
        params = self._run.params if params is None else params
        words = [list(split[index].words) for index in indices]
        every = [one for own in words for one in own]
        size = min(CAPTIONS, len(every))
        encodings = []
        for start in range(0, len(every), size):
            chosen = every[start : start + size]
            encoded = self._encode_captions(params, collate_captions(split, chosen, size))
            encodings.append(np.asarray(encoded, np.float32)[: len(chosen)])
        ends = np.cumsum([len(own) for own in words])[:-1]
        return np.split(np.concatenate(encodings), ends)


def collate_videos(split: Split, indices: Sequence[int] | np.ndarray, size: int) -> Videos:
    """Videos of a split as a model takes them; zeros fill the batch up to `size`."""
    width = split.widths[0]
    clips = np.zeros((size, split.max_clips, width), split.dtype)
    frames = np.zeros((size, split.max_frames, width), split.dtype)
    counts = np.zeros(size, np.int64)
    for row, index in enumerate(indices):
        example = split[index]
        clips[row] = example.clips
        counts[row] = len(example.frames)
        frames[row, : counts[row]] = example.frames
    return Videos(clips, frames, np.arange(split.max_frames)[None] < counts[:, None], counts > 0)


def collate_captions(split: Split, words: Sequence[np.ndarray], size: int) -> Captions:
    """Captions, given by their words, as a model takes them; zeros fill the batch up to `size`."""
    padded = np.zeros((size, split.max_words, split.widths[1]), split.dtype)
    counts = np.zeros(size, np.int64)
    for row, own in enumerate(words):
        counts[row] = len(own)
        padded[row, : len(own)] = own
    mask = np.arange(split.max_words)[None] < counts[:, None]
    return Captions(padded, mask, np.zeros(size, np.int32), counts > 0)
