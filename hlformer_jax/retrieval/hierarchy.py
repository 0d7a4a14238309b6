"""Retrieval among the nodes of action trees (HOVER): from texts to videos and from videos to texts.

All nodes of a split are encoded once. The devices score all pairs in blocks of queries, by one
matrix product per block, and return the ranks of each query (`NodeRanks`). The metrics of the
hierarchy are in percent unless stated otherwise. Numbers whose relative difference is at most 8
times the epsilon of float32 are equal, and a pair of equal numbers counts half.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax.data.dataset import TreeSplit
from hlformer_jax.data.feed import in_order
from hlformer_jax.data.tree_feed import NodeFeed, gather_nodes
from hlformer_jax.data.trees import Pool
from hlformer_jax.models.hover import Hover, Points, angles
from hlformer_jax.ops.numerics import unit
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.typing import Array

CHUNK_BATCHES = 8
"""Batches of nodes that are copied to the devices together if a split is streamed."""

RECALLS = (1, 5, 10)
_SAME = 8 * float(np.finfo(np.float32).eps)


# Ranks


class Relatives(NamedTuple):
    """The index of every node's tree, and the rows of its children, -1 where padded."""

    tree: Int[Array, " U"]
    children: Int[Array, "U children"]


class NodeRanks(NamedTuple):
    """Ranks for every query, the video or the text of a node, from 1; ties as in `ranking`.

    Attributes:
      rank: rank of the node itself among all candidates; 0 if a score is not finite.
      first: row of the best candidate.
      within: rank of the node itself among the candidates of its tree.
      children: rank of each child among the candidates that are neither the node nor one of its
        children, 0 where padded.
    """

    rank: Int[np.ndarray, " U"]
    first: Int[np.ndarray, " U"]
    within: Int[np.ndarray, " U"]
    children: Int[np.ndarray, "U children"]


def relatives(pool: Pool) -> Relatives:
    """Return the tree and the children of every node of a pool."""
    counts = np.bincount(pool.edges[:, 0], minlength=len(pool.tree))
    children = np.full((len(pool.tree), max(int(counts.max(initial=0)), 1)), -1, np.int32)
    order = np.argsort(pool.edges[:, 0], kind="stable")
    parents, nodes = pool.edges[order].T
    starts = np.cumsum(counts) - counts
    children[parents, np.arange(len(parents)) - starts[parents]] = nodes
    return Relatives(pool.tree.astype(np.int32), children)


def leaf_groups(pool: Pool) -> Int[np.ndarray, " U"]:
    """Return the number of leaves of every node's tree, at most `ranking.MAX_LEAVES`."""
    return np.minimum(pool.leaves, ranking.MAX_LEAVES)


def node_ranks(
    queries: Float[Array, "U width"],
    candidates: Float[Array, "U width"],
    nodes: Relatives,
    block: int,
    mesh: Mesh,
) -> NodeRanks:
    """Rank the candidates of every query by inner products.

    Args:
      queries: vectors of all nodes in one modality, see `hover.Space.search_vectors`.
      candidates: vectors of all nodes in the other modality.
      nodes: trees and children of the nodes.
      block: number of queries to score at a time.
      mesh: the devices.
    """
    size = devices.round_up(min(block, len(queries)), mesh.size)
    ranks = _rank_program(size, mesh)(*devices.replicate(mesh, (queries, candidates, nodes)))
    return NodeRanks(*(devices.to_host(x) for x in ranks))


@functools.cache
def _rank_program(size: int, mesh: Mesh) -> jax.stages.Wrapped:
    return jax.jit(
        functools.partial(rank_nodes, size=size, mesh=mesh), out_shardings=devices.replicated(mesh)
    )


