"""Retrieval among the nodes of action trees: every text among all videos, and the reverse.

All pairs are scored by one matrix product, in blocks of queries, on the devices; what comes
back of a query are its ranks, see `NodeRanks`.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from hlformer_jax import parallel
from hlformer_jax.data.trees import Pool
from hlformer_jax.retrieval import ranking
from hlformer_jax.typing import Array

RECALLS = (1, 5, 10)
MOST_LEAVES = 5
"""Trees with so many leaves or more are one group."""


class Relatives(NamedTuple):
    """What of a pool the ranks look at.

    Attributes:
      tree: number of every node's tree.
      group: what the candidates of a query share with it, a number; equal for all in one pool.
      children: children of every node; -1 where padded.
    """

    tree: Int[Array, " U"]
    group: Int[Array, " U"]
    children: Int[Array, "U most"]


class NodeRanks(NamedTuple):
    """What is known of every query; ranks are from 1, ties as in `ranking`.

    Attributes:
      rank: rank of its own node.
      first: row of the best candidate.
      within: rank of its own node among the candidates of its tree.
      children: rank of each of its children among all candidates but its own node; 0 where padded.
    """

    rank: Int[np.ndarray, " U"]
    first: Int[np.ndarray, " U"]
    within: Int[np.ndarray, " U"]
    children: Int[np.ndarray, "U most"]


def relatives(pool: Pool, by_group: bool = False) -> Relatives:
    """What the ranks look at.

    Args:
      pool: the nodes.
      by_group: whether the candidates of a query are those of trees with as many leaves.
    """
    counts = np.bincount(pool.edges[:, 0], minlength=len(pool.tree))
    children = np.full((len(pool.tree), max(int(counts.max(initial=0)), 1)), -1, np.int32)
    order = np.argsort(pool.edges[:, 0], kind="stable")
    parents, nodes = pool.edges[order].T
    starts = np.cumsum(counts) - counts
    children[parents, np.arange(len(parents)) - starts[parents]] = nodes
    group = leaf_groups(pool) if by_group else np.zeros_like(pool.tree)
    return Relatives(pool.tree.astype(np.int32), group.astype(np.int32), children)


def leaf_groups(pool: Pool) -> Int[np.ndarray, " U"]:
    """The number of leaves of every node's tree, `MOST_LEAVES` for more."""
    return np.minimum(pool.leaves, MOST_LEAVES)


def ranks(
    queries: Float[Array, "U width"],
    candidates: Float[Array, "U width"],
    nodes: Relatives,
    block: int,
    mesh: Mesh,
) -> NodeRanks:
    """Ranks every query among the candidates.

    Args:
      queries: vectors of the nodes in one modality.
      candidates: vectors of the same nodes in the other; products order them, higher is better.
      nodes: how the nodes are related.
      block: number of queries that are ranked together, on all devices.
      mesh: the devices.

    Returns:
      The ranks, on the host.
    """
    size = parallel.round_up(min(block, len(queries)), mesh.size)
    found = _program(size, mesh)(*parallel.replicate(mesh, (queries, candidates, nodes)))
    return NodeRanks(*(parallel.to_host(x) for x in found))


@functools.cache
def _program(size: int, mesh: Mesh) -> jax.stages.Wrapped:
    return jax.jit(
        functools.partial(_ranks, size=size, mesh=mesh), out_shardings=parallel.replicated(mesh)
    )


def _ranks(
    queries: Array, candidates: Array, nodes: Relatives, size: int, mesh: Mesh
) -> tuple[Array, ...]:
    """The fields of `NodeRanks`, on the devices."""
    count = len(queries)
    columns = jnp.arange(count)
    tree, group = jnp.asarray(nodes.tree), jnp.asarray(nodes.group)

    def block(rows: Array) -> tuple[Array, ...]:
        rows = parallel.constrain(mesh, rows)
        own = jnp.minimum(rows, count - 1)
        scores = jnp.matmul(queries[own], candidates.T, precision=jax.lax.Precision.HIGHEST)
        others = columns[None] != own[:, None]
        pool = group[own][:, None] == group[None]
        mine = jnp.take_along_axis(scores, own[:, None], axis=-1)
        same = tree[own][:, None] == tree[None]
        of = lambda value, among: ranking.rank_among(scores, value, among)
        children = jnp.asarray(nodes.children)[own]

        def child(column: Array) -> Array:
            there = jnp.maximum(column, 0)[:, None]
            value = jnp.take_along_axis(scores, there, axis=-1)
            rank = of(value, pool & others & (columns[None] != there))
            return jnp.where(column < 0, 0, rank)

        return (
            of(mine, pool & others),
            jnp.argmax(jnp.where(pool, scores, -jnp.inf), axis=-1).astype(jnp.int32),
            of(mine, same & others),
            jnp.stack([child(children[:, k]) for k in range(children.shape[1])], axis=-1),
        )

    blocks = jnp.arange(-(-count // size) * size).reshape(-1, size)
    found = jax.lax.map(block, blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], found)


def metrics(rank: Int[np.ndarray, " U"]) -> dict[str, float]:
    """R@1, R@5 and R@10 in percent, MRR, and the median and mean rank."""
    return {f"R@{k}": ranking.recall_at_k(rank, k) for k in RECALLS} | {
        "MRR": ranking.mean_reciprocal_rank(rank),
        "MedR": float(np.median(rank)),
        "MnR": float(np.mean(rank)),
    }


def by_leaves(found: Mapping[str, NodeRanks], leaves: Int[np.ndarray, " U"]) -> dict[str, float]:
    """Metrics of all queries and by the number of leaves of their trees, 5 for five or more.

    Args:
      found: ranks by the name of their direction, t2v or v2t.
      leaves: see `leaf_groups`.

    Returns:
      Metrics by names such as t2v/R@1 and leaves=2/v2t/MRR.
    """
    named = {
        f"{direction}/{name}": value
        for direction, one in found.items()
        for name, value in metrics(one.rank).items()
    }
    for count in np.unique(leaves):
        for direction, one in found.items():
            for name, value in metrics(one.rank[leaves == count]).items():
                named[f"leaves={count}/{direction}/{name}"] = value
    return named
