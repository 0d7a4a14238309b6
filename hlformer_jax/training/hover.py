"""The family of HOVER: its objective (eq. 9) and its `Family`."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict, FrozenConfigDict

from hlformer_jax.data.dataset import TreeData, TreeSplit, open_trees, warn_of_other_data
from hlformer_jax.data.feed import Group, KeptFeed, fits
from hlformer_jax.data.sources import synthetic
from hlformer_jax.data.sources.protocol import SPLITS
from hlformer_jax.data.tree_feed import NodeFeed, SubtreeFeed
from hlformer_jax.losses import Terms, numbers, options, trees, weighted_sum
from hlformer_jax.losses.retrieval import zero_padding
from hlformer_jax.models import Cost, describe, hover
from hlformer_jax.models.hover import Hover, Points, angles
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.retrieval import hierarchy, ranking
from hlformer_jax.retrieval.hierarchy import NodeEvaluator
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import compiler, devices, processes
from hlformer_jax.training import optim
from hlformer_jax.training.step import list_program_fields
from hlformer_jax.typing import Array, TreeBatch

TERMS = ("align", "tree", "chain", "order")
"""Names of the terms and of their weights in `config.loss`, in the order of the log."""

NOT_OF_THE_MODEL = ("scale", "learned_scale", "hyperbolic_init", "riemannian_factor")
"""Fields of `config.model` that may differ between training and evaluation."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeObjective:
    """The loss of a batch, see `step.Loss`.

    Attributes:
      numbers: weights and constants by their names in `config.loss`.
      model: the module.
      options: options of `config.loss`.
      terms: names of the terms with a weight other than 0.
    """

    numbers: dict[str, Any]
    model: Hover = dataclasses.field(metadata=STATIC)
    options: FrozenConfigDict = dataclasses.field(metadata=STATIC)
    terms: tuple[str, ...] = dataclasses.field(metadata=STATIC)

    def __call__(
        self, params: Any, batch: TreeBatch, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Terms]:
        """Return the weighted sum of the terms, and the terms without their weights.

        The loss is not random: the feed has drawn the frames of the batch.
        """
        del step
        points: Any = self.model.apply({"params": params}, batch.nodes)
        return self.evaluate(params, points, batch)

    def evaluate(
        self, params: Any, points: Points, batch: TreeBatch
    ) -> tuple[Float[Array, ""], Terms]:
        """Return the loss of a batch, and its terms without their weights.

        Args:
          params: parameters of the model.
          points: the points of the nodes of the batch.
          batch: the batch.
        """
        scale, direction = (
            self.model.apply({"params": params}, method=method)
            for method in ("scale", "time_direction")
        )
        points = Points(*(zero_padding(x, jnp.asarray(batch.nodes.mask)) for x in points))
        dtype = points.video.dtype
        # One matrix for all terms, so that no distance is computed twice.
        logits = jnp.asarray(scale, dtype) * self.model.options.space.similarities(*points)
        terms = {
            "align": lambda: self._align(logits, batch),
            "tree": lambda: self._tree(logits, batch),
            "chain": lambda: self._chain(points, batch),
            "order": lambda: self._order(points, jnp.asarray(direction, dtype), batch),
        }
        return weighted_sum({name: terms[name]() for name in self.terms}, self.numbers)

    def _align(self, logits: Float[Array, "U U"], batch: TreeBatch) -> Float[Array, ""]:
        total = jnp.zeros((), logits.dtype)
        for slot in range(3):
            rows = _rows(batch, slot)
            total = total + trees.alignment(logits[rows][:, rows], batch.subtrees.mask)
        return total

    def _tree(self, logits: Float[Array, "U U"], batch: TreeBatch) -> Float[Array, ""]:
        parents, descends = _rows(batch, 0), jnp.asarray(batch.descends)
        total = jnp.zeros((), logits.dtype)
        for slot in self._child_slots():
            children = _rows(batch, slot)
            related = None
            if self.options.mask_related == "tree":
                # Related nodes are equal, or one descends from the other.
                related = parents[:, None] == children[None]
                related |= descends[parents][:, children] | descends[children][:, parents].T
            both = logits[parents][:, children], logits.T[parents][:, children]
            reduction = self.options.tree_reduction
            total = total + trees.tree(both, batch.subtrees.mask, related, reduction)
        return total

    def _chain(self, points: Points, batch: TreeBatch) -> Float[Array, ""]:
        options, space = self.options, self.model.options.space
        video, text = points
        norms = space.norm(video), space.norm(text)
        nodes, mask, pair = (
            jnp.asarray(x) for x in (batch.subtrees.nodes, batch.subtrees.mask, batch.subtrees.pair)
        )

        def loss(parent: Array, child: Array, real: Array) -> Float[Array, ""]:
            if options.chain_form == "norm":
                margin = self.numbers["chain_margin"]
                return trees.hinge(*norms, parent, child, real, margin, options.form)
            radius = self.numbers["min_radius"]
            angles_outside = (
                space.outside_cone(video[parent], text[child], radius),
                space.outside_cone(text[parent], video[child], radius),
            )
            return trees.entailment(angles_outside, real)

        if options.form == "released":
            first, second = (
                loss(nodes[:, 0], nodes[:, slot], mask) for slot in self._child_slots()
            )
            return first + second
        parents = jnp.concatenate([nodes[:, 0], nodes[:, 0]])
        children = jnp.concatenate([nodes[:, 1], nodes[:, 2]])
        return loss(parents, children, jnp.concatenate([mask, mask & pair]))

    def _order(
        self, points: Points, direction: Float[Array, " n"], batch: TreeBatch
    ) -> Float[Array, ""]:
        options, subtrees = self.options, batch.subtrees
        base = options.order_base
        cosines = angles(points.video, direction, base), angles(points.text, direction, base)
        first, second, mask = _rows(batch, 1), _rows(batch, 2), jnp.asarray(subtrees.mask)
        # The released loss compares an only child with itself.
        mask = mask if options.form == "released" else mask & subtrees.pair
        margin = self.numbers["order_margin"]
        return trees.hinge(*cosines, second, first, mask, margin, options.form)

    def _child_slots(self) -> tuple[int, int]:
        """Return the slots of the children; "released": of the parent itself and the left child."""
        return (0, 1) if self.options.form == "released" else (1, 2)


