"""Transfer of features to the devices: the videos of each step, and the batches gathered from them.

The order of the data has no state: the videos of epoch e follow a permutation drawn from (seed, e),
and the batch of a step is a function of the step. A run resumes at any step.

Features lie on the devices packed without padding: a whole split where it fits, otherwise a chunk
for the next steps. The videos of a chunk are divided among the devices in order, in equal numbers,
and a process reads only the videos of its own devices. A device's share of each array is padded to
the size of the largest share of any chunk, so that one compiled program reads all chunks. The
values of a batch depend neither on chunks nor on the number of devices.

A node of a tree spans the shares [a, b] of its video. Of the video's L feature rows they are those
from ``first = ⌊a L⌋`` to ``last = min(⌊b L⌋, L − 1)``. An evaluation reads F of them at equal
distances (repeated where there are fewer); a training step draws one from each of F intervals that
meet at their ends. The draws are functions of (seed, step, node), so that a run that resumes makes
the same ones, on however many devices.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from hlformer_jax import terminal
from hlformer_jax.data import transforms
from hlformer_jax.data.dataset import TreeSplit
from hlformer_jax.data.split import Split
from hlformer_jax.runtime import devices, processes
from hlformer_jax.typing import Array, Batch, Captions, Nodes, Subtrees, TreeBatch, Videos

B = TypeVar("B")
"""The batch of a step."""

T = TypeVar("T", Nodes, TreeBatch)
"""The batch of a step, of nodes of trees."""

CAPTION_MULTIPLE = 16
"""Caption capacities are rounded up to this, so that shapes stay convenient for the hardware."""

ROW_MULTIPLE = 256
"""Rows of frames and words are rounded up to this, so that similar splits share a compilation."""

RESIDENT_SHARE = 0.35
"""Share of a device's free memory for resident features; the rest is for the step."""

CHUNKS = 3
"""Streamed chunks that may lie on a device: in use, ready, and being made."""

_READERS = 4


# Which videos each step sees


class Schedule(NamedTuple):
    """Assignment of videos to the steps of a run; the last batch of an epoch may be smaller."""

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

    def groups(self, epochs: int, longest: int) -> list["Group"]:
        """Split the training steps into groups of at most `longest` that run without the host.

        A group ends at every multiple of `longest` and at the end of an epoch.
        """
        groups = []
        for epoch in range(epochs):
            order, first = self.order(epoch), epoch * self.steps_per_epoch
            starts = range(0, self.num_videos, self.batch_size)
            steps = [order[start : start + self.batch_size] for start in starts]
            cut = longest - first % longest
            bounds = [0, *range(cut, len(steps), longest), len(steps)]
            groups += [Group(first + a, steps[a:b]) for a, b in itertools.pairwise(bounds) if a < b]
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
        """The steps from that index on."""
        skipped = min(max(step - self.first, 0), len(self.steps))
        return Group(self.first + skipped, self.steps[skipped:])


def in_order(num_videos: int, batch_size: int, longest: int) -> list[Group]:
    """Return all videos in their order, in batches, in groups of at most `longest`."""
    videos = np.arange(num_videos)
    steps = [videos[start : start + batch_size] for start in range(0, num_videos, batch_size)]
    return [Group(a, steps[a : a + longest]) for a in range(0, len(steps), longest)]


# Packed features, and the batch that a step gathers


class Features(NamedTuple):
    """Packed, normalised features; frames and words of all videos and captions stand in a row."""

    clips: Float[Array, "V C D"]
    frames: Float[Array, "rows D"]  # at most F of every video
    frame_start: Int[Array, " V"]  # row of each video's first frame
    frame_count: Int[Array, " V"]
    words: Float[Array, "rows E"]  # at most W of every caption
    word_start: Int[Array, " Q"]  # row of each caption's first word
    word_count: Int[Array, " Q"]
    # A teacher's cosines of captions and frames of their video, float32, zero beyond the last.
    teacher: Float[Array, "Q F"] | None = None


class GatherIndices(NamedTuple):
    """Rows of `Features` that a step gathers; -1 is padding."""

    videos: Int[Array, " V"]
    captions: Int[Array, " Q"]
    video: Int[Array, " Q"]  # row of each caption's video in the batch; 0 where padded


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
      mesh: the devices, over which the batch is sharded as well.
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
    """Take rows of a sharded array by a global index; zero if the mask is False (inside of jit)."""
    gathered = devices.take_rows(mesh, rows, index)
    mask = jnp.asarray(mask).reshape(mask.shape + (1,) * (gathered.ndim - mask.ndim))
    return jnp.where(mask, gathered, jnp.zeros((), gathered.dtype))


