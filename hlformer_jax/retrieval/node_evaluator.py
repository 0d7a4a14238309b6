"""Evaluation of HOVER: the nodes of a split encoded once, every one ranked against all others."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.data.dataset import TreeSplit
from hlformer_jax.data.feed import in_order
from hlformer_jax.data.tree_feed import NodeFeed, gather_nodes
from hlformer_jax.models.hover import Hover, Points
from hlformer_jax.models.hover.space import angles
from hlformer_jax.ops.numerics import unit
from hlformer_jax.retrieval import hierarchy, nodes
from hlformer_jax.retrieval.hierarchy import Coordinates
from hlformer_jax.retrieval.nodes import NodeRanks
from hlformer_jax.retrieval.results import Result
from hlformer_jax.typing import Array

CHUNK_BATCHES = 8
"""Batches of nodes that are brought to the devices together where a split is streamed."""


class NodeEvaluator:
    """Encodes and ranks splits of trees with a model's parameters."""

    def __init__(self, model: Hover, config: ConfigDict, mesh: Mesh) -> None:
        self._model, self._config, self._mesh = model, config, mesh
        whole = parallel.replicated(mesh)
        self._encode = jax.jit(self._encode_chunk, donate_argnums=5)
        self._search = jax.jit(self._search_vectors, out_shardings=whole)
        self._similar = jax.jit(model.options.space.similarities, out_shardings=whole)
        self._measure = jax.jit(self._numbers, out_shardings=whole)
        self._flat = jax.jit(
            lambda x, count: x.reshape(-1, x.shape[-1])[:count],
            static_argnums=1,
            out_shardings=whole,
        )

    def feed(self, split: TreeSplit, resident: bool = False) -> NodeFeed:
        """A feed of the nodes of a split in their order, for any number of evaluations."""
        size = parallel.round_up(self._config.eval.node_batch, self._mesh.size)
        longest = split.num_nodes if resident else CHUNK_BATCHES
        return NodeFeed(split, in_order(split.num_nodes, size, longest), self._mesh, resident)

    def encode(self, params: Any, feed: NodeFeed) -> Points:
        """The points of all nodes of a split, in their order, on every device."""
        steps = sum(len(group.steps) for group in feed.groups)
        width = self._model.options.hyperbolic_dim
        sharding = parallel.sharded(self._mesh, axis=1)
        zeros = jnp.zeros((steps, feed.nodes, width), jnp.float32, device=sharding)
        stored = Points(zeros, jnp.copy(zeros))
        for chunk in feed.chunks():
            first, count = (
                parallel.replicate(self._mesh, np.int32(x)) for x in (chunk.first, chunk.num_steps)
            )
            inputs = chunk.features, chunk.indices, first, count
            stored = self._encode(params, *inputs, stored)
        return Points(*(self._flat(x, feed.split.num_nodes) for x in stored))

    def _encode_chunk(
        self,
        params: Any,
        features: Any,
        indices: Any,
        first: Int[Array, ""],
        count: Int[Array, ""],
        stored: Points,
    ) -> Points:
        def body(step: Array, stored: Points) -> Points:
            index = jax.tree.map(lambda x: x[step], indices)
            batch = gather_nodes(features, index, self._mesh)
            points = self._model.apply({"params": params}, batch)
            put = lambda all_points, one: all_points.at[first + step].set(one)
            return jax.tree.map(put, stored, points)

        stored = jax.lax.fori_loop(0, count, body, stored)
        return parallel.constrain(self._mesh, stored, axis=1)

    def _search_vectors(self, queries: Array, candidates: Array) -> tuple[Array, Array]:
        return self._model.options.space.search_vectors(queries, candidates)

    def _numbers(
        self, points: Array, direction: Array
    ) -> tuple[Float[Array, " U"], Float[Array, " U"]]:
        """Norms, and cosines with a direction of time."""
        space, loss = self._model.options.space, self._config.loss
        return space.norm(points, loss.chain_norm), angles(points, direction)

    def scores(self, params: Any, feed: NodeFeed) -> Float[np.ndarray, "U U"]:
        """Similarities of all texts and all videos of a split, float32; higher is better."""
        points = self.encode(params, feed)
        size = self._config.eval.query_batch
        blocks = range(0, feed.split.num_nodes, size)
        rows = [self._similar(points.text[k : k + size], points.video) for k in blocks]
        return np.concatenate([parallel.to_host(block) for block in rows])

    def ranks(self, points: Points, split: TreeSplit) -> dict[str, NodeRanks]:
        """Ranks of every text among the videos (t2v), and of every video among the texts (v2t)."""
        evaluation = self._config.eval
        related = nodes.relatives(split.pool, evaluation.pool == "group")

        def rank(queries: Array, candidates: Array) -> NodeRanks:
            x, y = self._search(queries, candidates)
            return nodes.ranks(x, y, related, evaluation.query_batch, self._mesh)

        return {"t2v": rank(points.text, points.video), "v2t": rank(points.video, points.text)}

    def result(self, found: dict[str, NodeRanks], split: TreeSplit) -> Result:
        """Metrics of the ranks, over all nodes and by the number of leaves of their trees."""
        named = nodes.by_leaves(found, nodes.leaf_groups(split.pool))
        return Result(named, split.num_nodes, len(split.pool.videos))

    def evaluate(self, params: Any, feed: NodeFeed) -> Result:
        """Metrics of a split's retrieval."""
        points = self.encode(params, feed)
        return self.result(self.ranks(points, feed.split), feed.split)

    def report(self, params: Any, feed: NodeFeed, direction: Float[np.ndarray, " n"]) -> Result:
        """Metrics of a split's retrieval and of its hierarchy, see `hierarchy.metrics`.

        Args:
          params: parameters of the model.
          feed: a feed of the split.
          direction: the direction of time.
        """
        points, split = self.encode(params, feed), feed.split
        found = self.ranks(points, split)
        toward = parallel.replicate(self._mesh, direction.astype(np.float32))
        measured = [self._measure(x, toward) for x in points]
        norms, cosines = (
            Coordinates(*(parallel.to_host(x[k]).astype(np.float64) for x in measured))
            for k in (0, 1)
        )
        result = self.result(found, split)
        more = hierarchy.metrics(split.pool, norms, cosines, found)
        return dataclasses.replace(result, metrics=result.metrics | more)

    def fit_direction(self, params: Any, feed: NodeFeed) -> Float[np.ndarray, " n"]:
        """The direction of time of a split's siblings; see `hierarchy.fit_direction`."""
        units = [parallel.to_host(jax.jit(unit)(x)) for x in self.encode(params, feed)]
        left, right = feed.split.pool.siblings.T
        pairs = [np.concatenate([x[rows] for x in units]) for rows in (left, right)]
        return hierarchy.fit_direction(*pairs)
