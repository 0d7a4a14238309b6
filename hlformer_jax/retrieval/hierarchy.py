"""Retrieval among the nodes of action trees (HOVER): every text among all videos, and the reverse.

All nodes of a split are encoded once, and all pairs scored by one matrix product, in blocks of
queries, on the devices; what comes back of a query are its ranks, see `NodeRanks`. The metrics of
the hierarchy are shares in percent unless one says otherwise. Numbers that are within 8 eps of
float32 of each other are equal, and a pair of equal numbers counts half.
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
from hlformer_jax.data.feed import NodeFeed, gather_nodes, in_order
from hlformer_jax.data.trees import Pool
from hlformer_jax.models.hover import Hover, Points, angles
from hlformer_jax.ops.numerics import unit
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.typing import Array

CHUNK_BATCHES = 8
"""Batches of nodes that are brought to the devices together where a split is streamed."""

RECALLS = (1, 5, 10)
_SAME = 8 * float(np.finfo(np.float32).eps)


# Ranks


class Relatives(NamedTuple):
    """Of every node its tree, and its children, -1 where padded."""

    tree: Int[Array, " U"]
    children: Int[Array, "U children"]


class NodeRanks(NamedTuple):
    """Ranks of every query, from 1; ties as in `ranking`.

    Of its own node among all; the row of the best candidate; of its own node within its tree;
    and of each of its children among all candidates but its own node, 0 where padded.
    """

    rank: Int[np.ndarray, " U"]
    first: Int[np.ndarray, " U"]
    within: Int[np.ndarray, " U"]
    children: Int[np.ndarray, "U children"]


def relatives(pool: Pool) -> Relatives:
    """How the nodes of a pool are related."""
    counts = np.bincount(pool.edges[:, 0], minlength=len(pool.tree))
    children = np.full((len(pool.tree), max(int(counts.max(initial=0)), 1)), -1, np.int32)
    order = np.argsort(pool.edges[:, 0], kind="stable")
    parents, nodes = pool.edges[order].T
    starts = np.cumsum(counts) - counts
    children[parents, np.arange(len(parents)) - starts[parents]] = nodes
    return Relatives(pool.tree.astype(np.int32), children)


def leaf_groups(pool: Pool) -> Int[np.ndarray, " U"]:
    """The number of leaves of every node's tree, `ranking.MAX_LEAVES` for more."""
    return np.minimum(pool.leaves, ranking.MAX_LEAVES)


