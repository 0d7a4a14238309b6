"""Transfer of features to the devices: the videos of each step, and the batches gathered from them.

The videos of epoch e follow a permutation drawn from (seed, e), so that the batch of a step depends
only on the seed and the step. Nothing has to be stored to resume a run at any step.

Features lie on the devices packed without padding: the whole split if it fits, otherwise a chunk
for the next steps. The videos of a chunk are divided among the devices in order, in equal numbers,
and a process reads only the videos of its own devices. A device's share of each array is padded to
the size of the largest share of any chunk, so that one compiled program reads all chunks. The
values of a batch depend neither on chunks nor on the number of devices.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax import terminal
from hlformer_jax.data.split import Example, Split
from hlformer_jax.runtime import devices, processes
from hlformer_jax.typing import Array, Batch, Captions, Videos

B = TypeVar("B")
"""Type of the batch of a step."""

CAPTION_MULTIPLE = 16
"""Caption capacities are rounded up to this, so that shapes stay convenient for the hardware."""

ROW_MULTIPLE = 256
"""Rows of frames and words are rounded up to this, so that similar splits share a compilation."""

RESIDENT_SHARE = 0.35
"""Share of a device's free memory for resident features; the rest is for the step."""

CHUNKS = 3
"""Largest number of streamed chunks on a device: one in use, one ready, one being made."""

_READERS = 4


# Which videos each step sees


class Schedule(NamedTuple):
    """Assignment of videos to the steps of a run; the last batch of an epoch may be smaller."""

    num_videos: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch, including an incomplete last one."""
        return -(-self.num_videos // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of the videos in an epoch, which depends only on (seed, epoch)."""
        return np.random.default_rng((self.seed, epoch)).permutation(self.num_videos)

    def groups(self, epochs: int, longest: int) -> list["Group"]:
        """Split the training steps into groups of at most `longest` that run without the host.

        A group ends at every step that is a multiple of `longest`, and at the end of an epoch.

        Args:
          epochs: number of epochs of the run.
          longest: largest number of steps of a group.
        """
        groups = []
        for epoch in range(epochs):
            order, first = self.order(epoch), epoch * self.steps_per_epoch
            starts = range(0, self.num_videos, self.batch_size)
            steps = [order[start : start + self.batch_size] for start in starts]
            cut = longest - first % longest
            bounds = [0, *range(cut, len(steps), longest), len(steps)]
            groups += [Group(first + a, steps[a:b]) for a, b in itertools.pairwise(bounds)]
        return groups


class Group(NamedTuple):
    """Consecutive steps of one epoch."""

    first: int  # index of the first step in the run
    steps: list[np.ndarray]  # for each step, the indices of its videos, at most a batch

    @property
    def end(self) -> int:
        """Index of the step after the last."""
        return self.first + len(self.steps)

    def after(self, step: int) -> "Group":
        """Return the part of the group that begins at the step with index `step` of the run."""
        skipped = max(step - self.first, 0)
        return Group(self.first + skipped, self.steps[skipped:])


def in_order(num_videos: int, batch_size: int, longest: int) -> list[Group]:
    """Return all videos in their order, in batches of `batch_size`.

    Args:
      num_videos: number of videos.
      batch_size: number of videos of a batch; the last batch may have fewer.
      longest: largest number of batches of a group.
    """
    videos = np.arange(num_videos)
    steps = [videos[start : start + batch_size] for start in range(0, num_videos, batch_size)]
    return [Group(a, steps[a : a + longest]) for a in range(0, len(steps), longest)]


# Packed features, and the batch that a step gathers


class Features(NamedTuple):
    """Packed, normalised features: the frames of all videos in one array, the words in another."""

    clips: Float[Array, "V C D"]
    frames: Float[Array, "rows D"]  # at most F of every video
    frame_start: Int[Array, " V"]  # row of each video's first frame
    frame_count: Int[Array, " V"]
    words: Float[Array, "rows E"]  # at most W of every caption
    word_start: Int[Array, " Q"]  # row of each caption's first word
    word_count: Int[Array, " Q"]
    # Cosines of a teacher's vectors of captions and frames, float32, zero after the last frame.
    teacher: Float[Array, "Q F"] | None = None


