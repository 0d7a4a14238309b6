"""Brings nodes of trees and training items to the devices, in the chunks of `feed`.

A node spans the shares [a, b] of its video. Of the video's L feature rows they are those from
``first = ⌊a L⌋`` to ``last = min(⌊b L⌋, L − 1)``. An evaluation reads F of them at equal distances
(repeated where there are fewer); a training step draws one from each of F intervals that meet at
their ends. The draws are functions of (seed, step, node), so that a run that resumes makes the
same ones, on however many devices.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int

from hlformer_jax import parallel
from hlformer_jax.data import feed
from hlformer_jax.data.dataset import TreeSplit
from hlformer_jax.data.feed import DeviceFeed, Features, Group
from hlformer_jax.typing import Array, Nodes, Subtrees, TreeBatch

B = TypeVar("B", Nodes, TreeBatch)
"""The batch of a step."""

# Frames of a node


def evaluation_rows(
    rows: Int[np.ndarray, "U 2"],
    num_rows: Int[np.ndarray, " U"],
    num_frames: int,
    short_video: str = "span",
) -> tuple[Int[np.ndarray, "U F"], Int[np.ndarray, "U F"]]:
    """The rows that an evaluation reads of nodes: F at equal distances, rounded down.

    Args:
      rows: the first and the last row of each; see `trees.row_range`.
      num_rows: feature rows of each one's video.
      num_frames: F.
      short_video: what is read of a video of at most F rows: the "span" of the node or, as
        released, the "whole" video, whatever the span.

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
    """The intervals from each of which a training step draws one row; arguments as above.

    Returns:
      The first row of each interval, int32, -1 where padded, and its number of rows, at least 1.
    """
    bounds = np.linspace(rows[:, 0], rows[:, 1], num_frames + 1, axis=1).astype(np.int32)
    low = _short(bounds[:, :-1], num_rows, short_video)
    whole = (num_rows <= num_frames)[:, None] & (short_video == "whole")
    return low, np.where(whole, 1, bounds[:, 1:] - bounds[:, :-1] + 1).astype(np.int32)


def draw(
    seed: int, step: Int[Array, ""], nodes: Int[Array, " U"], count: Int[Array, "U F"]
) -> Int[Array, "U F"]:
    """Draws one of `count` rows of each interval of nodes, from 0, uniformly (inside of jit).

    A function of (seed, step, node) for each node, int32.
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(b"frames of a node"))
    key = jax.random.fold_in(key, step)
    one = lambda node, most: jax.random.randint(
        jax.random.fold_in(key, node), most.shape, 0, most, jnp.int32
    )
    return jax.vmap(one)(jnp.asarray(nodes), jnp.asarray(count))


def _short(
    places: Int[np.ndarray, "U F"], num_rows: Int[np.ndarray, " U"], short_video: str
) -> Int[np.ndarray, "U F"]:
    if short_video != "whole":
        return places
    num_frames = places.shape[1]
    every = np.arange(num_frames, dtype=np.int32)
    whole = np.where(every[None] < num_rows[:, None], every[None], np.int32(-1))
    return np.where((num_rows <= num_frames)[:, None], whole, places)


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
        frames=feed.take_masked(mesh, features.frames, rows, frame_mask),
        frame_mask=frame_mask,
        words=feed.take_masked(mesh, features.words, jnp.maximum(indices.words, 0), word_mask),
        word_mask=word_mask,
        mask=real,
    )
    return parallel.constrain(mesh, nodes)


# Feeds


class _TreeFeed(DeviceFeed[B]):
    """A feed of nodes, in batches that are padded to one number of them."""

    intervals: staticmethod  # the rows that frames are read from, such as `training_intervals`

    def __init__(
        self, split: TreeSplit, groups: Sequence[Group], mesh: Mesh, resident: bool
    ) -> None:
        self.split = split
        most = max(len(self._nodes(step)) for group in groups for step in group.steps)
        self.nodes = parallel.round_up(most, mesh.size)
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
            starts[row, videos] = feed.first_rows(counts[videos], capacity, num_devices)
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
        )
        return self._gathered(step, nodes)


class NodeFeed(_TreeFeed[Nodes]):
    """Nodes in batches, each with frames at equal distances, for an evaluation to encode.

    The steps of its groups are numbers of nodes (`feed.in_order`).
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
        subtrees, below = parallel.constrain(
            self.mesh, jax.tree.map(jnp.asarray, (index.subtrees, index.below))
        )
        return TreeBatch(nodes, subtrees, below)

    def _nodes(self, step: np.ndarray) -> np.ndarray:
        return np.unique(self.split.pool.subtrees[step])

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
