"""From a prepared set to batches of fixed shapes.

There is no state in the order of the data: the videos of epoch e follow a permutation drawn from
(seed, e), and a batch is a function of its step. Whoever knows the step can go on from there, and
the bytes of a batch do not depend on threads, caches or storage paths.

A batch packs all captions of its videos into a fixed capacity, the largest that any batch of the
run needs; the last batch of an epoch may hold fewer videos. Masks tell what is padding.
"""

import dataclasses
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import grain
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.data import builder, synthetic, transforms
from hlformer_jax.data.layout import SPLITS, Collection
from hlformer_jax.typing import Batch, Captions, Videos

CAPACITY_MULTIPLE = 16
"""Caption capacities are rounded up to this, so that shapes stay convenient for the hardware."""

Made = TypeVar("Made")

READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
"""Batches are made ahead, in order, by this many threads."""


class Example(NamedTuple):
    """One video with its captions, transformed, not yet padded.

    Attributes:
      clips: [C, D] float32, normalised.
      frames: [at most F, D] float32, normalised.
      words: one array [at most W, E] per caption, float32, normalised.
    """

    clips: np.ndarray
    frames: np.ndarray
    words: tuple[np.ndarray, ...]


class Split:
    """The videos of one split, transformed on first use and kept while the memory lasts.

    Attributes:
      video_ids: ids of the videos, in the order of the caption list.
      captions_per_video: int32 [videos].
      caption_video: index of each caption's video, in the order of the caption list, int32.
    """

    def __init__(self, source: builder.VideoSource, data: ConfigDict) -> None:
        self.video_ids: Sequence[str] = source.video_ids
        self.captions_per_video = source.captions_per_video
        self.caption_video = np.repeat(
            np.arange(len(source), dtype=np.int32), self.captions_per_video
        )
        self._source = source
        self._sizes = (data.max_clips, data.max_frames, data.max_words)
        self._budget = int(data.cache_gib * 2**30)
        self._cache: dict[int, Example] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Returns the number of videos."""
        return len(self.video_ids)

    def __getitem__(self, index: int) -> Example:
        """Returns a video, read from the prepared set or from memory."""
        example = self._cache.get(index)
        if example is None:
            example = transform(self._source[index], *self._sizes)
            size = sum(array.nbytes for array in (example.clips, example.frames, *example.words))
            with self._lock:
                if index not in self._cache and size <= self._budget:
                    self._budget -= size
                    self._cache[index] = example
        return example

    def caption_ids(self) -> list[str]:
        """Ids of all captions, in the order of `caption_video`; reads the whole split."""
        ids = (self._source[index].caption_ids for index in range(len(self)))
        return list(itertools.chain.from_iterable(ids))


class Data(NamedTuple):
    """The three splits, and the fingerprint of the source they were made from."""

    train: Split
    val: Split
    test: Split
    fingerprint: str


def open_data(config: ConfigDict) -> Data:
    """Opens the data set of a configuration; prepares it on first use, with a progress bar.

    Without `manual_dir`, a configuration that asks for synthetic videos gets the synthetic corpus.

    Args:
      config: the whole configuration.

    Returns:
      Its splits.

    Raises:
      ReleasedDataError: when the released files are missing or not as they should be.
    """
    data = config.data
    if not data.manual_dir and any(data.synthetic_videos):
        collection = _synthetic(data)
    else:
        collection = Collection(
            data.manual_dir, data.collection, data.feature, data.visual_dim, data.text_dim
        )
    prepared = builder.prepare(collection, data.data_dir, data.storage)
    train, val, test = (Split(prepared.split(name), data) for name in SPLITS)
    return Data(train, val, test, prepared.fingerprint)


def _synthetic(data: ConfigDict) -> Collection:
    corpus = synthetic.Corpus(
        videos=tuple(data.synthetic_videos), visual_dim=data.visual_dim, text_dim=data.text_dim
    )
    described = json.dumps(dataclasses.asdict(corpus), sort_keys=True).encode()
    name = f"synthetic-{hashlib.sha256(described).hexdigest()[:8]}"
    return synthetic.write_corpus(builder.root_directory(data.data_dir) / name, corpus)


def transform(
    record: builder.VideoRecord, max_clips: int, max_frames: int, max_words: int
) -> Example:
    """Applies the released transforms to a record; see transforms.py."""
    ends = np.cumsum(record.word_counts)[:-1]
    return Example(
        transforms.normalise(transforms.pool_to_clips(record.frames, max_clips)),
        transforms.normalise(transforms.sample_frames(record.frames, max_frames)),
        tuple(transforms.cut_words(words, max_words) for words in np.split(record.words, ends)),
    )


class Schedule(NamedTuple):
    """Which videos each step of a run sees.

    Attributes:
      num_videos: videos of the training split.
      batch_size: videos of a batch; the last of an epoch may hold fewer.
      seed: of the permutations.
    """

    num_videos: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last incomplete one included."""
        return -(-self.num_videos // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The order of the videos in an epoch, a function of (seed, epoch) alone."""
        return np.random.default_rng((self.seed, epoch)).permutation(self.num_videos)

    def capacity(self, captions_per_video: np.ndarray, epochs: int) -> int:
        """Captions of the largest batch of a run of so many epochs, rounded up."""
        starts = np.arange(0, self.num_videos, self.batch_size)
        largest = max(
            int(np.add.reduceat(captions_per_video[self.order(epoch)], starts).max())
            for epoch in range(epochs)
        )
        return round_up(largest, CAPACITY_MULTIPLE)


def round_up(count: int, multiple: int) -> int:
    """The smallest multiple that is at least `count`."""
    return -(-count // multiple) * multiple


def train_batches(
    split: Split, schedule: Schedule, capacity: int, max_words: int, max_frames: int, steps: range
) -> Iterator[Batch]:
    """Batches of the given steps, in order, made ahead on other threads.

    Args:
      split: the training split.
      schedule: which videos each step sees.
      capacity: captions that a batch has room for.
      max_words: W.
      max_frames: F.
      steps: consecutive steps.

    Returns:
      One batch a step.
    """

    def make(step: int) -> Batch:
        epoch, place = divmod(int(step), schedule.steps_per_epoch)
        order = schedule.order(epoch)  # cheap beside a batch
        chosen = order[place * schedule.batch_size : (place + 1) * schedule.batch_size]
        examples = [split[index] for index in chosen]
        return Batch(
            pad_videos(examples, schedule.batch_size, max_frames),
            pad_captions(examples, capacity, max_words),
        )

    return _ahead(make, steps)


def video_batches(split: Split, size: int, max_frames: int) -> Iterator[Videos]:
    """All videos of a split in their order, padded to batches of one size."""

    def make(start: int) -> Videos:
        indices = range(start, min(start + size, len(split)))
        return pad_videos([split[index] for index in indices], size, max_frames)

    return _ahead(make, range(0, len(split), size))


def caption_batches(split: Split, size: int, max_words: int) -> Iterator[Captions]:
    """All captions of a split in their order, padded to batches of one size.

    `Captions.video` is the index of the video in the split.
    """
    waiting: list[np.ndarray] = []
    videos: list[int] = []
    for index in range(len(split)):
        words = split[index].words
        waiting.extend(words)
        videos.extend([index] * len(words))
        while len(waiting) >= size:
            yield _pack(waiting[:size], videos[:size], size, max_words)
            del waiting[:size], videos[:size]
    if waiting:
        yield _pack(waiting, videos, size, max_words)


def _ahead(make: Callable[[int], Made], steps: range) -> Iterator[Made]:
    dataset = grain.MapDataset.range(steps.start, steps.stop, steps.step).map(make)
    return iter(dataset.to_iter_dataset(READ_AHEAD))


def pad_videos(examples: Sequence[Example], capacity: int, max_frames: int) -> Videos:
    """Stacks videos, padded to `capacity` videos of `max_frames` frames."""
    shape = examples[0].clips.shape
    clips = np.zeros((capacity, *shape), np.float32)
    frames = np.zeros((capacity, max_frames, shape[-1]), np.float32)
    frame_mask = np.zeros((capacity, max_frames), bool)
    for row, example in enumerate(examples):
        clips[row] = example.clips
        frames[row, : len(example.frames)] = example.frames
        frame_mask[row, : len(example.frames)] = True
    return Videos(clips, frames, frame_mask, np.arange(capacity) < len(examples))


def pad_captions(examples: Sequence[Example], capacity: int, max_words: int) -> Captions:
    """Packs all captions of some videos, padded to `capacity` captions of `max_words` words."""
    words = [caption for example in examples for caption in example.words]
    videos = [row for row, example in enumerate(examples) for _ in example.words]
    return _pack(words, videos, capacity, max_words)


def _pack(
    captions: Sequence[np.ndarray], videos: Sequence[int], capacity: int, max_words: int
) -> Captions:
    words = np.zeros((capacity, max_words, captions[0].shape[-1]), np.float32)
    word_mask = np.zeros((capacity, max_words), bool)
    for row, caption in enumerate(captions):
        words[row, : len(caption)] = caption
        word_mask[row, : len(caption)] = True
    video = np.zeros(capacity, np.int32)
    video[: len(videos)] = videos
    return Captions(words, word_mask, video, np.arange(capacity) < len(captions))
