"""The videos of one split: their prepared records, and those records transformed for a model."""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from hlformer_jax.data import transforms
from hlformer_jax.data.annotations.spans import Span, Spans
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.errors import is_memory_error
from hlformer_jax.text import shown

CHECKED_VIDEOS = 32
"""Videos of a split whose annotated sentences are compared when it is opened."""


class VideoRecord(NamedTuple):
    """A video with all its captions; features are read-only, in the dtype of the storage."""

    video_id: str
    frames: np.ndarray  # [F_i, D] in time order
    caption_ids: list[str]
    sentences: list[str]
    words: np.ndarray  # words of all captions, one caption after the other, [sum W_i, E]
    word_counts: np.ndarray  # number of words of every caption, int32
    teacher_frames: np.ndarray | None = None  # a teacher's vectors; None without a teacher
    teacher_captions: np.ndarray | None = None


@contextlib.contextmanager
def explained_damage(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Convert the errors of a damaged prepared set to a DataError of one line.

    Args:
      directory: the folder of the set.
    """
    try:
        yield
    except Exception as error:  # damaged files fail in many ways
        if is_memory_error(error) or isinstance(error, OSError) and error.errno is not None:
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(
            f"{directory} is damaged ({reason[:200]}): remove it, and the same command prepares it"
            " again"
        ) from error


class PreparedVideos:
    """The records of a split, by index. Threads may share it, and it can be pickled and forked.

    Attributes:
      video_ids: ids of the videos, in the order of the source's split.
      frames_per_video, captions_per_video, words_per_video: sizes of every video, int32 [videos];
        words are counted over all captions of a video.
      teacher_dim: width of the teacher's vectors; 0 without a teacher.
      annotations: the result of the source's `Reader.annotations`, in types of JSON, or None.
    """

    def __init__(self, builder: Any, split: str, index: dict[str, Any]) -> None:
        self.video_ids: tuple[str, ...] = tuple(index["video_ids"])
        self.frames_per_video = np.asarray(index["frames_per_video"], np.int32)
        self.captions_per_video = np.asarray(index["captions_per_video"], np.int32)
        self.words_per_video = np.asarray(index["words_per_video"], np.int32)
        self.teacher_dim: int = index.get("teacher_dim", 0)
        self.annotations: Any = index.get("annotations")
        self._builder, self._split = builder, split
        self._opened: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        """Returns the number of videos."""
        return len(self.video_ids)

    def __getitem__(self, index: int) -> VideoRecord:
        """Reads one video.

        Raises:
          IndexError: for an unknown index.
          DataError: if the prepared set is damaged.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"video {index} of {len(self)}")
        with explained_damage(self._builder.data_dir):
            example = self._source()[int(index) % len(self)]
            taught = ("teacher_frames", "teacher_captions") if self.teacher_dim else ()
            return VideoRecord(
                example["video_id"].decode(),
                example["frames"],
                [caption.decode() for caption in example["caption_ids"]],
                [sentence.decode() for sentence in example["sentences"]],
                example["words"],
                example["word_counts"],
                *(example[name] for name in taught),
            )

    def _source(self) -> Any:
        # Readers own threads, which a fork does not copy: a forked process opens its own.
        process, source = self._opened
        if process != os.getpid():
            source = self._builder.as_data_source(self._split)
            self._opened = (os.getpid(), source)
        return source


class Example(NamedTuple):
    """One video with its captions, transformed and normalised, not yet padded."""

    clips: np.ndarray  # [C, D]
    frames: np.ndarray  # [at most F, D]
    words: tuple[np.ndarray, ...]  # an array for each caption, [at most W, E]
    # Cosines of the teacher's vectors of captions and frames, float32 [captions, at most F].
    teacher: np.ndarray | None = None