# Packing


class Capacity(NamedTuple):
    """Rows of a device's share of a chunk: of all its videos and captions together."""

    videos: int
    captions: int
    frames: int
    words: int

    def bytes(self, split: Split) -> int:
        """Bytes of the features."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.layout(split))

    def layout(self, split: Split) -> list[tuple[tuple[int, ...], np.dtype]]:
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


def largest_capacity(split: Split, chunks: list[np.ndarray], num_devices: int) -> Capacity:
    """Return the capacity, rounded up, for a device's share of any chunk of video indices."""
    rows: list[int] = [1, 1, 1, 1]
    per_video = (split.captions_per_video, split.frames_per_video, split.words_per_video)
    for videos in chunks:
        for share in _shares(videos, num_devices):
            needed = (len(share), *(int(counts[share].sum()) for counts in per_video))
            rows = [max(a, b) for a, b in zip(rows, needed, strict=True)]
    multiples = (1, CAPTION_MULTIPLE, ROW_MULTIPLE, ROW_MULTIPLE)
    return Capacity(*map(devices.round_up, rows, multiples))


def _pack(split: Split, videos: np.ndarray, capacity: Capacity, mesh: Mesh, keep: bool) -> Features:
    """Read the videos of a chunk and put each device's share on that device only.

    A process reads the videos of its own devices; `keep` says whether the split keeps the
    videos in memory.
    """
    parts: list[Features] = []
    for index, (device, share) in enumerate(
        zip(mesh.devices.flat, _shares(videos, mesh.size), strict=True)
    ):
        if device.process_index == jax.process_index():
            packed = _pack_share(split, share, index, capacity, keep)
            parts.append(jax.device_put(packed, device))
    return jax.tree.map(
        lambda *shards: jax.make_array_from_single_device_arrays(
            (mesh.size * shards[0].shape[0], *shards[0].shape[1:]),
            devices.sharded(mesh),
            list(shards),
        ),
        *parts,
    )


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
      counts: the number of captions of each of the chunk's videos.
      capacity: the rows of each device's share.
      num_devices: the number of devices.
      shape: the numbers of steps, of videos and of captions to pad to.
    """
    num_steps, num_videos, num_captions = shape
    indices = GatherIndices(
        np.full((num_steps, num_videos), -1, np.int32),
        np.full((num_steps, num_captions), -1, np.int32),
        np.zeros((num_steps, num_captions), np.int32),
    )
    size = -(-len(counts) // num_devices)  # videos of a device; its share of rows is padded
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
    """Return the first row, int32, of each of a chunk's videos in an array of `Features`.

    A video has `counts` rows there: of its captions, frames or words.
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


