"""Records of a prepared set: what one video becomes, how many go into a shard, and their index."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.data.released.frame_lists import row_name
from hlformer_jax.data.released.layout import ReleasedDataError
from hlformer_jax.data.released.reader import Released

Record = dict[str, Any]


def make_record(source: Released, split: str, video: str, storage: str) -> Record:
    """Reads a video and all its captions.

    Args:
      source: the released collection.
      split: train, val or test: a video may have other captions in each.
      video: its id.
      storage: float32 or float16.

    Returns:
      A TFDS example. Words of all captions stand one after the other, with the number of words of
      each beside them: a doubly ragged feature cannot be read back without TensorFlow.

    Raises:
      ReleasedDataError: if a value is not finite, or too large for the storage.
    """
    captions = source.splits[split][video]
    frames = source.read_video(video)
    words = [source.read_words(caption.caption_id) for caption in captions]

    def name_frame(row: int) -> str:
        name = row_name(source.collection.feature_dir / "id.txt", int(source.rows[video][row]))
        return f"{source.collection.feature_dir / 'feature.bin'}: frame {name!r}"

    def name_caption(row: int) -> str:
        number = int(np.searchsorted(np.cumsum([len(w) for w in words]), row, side="right"))
        return f"{source.collection.text_features}: caption {captions[number].caption_id!r}"

    return {
        "video_id": video,
        "frames": _store(frames, storage, name_frame),
        "caption_ids": [caption.caption_id for caption in captions],
        "sentences": [caption.sentence for caption in captions],
        "words": _store(np.concatenate(words), storage, name_caption),
        "word_counts": np.asarray([len(w) for w in words], np.int32),
    }


def input_bytes(source: Released, split: str, video: str) -> int:
    """Bytes of input that a record takes in, features as float32."""
    words = sum(source.word_counts[c.caption_id] for c in source.splits[split][video])
    frames = len(source.rows[video])
    return 4 * (frames * source.collection.visual_dim + words * source.collection.text_dim)


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


def index_of(source: Released, split: str) -> dict[str, list]:
    """What can be asked about the videos of a split without reading a record."""
    videos = source.splits[split]
    counts = source.word_counts
    return {
        "video_ids": list(videos),
        "frames_per_video": [len(source.rows[video]) for video in videos],
        "captions_per_video": [len(captions) for captions in videos.values()],
        "words_per_video": [sum(counts[c.caption_id] for c in cs) for cs in videos.values()],
    }


def check_space(directory: Path, needed: int) -> None:
    """Checks that a disk has room.

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
            f"{free / 1e9:.1f} GB are free; make room, set data.data_dir to another disk, or halve "
            f"the need with data.storage = 'float16'"
        )


def files_of(directory: Path) -> Iterator[tuple[str, int]]:
    """Names and sizes of the record files of a prepared set."""
    for path in sorted(directory.glob("*.array_record*")):
        yield path.name, path.stat().st_size


def _store(values: np.ndarray, storage: str, name: Callable[[int], str]) -> np.ndarray:
    dtype = np.dtype(storage)
    if dtype.itemsize < values.dtype.itemsize:
        limit = np.finfo(dtype).max
        if values.max() > limit or values.min() < -limit:
            row = int(np.argmax(np.abs(values).max(axis=1) > limit))
            raise ReleasedDataError(
                f"{name(row)} holds {values[row][np.argmax(np.abs(values[row]))]:g}, more than "
                f"{storage} can ({limit:g}); prepare with data.storage = 'float32'"
            )
    return values.astype(dtype, copy=False)
