"""The splits of a data set, transformed: what a configuration's model reads of every video."""

import functools
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from hlformer_jax.data import transforms
from hlformer_jax.data.prepared.reader import PreparedVideos, VideoRecord
from hlformer_jax.data.simulated import SimulatedVideos
from hlformer_jax.data.source import DataError
from hlformer_jax.data.spans import Span


class Example(NamedTuple):
    """One video with its captions, transformed, not yet padded.

    Attributes:
      clips: [C, D], normalised, in the configured dtype.
      frames: [at most F, D], normalised.
      words: one array [at most W, E] per caption, normalised.
      teacher: a teacher's cosines of captions and frames, float32 [captions, at most F]; None
        without one.
    """

    clips: np.ndarray
    frames: np.ndarray
    words: tuple[np.ndarray, ...]
    teacher: np.ndarray | None = None


class Split:
    """The videos of one split, transformed on first use and kept while the memory lasts.

    Attributes:
      video_ids: ids of the videos, in the order of the source's split.
      captions_per_video: number of captions of each video, int32 [videos].
      frames_per_video: frames of each video after sampling, int32 [videos].
      source_frames_per_video: frames of each video before, int32 [videos].
      words_per_video: words of all captions of a video, before they are cut, int32 [videos].
      dtype: dtype of the features.
      max_clips: C.
      max_frames: F.
      max_words: W.
      widths: D and E, the widths of frames and words.
      taught: whether there is a teacher.
      caption_video: index of each caption's video, in the order of the source's split, int32.
      spans: where the moments of captions lie, by the id of the caption; empty where that is not
        known, or nobody asked.
    """

    def __init__(
        self,
        videos: PreparedVideos | SimulatedVideos,
        data: ConfigDict,
        spans: Mapping[str, Span] = MappingProxyType({}),
    ) -> None:
        """Nothing is read yet.

        Args:
          videos: the videos, not yet transformed.
          data: `config.data`.
          spans: annotated moments of captions, of this split or of more; by default none.
        """
        self.spans = spans
        self.video_ids: Sequence[str] = videos.video_ids
        self.captions_per_video = videos.captions_per_video
        self.source_frames_per_video = videos.frames_per_video
        self.frames_per_video = np.minimum(videos.frames_per_video, data.max_frames)
        self.words_per_video = videos.words_per_video
        self.dtype = np.dtype(data.dtype)
        self.caption_video = np.repeat(
            np.arange(len(videos), dtype=np.int32), self.captions_per_video
        )
        self._videos = videos
        self.taught = videos.teacher_dim > 0
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
            arrays = (example.clips, example.frames, *example.words, example.teacher)
            size = sum(array.nbytes for array in arrays if array is not None)
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
        """Ids of all captions, in the order of `caption_video`; reads the whole split, once."""
        return list(self._caption_ids)

    @functools.cached_property
    def _caption_ids(self) -> tuple[str, ...]:
        return tuple(self._read_caption_ids())

    def _read_caption_ids(self) -> Iterator[str]:
        ids = (self._videos[index].caption_ids for index in range(len(self)))
        return itertools.chain.from_iterable(ids)

    def check_spans(self, name: str) -> None:
        """Reads captions until the moment of one is known; nothing where there are no `spans`.

        Args:
          name: name of the split.

        Raises:
          DataError: when none is.
        """
        if self.spans and not any(one in self.spans for one in self._read_caption_ids()):
            raise DataError(
                f"config.eval.moments: no caption of the {name} split has times there; its first"
                f" is {self._caption_ids[0]!r}"
            )

    def caption_spans(self) -> list[Span | None]:
        """The annotated moments of all captions, in the order of `caption_video`.

        Raises:
          DataError: when no caption of the split has one.
        """
        return list(self._caption_spans)

    @functools.cached_property
    def _caption_spans(self) -> tuple[Span | None, ...]:
        found = tuple(self.spans.get(name) for name in self._caption_ids)
        known = sum(span is not None for span in found)
        if not known:
            raise DataError(
                f"config.eval.moments: no caption has times there; the first is"
                f" {self._caption_ids[0]!r}"
            )
        if known < len(found):
            logging.warning("the times of %d of %d captions are known", known, len(found))
        return found


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
    teacher = None
    if record.teacher_frames is not None and record.teacher_captions is not None:
        vectors = record.teacher_frames, record.teacher_captions
        teacher = transforms.teacher_cosines(*vectors, len(frames))
    return Example(clips, frames, tuple(words), teacher)