def _shares(videos: np.ndarray, num_devices: int) -> list[np.ndarray]:
    """Return the share of each device."""
    size = -(-len(videos) // num_devices)
    return [videos[i * size : (i + 1) * size] for i in range(num_devices)]


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the integers start, start + 1, … of each range, one range after the other."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


# Feeds


class Chunk(NamedTuple):
    """The features and the indices of a group of steps."""

    first: int  # index of the first step in the run
    num_steps: int
    features: Any  # on the devices; of a split `Features`
    # The rows of them that each step gathers, stacked, and padded to the longest group.
    indices: Any


class DeviceFeed(Generic[B]):
    """Chunks of a split's features for given groups of steps.

    A subclass says what a step is, and which rows it gathers. `steps` is the number of steps of the
    longest group.
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
          groups: the steps of a whole run, from which the shapes follow, even if only some are
            asked for.
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
        """Bytes of features on each device: of the split, or of `CHUNKS` chunks."""
        return self._capacity.bytes(self._features) * (1 if self.resident else CHUNKS)

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device that belong to chunks which are not in use yet."""
        return 0 if self.resident else self.bytes_per_device * (1 - 1 / CHUNKS)

    def load(self) -> None:
        """Start to load a resident split on another thread; `chunks` waits for it."""
        if self.resident and self._whole is None:
            self._whole = self._ahead.submit(self._pack, self._everything)

    def chunks(self, first: int = 0) -> Iterator[Chunk]:
        """Yield the chunks of the steps from `first` on, made ahead on another thread."""
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
        """Yield all chunks of a streamed split, with a bar that counts the items of finished ones.

        The first process shows the bar. A resident split is a single chunk and has none.

        Args:
          unit: noun of the items that the steps have.
        """
        sizes = [sum(map(len, group.steps)) for group in self.groups]
        hidden = self.resident or not processes.is_first()
        with terminal.bar(unit, sum(sizes), disable=hidden or None, desc="Encoding") as bar:
            for size, chunk in zip(sizes, self.chunks(), strict=True):
                yield chunk
                bar.update(size)

    def shapes(self) -> tuple[Features, Any]:
        """Return the shapes of a chunk's features and indices, to compile before the first."""
        count, sharding = self.mesh.size, devices.sharded(self.mesh)

        def rows(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            return jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), dtype, sharding=sharding)

        layout = self._capacity.layout(self._features)
        features = Features(*(rows(shape, dtype) for shape, dtype in layout))
        nothing = self._indices(Group(0, []), np.zeros(0, np.int64))
        return features, devices.abstract(self.mesh, nothing)

    def batch(self, chunk: Chunk, step: int) -> B:
        """Return the batch of one step of a chunk, counted from 0, as compiled programs see it."""
        return self._gather(chunk.features, chunk.indices, np.int32(step))

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> B:
        """Return the batch of one step of a chunk (inside of jit)."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the thread and the resident features."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._whole = None

    def _videos(self, group: Group) -> np.ndarray:
        """Indices of the videos that a streamed group reads, in the order of its chunk."""
        raise NotImplementedError

    def _indices(self, group: Group, videos: np.ndarray) -> Any:
        """The rows that the steps of a group gather, on the host; `videos` are its chunk's."""
        raise NotImplementedError

    def _pack(self, videos: np.ndarray) -> Features:
        # Resident features are read once: there is nothing to gain from keeping them in memory.
        keep = not self.resident
        return _pack(self._features, videos, self._capacity, self.mesh, keep)

    def _chunk(self, group: Group) -> Chunk:
        if self._whole is not None:
            videos, features = self._everything, self._whole.result()
        else:
            videos = self._videos(group)
            features = self._pack(videos)
        indices = devices.replicate(self.mesh, self._indices(group, videos))
        return Chunk(group.first, len(group.steps), features, indices)


class VideoFeed(DeviceFeed[Batch]):
    """Videos in batches, with all their captions, padded to `videos` and `captions`."""

    def __init__(
        self, split: Split, groups: Sequence[Group], mesh: Mesh, batch_size: int, resident: bool
    ) -> None:
        """Each step of the groups has indices of videos."""
        self.split, self.batch_size = split, batch_size
        self.videos = devices.round_up(batch_size, mesh.size)
        counts = split.captions_per_video
        most = max(int(counts[step].sum()) for group in groups for step in group.steps)
        multiple = math.lcm(CAPTION_MULTIPLE, mesh.size)
        self.captions = devices.round_up(most, multiple)
        super().__init__(split, np.arange(len(split)), groups, mesh, resident)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> Batch:
        """The batch of a step of a chunk, counted from 0 (inside of jit)."""
        split = self.split
        return gather(features, indices, step, split.max_frames, split.max_words, self.mesh)

    def _videos(self, group: Group) -> np.ndarray:
        return np.concatenate(group.steps)

    def _indices(self, group: Group, videos: np.ndarray) -> GatherIndices:
        steps: Sequence[np.ndarray] = group.steps
        if not self.resident:  # the chunk has them one step after the other
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
        """The feed."""
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
    """
    if config.data.resident != "auto":
        return config.data.resident == "always"
    features = largest_capacity(split, [np.arange(len(split))], mesh.size)
    needed = features.bytes(split)
    free = devices.available_bytes(mesh, free=True)
    shared = config.data.cache_gib * 2**30 / len(mesh.local_devices)
    return not processes.any_process(needed > (shared if free is None else RESIDENT_SHARE * free))


# Nodes of trees


def evaluation_rows(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> tuple[Int[np.ndarray, "U F"], Int[np.ndarray, "U F"]]:
    """Return the rows of nodes that an evaluation reads: F at equal distances, rounded down.

    Args:
      rows: the first and the last row of each; see `trees.row_range`.
      num_rows: number of feature rows of each node's video.
      num_frames: F.
      short_video: the rows that are read of a video of at most F rows: the "span" of the node or,
        as in the released code, the "whole" video.

    Returns:
      As `training_intervals`, of intervals of one row.
    """
    places = np.linspace(rows[:, 0], rows[:, 1], num_frames, axis=1).astype(np.int32)
    return _short(places, num_rows, short_video), np.ones_like(places)


def training_intervals(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> tuple[Int[np.ndarray, "U F"], Int[np.ndarray, "U F"]]:
    """Return the intervals from which a training step draws one row each.

    The arguments are those of `evaluation_rows`.

    Returns:
      The first row of each interval, int32, -1 where padded, and its number of rows, at least 1.
    """
    bounds = np.linspace(rows[:, 0], rows[:, 1], num_frames + 1, axis=1).astype(np.int32)
    low = _short(bounds[:, :-1], num_rows, short_video)
    is_short = (num_rows <= num_frames)[:, None] & (short_video == "whole")
    return low, np.where(is_short, 1, bounds[:, 1:] - bounds[:, :-1] + 1).astype(np.int32)


def draw(
    seed: int, step: Int[Array, ""], nodes: Int[Array, " U"], count: Int[Array, "U F"]
) -> Int[Array, "U F"]:
    """Draw one of `count` rows of each interval of nodes, from 0, uniformly (inside of jit).

    The draw of a node, int32, is a function of (seed, step, node).
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"frames of a node"))
    key = jax.random.fold_in(key, step)

    def draw_rows(node: Array, most: Array) -> Array:
        return jax.random.randint(jax.random.fold_in(key, node), most.shape, 0, most, jnp.int32)

    return jax.vmap(draw_rows)(jnp.asarray(nodes), jnp.asarray(count))


