"""The splits of a data set, transformed: what a configuration's model reads of every video."""

import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.data import transforms
from hlformer_jax.data.prepared.reader import PreparedVideos, VideoRecord
from hlformer_jax.data.simulated import SimulatedVideos


class Example(NamedTuple):
    """One video with its captions, transformed, not yet padded.

    Attributes:
      clips: [C, D], normalised, in the configured dtype.
      frames: [at most F, D], normalised.
      words: one array [at most W, E] per caption, normalised.
    """

    clips: np.ndarray
    frames: np.ndarray
    words: tuple[np.ndarray, ...]


class Split:
    """The videos of one split, transformed on first use and kept while the memory lasts.

    Attributes:
      video_ids: ids of the videos, in the order of the source's split.
      captions_per_video: number of captions of each video, int32 [videos].
      frames_per_video: frames of each video after sampling, int32 [videos].
      words_per_video: words of all captions of a video, before they are cut, int32 [videos].
      dtype: dtype of the features.
      max_clips: C.
      max_frames: F.
      max_words: W.
      widths: D and E, the widths of frames and words.
      caption_video: index of each caption's video, in the order of the source's split, int32.
    """

    def __init__(self, videos: PreparedVideos | SimulatedVideos, data: ConfigDict) -> None:
        """Nothing is read yet.

        Args:
          videos: the videos, not yet transformed.
          data: `config.data`.
        """
        self.video_ids: Sequence[str] = videos.video_ids
        self.captions_per_video = videos.captions_per_video
        self.frames_per_video = np.minimum(videos.frames_per_video, data.max_frames)
        self.words_per_video = videos.words_per_video
        self.dtype = np.dtype(data.dtype)
        self.caption_video = np.repeat(
            np.arange(len(videos), dtype=np.int32), self.captions_per_video
        )
        self._videos = videos
        self.max_clips: int = data.max_clips
        self.max_frames: int = data.max_frames
        self.max_words: int = data.max_words
        self.widths: tuple[int, int] = (data.visual_dim, data.text_dim)
        self._budget = int(data.cache_gib * 2**30)
        self._cache: dict[int, Example] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Returns the number of videos."""
        return len(self.video_ids)

    def sentences(self, index: int | np.integer) -> list[str]:
        """Returns the text of a video's captions, in their order; reads its record."""
        return list(self._videos[int(index)].sentences)

    def __getitem__(self, index: int | np.integer) -> Example:
        """Returns a video, read from the prepared set or from memory."""
        index = int(index)
        example = self._cache.get(index)
        if example is None:
            example = self.read(index)
            size = sum(array.nbytes for array in (example.clips, example.frames, *example.words))
            with self._lock:
                if index not in self._cache and size <= self._budget:
                    self._budget -= size
                    self._cache[index] = example
        return example

    def read(self, index: int | np.integer) -> Example:
        """Returns a video, read from the prepared set, without keeping it."""
        sizes = self.max_clips, self.max_frames, self.max_words
        return transform(self._videos[int(index)], *sizes, self.dtype)

    def caption_ids(self) -> list[str]:
        """Ids of all captions, in the order of `caption_video`; reads the whole split."""
        ids = (self._videos[index].caption_ids for index in range(len(self)))
        return list(itertools.chain.from_iterable(ids))


def transform(
    record: VideoRecord,
    max_clips: int,
    max_frames: int,
    max_words: int,
    dtype: np.dtype = transforms.FLOAT32,
) -> Example:
    """Applies the released transforms to a record; see transforms.py."""
    ends = np.cumsum(record.word_counts)[:-1]
    parts = (
        transforms.normalise(transforms.pool_to_clips(record.frames, max_clips)),
        transforms.normalise(transforms.sample_frames(record.frames, max_frames)),
        *(transforms.cut_words(words, max_words) for words in np.split(record.words, ends)),
    )
    clips, frames, *words = (part.astype(dtype, copy=False) for part in parts)
    return Example(clips, frames, tuple(words))
