"""Nodes gathered from packed features: the same function reads a whole split or a chunk of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Bool, Int

from hlformer_jax import parallel
from hlformer_jax.data.packed import Features
from hlformer_jax.data.trees.nodes import draw
from hlformer_jax.typing import Array, Nodes, Subtrees, TreeBatch


class NodeIndices(NamedTuple):
    """Rows that nodes read of `packed.Features`; -1 is padding.

    Attributes:
      step: index of the step in the run, which the draws of frames depend on.
      node: number of each node in its split.
      frames: rows of the first frame of the interval that each of F frames is drawn from.
      choices: number of frames of that interval, at least 1.
      words: rows of the words of each node.
      tree: see `typing.Nodes`; likewise the next two.
      level: height above the leaves.
      position: place of the first leaf below.
    """

    step: Int[Array, ""]
    node: Int[Array, " U"]
    frames: Int[Array, "U F"]
    choices: Int[Array, "U F"]
    words: Int[Array, "U W"]
    tree: Int[Array, " U"]
    level: Int[Array, " U"]
    position: Int[Array, " U"]


class TreeIndices(NamedTuple):
    """What a training step gathers.

    Attributes:
      nodes: its nodes.
      subtrees: its items.
      below: which of its nodes descends from which.
    """

    nodes: NodeIndices
    subtrees: Subtrees
    below: Bool[Array, "U U"]


def gather_nodes(
    features: Features, indices: NodeIndices, mesh: Mesh, seed: int | None = None
) -> Nodes:
    """The nodes of one step, in the dtype of the features; padding is zero (inside of jit).

    Args:
      features: packed features, sharded over the devices.
      indices: rows of the step.
      mesh: the devices.
      seed: seed of the draws; None for the first frame of each interval.

    Returns:
      The nodes, sharded over the devices.
    """
    real, frame_mask, word_mask = (x >= 0 for x in (indices.node, indices.frames, indices.words))
    rows = jnp.maximum(indices.frames, 0)
    if seed is not None:
        node = jnp.maximum(indices.node, 0)
        rows = rows + draw(seed, indices.step, node, indices.choices)
    rows = jnp.where(frame_mask, rows, 0)
    nodes = Nodes(
        frames=_rows(mesh, features.frames, rows, frame_mask),
        frame_mask=frame_mask,
        words=_rows(mesh, features.words, jnp.maximum(indices.words, 0), word_mask),
        word_mask=word_mask,
        mask=real,
        tree=jnp.asarray(indices.tree),
        level=jnp.asarray(indices.level),
        position=jnp.asarray(indices.position),
    )
    return parallel.constrain(mesh, nodes)


def gather_batch(features: Features, indices: TreeIndices, mesh: Mesh, seed: int) -> TreeBatch:
    """The batch of one step (inside of jit); as `gather_nodes`."""
    nodes = gather_nodes(features, indices.nodes, mesh, seed)
    subtrees, below = parallel.constrain(
        mesh, jax.tree.map(jnp.asarray, (indices.subtrees, indices.below))
    )
    return TreeBatch(nodes, subtrees, below)


def _rows(mesh: Mesh, values: Array, rows: Array, mask: Array) -> jax.Array:
    taken = parallel.take_rows(mesh, values, rows)
    return jnp.where(jnp.asarray(mask)[..., None], taken, jnp.zeros((), taken.dtype))