def _short(
    places: Int[np.ndarray, "U F"], num_rows: Int[np.ndarray, " U"], short_video: str
) -> Int[np.ndarray, "U F"]:
    if short_video != "whole":
        return places
    num_frames = places.shape[1]
    numbers = np.arange(num_frames, dtype=np.int32)
    all_rows = np.where(numbers[None] < num_rows[:, None], numbers[None], np.int32(-1))
    return np.where((num_rows <= num_frames)[:, None], all_rows, places)


# Nodes gathered from packed features


class NodeIndices(NamedTuple):
    """Rows that nodes read of `feed.Features`; -1 is padding."""

    step: Int[Array, ""]  # in the run, which the draws of frames depend on
    node: Int[Array, " U"]  # number of each in its split
    frames: Int[Array, "U F"]  # the first of the interval that each of F frames is drawn from
    choices: Int[Array, "U F"]  # number of frames of that interval, at least 1
    words: Int[Array, "U W"]


class TreeIndices(NamedTuple):
    """The nodes, the items and the kinship of nodes of a training step; see `typing.TreeBatch`."""

    nodes: NodeIndices
    subtrees: Subtrees
    below: Bool[Array, "U U"]


def gather_nodes(
    features: Features, indices: NodeIndices, mesh: Mesh, seed: int | None = None
) -> Nodes:
    """The nodes of one step, in the dtype of the features; padding is zero (inside of jit).

    Features and nodes are sharded over the devices. Without a seed of the draws it is the first
    frame of each interval.
    """
    real, frame_mask, word_mask = (x >= 0 for x in (indices.node, indices.frames, indices.words))
    rows = jnp.maximum(indices.frames, 0)
    if seed is not None:
        node = jnp.maximum(indices.node, 0)
        rows = rows + draw(seed, indices.step, node, indices.choices)
    rows = jnp.where(frame_mask, rows, 0)
    nodes = Nodes(
        frames=take_masked(mesh, features.frames, rows, frame_mask),
        frame_mask=frame_mask,
        words=take_masked(mesh, features.words, jnp.maximum(indices.words, 0), word_mask),
        word_mask=word_mask,
        mask=real,
    )
    return devices.constrain(mesh, nodes)


# Feeds


