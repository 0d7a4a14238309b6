"""Brings nodes and training items to the devices, in the chunks of `data.feed`."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from hlformer_jax import parallel
from hlformer_jax.data import packing
from hlformer_jax.data.feed import DeviceFeed
from hlformer_jax.data.packed import Features
from hlformer_jax.data.schedule import Group
from hlformer_jax.data.trees.dataset import TreeSplit
from hlformer_jax.data.trees.nodes import evaluation_rows, training_intervals
from hlformer_jax.data.trees.packed import NodeIndices, TreeIndices, gather_batch, gather_nodes
from hlformer_jax.typing import Array, Nodes, Subtrees, TreeBatch

B = TypeVar("B", Nodes, TreeBatch)
"""The batch of a step."""


class _TreeFeed(DeviceFeed[B]):
    """What both feeds share: which rows of the features the nodes of a step read."""

    def __init__(
        self, split: TreeSplit, groups: Sequence[Group], mesh: Mesh, resident: bool
    ) -> None:
        self.split = split
        most = max(len(self._nodes(step)) for group in groups for step in group.steps)
        self.nodes = parallel.round_up(most, mesh.size)
        self._intervals = self._choices()
        super().__init__(split.features, np.unique(split.video), groups, mesh, resident)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        """Numbers of the nodes of a step, each once."""
        raise NotImplementedError

    def _choices(self) -> tuple[np.ndarray, np.ndarray]:
        """The intervals of every node's frames: their first rows, and their numbers of rows."""
        raise NotImplementedError

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> Any:
        """What a step gathers, of its items and the rows that its nodes read."""
        raise NotImplementedError

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
            starts[row, videos] = packing.first_rows(counts[videos], capacity, num_devices)
        steps = [self._step(step, group.first + k, starts) for k, step in enumerate(group.steps)]
        padding = steps[0] if steps else self._step(np.zeros(0, np.int64), 0, starts)
        steps += [padding] * (self.steps - len(steps))
        return jax.tree.map(lambda *arrays: np.stack(arrays), *steps)

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
        return self._gathered(step, nodes)


class NodeFeed(_TreeFeed[Nodes]):
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

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> NodeIndices:
        return nodes


class SubtreeFeed(_TreeFeed[TreeBatch]):
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
        return gather_batch(features, index, self.mesh, self.seed)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        return np.unique(self.split.pool.subtrees[step])

    def _choices(self) -> tuple[np.ndarray, np.ndarray]:
        split = self.split
        return training_intervals(split.rows, split.num_rows, split.num_frames, split.short_video)

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> TreeIndices:
        pool, size = self.split.pool, parallel.round_up(self.batch_size, self.mesh.size)
        rows = np.asarray(nodes.node)
        subtrees = np.zeros((size, 3), np.int32)
        pair, mask = np.zeros((2, size), bool)
        # Numbers of nodes rise in a batch, which makes them easy to find there.
        subtrees[: len(step)] = np.searchsorted(rows[rows >= 0], pool.subtrees[step])
        pair[: len(step)] = pool.pair[step]
        mask[: len(step)] = True
        return TreeIndices(nodes, Subtrees(subtrees, pair, mask), pool.below(rows))
