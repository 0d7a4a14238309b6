"""Feeds of the nodes of trees, gathered from packed features; see `feed`.

If a node spans the part [a, b] of its video, as fractions of the length, its rows among the L
feature rows of the video are ``⌊a L⌋`` to ``⌊b L⌋``, each at most L − 1. An evaluation reads F of
these rows at equal distances; rows repeat if there are fewer than F. A training step cuts them into
F intervals, neighbours sharing their end, and draws one row of each. The draws are functions of
(seed, step, node): a resumed run makes the same draws, on any number of devices.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int

from hlformer_jax.data.dataset import TreeSplit
from hlformer_jax.data.feed import DeviceFeed, Features, Group, first_rows, take_masked
from hlformer_jax.runtime import devices
from hlformer_jax.typing import Array, Nodes, Subtrees, TreeBatch

T = TypeVar("T", Nodes, TreeBatch)
"""Type of the batch of a step on trees."""


def evaluation_rows(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> tuple[Int[np.ndarray, "U F"], Int[np.ndarray, "U F"]]:
    """Return the rows of nodes that an evaluation reads: F at equal distances, rounded down.

    Args:
      rows: the first and the last row of each node; see `trees.row_range`.
      num_rows: number of feature rows of each node's video.
      num_frames: F.
      short_video: what to read of a video of at most F rows: the rows of the node ("span") or, as
        in the released code, all rows ("whole").

    Returns:
      The rows, int32, -1 where padded, and ones: as `training_intervals`, with one row in each
      interval.
    """
    places = np.linspace(rows[:, 0], rows[:, 1], num_frames, axis=1).astype(np.int32)
    return _short(places, num_rows, short_video), np.ones_like(places)


def training_intervals(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> tuple[Int[np.ndarray, "U F"], Int[np.ndarray, "U F"]]:
    """Return the F intervals of each node; a training step draws one row from each interval.

    The arguments are as in `evaluation_rows`.

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
    """Draw a row of each interval of nodes, uniformly (inside of jit).

    The draw of a node is a function of (seed, step, node).

    Args:
      seed: seed of the run.
      step: index of the step in the run.
      nodes: the numbers of the nodes.
      count: the number of rows of each interval, at least 1.

    Returns:
      The position of the row in its interval, int32, from 0 to `count` - 1.
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


class NodeIndices(NamedTuple):
    """Rows of `Features` that the nodes of a step gather, int32; -1 is padding."""

    step: Int[Array, ""]  # index of the step in the run; the draws of frames depend on it
    node: Int[Array, " U"]  # number of each node in its split
    frames: Int[Array, "U F"]  # first row of the interval from which each of F frames is drawn
    choices: Int[Array, "U F"]  # number of rows of that interval, at least 1
    words: Int[Array, "U W"]


class TreeIndices(NamedTuple):
    """Indices of a training step on trees; see `typing.TreeBatch`."""

    nodes: NodeIndices
    subtrees: Subtrees
    descends: Bool[Array, "U U"]


def gather_nodes(
    features: Features, indices: NodeIndices, mesh: Mesh, seed: int | None = None
) -> Nodes:
    """Gather the nodes of one step, in the dtype of the features; padding is zero (inside of jit).

    Args:
      features: packed features, sharded over the devices.
      indices: the rows that the step gathers.
      mesh: the devices, over which features and nodes are sharded.
      seed: seed of the draws of frames; None takes the first frame of each interval.
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
    """A feed of nodes, in batches that are padded to the same number of nodes, `nodes`."""

    intervals: staticmethod  # function that returns the rows of frames: `training_intervals`, …

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
        """Return the numbers of the nodes of a step, each once."""
        return step

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> Any:
        """Return the indices of a step: its items, and the rows that its nodes read."""
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
    """Feed of nodes for an evaluation, each with frames at equal distances.

    The numbers of a step are numbers of nodes (`in_order`).
    """

    intervals = staticmethod(evaluation_rows)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> Nodes:
        """Return the nodes of a step of a chunk, counted from 0 (inside of jit)."""
        return gather_nodes(features, jax.tree.map(lambda x: x[step], indices), self.mesh)


class SubtreeFeed(_TreeFeed[TreeBatch]):
    """Feed of training items, with frames drawn anew at every step; see `training.step.Feed`.

    The numbers of a step are numbers of training items.
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
        """Compute the sizes, without reading features.

        Args:
          split: the trees and their features.
          groups: all steps of the run, each with the numbers of its training items.
          mesh: the devices.
          resident: whether to keep all features on the devices.
          batch_size: number of training items of a full batch.
          seed: seed of the draws of frames.
        """
        self.batch_size, self.seed = batch_size, seed
        super().__init__(split, groups, mesh, resident)

    def gather(self, features: Features, indices: Any, step: Int[Array, ""]) -> TreeBatch:
        """Return the batch of a step of a chunk, counted from 0 (inside of jit)."""
        index = jax.tree.map(lambda x: x[step], indices)
        nodes = gather_nodes(features, index.nodes, self.mesh, self.seed)
        subtrees, descends = devices.constrain(
            self.mesh, jax.tree.map(jnp.asarray, (index.subtrees, index.descends))
        )
        return TreeBatch(nodes, subtrees, descends)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        return np.unique(self.split.pool.subtrees[step])

    def _gathered(self, step: np.ndarray, nodes: NodeIndices) -> TreeIndices:
        pool, size = self.split.pool, devices.round_up(self.batch_size, self.mesh.size)
        rows = np.asarray(nodes.node)
        subtrees = np.zeros((size, 3), np.int32)
        pair, mask = np.zeros((2, size), bool)
        # The numbers of the nodes of a batch are sorted, so that a binary search finds their rows.
        subtrees[: len(step)] = np.searchsorted(rows[rows >= 0], pool.subtrees[step])
        pair[: len(step)] = pool.pair[step]
        mask[: len(step)] = True
        return TreeIndices(nodes, Subtrees(subtrees, pair, mask), pool.descends(rows))