def node_ranks(
    queries: Float[Array, "U width"],
    candidates: Float[Array, "U width"],
    nodes: Relatives,
    block: int,
    mesh: Mesh,
) -> NodeRanks:
    """Ranks every query among the candidates, which products of their vectors order."""
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
    """Compute the fields of `NodeRanks` on the devices."""
    count = len(queries)
    columns = jnp.arange(count)
    tree = jnp.asarray(nodes.tree)

    def block(rows: Array) -> tuple[Array, ...]:
        rows = devices.constrain(mesh, rows)
        own = jnp.minimum(rows, count - 1)
        scores = jnp.matmul(queries[own], candidates.T, precision=jax.lax.Precision.HIGHEST)
        others = columns[None] != own[:, None]
        mine = jnp.take_along_axis(scores, own[:, None], axis=-1)
        same = tree[own][:, None] == tree[None]
        of = lambda value, among: ranking.rank_among(scores, value, among)
        children = jnp.asarray(nodes.children)[own]

        def child(column: Array) -> Array:
            there = jnp.maximum(column, 0)[:, None]
            value = jnp.take_along_axis(scores, there, axis=-1)
            rank = of(value, others & (columns[None] != there))
            return jnp.where(column < 0, 0, rank)

        return (
            of(mine, others),
            jnp.argmax(scores, axis=-1).astype(jnp.int32),
            of(mine, same & others),
            jnp.stack([child(children[:, k]) for k in range(children.shape[1])], axis=-1),
        )

    blocks = jnp.arange(-(-count // size) * size).reshape(-1, size)
    ranks = jax.lax.map(block, blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], ranks)


def node_metrics(rank: Int[np.ndarray, " U"]) -> dict[str, float]:
    """R@1, R@5 and R@10 in percent, MRR, and the median and mean rank."""
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
    """Metrics such as t2v/R@1, and leaves=2/v2t/MRR by the number of leaves, 5 for five or more."""
    named = {
        f"{direction}/{name}": value
        for direction, one in ranks.items()
        for name, value in node_metrics(one.rank).items()
    }
    for count in np.unique(leaves):
        for direction, one in ranks.items():
            for name, value in node_metrics(one.rank[leaves == count]).items():
                named[f"leaves={count}/{direction}/{name}"] = value
    return named


# Metrics of the hierarchy and of the order in time


class Coordinates(NamedTuple):
    """Numbers of nodes in both modalities."""

    video: Float[np.ndarray, " U"]
    text: Float[np.ndarray, " U"]


def share_in_order(
    values: Coordinates, low: Int[np.ndarray, " R"], high: Int[np.ndarray, " R"]
) -> dict[str, float]:
    """Percent of pairs of which `low` has the lower number, within and across modalities."""
    share = lambda a, b: 100 * float(np.mean(_below(a[low], b[high]))) if len(low) else np.nan
    video, text = values
    return {
        "same": (share(video, video) + share(text, text)) / 2,
        "cross": (share(video, text) + share(text, video)) / 2,
    }


def radius_tau(norm: Float[np.ndarray, " U"], pool: Pool) -> float:
    """Kendall's τ_b of level and nearness to the origin, a mean over trees of three nodes or more.

    1 where every tree's higher nodes are nearer; NaN where there is no such tree.
    """
    order = np.argsort(pool.tree, kind="stable")
    starts = np.flatnonzero(np.diff(pool.tree[order], prepend=-1))
    taus = []
    for rows in np.split(order, starts[1:]):
        if len(rows) < 3:
            continue
        level = np.sign(pool.level[rows][:, None] - pool.level[rows][None])
        near = _sign(norm[rows][None] - norm[rows][:, None], norm[rows])
        scale = np.sqrt(np.sum(level != 0) * np.sum(near != 0))
        taus.append(np.sum(level * near) / scale if scale else 0.0)
    return float(np.mean(taus)) if taus else np.nan


def confusion(ranks: NodeRanks, pool: Pool) -> dict[str, float]:
    """How often an inner node's first result is another node of its own tree.

    OwnTree, and what of it are ancestors, descendants and siblings; NaN where no node is inner.
    """
    inner = np.flatnonzero(pool.level > 0)
    first = ranks.first[inner]
    own = (pool.tree[first] == pool.tree[inner]) & (first != inner)
    code = lambda a, b: a.astype(np.int64) * len(pool.tree) + b
    pairs = {
        "Ancestor": (code(first, inner), code(*pool.ancestry.T)),
        "Descendant": (code(inner, first), code(*pool.ancestry.T)),
        "Sibling": (
            code(inner, first),
            np.concatenate([code(*pool.siblings.T), code(*pool.siblings.T[::-1])]),
        ),
    }
    kinds = {name: np.isin(asked, known) for name, (asked, known) in pairs.items()}
    mean = lambda x: 100 * float(np.mean(x)) if len(inner) else np.nan
    return {"OwnTree": mean(own)} | {name: mean(own & kind) for name, kind in kinds.items()}


def is_a(ranks: NodeRanks) -> dict[str, float]:
    """Whether a parent's nearest nodes of the other modality, but its own, are its children.

    MAP, and MeanRank among what is no child, from 1; NaN where no node has children.

    References:
      Nickel and Kiela, Poincaré embeddings for learning hierarchical representations, 2017.
    """
    children = ranks.children[(ranks.children > 0).any(axis=-1)]
    if not len(children):
        return {"MAP": np.nan, "MeanRank": np.nan}
    real = children > 0
    ranked = np.sort(np.where(real, children, np.iinfo(np.int32).max), axis=-1)
    place = np.arange(1, children.shape[1] + 1)
    real = np.sort(~real, axis=-1) == 0
    precision = np.where(real, place / ranked, 0).sum(axis=-1) / real.sum(axis=-1)
    alone = np.where(real, ranked - place + 1, 0)
    return {
        "MAP": 100 * float(np.mean(precision)),
        "MeanRank": float(alone.sum() / real.sum()),
    }


def fit_direction(
    left: Float[np.ndarray, "S n"], right: Float[np.ndarray, "S n"]
) -> Float[np.ndarray, " n"]:
    """A direction of time of a model without one: least squares of left − right on 1."""
    ones = np.ones(len(left), np.float64)
    return np.linalg.lstsq((left - right).astype(np.float64), ones, rcond=1e-6)[0]


def hierarchy_metrics(
    pool: Pool, norms: Coordinates, cosines: Coordinates, ranks: Mapping[str, NodeRanks]
) -> dict[str, float]:
    """All metrics of the hierarchy, by names that begin with "hierarchy/"."""
    parents, children = pool.edges.T
    left, right = pool.siblings.T
    general = share_in_order(norms, parents, children)
    early = share_in_order(cosines, right, left)
    named = {
        f"{pairs}/{name}": value[pairs]
        for pairs in ("same", "cross")
        for name, value in (("NormAcc", general), ("OrderAcc", early))
    }
    named |= {f"{name}/RadiusTau": radius_tau(x, pool) for name, x in norms._asdict().items()}
    for direction, one in ranks.items():
        values = confusion(one, pool) | is_a(one)
        values["WithinTree"] = 100 * float(np.mean(one.within == 1))
        named |= {f"{direction}/{name}": value for name, value in values.items()}
    return {f"hierarchy/{name}": value for name, value in named.items()}


def _below(a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, " R"]:
    """1 where a is below b, ½ where they are equal."""
    return (1 + _sign(b - a, np.maximum(np.abs(a), np.abs(b)))) / 2


def _sign(difference: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Sign of a difference of numbers of that size, 0 where it is rounding."""
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
        """Encode `count` batches of nodes into the points, from block `first` on."""

        def body(step: Array, stored: Points) -> Points:
            index = jax.tree.map(lambda x: x[step], indices)
            batch = gather_nodes(features, index, self.mesh)
            points = self.model.apply({"params": params}, batch)
            put = lambda all_points, one: all_points.at[first + step].set(one)
            return jax.tree.map(put, stored, points)

        stored = jax.lax.fori_loop(0, count, body, stored)
        return devices.constrain(self.mesh, stored, axis=1)

    def measure(
        self, points: Array, direction: Array
    ) -> tuple[Float[Array, " U"], Float[Array, " U"]]:
        """Norms, and cosines with a direction of time."""
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
    whole, space = devices.replicated(encoder.mesh), encoder.model.options.space
    compiled = functools.partial(jax.jit, compiler_options=dict(options) or None)

    def pick_nodes(blocks: Array, count: int) -> Array:
        return blocks.reshape(-1, blocks.shape[-1])[:count]

    return Programs(
        compiled(encoder.encode_chunk, donate_argnums=5),
        compiled(space.search_vectors, out_shardings=whole),
        compiled(space.similarities, out_shardings=whole),
        compiled(encoder.measure, out_shardings=whole),
        compiled(pick_nodes, static_argnums=1, out_shardings=whole),
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
        """A feed of the nodes of a split in their order, for any number of evaluations."""
        size = devices.round_up(self._config.eval.node_batch, self._mesh.size)
        longest = split.num_nodes if resident else CHUNK_BATCHES
        return NodeFeed(split, in_order(split.num_nodes, size, longest), self._mesh, resident)

    def encode(self, params: Any, feed: NodeFeed) -> Points:
        """The points of all nodes of a split, in their order, on every device."""
        steps = sum(len(group.steps) for group in feed.groups)
        width = self._model.options.hyperbolic_dim
        sharding = devices.sharded(self._mesh, axis=1)
        zeros = jnp.zeros((steps, feed.nodes, width), jnp.float32, device=sharding)
        stored = Points(zeros, jnp.copy(zeros))
        for chunk in feed.chunks():
            first, count = (
                devices.replicate(self._mesh, np.int32(x)) for x in (chunk.first, chunk.num_steps)
            )
            inputs = chunk.features, chunk.indices, first, count
            stored = self._programs.encode_chunk(params, *inputs, stored)
        return Points(*(self._programs.pick_nodes(x, feed.split.num_nodes) for x in stored))

    def scores(self, params: Any, feed: NodeFeed) -> Float[np.ndarray, "U U"]:
        """Similarities of all texts and all videos of a split, float32; higher is better."""
        points = self.encode(params, feed)
        size = self._config.eval.query_batch
        blocks = range(0, feed.split.num_nodes, size)
        rows = [
            self._programs.similarities(points.text[k : k + size], points.video) for k in blocks
        ]
        return np.concatenate([devices.to_host(block) for block in rows])

    def ranks(self, points: Points, split: TreeSplit) -> dict[str, NodeRanks]:
        """Ranks of every text among the videos (t2v), and of every video among the texts (v2t)."""
        evaluation = self._config.eval
        related = relatives(split.pool)

        def rank(queries: Array, candidates: Array) -> NodeRanks:
            x, y = self._programs.search_vectors(queries, candidates)
            return node_ranks(x, y, related, evaluation.query_batch, self._mesh)

        return {"t2v": rank(points.text, points.video), "v2t": rank(points.video, points.text)}

    def result(self, ranks: dict[str, NodeRanks], split: TreeSplit) -> Result:
        """Metrics of the ranks, over all nodes and by the number of leaves of their trees."""
        named = metrics_by_leaves(ranks, leaf_groups(split.pool))
        return Result(named, split.num_nodes, len(split.pool.videos))

    def evaluate(self, params: Any, feed: NodeFeed) -> Result:
        """Metrics of a split's retrieval."""
        points = self.encode(params, feed)
        return self.result(self.ranks(points, feed.split), feed.split)

    def report(self, params: Any, feed: NodeFeed, direction: Float[np.ndarray, " n"]) -> Result:
        """Metrics of a split's retrieval and of its hierarchy, see `hierarchy_metrics`."""
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
        """The direction of time of a split's siblings; see `fit_direction`."""
        units = [devices.to_host(jax.jit(unit)(x)) for x in self.encode(params, feed)]
        left, right = feed.split.pool.siblings.T
        pairs = [np.concatenate([x[rows] for x in units]) for rows in (left, right)]
        return fit_direction(*pairs)