class GatherIndices(NamedTuple):
    """Rows of `Features` that a step gathers, int32; -1 is padding."""

    videos: Int[Array, " V"]
    captions: Int[Array, " Q"]
    video: Int[Array, " Q"]  # position of each caption's video in the batch; 0 where padded


def gather(
    features: Features,
    indices: GatherIndices,
    step: Int[Array, ""],
    max_frames: int,
    max_words: int,
    mesh: Mesh,
) -> Batch:
    """Gather the batch of one step, in the dtype of the features; padding is zero (inside of jit).

    Args:
      features: packed features, sharded over the devices.
      indices: the gather indices of several steps, stacked on a leading axis.
      step: index of the step among them, from 0.
      max_frames: F, to which videos are padded.
      max_words: W, to which captions are padded.
      mesh: the devices, over which features and batch are sharded.

    Returns:
      The batch.
    """
    index = jax.tree.map(lambda x: x[step], indices)
    videos, captions = index.videos >= 0, index.captions >= 0
    video_rows, caption_rows = jnp.maximum(index.videos, 0), jnp.maximum(index.captions, 0)

    def ragged(
        rows: Array, start: Array, count: Array, owner: Array, real: Array, length: int
    ) -> tuple[Array, Array]:
        first = devices.take_rows(mesh, start, owner)
        lengths = jnp.where(real, devices.take_rows(mesh, count, owner), 0)
        position = jnp.arange(length, dtype=jnp.int32)
        mask = position[None] < lengths[:, None]
        place = jnp.where(mask, first[:, None] + position[None], 0)
        return take_masked(mesh, rows, place, mask), mask

    owned = features.frame_start, features.frame_count, video_rows, videos
    frames, frame_mask = ragged(features.frames, *owned, max_frames)
    owned = features.word_start, features.word_count, caption_rows, captions
    words, word_mask = ragged(features.words, *owned, max_words)
    teacher = None
    if features.teacher is not None:
        teacher = take_masked(mesh, features.teacher, caption_rows, captions)
    clips = take_masked(mesh, features.clips, video_rows, videos)
    batch = Batch(
        Videos(clips, frames, frame_mask, videos),
        Captions(words, word_mask, jnp.asarray(index.video), captions, teacher),
    )
    return devices.constrain(mesh, batch)


def take_masked(mesh: Mesh, rows: Array, index: Array, mask: Array) -> jax.Array:
    """Take rows of a sharded array by their global numbers (inside of jit).

    Args:
      mesh: the devices.
      rows: the array, sharded along its first axis.
      index: numbers of rows, of any shape.
      mask: False for rows that are 0 in the result; has the shape of `index`.
    """
    gathered = devices.take_rows(mesh, rows, index)
    mask = jnp.asarray(mask).reshape(mask.shape + (1,) * (gathered.ndim - mask.ndim))
    return jnp.where(mask, gathered, jnp.zeros((), gathered.dtype))


# Packing


class Capacity(NamedTuple):
    """Numbers of rows for which a device's share of a chunk has space, over all its videos."""

    videos: int
    captions: int
    frames: int
    words: int

    def bytes(self, split: Split) -> int:
        """Return the bytes of the features of such a share."""
        return devices.nbytes(self.layout(split))

    def layout(self, split: Split) -> Features:
        """Return the shapes and dtypes of the features of such a share."""
        visual_dim, text_dim = split.widths

        def array(*shape: int, dtype: Any = split.dtype) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype)

        teacher = array(self.captions, split.max_frames, dtype=np.float32)
        return Features(
            clips=array(self.videos, split.max_clips, visual_dim),
            frames=array(self.frames, visual_dim),
            frame_start=array(self.videos, dtype=np.int32),
            frame_count=array(self.videos, dtype=np.int32),
            words=array(self.words, text_dim),
            word_start=array(self.captions, dtype=np.int32),
            word_count=array(self.captions, dtype=np.int32),
            teacher=teacher if split.taught else None,
        )


