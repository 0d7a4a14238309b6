"""Packs the features of a chunk of videos for the devices: sizes, rows, and gather indices.

The videos of a chunk are shared out to the devices in order, in equal numbers. A device's share of
each array is padded to the same size, that of the largest share of any chunk, so that one compiled
program reads all chunks.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from hlformer_jax import parallel
from hlformer_jax.data import transforms
from hlformer_jax.data.packed import Features, GatherIndices
from hlformer_jax.data.split import Split

CAPTION_MULTIPLE = 16
"""Caption capacities are rounded up to this, so that shapes stay convenient for the hardware."""

ROW_MULTIPLE = 256
"""Rows of frames and words are rounded up to this, so that similar splits share a compilation."""

_READERS = 4

Layout = list[tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of a device's share of each array of `Features`."""


class Capacity(NamedTuple):
    """Rows of a device's share of a chunk.

    Attributes:
      videos: number of videos.
      captions: number of captions.
      frames: number of frames of all videos.
      words: number of words of all captions.
    """

    videos: int
    captions: int
    frames: int
    words: int

    def bytes(self, split: Split) -> int:
        """Bytes of the features."""
        visual, text = split.widths
        vectors = self.videos * split.max_clips + self.frames
        teacher = 4 * self.captions * split.max_frames if split.taught else 0
        return split.dtype.itemsize * (vectors * visual + self.words * text) + teacher

    def layout(self, split: Split) -> Layout:
        """Shapes and dtypes of the arrays of `Features`, in order."""
        (visual, text), dtype, index = split.widths, split.dtype, np.dtype(np.int32)
        teacher = [((self.captions, split.max_frames), transforms.FLOAT32)] if split.taught else []
        return [
            ((self.videos, split.max_clips, visual), dtype),
            ((self.frames, visual), dtype),
            ((self.videos,), index),
            ((self.videos,), index),
            ((self.words, text), dtype),
            ((self.captions,), index),
            ((self.captions,), index),
            *teacher,
        ]


def whole_capacity(split: Split, num_devices: int) -> Capacity:
    """The capacity that holds a device's share of a whole split."""
    return largest_capacity(split, [np.arange(len(split))], num_devices)


def largest_capacity(split: Split, chunks: list[np.ndarray], num_devices: int) -> Capacity:
    """The capacity that holds a device's share of any of the chunks.

    Args:
      split: the videos.
      chunks: for each chunk, the indices of its videos.
      num_devices: the number of devices.

    Returns:
      The capacity, rounded up.
    """
    rows: list[int] = [1, 1, 1, 1]
    per_video = (split.captions_per_video, split.frames_per_video, split.words_per_video)
    for videos in chunks:
        for share in _shares(videos, num_devices):
            needed = (len(share), *(int(counts[share].sum()) for counts in per_video))
            rows = [max(a, b) for a, b in zip(rows, needed, strict=True)]
    multiples = (1, CAPTION_MULTIPLE, ROW_MULTIPLE, ROW_MULTIPLE)
    return Capacity(*map(parallel.round_up, rows, multiples))


def pack(split: Split, videos: np.ndarray, capacity: Capacity, mesh: Mesh, keep: bool) -> Features:
    """Reads the videos of a chunk and puts them on the devices, each device's share on that alone.

    Args:
      split: the videos.
      videos: the indices of the chunk's videos; a process reads those of its own devices.
      capacity: the rows of each device's share.
      mesh: the devices.
      keep: whether the split keeps in memory what was read.

    Returns:
      The features.
    """
    layout = capacity.layout(split)
    parts: dict[Any, list[jax.Array]] = {}
    shares = _shares(videos, mesh.size)
    for index, (device, share) in enumerate(zip(mesh.devices.flat, shares, strict=True)):
        if device.process_index == jax.process_index():
            packed = _pack_share(split, share, index, capacity, keep)
            parts[device] = [jax.device_put(array, device) for array in packed]
    sharding = parallel.sharded(mesh)
    return Features(
        *(
            jax.make_array_from_single_device_arrays(
                (mesh.size * shape[0], *shape[1:]),
                sharding,
                [arrays[field] for arrays in parts.values()],
            )
            for field, (shape, _) in enumerate(layout)
        )
    )


