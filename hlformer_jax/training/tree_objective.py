"""The training objective of HOVER (eq. 9): its terms, and their weighted sum."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from hlformer_jax.models.hover import Hover, Points
from hlformer_jax.models.hover.space import angles
from hlformer_jax.training import tree_losses as losses
from hlformer_jax.typing import Array, TreeBatch

Terms = dict[str, Float[Array, ""]]


@dataclasses.dataclass(frozen=True)
class TreeLossOptions:
    """Options of the losses; the fields of `config.loss`, see config/hover.py.

    Attributes:
      form: "corrected", "printed" or "released".
      align_over: "slots" or "batch".
      mask_related: "none", "tree" or "all".
      tree_reduction: "mean" or "sum".
      tree_anchor: "parent" or "both".
      tree_edges: "direct" or "closure".
      chain_edges: "all" or "single".
      chain_form: "norm" or "cone".
      chain_norm: "ball" or "distance".
      order_base: "unit" or "released".
      order_pairs: "siblings" or "leaves".
    """

    form: str
    align_over: str
    mask_related: str
    tree_reduction: str
    tree_anchor: str
    tree_edges: str
    chain_edges: str
    chain_form: str
    chain_norm: str
    order_base: str
    order_pairs: str

    @property
    def slots(self) -> tuple[int, int]:
        """The slots whose nodes count as children; released, the parent itself and the left one."""
        return (0, 1) if self.form == "released" else (1, 2)


@dataclasses.dataclass(frozen=True)
class Embedded:
    """What the terms see of an embedded batch.

    Attributes:
      points: points of its nodes; of padding the origin.
      batch: the batch.
      logits: scaled similarities of the nodes' videos (rows) and texts (columns), of which every
        term takes its part.
      norm: norms of points.
      outside: angles by which points lie outside of the cones of others.
      angle: cosines of points and the direction of time.
      margins: margins of the hinges and radius of the cones, by their names in `config.loss`.
      options: options of the losses.
    """

    points: Points
    batch: TreeBatch
    logits: Float[Array, "U U"]
    norm: Callable[[Array], Array]
    outside: Callable[[Array, Array], Array]
    angle: Callable[[Array], Array]
    margins: Mapping[str, float | Float[Array, ""]]
    options: TreeLossOptions

    def rows(self, slot: int) -> Int[Array, " B"]:
        """Rows of the nodes in a slot of all subtrees."""
        return jnp.asarray(self.batch.subtrees.nodes)[:, slot]

    def related(self, where: tuple[str, ...], rows: Array, columns: Array) -> Array | None:
        """Pairs of nodes of which one is the other or descends from it, where these are masked."""
        if self.options.mask_related not in where:
            return None
        below = jnp.asarray(self.batch.below)
        same = rows[:, None] == columns[None]
        return same | below[rows][:, columns] | below[columns][:, rows].T


def _align(embedded: Embedded) -> Float[Array, ""]:
    batch = embedded.batch
    if embedded.options.align_over == "batch":
        every = jnp.arange(len(batch.nodes.mask))
        related = embedded.related(("all",), every, every)
        return losses.alignment(embedded.logits, batch.nodes.mask, related)
    total = jnp.zeros((), embedded.logits.dtype)
    for slot in range(3):
        rows = embedded.rows(slot)
        kin = embedded.related(("all",), rows, rows)
        logits = embedded.logits[rows][:, rows]
        total = total + losses.alignment(logits, batch.subtrees.mask, kin)
    return total


def _tree(embedded: Embedded) -> Float[Array, ""]:
    options, batch, logits = embedded.options, embedded.batch, embedded.logits
    how = options.tree_anchor, options.tree_reduction
    if options.tree_edges == "closure":
        masked = options.mask_related in ("tree", "all")
        return losses.closure(logits, batch.below, batch.nodes.mask, masked, *how)
    parents = embedded.rows(0)
    total = jnp.zeros((), logits.dtype)
    for slot in options.slots:
        children = embedded.rows(slot)
        related = embedded.related(("tree", "all"), parents, children)
        both = logits[parents][:, children], logits.T[parents][:, children]
        total = total + losses.tree(both, batch.subtrees.mask, related, *how)
    return total


def _chain(embedded: Embedded) -> Float[Array, ""]:
    options, subtrees = embedded.options, embedded.batch.subtrees
    video, text = embedded.points
    norms = embedded.norm(video), embedded.norm(text)
    rows, mask, pair = (jnp.asarray(x) for x in (subtrees.nodes, subtrees.mask, subtrees.pair))
    margin = embedded.margins["chain_margin"]

    def of(parent: Array, child: Array, real: Array) -> Array:
        if options.chain_form == "norm":
            return losses.chain(*norms, parent, child, real, margin, options.form)
        outside = embedded.outside
        ways = outside(video[parent], text[child]), outside(text[parent], video[child])
        return losses.entailment(ways, real)

    if options.form == "released":
        first, second = (of(rows[:, 0], rows[:, slot], mask) for slot in options.slots)
        return first + second
    real = jnp.stack([mask & ~pair if options.chain_edges == "single" else mask, mask & pair])
    if options.chain_edges == "single":
        real = real.at[1].set(False)
    parents = jnp.concatenate([rows[:, 0], rows[:, 0]])
    return of(parents, jnp.concatenate([rows[:, 1], rows[:, 2]]), real.reshape(-1))


def _order(embedded: Embedded) -> Float[Array, ""]:
    options, (nodes, subtrees, _) = embedded.options, embedded.batch
    cosines = embedded.angle(embedded.points.video), embedded.angle(embedded.points.text)
    margin = embedded.margins["order_margin"]
    if options.order_pairs == "leaves":
        left, right, mask = _leaf_pairs(
            *(jnp.asarray(x) for x in (nodes.tree, nodes.level, nodes.position, nodes.mask))
        )
    else:
        rows, mask = jnp.asarray(subtrees.nodes), jnp.asarray(subtrees.mask)
        left, right = rows[:, 1], rows[:, 2]
        # The released loss compares an only child with itself.
        mask = mask if options.form == "released" else mask & subtrees.pair
    return losses.order(*cosines, left, right, mask, margin, options.form)


def _leaf_pairs(
    tree: Int[Array, " U"],
    level: Int[Array, " U"],
    position: Int[Array, " U"],
    mask: Bool[Array, " U"],
) -> tuple[Int[Array, " S"], Int[Array, " S"], Bool[Array, " S"]]:
    """All pairs of nodes, of which those of two leaves of a tree, in time order, are real."""
    leaf = mask & (level == 0)
    ordered = (tree[:, None] == tree[None]) & (position[:, None] < position[None])
    index = jnp.arange(len(tree))
    left, right = jnp.meshgrid(index, index, indexing="ij")
    real = ordered & leaf[:, None] & leaf[None]
    return left.reshape(-1), right.reshape(-1), real.reshape(-1)


TERMS: Mapping[str, Callable[[Embedded], Float[Array, ""]]] = {
    "align": _align,
    "tree": _tree,
    "chain": _chain,
    "order": _order,
}
"""The terms, by the names of their weights in `config.loss`, in the order of the log."""


@flax.struct.dataclass
class TreeObjective:
    """The loss of a batch, as the trainer wants one; see `step.Loss`.

    Attributes:
      values: weights, margins and the radius of the cones, by their names in `config.loss`;
        arguments of the program.
      model: the model.
      options: options of the losses.
      terms: names of the terms with a weight other than 0.
    """

    values: dict[str, Any]
    model: Hover = flax.struct.field(pytree_node=False)
    options: TreeLossOptions = flax.struct.field(pytree_node=False)
    terms: tuple[str, ...] = flax.struct.field(pytree_node=False)

    def __call__(
        self, params: Any, batch: TreeBatch, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Terms]:
        """The weighted sum of the terms, and the terms without their weights.

        Nothing of it is random: the frames of the batch were drawn for the step.
        """
        del step
        points: Any = self.model.apply({"params": params}, batch.nodes)
        return self.evaluate(params, points, batch)

    def evaluate(
        self, params: Any, points: Points, batch: TreeBatch
    ) -> tuple[Float[Array, ""], Terms]:
        """The same of given points."""
        model, options = self.model, self.options
        space = model.options.space
        scale, direction = (
            model.apply({"params": params}, method=method) for method in ("scale", "time_direction")
        )
        clean = Points(*(losses.at_origin(x, batch.nodes.mask) for x in points))
        # One matrix for all terms: its parts cost no distance twice.
        logits = jnp.asarray(scale, clean.video.dtype) * space.similarities(*clean)
        embedded = Embedded(
            points=clean,
            batch=batch,
            logits=logits,
            norm=lambda x: space.norm(x, options.chain_norm),
            outside=lambda x, y: space.outside_cone(x, y, self.values["min_radius"]),
            angle=lambda x: angles(x, jnp.asarray(direction, x.dtype), options.order_base),
            margins=self.values,
            options=options,
        )
        terms = {name: TERMS[name](embedded) for name in self.terms}
        total = jnp.zeros((), points.video.dtype)
        for name, value in terms.items():
            total = total + self.values[name] * value
        return total, terms


def build(config: ConfigDict, model: Hover) -> TreeObjective:
    """The objective of a configuration.

    Args:
      config: a configuration of HOVER.
      model: its model.
    """
    loss = config.loss
    names = [field.name for field in dataclasses.fields(TreeLossOptions)]
    values = {name: jnp.asarray(x, jnp.float32) for name, x in loss.items() if name not in names}
    return TreeObjective(
        values=values,
        model=model,
        options=TreeLossOptions(**{name: loss[name] for name in names}),
        terms=tuple(name for name in TERMS if loss[name]),
    )
