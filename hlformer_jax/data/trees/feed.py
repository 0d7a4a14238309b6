"""Brings nodes and training items to the devices: a split at once, or the steps just ahead.

As in `data.feed`, whose chunks these are: what a batch holds depends neither on the way its
features came nor on the number of devices.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from hlformer_jax.data import packing
from hlformer_jax.data.feed import CHUNKS
from hlformer_jax.data.packed import Features
from hlformer_jax.data.schedule import Group
from hlformer_jax.data.trees.dataset import TreeSplit
from hlformer_jax.data.trees.nodes import evaluation_rows, training_intervals
from hlformer_jax.data.trees.packed import NodeIndices, TreeIndices, gather_batch, gather_nodes
from hlformer_jax.parallel import devices
from hlformer_jax.typing import Array, Nodes, Subtrees, TreeBatch

B = TypeVar("B")


class TreeChunk(NamedTuple):
    """What a group of steps reads.

    Attributes:
      first: index of the first step in the run.
      num_steps: number of steps.
      features: packed features on the devices.
      indices: what each step gathers, stacked on a leading axis and padded to the longest group.
    """

    first: int
    num_steps: int
    features: Features
    indices: Any


@dataclasses.dataclass
class _Feed(Generic[B]):
    """What both feeds share: features of a split on the devices, whole or a chunk at a time."""

    split: TreeSplit
    groups: Sequence[Group]
    mesh: Mesh
    resident: bool

    def __post_init__(self) -> None:
        self.steps = max(len(group.steps) for group in self.groups)
        most = max(len(self._nodes(step)) for group in self.groups for step in group.steps)
        self.nodes = devices.round_up(most, self.mesh.size)
        self._everything = np.unique(self.split.video)
        chunks = [self._everything] if self.resident else list(map(self._videos, self.groups))
        features = self.split.features
        self._capacity = packing.largest_capacity(features, chunks, self.mesh.size)
        self._whole: Future[Features] | None = None
        self._intervals = self._choices()
        self._gather = jax.jit(self.gather)
        self._ahead = ThreadPoolExecutor(1, "feed")

    @property
    def bytes_per_device(self) -> int:
        """Bytes of features on each device: of the split, or of the chunks that may lie there."""
        return self._capacity.bytes(self.split.features) * (1 if self.resident else CHUNKS)

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device that belong to chunks which are not in use yet."""
        return 0 if self.resident else self.bytes_per_device * (1 - 1 / CHUNKS)

    def load(self) -> None:
        """Begins to load a resident split on another thread; `chunks` waits for it."""
        if self.resident and self._whole is None:
            self._whole = self._ahead.submit(self._pack, self._everything)

    def chunks(self, first: int = 0) -> Iterator[TreeChunk]:
        """Chunks of the steps from `first` on, made ahead on another thread."""
        left = [group.after(first) for group in self.groups if group.end > first]
        if not left:
            return
        self.load()
        ahead = self._ahead.submit(self._chunk, left[0])
        for following in left[1:]:
            chunk = ahead.result()
            ahead = self._ahead.submit(self._chunk, following)
            yield chunk
        yield ahead.result()

    def shapes(self) -> tuple[Any, Any]:
        """Shapes of a chunk's features and indices, to compile for before there are any."""
        count, sharding = self.mesh.size, devices.sharded(self.mesh)
        layout = self._capacity.layout(self.split.features)

        def rows(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            return jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), dtype, sharding=sharding)

        features = Features(*(rows(shape, dtype) for shape, dtype in layout))
        return features, devices.abstract(self.mesh, self._stacked([]))

    def batch(self, chunk: TreeChunk, step: int) -> B:
        """The batch of one step of a chunk, counted from 0, as the compiled programs see it."""
        return self._gather(chunk.features, chunk.indices, np.int32(step))

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> B:
        """The same inside of jit."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives the thread and what is resident back."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._whole = None

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        """Numbers of the nodes of a step, each once."""
        raise NotImplementedError

    def _choices(self) -> tuple[np.ndarray, np.ndarray]:
        """The intervals of every node's frames: their first rows, and their numbers of rows."""
        raise NotImplementedError

    def _indices(self, step: np.ndarray, nodes: NodeIndices, rows: np.ndarray) -> Any:
        """The indices of a step; `rows` are its nodes, padded by -1."""
        raise NotImplementedError

    def _videos(self, group: Group) -> np.ndarray:
        nodes = np.concatenate([self._nodes(step) for step in group.steps])
        return np.unique(self.split.video[self.split.pool.tree[nodes]])

    def _pack(self, videos: np.ndarray) -> Features:
        keep = not self.resident  # what is resident is read once
        return packing.pack(self.split.features, videos, self._capacity, self.mesh, keep)

    def _chunk(self, group: Group) -> TreeChunk:
        if self.resident:
            assert self._whole is not None
            videos, features = self._everything, self._whole.result()
        else:
            videos = self._videos(group)
            features = self._pack(videos)
        split, num_devices = self.split, self.mesh.size
        starts = np.zeros((2, len(split.features)), np.int32)
        for row, counts, capacity in (
            (0, split.features.frames_per_video, self._capacity.frames),
            (1, split.words_per_video, self._capacity.words),
        ):
            starts[row, videos] = packing.first_rows(counts[videos], capacity, num_devices)
        steps = [self._step(step, group.first + k, starts) for k, step in enumerate(group.steps)]
        indices = devices.replicate(self.mesh, self._stacked(steps))
        return TreeChunk(group.first, len(group.steps), features, indices)

    def _step(self, step: np.ndarray, index: int, starts: np.ndarray) -> Any:
        split, pool = self.split, self.split.pool
        rows = np.full(self.nodes, -1, np.int32)
        chosen = self._nodes(step)
        rows[: len(chosen)] = chosen
        real = rows >= 0
        some = np.maximum(rows, 0)
        frame, word = starts[:, split.video[pool.tree[some]]]
        low, count = (interval[some] for interval in self._intervals)
        words = split.word_rows[some]
        padded = lambda keep, values: np.where(keep, values, -1).astype(np.int32)
        nodes = NodeIndices(
            step=np.asarray(index, np.int32),
            node=rows,
            frames=padded(real[:, None] & (low >= 0), low + frame[:, None]),
            choices=count,
            words=padded(real[:, None] & (words >= 0), words + word[:, None]),
            tree=padded(real, pool.tree[some]),
            level=np.where(real, pool.level[some], 0).astype(np.int32),
            position=np.where(real, pool.position[some], 0).astype(np.int32),
        )
        return self._indices(step, nodes, rows)

    def _stacked(self, steps: Sequence[Any]) -> Any:
        """Steps on a leading axis, padded by copies of the first to the longest group."""
        if not steps:
            starts = np.zeros((2, len(self.split.features)), np.int32)
            empty = self._step(np.zeros(0, np.int64), 0, starts)
            steps = [empty]
        padded = [*steps, *([steps[0]] * (self.steps - len(steps)))]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *padded)