class _TreeFeed(DeviceFeed[T]):
    """A feed of nodes, in batches that are padded to one number of them."""

    intervals: staticmethod  # the rows that frames are read from, such as `training_intervals`

    def __init__(
        self, split: TreeSplit, groups: Sequence[Group], mesh: Mesh, resident: bool
    ) -> None:
        self.split = split
        most = max(len(self._nodes(step)) for group in groups for step in group.steps)
        self.nodes = devices.round_up(most, mesh.size)
        self._intervals = self.intervals(
            split.rows, split.num_rows, split.num_frames, split.short_video
        )
        super().__init__(split.features, np.unique(split.video), groups, mesh, resident)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        """Numbers of the nodes of a step, each once."""
        return step

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> Any:
        """The indices of a step, of its items and the rows that its nodes read."""
        return nodes

    def _videos(self, group: Group) -> np.ndarray:
        nodes = np.concatenate([self._nodes(step) for step in group.steps])
        return np.unique(self.split.video[self.split.pool.tree[nodes]])

    def _indices(self, group: Group, videos: np.ndarray) -> Any:
        split, num_devices = self.split, self.mesh.size
        starts = np.zeros((2, len(split.features)), np.int32)
        for row, counts, capacity in (
            (0, split.features.frames_per_video, self._capacity.frames),
            (1, split.words_per_video, self._capacity.words),
        ):
            starts[row, videos] = first_rows(counts[videos], capacity, num_devices)
        steps = [self._step(step, group.first + k, starts) for k, step in enumerate(group.steps)]
        padding = steps[0] if steps else self._step(np.zeros(0, np.int64), 0, starts)
        steps += [padding] * (self.steps - len(steps))
        return jax.tree.map(lambda *arrays: np.stack(arrays), *steps)

    def _step(self, step: np.ndarray, index: int, starts: np.ndarray) -> Any:
        split, pool = self.split, self.split.pool
        rows = np.full(self.nodes, -1, np.int32)
        numbers = self._nodes(step)
        rows[: len(numbers)] = numbers
        real = rows >= 0
        node = np.maximum(rows, 0)
        frame, word = starts[:, split.video[pool.tree[node]]]
        low, count = (interval[node] for interval in self._intervals)
        words = split.word_rows[node]

        def padded(keep: np.ndarray, values: np.ndarray) -> np.ndarray:
            return np.where(keep, values, -1).astype(np.int32)

        nodes = NodeIndices(
            step=np.asarray(index, np.int32),
            node=rows,
            frames=padded(real[:, None] & (low >= 0), low + frame[:, None]),
            choices=count,
            words=padded(real[:, None] & (words >= 0), words + word[:, None]),
        )
        return self._gathered(step, nodes)


class NodeFeed(_TreeFeed[Nodes]):
    """Nodes in batches, each with frames at equal distances, for an evaluation to encode.

    The steps of its groups are numbers of nodes (`in_order`).
    """

    intervals = staticmethod(evaluation_rows)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> Nodes:
        """The nodes of a step of a chunk, counted from 0 (inside of jit)."""
        return gather_nodes(features, jax.tree.map(lambda x: x[step], indices), self.mesh)


class SubtreeFeed(_TreeFeed[TreeBatch]):
    """Training items in batches, with frames drawn anew at every step; see `step.Feed`.

    The steps of its groups are numbers of training items.
    """

    intervals = staticmethod(training_intervals)

    def __init__(
        self,
        split: TreeSplit,
        groups: Sequence[Group],
        mesh: Mesh,
        resident: bool,
        batch_size: int,
        seed: int,
    ) -> None:
        """Nothing is read yet."""
        self.batch_size, self.seed = batch_size, seed
        super().__init__(split, groups, mesh, resident)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> TreeBatch:
        """The batch of a step of a chunk, counted from 0 (inside of jit)."""
        index = jax.tree.map(lambda x: x[step], indices)
        nodes = gather_nodes(features, index.nodes, self.mesh, self.seed)
        subtrees, below = devices.constrain(
            self.mesh, jax.tree.map(jnp.asarray, (index.subtrees, index.below))
        )
        return TreeBatch(nodes, subtrees, below)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        return np.unique(self.split.pool.subtrees[step])

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> TreeIndices:
        pool, size = self.split.pool, devices.round_up(self.batch_size, self.mesh.size)
        rows = np.asarray(nodes.node)
        subtrees = np.zeros((size, 3), np.int32)
        pair, mask = np.zeros((2, size), bool)
        # Numbers of nodes rise in a batch, which makes them easy to find there.
        subtrees[: len(step)] = np.searchsorted(rows[rows >= 0], pool.subtrees[step])
        pair[: len(step)] = pool.pair[step]
        mask[: len(step)] = True
        return TreeIndices(nodes, Subtrees(subtrees, pair, mask), pool.descends(rows))