def largest_capacity(split: Split, chunks: list[np.ndarray], num_devices: int) -> Capacity:
    """Return the capacity, rounded up, that fits every device's share of every chunk.

    Args:
      split: the videos.
      chunks: the video indices of each chunk.
      num_devices: the number of devices.
    """
    rows: list[int] = [1, 1, 1, 1]
    per_video = (split.captions_per_video, split.frames_per_video, split.words_per_video)
    for videos in chunks:
        for share in _shares(videos, num_devices):
            needed = (len(share), *(int(counts[share].sum()) for counts in per_video))
            rows = [max(a, b) for a, b in zip(rows, needed, strict=True)]
    multiples = (1, CAPTION_MULTIPLE, ROW_MULTIPLE, ROW_MULTIPLE)
    return Capacity(*map(devices.round_up, rows, multiples))


def gather_indices(
    steps: Sequence[np.ndarray],
    counts: np.ndarray,
    capacity: Capacity,
    num_devices: int,
    shape: tuple[int, int, int],
) -> GatherIndices:
    """Return the gather indices of the steps of a chunk, stacked on a leading axis.

    Args:
      steps: for each step, the indices of its videos among the chunk's.
      counts: the number of captions of each video of the chunk, int32 [videos].
      capacity: the rows of each device's share.
      num_devices: the number of devices.
      shape: the numbers of steps, videos and captions to pad to.
    """
    num_steps, num_videos, num_captions = shape
    indices = GatherIndices(
        np.full((num_steps, num_videos), -1, np.int32),
        np.full((num_steps, num_captions), -1, np.int32),
        np.zeros((num_steps, num_captions), np.int32),
    )
    size = -(-len(counts) // num_devices)  # videos of a device, without the padding of its share
    index = np.arange(len(counts))
    rows = index // size * capacity.videos + index % size
    starts = first_rows(counts, capacity.captions, num_devices)
    for step, videos in enumerate(steps):
        indices.videos[step, : len(videos)] = rows[videos]
        captions = _ranges(starts[videos], counts[videos])
        indices.captions[step, : len(captions)] = captions
        indices.video[step, : len(captions)] = np.repeat(np.arange(len(videos)), counts[videos])
    return indices


def first_rows(
    counts: np.ndarray, rows_per_device: int, num_devices: int
) -> Int[np.ndarray, " videos"]:
    """Return the first row, int32, of each video of a chunk in an array of `Features`.

    Args:
      counts: the number of rows (captions, frames or words) of each video of the chunk.
      rows_per_device: the rows of a device's share of the array, including padding.
      num_devices: the number of devices.
    """
    starts = []
    for device, share in enumerate(_shares(counts, num_devices)):
        starts.append(device * rows_per_device + np.cumsum(share) - share)
    return np.concatenate(starts).astype(np.int32)


def _pack_share(
    read: Callable[[int], Example], videos: np.ndarray, device: int, layout: Features
) -> Features:
    """Read the videos of a device, given by its index in the mesh; return its share."""
    packed: Features = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), layout)
    first_frame, first_word = device * len(packed.frames), device * len(packed.words)
    frame = word = caption = 0
    with ThreadPoolExecutor(_READERS, "reader") as readers:
        for row, example in enumerate(readers.map(read, videos)):
            packed.clips[row] = example.clips
            packed.frame_start[row] = first_frame + frame
            packed.frame_count[row] = len(example.frames)
            packed.frames[frame : frame + len(example.frames)] = example.frames
            frame += len(example.frames)
            if packed.teacher is not None and example.teacher is not None:
                last = caption + len(example.teacher)
                packed.teacher[caption:last, : len(example.frames)] = example.teacher
            for words in example.words:
                packed.word_start[caption] = first_word + word
                packed.word_count[caption] = len(words)
                packed.words[word : word + len(words)] = words
                word += len(words)
                caption += 1
    return packed