def gather_indices(
    steps: Sequence[np.ndarray],
    counts: np.ndarray,
    capacity: Capacity,
    num_devices: int,
    shape: tuple[int, int, int],
) -> GatherIndices:
    """The gather indices of the steps of a chunk.

    Args:
      steps: for each step, the indices of its videos among the chunk's.
      counts: the number of captions of each of the chunk's videos.
      capacity: the rows of each device's share.
      num_devices: the number of devices.
      shape: the numbers of steps, of videos and of captions to pad to.

    Returns:
      The indices, stacked on a leading axis.
    """
    num_steps, num_videos, num_captions = shape
    indices = GatherIndices(
        np.full((num_steps, num_videos), -1, np.int32),
        np.full((num_steps, num_captions), -1, np.int32),
        np.zeros((num_steps, num_captions), np.int32),
    )
    rows = _video_rows(len(counts), capacity, num_devices)
    starts = first_rows(counts, capacity.captions, num_devices)
    for step, chosen in enumerate(steps):
        indices.videos[step, : len(chosen)] = rows[chosen]
        captions = _ranges(starts[chosen], counts[chosen])
        indices.captions[step, : len(captions)] = captions
        indices.video[step, : len(captions)] = np.repeat(np.arange(len(chosen)), counts[chosen])
    return indices


def first_rows(
    counts: np.ndarray, rows_per_device: int, num_devices: int
) -> Int[np.ndarray, " videos"]:
    """Where the rows of each of a chunk's videos begin in an array of `Features`.

    Args:
      counts: how many rows each video has there: captions, frames or words.
      rows_per_device: the capacity of a device's share of that array.
      num_devices: the number of devices.

    Returns:
      The first row of each video, int32.
    """
    starts = []
    for device, share in enumerate(_shares(counts, num_devices)):
        starts.append(device * rows_per_device + np.cumsum(share) - share)
    return np.concatenate(starts).astype(np.int32)


def _pack_share(
    split: Split, videos: np.ndarray, device: int, capacity: Capacity, keep: bool
) -> Features:
    packed = Features(*(np.zeros(shape, dtype) for shape, dtype in capacity.layout(split)))
    frame = word = caption = 0
    read = split.__getitem__ if keep else split.read
    with ThreadPoolExecutor(_READERS, "reader") as readers:
        for row, example in enumerate(readers.map(read, videos)):
            packed.clips[row] = example.clips
            packed.frame_start[row] = device * capacity.frames + frame
            packed.frame_count[row] = len(example.frames)
            packed.frames[frame : frame + len(example.frames)] = example.frames
            frame += len(example.frames)
            if packed.teacher is not None and example.teacher is not None:
                last = caption + len(example.teacher)
                packed.teacher[caption:last, : len(example.frames)] = example.teacher
            for words in example.words:
                packed.word_start[caption] = device * capacity.words + word
                packed.word_count[caption] = len(words)
                packed.words[word : word + len(words)] = words
                word += len(words)
                caption += 1
    return packed


def _video_rows(num_videos: int, capacity: Capacity, num_devices: int) -> np.ndarray:
    """Rows of a chunk's videos in its features; each device's share is padded."""
    each = -(-num_videos // num_devices)
    index = np.arange(num_videos)
    return index // each * capacity.videos + index % each


def _shares(videos: np.ndarray, num_devices: int) -> list[np.ndarray]:
    """The share of each device."""
    each = -(-len(videos) // num_devices)
    return [videos[i * each : (i + 1) * each] for i in range(num_devices)]


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All integers start, start + 1, … of each range, one range after the other."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