def rank_nodes(
    queries: Array, candidates: Array, nodes: Relatives, size: int, mesh: Mesh
) -> tuple[Array, ...]:
    """Compute the fields of `NodeRanks` on the devices; for use inside of jit.

    Args:
      queries: see `node_ranks`.
      candidates: see `node_ranks`.
      nodes: trees and children of the nodes.
      size: number of queries to score at a time, a multiple of the number of devices.
      mesh: the devices.
    """
    count = len(queries)
    columns = jnp.arange(count)
    tree = jnp.asarray(nodes.tree)

    def block(rows: Array) -> tuple[Array, ...]:
        rows = devices.constrain(mesh, rows)
        node = jnp.minimum(rows, count - 1)
        scores = jnp.matmul(queries[node], candidates.T, precision=jax.lax.Precision.HIGHEST)
        others = columns[None] != node[:, None]
        score = jnp.take_along_axis(scores, node[:, None], axis=-1)
        same_tree = tree[node][:, None] == tree[None]
        children = jnp.asarray(nodes.children)[node]

        child_columns = [children[:, k, None] for k in range(children.shape[1])]
        is_child = functools.reduce(jnp.logical_or, [columns[None] == x for x in child_columns])

        def child_rank(column: Array) -> Array:
            score = jnp.take_along_axis(scores, jnp.maximum(column, 0), axis=-1)
            rank = ranking.rank_among(scores, score, others & ~is_child)
            return jnp.where(column[:, 0] < 0, 0, rank)

        is_finite = jnp.all(jnp.isfinite(scores), axis=-1)
        return (
            jnp.where(is_finite, ranking.rank_among(scores, score, others), 0),
            jnp.argmax(scores, axis=-1).astype(jnp.int32),
            ranking.rank_among(scores, score, same_tree & others),
            jnp.stack([child_rank(column) for column in child_columns], axis=-1),
        )

    blocks = jnp.arange(-(-count // size) * size).reshape(-1, size)
    ranks = jax.lax.map(block, blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], ranks)


def node_metrics(rank: Int[np.ndarray, " U"]) -> dict[str, float]:
    """Return R@1, R@5 and R@10 in percent, MRR, and the median and mean rank (MedR, MnR)."""
    return {f"R@{k}": ranking.recall_at_k(rank, k) for k in RECALLS} | {
        "MRR": ranking.mean_reciprocal_rank(rank),
        "MedR": float(np.median(rank)),
        "MnR": float(np.mean(rank)),
    }


def metric_names() -> tuple[str, ...]:
    """Return the names of the metrics over all nodes that every evaluation gives."""
    names = node_metrics(np.ones(1, np.int32))
    return tuple(f"{direction}/{name}" for direction in ("t2v", "v2t") for name in names)


def metrics_by_leaves(
    ranks: Mapping[str, NodeRanks], leaves: Int[np.ndarray, " U"]
) -> dict[str, float]:
    """Return `node_metrics` of all nodes, and of the nodes of trees with each number of leaves.

    Their names are, for example, "t2v/R@1", and "leaves=2/v2t/MRR" for trees of two leaves.

    Args:
      ranks: ranks by direction, "t2v" and "v2t".
      leaves: number of leaves of each node's tree, from `leaf_groups`.
    """
    groups = {"": np.ones(len(leaves), bool)}
    groups |= {f"leaves={count}/": leaves == count for count in np.unique(leaves)}
    return {
        f"{group}{direction}/{name}": value
        for group, rows in groups.items()
        for direction, x in ranks.items()
        for name, value in node_metrics(x.rank[rows]).items()
    }


# Metrics of the hierarchy and of the order in time


class Coordinates(NamedTuple):
    """A number, such as a norm, for the video and for the text of each node."""

    video: Float[np.ndarray, " U"]
    text: Float[np.ndarray, " U"]


def share_in_order(
    values: Coordinates, low: Int[np.ndarray, " R"], high: Int[np.ndarray, " R"]
) -> dict[str, float]:
    """Return the percentage of pairs in order, within and across modalities.

    Args:
      values: numbers of all nodes.
      low: for each pair, the row of the node whose number should be lower.
      high: for each pair, the row of the other node.

    Returns:
      "same" compares numbers of one modality, "cross" numbers of different modalities; NaN without
      pairs.
    """
    video, text = values

    def share(a: np.ndarray, b: np.ndarray) -> float:
        return 100 * float(np.mean(_is_below(a[low], b[high]))) if len(low) else np.nan

    return {
        "same": (share(video, video) + share(text, text)) / 2,
        "cross": (share(video, text) + share(text, video)) / 2,
    }


def radius_tau(norm: Float[np.ndarray, " U"], pool: Pool) -> float:
    """Return Kendall's τ_b of the level of nodes and their nearness to the origin.

    The mean over trees with at least three nodes, in [-1, 1]: 1 if in every tree nodes of a higher
    level are nearer to the origin. NaN without such a tree.

    Args:
      norm: norm of the point of each node.
      pool: the nodes of a split.
    """
    order = np.argsort(pool.tree, kind="stable")
    starts = np.flatnonzero(np.diff(pool.tree[order], prepend=-1))
    taus = []
    for rows in np.split(order, starts[1:]):
        if len(rows) < 3:
            continue
        level = np.sign(pool.level[rows][:, None] - pool.level[rows][None])
        nearness = _sign(norm[rows][None] - norm[rows][:, None], norm[rows])
        scale = np.sqrt(np.sum(level != 0) * np.sum(nearness != 0))
        taus.append(np.sum(level * nearness) / scale if scale else 0.0)
    return float(np.mean(taus)) if taus else np.nan


def confusion(ranks: NodeRanks, pool: Pool) -> dict[str, float]:
    """Return the percentages of inner nodes whose first result is another node of their own tree.

    "OwnTree" counts all such results; "Ancestor", "Descendant" and "Sibling" count results with
    this relation to the inner node. NaN without inner nodes.
    """
    inner = np.flatnonzero(pool.level > 0)
    first = ranks.first[inner]
    in_tree = (pool.tree[first] == pool.tree[inner]) & (first != inner)

    def code(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(np.int64) * len(pool.tree) + b

    def mean(x: np.ndarray) -> float:
        return 100 * float(np.mean(x)) if len(inner) else np.nan

    pairs = {
        "Ancestor": (code(first, inner), code(*pool.ancestry.T)),
        "Descendant": (code(inner, first), code(*pool.ancestry.T)),
        "Sibling": (
            code(inner, first),
            np.concatenate([code(*pool.siblings.T), code(*pool.siblings.T[::-1])]),
        ),
    }
    kinds = {name: np.isin(codes, related) for name, (codes, related) in pairs.items()}
    return {"OwnTree": mean(in_tree)} | {name: mean(in_tree & x) for name, x in kinds.items()}


def is_a(ranks: NodeRanks) -> dict[str, float]:
    """Measure whether the nearest nodes of a parent in the other modality are its children.

    The parent itself is not a candidate. Children do not compete with each other, so children with
    equal scores have consecutive ranks, in any order.

    Args:
      ranks: the ranks of all nodes.

    Returns:
      "MAP", the mean average precision in percent, and "MeanRank", the mean rank of children when
      other children are not counted, from 1. NaN if no node has children.

    References:
      Nickel and Kiela, Poincaré embeddings for learning hierarchical representations, 2017.
    """
    children = ranks.children[(ranks.children > 0).any(axis=-1)]
    if not len(children):
        return {"MAP": np.nan, "MeanRank": np.nan}
    real = children > 0
    ordered = np.sort(np.where(real, children, np.inf), axis=-1)
    place = np.arange(1, children.shape[1] + 1)
    precision = place / (ordered + place - 1)  # 0 where padded
    average_precision = precision.sum(axis=-1) / real.sum(axis=-1)
    return {
        "MAP": 100 * float(np.mean(average_precision)),
        "MeanRank": float(children.sum() / real.sum()),
    }


def fit_direction(
    earlier: Float[np.ndarray, "S n"], later: Float[np.ndarray, "S n"]
) -> Float[np.ndarray, " n"]:
    """Fit a direction of time for a model that was trained without one.

    Args:
      earlier: vectors of the earlier node of each pair of siblings.
      later: vectors of the later node.

    Returns:
      The vector w that minimises Σ (⟨w, earlier − later⟩ − 1)².
    """
    targets = np.ones(len(earlier), np.float64)
    return np.linalg.lstsq((earlier - later).astype(np.float64), targets, rcond=1e-6)[0]


def hierarchy_metrics(
    pool: Pool, norms: Coordinates, cosines: Coordinates, ranks: Mapping[str, NodeRanks]
) -> dict[str, float]:
    """Return all metrics of the hierarchy, by names that begin with "hierarchy/".

    Args:
      pool: the nodes of a split.
      norms: norms of the points of all nodes.
      cosines: cosines of the points with the direction of time.
      ranks: ranks by direction, "t2v" and "v2t".
    """
    parents, children = pool.edges.T
    earlier, later = pool.siblings.T
    general = share_in_order(norms, parents, children)
    early = share_in_order(cosines, later, earlier)
    metrics = {
        f"{pairs}/{name}": value[pairs]
        for pairs in ("same", "cross")
        for name, value in (("NormAcc", general), ("OrderAcc", early))
    }
    metrics |= {f"{name}/RadiusTau": radius_tau(x, pool) for name, x in norms._asdict().items()}
    for direction, ranked in ranks.items():
        values = confusion(ranked, pool) | is_a(ranked)
        values["WithinTree"] = 100 * float(np.mean(ranked.within == 1))
        metrics |= {f"{direction}/{name}": value for name, value in values.items()}
    return {f"hierarchy/{name}": value for name, value in metrics.items()}


def _is_below(a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, " R"]:
    """Return 1 where a is below b, ½ where they are equal, otherwise 0."""
    return (1 + _sign(b - a, np.maximum(np.abs(a), np.abs(b)))) / 2


def _sign(difference: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the sign of a difference of numbers of that size; 0 if it may be rounding."""
    return np.where(np.abs(difference) <= _SAME * size, 0, np.sign(difference))


# The evaluation of a split


@dataclasses.dataclass(frozen=True)
class NodeEncoder:
    """Encodes batches of nodes; its fields are constants of the compiled programs."""

    model: Hover
    mesh: Mesh

    def encode_chunk(
        self,
        params: Any,
        features: Any,
        indices: Any,
        first: Int[Array, ""],
        count: Int[Array, ""],
        stored: Points,
    ) -> Points:
        """Encode the batches of a chunk, and write their points into `stored`.

        Args:
          params: parameters of the model.
          features: features of the chunk.
          indices: gather indices of the chunk.
          first: block of the first batch.
          count: number of batches.
          stored: the points, in blocks.
        """

        def body(step: Array, stored: Points) -> Points:
            index = jax.tree.map(lambda x: x[step], indices)
            batch = gather_nodes(features, index, self.mesh)
            points = self.model.apply({"params": params}, batch)
            return jax.tree.map(lambda blocks, x: blocks.at[first + step].set(x), stored, points)

        stored = jax.lax.fori_loop(0, count, body, stored)
        return devices.constrain(self.mesh, stored, axis=1)

    def measure(
        self, points: Array, direction: Array
    ) -> tuple[Float[Array, " U"], Float[Array, " U"]]:
        """Return the norms of points, and their cosines with a direction of time."""
        return self.model.options.space.norm(points), angles(points, direction)


class Programs(NamedTuple):
    """Compiled functions of an evaluation, shared by all evaluators with the same constants."""

    encode_chunk: Any
    search_vectors: Any
    similarities: Any
    measure: Any
    pick_nodes: Any


@functools.lru_cache(maxsize=8)
def _programs(encoder: NodeEncoder, options: tuple[tuple[str, str | bool], ...]) -> Programs:
    """Return the programs for an encoder's constants and the compiler's options."""
    replicated, space = devices.replicated(encoder.mesh), encoder.model.options.space
    compiled = functools.partial(jax.jit, compiler_options=dict(options) or None)

    def pick_nodes(blocks: Array, count: int) -> Array:
        return blocks.reshape(-1, blocks.shape[-1])[:count]

    return Programs(
        compiled(encoder.encode_chunk, donate_argnums=5),
        compiled(space.search_vectors, out_shardings=replicated),
        compiled(space.similarities, out_shardings=replicated),
        compiled(encoder.measure, out_shardings=replicated),
        compiled(pick_nodes, static_argnums=1, out_shardings=replicated),
    )


class NodeEvaluator:
    """Encodes and ranks splits of trees with a model's parameters."""

    def __init__(self, model: Hover, config: ConfigDict, mesh: Mesh) -> None:
        self._model, self._config, self._mesh = model, config, mesh
        encoder = NodeEncoder(model, mesh)
        self.encode_chunk = encoder.encode_chunk
        options = compiler.compiler_options(config) or {}
        self._programs = _programs(encoder, tuple(options.items()))

    def feed(self, split: TreeSplit, resident: bool = False) -> NodeFeed:
        """Return a feed of the nodes of a split in their order, for any number of evaluations.

        Args:
          split: the split.
          resident: whether the whole split stays on the devices.
        """
        size = devices.round_up(self._config.eval.node_batch, self._mesh.size)
        longest = split.num_nodes if resident else CHUNK_BATCHES
        return NodeFeed(split, in_order(split.num_nodes, size, longest), self._mesh, resident)

    def encode(self, params: Any, feed: NodeFeed) -> Points:
        """Return the points of all nodes of a split, in their order, on every device."""
        steps = sum(len(group.steps) for group in feed.groups)
        width = self._model.options.hyperbolic_dim
        sharding = devices.sharded(self._mesh, axis=1)
        zeros = jnp.zeros((steps, feed.nodes, width), jnp.float32, device=sharding)
        stored = Points(zeros, jnp.copy(zeros))
        for chunk in feed.counted_chunks("node"):
            first, count = (
                devices.replicate(self._mesh, np.int32(x)) for x in (chunk.first, chunk.num_steps)
            )
            inputs = chunk.features, chunk.indices, first, count
            stored = self._programs.encode_chunk(params, *inputs, stored)
            jax.block_until_ready(stored)  # the feed makes the next chunk meanwhile
        return Points(*(self._programs.pick_nodes(x, feed.split.num_nodes) for x in stored))

    def scores(self, params: Any, feed: NodeFeed) -> Float[np.ndarray, "U U"]:
        """Return float32 similarities of all texts (rows) and videos (columns) of a split.

        Raises:
          ScoreError: if a similarity is not finite.
        """
        points = self.encode(params, feed)
        size = self._config.eval.query_batch
        blocks = range(0, feed.split.num_nodes, size)
        rows = [
            self._programs.similarities(points.text[k : k + size], points.video) for k in blocks
        ]
        scores = np.concatenate([devices.to_host(block) for block in rows])
        ranking.check_finite(np.all(np.isfinite(scores), axis=-1), "nodes")
        return scores

    def ranks(self, points: Points, split: TreeSplit) -> dict[str, NodeRanks]:
        """Return the ranks by direction: texts as queries ("t2v"), and videos ("v2t").

        Raises:
          ScoreError: if a score is not finite.
        """
        evaluation = self._config.eval
        related = relatives(split.pool)

        def rank(queries: Array, candidates: Array) -> NodeRanks:
            x, y = self._programs.search_vectors(queries, candidates)
            ranks = node_ranks(x, y, related, evaluation.query_batch, self._mesh)
            ranking.check_finite(ranks.rank > 0, "nodes")
            return ranks

        return {"t2v": rank(points.text, points.video), "v2t": rank(points.video, points.text)}

    def result(self, ranks: dict[str, NodeRanks], split: TreeSplit) -> Result:
        """Return the metrics of ranks, over all nodes and by the number of leaves."""
        metrics = metrics_by_leaves(ranks, leaf_groups(split.pool))
        return Result(metrics, split.num_nodes, len(split.pool.videos))

    def evaluate(self, params: Any, feed: NodeFeed) -> Result:
        """Return the metrics of a split's retrieval."""
        points = self.encode(params, feed)
        return self.result(self.ranks(points, feed.split), feed.split)

    def report(self, params: Any, feed: NodeFeed, direction: Float[np.ndarray, " n"]) -> Result:
        """Return the metrics of a split's retrieval and of its hierarchy (`hierarchy_metrics`).

        Args:
          params: parameters of the model.
          feed: the feed of the split.
          direction: the direction of time.
        """
        points, split = self.encode(params, feed), feed.split
        ranks = self.ranks(points, split)
        toward = devices.replicate(self._mesh, direction.astype(np.float32))
        measured = [self._programs.measure(x, toward) for x in points]
        norms, cosines = (
            Coordinates(*(devices.to_host(x[k]).astype(np.float64) for x in measured))
            for k in (0, 1)
        )
        result = self.result(ranks, split)
        more = hierarchy_metrics(split.pool, norms, cosines, ranks)
        return dataclasses.replace(result, metrics=result.metrics | more)

    def fit_direction(self, params: Any, feed: NodeFeed) -> Float[np.ndarray, " n"]:
        """Return the direction of time that fits a split's siblings, see `fit_direction`."""
        units = [devices.to_host(jax.jit(unit)(x)) for x in self.encode(params, feed)]
        siblings = feed.split.pool.siblings.T
        pairs = [np.concatenate([x[rows] for x in units]) for rows in siblings]
        return fit_direction(*pairs)