def _rows(batch: TreeBatch, slot: int) -> Int[Array, " B"]:
    """Return the rows of the nodes in a slot of all subtrees."""
    return jnp.asarray(batch.subtrees.nodes)[:, slot]


def build_objective(config: ConfigDict, model: Hover) -> TreeObjective:
    """Build the objective of a configuration of HOVER."""
    return TreeObjective(
        numbers=numbers(config.loss, jnp.float32),
        model=model,
        options=options(config.loss),
        terms=tuple(name for name in TERMS if config.loss[name]),
    )


class HOVER:
    """Retrieval among nodes of action trees, embedded in hyperbolic space.

    Attributes:
      trained_on: fingerprint of the data of a loaded checkpoint; None if it is unknown.
    """

    trained_on: str | None = None

    def __init__(self, config: ConfigDict, mesh: Mesh) -> None:
        self._config, self._mesh = config, mesh
        self.model = hover.build(config)
        self.evaluator = NodeEvaluator(self.model, config, mesh)
        self._validation = KeptFeed(lambda: self._resident_feed(self.data.val))

    @functools.cached_property
    def data(self) -> TreeData:
        """The splits; prepared on first use."""
        test_collection = self._config.eval.test_collection
        with processes.first_alone("data"):
            data = open_trees(self._config)
            if test_collection:
                config = self._config.copy_and_resolve_references()
                config.data.update(collection=test_collection, feature=config.eval.test_feature)
                config.trees.update(train_subset="full", train_leaves=())  # only its test is used
                test_data = open_trees(config)
                fingerprint = f"{data.fingerprint} {test_data.fingerprint}"
                data = data._replace(test=test_data.test, fingerprint=fingerprint)
        warn_of_other_data(data.fingerprint, self.trained_on)
        return data

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data; see `Family`."""
        return self.data.fingerprint

    @property
    def subset_fingerprint(self) -> str | None:
        """Digest of the videos that the file of `config.trees.train_subset` lists; see `Family`."""
        return self.data.train.subset

    @property
    def num_examples(self) -> int:
        """Number of training subtrees; see `Family`."""
        return self.data.train.num_items

    def check_trainable(self) -> None:
        """Check that a validation computes the metric `eval.select`; see `Family`."""
        ranking.check_select(self._config.eval.select, self.metric_names())

    def metric_names(self) -> tuple[str, ...]:
        """Return the names of the metrics of a validation."""
        return hierarchy.metric_names()

    def summary(self) -> str:
        """Return the data in one line: its title, nodes and subtrees."""
        data, config = self.data, self._config.data
        splits = [
            f"{name} {len(split.pool.videos):,} videos, {split.num_nodes:,} nodes"
            for name, split in zip(SPLITS, data[:3], strict=True)
        ]
        title = synthetic.corpus_title(config)
        return f"{title}: {'; '.join(splits)}; {data.train.num_items:,} training subtrees"

    def notes(self) -> list[str]:
        """Return remarks on the data: the number of videos without a tree in each split."""
        # A validation split of held-out training trees has the remark of the training split.
        return list(dict.fromkeys(split.note for split in self.data[:3] if split.note))

    def learning_rate(self, total_steps: int) -> optax.Schedule:
        """Return the schedule of the learning rate for a run of `total_steps` steps."""
        return optim.learning_rate(self._config.optim, total_steps)

    def init_params(self) -> Any:
        """Return the initial parameters; see `Family`."""
        return hover.init_params(self._config)

    def project(self, params: Any) -> Any:
        """Clamp a learned scale to its limit; see `Family`."""
        return hover.project(params)

    def loss(self, steps_per_epoch: int) -> TreeObjective:
        """Return the objective; see `Family`."""
        return build_objective(self._config, self.model)

    def optimiser(self, total_steps: int) -> optax.GradientTransformation:
        """Return the released optimiser, with a rate for each group of parameters; see `Family`.

        The released code also decays the biases of the hyperbolic layers: with its rate of 1e-7 and
        5,085 steps, by 1.5e-4 of their size in all. Here biases do not decay.
        """
        return optim.build(self._config.optim, self.model, total_steps)

    def feed(self, groups: Sequence[Group]) -> SubtreeFeed:
        """Return the feed of training batches, on the devices if they fit; see `Family`."""
        config, train = self._config, self.data.train
        resident = self._fits(train)
        batch_size, seed = config.train.batch_size, config.seed
        return SubtreeFeed(train, groups, self._mesh, resident, batch_size, seed)

    def program_constants(self) -> Hashable:
        """Return the constants of a program of training steps; see `Family`."""
        return self.fingerprint, list_program_fields(self._config)

    def describe(self) -> dict[str, Any]:
        """Return the fields that define the model; see `Family`."""
        config, sizes = self._config, ("visual_dim", "text_dim", "max_words")
        frames = {"trees.node_frames": config.trees.node_frames}
        return describe(config, NOT_OF_THE_MODEL, sizes) | frames

    def meaning(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `describe`, which are equal for equal models; see `Family`."""
        return dict(fields)

    def validate(self, params: Any) -> Result:
        """Return the metrics of the validation split, which stays on the devices."""
        return self.evaluator.evaluate(params, self._validation.get())

    def test(self, params: Any) -> Result:
        """Return the metrics of the test split, including its hierarchy; see `Family`."""
        with contextlib.closing(self.evaluator.feed(self.data.test)) as test:
            return self.evaluator.report(params, test, self._time_direction(params))

    def test_scores(self, params: Any) -> tuple[Result, dict[str, Any]]:
        """Return test metrics and the scores of all nodes; see `Family`."""
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as test:
            scores = self.evaluator.scores(params, test)
        names = split.pool.names
        relevant = np.arange(len(names), dtype=np.int32)
        arrays = {"scores": scores, "queries": names, "videos": names, "relevant": relevant}
        recorded = {"sentences": split.pool.texts, "data": self.fingerprint}
        return self.test(params), arrays | recorded

    def test_embeddings(self, params: Any) -> dict[str, Any]:
        """Return the points of the test split's nodes; see `Family`.

        `text` and `video` [U, n] have coordinates as `models.hover.Space.lift` returns them;
        `nodes` has the names of the rows.
        """
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as test:
            points = self.evaluator.encode(params, test)
        return {name: devices.to_host(x) for name, x in points._asdict().items()} | {
            "nodes": split.pool.names
        }

    def references(self) -> dict[str, Result]:
        """Return no baselines; see `Family`."""
        return {}

    def cost(self) -> Cost:
        """Return the number of parameters, and the operations to encode frames and text."""
        config, model = self._config, self.model
        params, node = jax.eval_shape(lambda: (self.init_params(), hover.zero_nodes(config)))

        def count_flops(method: str) -> float:
            return compiler.count_flops(
                lambda params, nodes: model.apply({"params": params}, nodes, method=method),
                params,
                node,
            )

        size = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
        return Cost(size, count_flops("encode_video"), count_flops("encode_text"))

    def close(self) -> None:
        """Release memory on the devices; see `Family`."""
        self._validation.close()

    def _resident_feed(self, split: TreeSplit) -> NodeFeed:
        return self.evaluator.feed(split, self._fits(split))

    def _time_direction(self, params: Any) -> np.ndarray:
        """Return the learned direction of time; without an order loss, a fit to training pairs."""
        if self._config.loss.order:
            return np.asarray(params["direction"])
        train = self.data.train
        with contextlib.closing(self.evaluator.feed(train)) as feed:
            return self.evaluator.fit_direction(params, feed)

    def _fits(self, split: TreeSplit) -> bool:
        return fits(split.features, self._mesh, self._config)