class NodeFeed(_Feed[Nodes]):
    """Nodes in batches, each with frames at equal distances: what an evaluation encodes.

    Attributes:
      split: the split.
      groups: the steps; each has numbers of nodes (`schedule.in_order`).
      mesh: the devices.
      resident: whether the whole split lies on the devices.
      steps: number of steps of the longest group.
      nodes: number of nodes that a batch is padded to.
    """

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> Nodes:
        """The nodes of a step of a chunk, counted from 0 (inside of jit)."""
        return gather_nodes(features, jax.tree.map(lambda x: x[step], indices), self.mesh)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        return step

    def _choices(self) -> tuple[np.ndarray, np.ndarray]:
        split = self.split
        rows = evaluation_rows(split.rows, split.num_rows, split.num_frames, split.short_video)
        return rows, np.ones_like(rows)

    def _indices(self, step: np.ndarray, nodes: NodeIndices, rows: np.ndarray) -> NodeIndices:
        return nodes


@dataclasses.dataclass
class SubtreeFeed(_Feed[TreeBatch]):
    """Training items in batches, with frames drawn anew at every step; see `step.Feed`.

    Attributes:
      split: the training split.
      groups: the steps of a whole run; each has numbers of training items.
      mesh: the devices.
      resident: whether the whole split lies on the devices.
      batch_size: number of items of a step.
      seed: seed of the draws.
      steps: number of steps of the longest group.
      nodes: number of nodes that a batch is padded to.
    """

    batch_size: int
    seed: int

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> TreeBatch:
        """The batch of a step of a chunk, counted from 0 (inside of jit)."""
        index = jax.tree.map(lambda x: x[step], indices)
        return gather_batch(features, index, self.mesh, self.seed)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        return np.unique(self.split.pool.subtrees[step])

    def _choices(self) -> tuple[np.ndarray, np.ndarray]:
        split = self.split
        return training_intervals(split.rows, split.num_rows, split.num_frames, split.short_video)

    def _indices(self, step: np.ndarray, nodes: NodeIndices, rows: np.ndarray) -> TreeIndices:
        pool, size = self.split.pool, devices.round_up(self.batch_size, self.mesh.size)
        subtrees = np.zeros((size, 3), np.int32)
        pair, mask = np.zeros((2, size), bool)
        # Numbers of nodes rise in a batch, which makes them easy to find there.
        subtrees[: len(step)] = np.searchsorted(rows[rows >= 0], pool.subtrees[step])
        pair[: len(step)] = pool.pair[step]
        mask[: len(step)] = True
        return TreeIndices(nodes, Subtrees(subtrees, pair, mask), pool.below(rows))
