"""Records of a prepared set: what one video becomes, how many go into a shard, and their index."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.data.memory import check_memory
from hlformer_jax.data.prepared.checks import ZeroRows, check_splits, check_values
from hlformer_jax.data.source import (
    SPLITS,
    TAUGHT_SPLIT,
    DataError,
    Reader,
    Source,
    TaughtReader,
    teacher_width,
)

Record = dict[str, Any]

_COPIES = 3  # of a record's features in memory: as read, as stored and as serialised


class Records:
    """The records of an open source; what goes into them is checked as it is read.

    Attributes:
      sizes: for each split, bytes of input of each record, with features as float32.
    """

    def __init__(self, source: Source, reader: Reader, storage: str) -> None:
        """Asks for all sizes, and reads no feature.

        Args:
          source: what is prepared.
          reader: the same, opened.
          storage: float32 or float16.

        Raises:
          DataError: if a split is not as it should be, or a record larger than memory.
        """
        self._reader, self._storage = reader, storage
        self._widths = source.visual_dim, source.text_dim
        self._teacher_dim = teacher_width(source)
        check_splits(reader, source.name)
        self.sizes = {
            split: [self._input_bytes(split, video) for video in reader.splits[split]]
            for split in SPLITS
        }
        indices = [self.index(split) for split in SPLITS]
        total = lambda key: sum(sum(index[key]) for index in indices)
        videos, captions = sum(map(len, self.sizes.values())), total("captions_per_video")
        self._zero_frames = ZeroRows("frames", "videos", videos, total("frames_per_video"))
        self._zero_words = ZeroRows("words", "captions", captions, total("words_per_video"))

    def make(self, split: str, video: str) -> Record:
        """Reads a video and all its captions.

        Args:
          split: train, val or test: a video may have other captions in each.
          video: its id.

        Returns:
          A TFDS example. Words of all captions stand one after the other, with the number of words
          of each beside them: a doubly ragged feature cannot be read back without TensorFlow.

        Raises:
          DataError: if a value is not finite, or too large for the storage, or too many are zero.
        """
        captions = self._reader.splits[split][video]
        words = [self._words(caption.caption_id) for caption in captions]
        return {
            "video_id": video,
            "frames": self._frames(video),
            "caption_ids": [caption.caption_id for caption in captions],
            "sentences": [caption.sentence for caption in captions],
            "words": np.concatenate(words),
            "word_counts": np.asarray([len(w) for w in words], np.int32),
            **self._teacher(split, video),
        }

    def index(self, split: str) -> dict[str, Any]:
        """What can be asked about the videos of a split without reading a record."""
        videos, num_words = self._reader.splits[split], self._reader.num_words
        annotations = self._reader.annotations(split)
        taught = self._teacher_dim if split == TAUGHT_SPLIT else 0
        known = ({} if annotations is None else {"annotations": annotations}) | (
            {"teacher_dim": taught} if taught else {}
        )
        return known | {
            "video_ids": list(videos),
            "frames_per_video": [self._reader.num_frames(video) for video in videos],
            "captions_per_video": [len(captions) for captions in videos.values()],
            "words_per_video": [sum(num_words(c.caption_id) for c in cs) for cs in videos.values()],
        }

    def warn_of_zeros(self) -> None:
        """Warns of the zero rows in the records that were made."""
        self._zero_frames.warn()
        self._zero_words.warn()

    def _input_bytes(self, split: str, video: str) -> int:
        captions = self._reader.splits[split][video]
        words = sum(self._reader.num_words(caption.caption_id) for caption in captions)
        visual_dim, text_dim = self._widths
        frames = self._reader.num_frames(video)
        size = 4 * (frames * visual_dim + words * text_dim)
        if split == TAUGHT_SPLIT:  # about: a teacher need not have as many frames
            size += 4 * (frames + len(captions)) * self._teacher_dim
        check_memory(_COPIES * size, f"video {video!r}", "leave it out, or give it fewer frames")
        return size

    def _frames(self, video: str) -> np.ndarray:
        def describe(row: int) -> str:
            return self._reader.describe_frame(video, row)

        frames = self._reader.read_frames(video)
        check_values(frames, (self._reader.num_frames(video), self._widths[0]), describe)
        self._zero_frames.add(frames, describe)
        return self._stored(frames, describe)

    def _words(self, caption_id: str) -> np.ndarray:
        def describe(row: int) -> str:
            return self._reader.describe_caption(caption_id)

        words = self._reader.read_words(caption_id)
        check_values(words, (self._reader.num_words(caption_id), self._widths[1]), describe)
        self._zero_words.add(words, describe)
        return self._stored(words, describe)

    def _teacher(self, split: str, video: str) -> Record:
        """A teacher's vectors; without rows where it does not teach."""
        if not self._teacher_dim:
            return {}
        if split != TAUGHT_SPLIT:
            nothing = np.zeros((0, self._teacher_dim), self._storage)
            return {"teacher_frames": nothing, "teacher_captions": nothing}
        reader: TaughtReader = self._reader  # type: ignore[assignment]
        ids = [caption.caption_id for caption in reader.splits[split][video]]
        teacher = reader.read_teacher(video, ids)
        record = {}
        for name, values, rows in (
            ("frames", teacher.frames, max(len(teacher.frames), 1)),
            ("captions", teacher.captions, len(ids)),
        ):
            called = reader.describe_teacher(video, name)
            describe = lambda row, called=called: f"{called}: row {row}"
            check_values(values, (rows, self._teacher_dim), describe)
            if not values.any():
                raise DataError(f"{called}: all are zero; they were never written, get them again")
            record[f"teacher_{name}"] = self._stored(values, describe)
        return record

    def _stored(self, values: np.ndarray, describe: Callable[[int], str]) -> np.ndarray:
        dtype = np.dtype(self._storage)
        if dtype.itemsize < values.dtype.itemsize:
            limit = np.finfo(dtype).max
            if values.max() > limit or values.min() < -limit:
                row = int(np.argmax(np.abs(values).max(axis=1) > limit))
                raise DataError(
                    f"{describe(row)} holds {values[row][np.argmax(np.abs(values[row]))]:g}, more "
                    f"than {self._storage} can ({limit:g}); prepare with data.storage = 'float32'"
                )
        return values.astype(dtype, copy=False)


def shard_lengths(sizes: list[int], largest: int) -> list[int]:
    """Cuts a list of records into shards of neighbours.

    Args:
      sizes: bytes of every record.
      largest: bytes that a shard should not exceed; one record always fits.

    Returns:
      How many records go into each shard.
    """
    lengths, filled = [0], 0
    for size in sizes:
        if lengths[-1] and filled + size > largest:
            lengths.append(0)
            filled = 0
        lengths[-1] += 1
        filled += size
    return lengths


def check_space(directory: Path, needed: int) -> None:
    """Checks that a disk has enough free space.

    Args:
      directory: a folder on it.
      needed: bytes that will be written.

    Raises:
      OSError: if it has less.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"{directory}: {needed / 1e9:.1f} GB are needed for the prepared features and "
            f"{free / 1e9:.1f} GB are free; free some, set data.data_dir to another disk, or halve "
            f"the need with data.storage = 'float16'"
        )


def files_of(directory: Path) -> Iterator[tuple[str, int]]:
    """Names and sizes of the record files of a prepared set."""
    for path in sorted(directory.glob("*.array_record*")):
        yield path.name, path.stat().st_size