class Split:
    """The videos of one split, transformed on first use and kept in up to `data.cache_gib`.

    Attributes:
      video_ids: ids of the videos, in the order of the source's split.
      captions_per_video: number of captions of each video, int32 [videos].
      frames_per_video: frames of each video after sampling, int32 [videos].
      source_frames_per_video: frames of each video before sampling, int32 [videos].
      words_per_video: words of all captions of a video before cutting to W, int32 [videos].
      dtype: dtype of the features.
      max_clips, max_frames, max_words: C, F and W.
      widths: D and E, the widths of frames and words.
      taught: whether there is a teacher.
      caption_video: index of each caption's video, in the order of the source's split, int32.
      spans: the moments of captions, by the id of the caption; empty if they are unknown or
        `config.eval.moments` is empty.
    """

    def __init__(
        self,
        videos: PreparedVideos,
        data: ConfigDict,
        spans: Mapping[str, Span] = MappingProxyType({}),
        keeps_last_word: bool = False,
    ) -> None:
        """Store the settings, without reading a record.

        Args:
          videos: the records of the split.
          data: `config.data`.
          spans: the moments of captions by their ids; see `spans` of this class.
          keeps_last_word: whether captions that are cut keep their last word.
        """
        self.spans = spans if isinstance(spans, Spans) else Spans(spans)
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
        self._keeps_last_word = keeps_last_word
        self.widths: tuple[int, int] = (data.visual_dim, data.text_dim)
        self._budget = int(data.cache_gib * 2**30)
        self._cache: dict[int, Example] = {}
        # Number of captions longer than `max_words`, by the index of each video that was read.
        self._cut_captions: dict[int, int] = {}
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
        record = self._videos[int(index)]
        self._cut_captions[int(index)] = int(np.sum(record.word_counts > self.max_words))
        return transform(record, *sizes, self.dtype, self._keeps_last_word)

    def num_cut_captions(self) -> int | None:
        """Return the number of captions longer than `max_words`; None until all were read."""
        return sum(self._cut_captions.values()) if len(self._cut_captions) == len(self) else None

    def caption_ids(self) -> list[str]:
        """Return the ids of all captions, in the order of `caption_video`.

        The first call reads the whole split.
        """
        return [name for name, _ in self._captions]

    def caption_sentences(self) -> list[str]:
        """Return the sentences of all captions; otherwise as `caption_ids`."""
        return [sentence for _, sentence in self._captions]

    @functools.cached_property
    def _captions(self) -> tuple[tuple[str, str], ...]:
        """The id and the sentence of all captions."""
        return tuple(itertools.chain.from_iterable(map(self._read_captions, range(len(self)))))

    def _read_captions(self, index: int) -> list[tuple[str, str]]:
        record = self._videos[index]
        return list(zip(record.caption_ids, record.sentences, strict=True))

    def check_spans(self, name: str) -> None:
        """Check that captions of the split have moments, and that these have their sentences.

        Videos are read only until `CHECKED_VIDEOS` of them have a moment. `caption_spans` checks
        all sentences.

        Args:
          name: name of the split in the error.

        Raises:
          DataError: if there are `spans`, but none belongs to a caption of the split, or they
            belong to other sentences.
        """
        if not self.spans:
            return
        spread = np.linspace(0, len(self) - 1, min(len(self), CHECKED_VIDEOS)).astype(int).tolist()
        num_checked = 0
        for index in dict.fromkeys([*spread, *range(len(self))]):
            names = [caption for caption in self._read_captions(index) if caption[0] in self.spans]
            if self._conflicts(names):
                self._check_sentences()
            num_checked += bool(names)
            if num_checked == CHECKED_VIDEOS:
                break
        if not num_checked:
            raise DataError(
                f"config.eval.moments: the file has no times for any caption of the {name}"
                f" split (such as {self.caption_ids()[0]!r})"
            )

    def _conflicts(self, captions: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the captions that have another sentence in the annotations of moments."""
        return [caption for caption in captions if self.spans.conflicts(*caption)]

    def _check_sentences(self) -> None:
        conflicts = self._conflicts(self._captions)
        if conflicts:
            name, sentence = conflicts[0]
            num_compared = sum(name in self.spans.sentences for name, _ in self._captions)
            raise DataError(
                f"config.eval.moments: {self.spans.source} has another sentence for"
                f" {len(conflicts)} of {num_compared} captions, such as {name!r}:"
                f" {shown(' '.join(self.spans.sentences[name].split()))}, but the caption is"
                f" {shown(sentence)}; give the annotations of these captions"
            )

    def caption_spans(self) -> list[Span | None]:
        """Return the moments of all captions, in the order of `caption_video`.

        A caption without a moment has None.

        Raises:
          DataError: if no caption has a moment, or a moment has another sentence.
        """
        return list(self._caption_spans)

    @functools.cached_property
    def _caption_spans(self) -> tuple[Span | None, ...]:
        spans = tuple(self.spans.get(name) for name, _ in self._captions)
        num_spans = sum(span is not None for span in spans)
        if not num_spans:
            raise DataError(
                "config.eval.moments: the file has no times for any caption (such as"
                f" {self.caption_ids()[0]!r})"
            )
        self._check_sentences()
        if num_spans < len(spans):
            logging.warning("only %d of %d captions have times of moments", num_spans, len(spans))
        return spans


def transform(
    record: VideoRecord,
    max_clips: int,
    max_frames: int,
    max_words: int,
    dtype: np.dtype = transforms.FLOAT32,
    keeps_last_word: bool = False,
) -> Example:
    """Apply the released transforms to a record; see `transforms`.

    Args:
      record: the raw features of a video and its captions.
      max_clips: C.
      max_frames: F.
      max_words: W.
      dtype: dtype of the result; the teacher's cosines are float32.
      keeps_last_word: see `transforms.cut_words`.
    """
    ends = np.cumsum(record.word_counts)[:-1]
    parts = (
        transforms.normalise(transforms.pool_to_clips(record.frames, max_clips)),
        transforms.normalise(transforms.sample_frames(record.frames, max_frames)),
        *(
            transforms.cut_words(words, max_words, keeps_last_word)
            for words in np.split(record.words, ends)
        ),
    )
    clips, frames, *words = (part.astype(dtype, copy=False) for part in parts)
    teacher = None
    if record.teacher_frames is not None and record.teacher_captions is not None:
        vectors = record.teacher_frames, record.teacher_captions
        teacher = transforms.teacher_cosines(*vectors, len(frames))
    return Example(clips, frames, tuple(words), teacher)