def _shares(videos: np.ndarray, num_devices: int) -> list[np.ndarray]:
    """Divide the videos among the devices, in order."""
    size = -(-len(videos) // num_devices)
    return [videos[i * size : (i + 1) * size] for i in range(num_devices)]


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the integers start, …, start + count - 1 of each range, one range after the other."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


# Feeds


class Chunk(NamedTuple):
    """The features and the gather indices of a group of steps."""

    first: int  # index of the first step in the run
    num_steps: int
    features: Any  # `Features` on the devices
    # Rows of the features that each step gathers, stacked over steps, padded to the longest group.
    indices: Any


class DeviceFeed(Generic[B]):
    """Chunks of a split's features for given groups of steps.

    A subclass defines what the numbers of a step mean and which rows the step gathers.

    Attributes:
      groups: the groups of steps.
      mesh: the devices.
      resident: whether all features stay on the devices.
      steps: the number of steps of the longest group.
    """

    def __init__(
        self,
        features: Split,
        everything: np.ndarray,
        groups: Sequence[Group],
        mesh: Mesh,
        resident: bool,
    ) -> None:
        """Compute the size of a chunk, without reading features.

        Args:
          features: the videos.
          everything: the indices of all videos that the groups read, which a resident feed loads.
          groups: all steps of the run, which determine the shapes, even if a run resumes in the
            middle of them.
          mesh: the devices.
          resident: whether to keep all features on the devices.
        """
        self.groups, self.mesh, self.resident = groups, mesh, resident
        self.steps = max(len(group.steps) for group in groups)
        self._features, self._everything = features, everything
        chunks = [everything] if resident else list(map(self._videos, groups))
        self._capacity = largest_capacity(features, chunks, mesh.size)
        self._whole: Future[Features] | None = None
        self._gather = jax.jit(self.gather)
        self._ahead = ThreadPoolExecutor(1, "feed")

    @property
    def bytes_per_device(self) -> int:
        """Bytes of features on each device: the resident split, or `CHUNKS` streamed chunks."""
        return self._capacity.bytes(self._features) * (1 if self.resident else CHUNKS)

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device of chunks that are not in use yet."""
        return 0 if self.resident else self.bytes_per_device * (1 - 1 / CHUNKS)

    def load(self) -> None:
        """Start to load a resident split on another thread; `chunks` waits for it."""
        if self.resident and self._whole is None:
            self._whole = self._ahead.submit(self._pack, self._everything)

    def chunks(self, first: int = 0) -> Iterator[Chunk]:
        """Yield the chunks of the steps from `first` on; another thread makes the next one."""
        groups = [group.after(first) for group in self.groups if group.end > first]
        if not groups:
            return
        self.load()
        ahead = self._ahead.submit(self._chunk, groups[0])
        for following in groups[1:]:
            chunk = ahead.result()
            ahead = self._ahead.submit(self._chunk, following)
            yield chunk
        yield ahead.result()

    def counted_chunks(self, unit: str) -> Iterator[Chunk]:
        """Yield all chunks, with a progress bar that counts the items of finished chunks.

        Only the first process shows the bar, and only for a streamed split.

        Args:
          unit: noun of the items of a step, such as videos.
        """
        sizes = [sum(map(len, group.steps)) for group in self.groups]
        hidden = self.resident or not processes.is_first()
        with terminal.bar(unit, sum(sizes), disable=hidden or None, desc="Encoding") as bar:
            for size, chunk in zip(sizes, self.chunks(), strict=True):
                yield chunk
                bar.update(size)

    def shapes(self) -> tuple[Features, Any]:
        """Return the shapes of a chunk's features and indices, to compile ahead of the first."""
        sharding = devices.sharded(self.mesh)

        def on_all_devices(share: Any) -> Any:
            shape = self.mesh.size * share.shape[0], *share.shape[1:]
            return jax.ShapeDtypeStruct(shape, share.dtype, sharding=sharding)

        features = jax.tree.map(on_all_devices, self._capacity.layout(self._features))
        nothing = self._indices(Group(0, []), np.zeros(0, np.int64))
        return features, devices.abstract(self.mesh, nothing)

    def batch(self, chunk: Chunk, step: int) -> B:
        """Return the batch of one step of a chunk, counted from 0, outside of jit."""
        return self._gather(chunk.features, chunk.indices, np.int32(step))

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> B:
        """Return the batch of one step of a chunk (inside of jit).

        Args:
          features: the chunk's features.
          indices: the chunk's indices.
          step: number of the step in the chunk, from 0.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the thread and the resident features."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._whole = None

    def _videos(self, group: Group) -> np.ndarray:
        """Return the indices of the videos that a streamed group reads, in its chunk's order."""
        raise NotImplementedError

    def _indices(self, group: Group, videos: np.ndarray) -> Any:
        """Return the rows that the steps of a group gather; `videos` are those of its chunk."""
        raise NotImplementedError

    def _pack(self, videos: np.ndarray) -> Features:
        """Read the videos of a chunk and put each device's share on that device only.

        A process reads the videos of its own devices.
        """
        split, mesh = self._features, self.mesh
        # Resident features are read only once, so that keeping them in host memory is useless.
        read = split.read if self.resident else split.__getitem__
        layout = self._capacity.layout(split)
        shares = zip(mesh.devices.flat, _shares(videos, mesh.size), strict=True)
        parts = [
            jax.device_put(_pack_share(read, share, index, layout), device)
            for index, (device, share) in enumerate(shares)
            if device.process_index == jax.process_index()
        ]
        return jax.tree.map(
            lambda *shards: jax.make_array_from_single_device_arrays(
                (mesh.size * shards[0].shape[0], *shards[0].shape[1:]),
                devices.sharded(mesh),
                list(shards),
            ),
            *parts,
        )

    def _chunk(self, group: Group) -> Chunk:
        if self._whole is not None:
            videos, features = self._everything, self._whole.result()
        else:
            videos = self._videos(group)
            features = self._pack(videos)
        indices = devices.replicate(self.mesh, self._indices(group, videos))
        return Chunk(group.first, len(group.steps), features, indices)


class VideoFeed(DeviceFeed[Batch]):
    """Feed of videos in batches, with all their captions.

    A batch is padded to `videos` videos and `captions` captions. The numbers of a step are indices
    of videos.
    """

    def __init__(
        self, split: Split, groups: Sequence[Group], mesh: Mesh, batch_size: int, resident: bool
    ) -> None:
        """Compute the sizes, without reading features.

        Args:
          split: the videos.
          groups: all steps of the run, each with the indices of its videos.
          mesh: the devices.
          batch_size: number of videos of a full batch.
          resident: whether to keep all features on the devices.
        """
        self.split, self.batch_size = split, batch_size
        self.videos = devices.round_up(batch_size, mesh.size)
        counts = split.captions_per_video
        most = max(int(counts[step].sum()) for group in groups for step in group.steps)
        multiple = math.lcm(CAPTION_MULTIPLE, mesh.size)
        self.captions = devices.round_up(most, multiple)
        super().__init__(split, np.arange(len(split)), groups, mesh, resident)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> Batch:
        """Return the batch of a step of a chunk, counted from 0 (inside of jit)."""
        split = self.split
        return gather(features, indices, step, split.max_frames, split.max_words, self.mesh)

    def _videos(self, group: Group) -> np.ndarray:
        return np.concatenate(group.steps)

    def _indices(self, group: Group, videos: np.ndarray) -> GatherIndices:
        steps: Sequence[np.ndarray] = group.steps
        if not self.resident:  # a chunk has the videos in the order of the steps
            ends = np.cumsum([len(step) for step in steps])
            steps = np.split(np.arange(len(videos)), ends[:-1])
        counts = self.split.captions_per_video[videos]
        shape = self.steps, self.videos, self.captions
        return gather_indices(steps, counts, self._capacity, self.mesh.size, shape)


F = TypeVar("F", bound=DeviceFeed[Any])


class KeptFeed(Generic[F]):
    """A feed that is made on first use and kept until it is closed."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self._made: F | None = None

    def get(self) -> F:
        """Return the feed, made on the first call."""
        self._made = self._made or self._make()
        return self._made

    def close(self) -> None:
        """Free the memory of the devices; the next use makes the feed again."""
        if self._made is not None:
            self._made.close()
            self._made = None


def fits(split: Split, mesh: Mesh, config: ConfigDict) -> bool:
    """Return whether a split may stay on the devices, by `config.data.resident` and free memory.

    On a CPU, whose memory other programs use too, the limit is `config.data.cache_gib`.

    Args:
      split: the videos.
      mesh: the devices.
      config: the whole configuration.
    """
    if config.data.resident != "auto":
        return config.data.resident == "always"
    features = largest_capacity(split, [np.arange(len(split))], mesh.size)
    needed = features.bytes(split)
    free = devices.available_bytes(mesh, free=True)
    shared = config.data.cache_gib * 2**30 / len(mesh.local_devices)
    return not processes.any_process(needed > (shared if free is None else RESIDENT_SHARE * free))
