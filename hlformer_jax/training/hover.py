"""HOVER, as the trainer wants a family (see `family.Family`)."""

import contextlib
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.data.dataset import TreeData, TreeSplit, open_trees
from hlformer_jax.data.feed import Group, KeptFeed, fits
from hlformer_jax.data.tree_feed import NodeFeed, SubtreeFeed
from hlformer_jax.models import hover
from hlformer_jax.models.cost import Cost
from hlformer_jax.retrieval.node_evaluator import NodeEvaluator
from hlformer_jax.retrieval.results import Result
from hlformer_jax.training import optim, tree_objective
from hlformer_jax.training.tree_objective import TreeObjective

NOT_OF_THE_MODEL = ("scale", "learned_scale", "hyperbolic_init", "riemannian_factor")
"""Fields of `config.model` that may differ between training and evaluation."""


class HOVER:
    """Retrieval among nodes of action trees, embedded in hyperbolic space.

    Attributes:
      model: the model of the configuration.
      evaluator: encodes and ranks splits.
    """

    def __init__(self, config: ConfigDict, mesh: Mesh) -> None:
        """Builds the model; the data is opened when it is asked for."""
        self._config, self._mesh = config, mesh
        self.model = hover.build(config)
        self.evaluator = NodeEvaluator(self.model, config, mesh)
        self._validation = KeptFeed(lambda: self._whole(self.data.val))

    @functools.cached_property
    def data(self) -> TreeData:
        """The splits; prepared on first use.

        Raises:
          DataError: when the data is missing or wrong.
        """
        elsewhere = self._config.eval.test_collection
        with parallel.first_alone("data"):
            opened = open_trees(self._config)
            if not elsewhere:
                return opened
            config = self._config.copy_and_resolve_references()
            config.data.update(collection=elsewhere, feature=config.eval.test_feature)
            other = open_trees(config)
            fingerprint = f"{opened.fingerprint} {other.fingerprint}"
            return opened._replace(test=other.test, fingerprint=fingerprint)

    @property
    def fingerprint(self) -> str:
        """Identifies the data; see `Family`."""
        return self.data.fingerprint

    @property
    def num_examples(self) -> int:
        """Number of training subtrees; see `Family`."""
        return self.data.train.num_items

    def check_trainable(self) -> None:
        """Refuses what cannot be trained; every configuration that `config.check` accepts can."""

    def init_params(self) -> Any:
        """Initial parameters; see `Family`."""
        return hover.init_params(self._config)

    def project(self, params: Any) -> Any:
        """A learned scale within its limit; see `Family`."""
        return hover.project(params)

    def loss(self, steps_per_epoch: int) -> TreeObjective:
        """The objective; see `Family`."""
        return tree_objective.build(self._config, self.model)

    def optimiser(self, total_steps: int) -> optax.GradientTransformation:
        """The released optimiser; see `Family`."""
        return optimiser(self._config, total_steps)

    def feed(self, groups: Sequence[Group]) -> SubtreeFeed:
        """Training batches, on the devices where their features fit; see `Family`."""
        config, train = self._config, self.data.train
        resident = self._fits(train)
        batch_size, seed = config.train.batch_size, config.seed
        return SubtreeFeed(train, groups, self._mesh, resident, batch_size, seed)

    def describe(self) -> dict[str, Any]:
        """The fields that make the model; see `Family`."""
        fields = {
            f"model.{name}": value
            for name, value in self._config.model.items()
            if name not in NOT_OF_THE_MODEL
        }
        for name in ("visual_dim", "text_dim", "max_words"):
            fields[f"data.{name}"] = self._config.data[name]
        fields["trees.node_frames"] = self._config.trees.node_frames
        return dict(json.loads(json.dumps(fields)))

    def meaning(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `describe`, in which equal models are equal; see `ConfiguredFamily`."""
        return dict(fields)

    def validate(self, params: Any) -> Result:
        """Metrics of the validation split, which stays on the devices; see `Family`."""
        return self.evaluator.evaluate(params, self._validation.get())

    def test(self, params: Any) -> Result:
        """Metrics of the test split, of its hierarchy as well; see `Family`."""
        with contextlib.closing(self.evaluator.feed(self.data.test)) as test:
            return self.evaluator.report(params, test, self._time_direction(params))

    def test_scores(self, params: Any) -> tuple[Result, dict[str, Any]]:
        """Metrics of the test split, and its scores with the names of their rows and columns."""
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as test:
            scores = self.evaluator.scores(params, test)
        names = split.pool.names
        arrays = {"scores": scores, "queries": names, "videos": names}
        return self.test(params), arrays

    def references(self) -> dict[str, Result]:
        """Nothing that the model is held against."""
        return {}

    def cost(self) -> Cost:
        """Its parameters, and the operations of encoding a node's frames and its text."""
        config, model = self._config, self.model
        params, node = jax.eval_shape(lambda: (self.init_params(), hover.zero_nodes(config)))
        flops = lambda method: parallel.count_flops(
            lambda params, nodes: model.apply({"params": params}, nodes, method=method),
            params,
            node,
        )
        size = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
        return Cost(size, flops("encode_video"), flops("encode_text"))

    def close(self) -> None:
        """Makes room on the devices; see `Family`."""
        self._validation.close()

    def _whole(self, split: TreeSplit) -> NodeFeed:
        return self.evaluator.feed(split, self._fits(split))

    def _time_direction(self, params: Any) -> np.ndarray:
        """The direction that the order loss learned; without it, one fitted to training pairs."""
        if self._config.loss.order:
            return np.asarray(params["direction"])
        train = self.data.train
        with contextlib.closing(self.evaluator.feed(train)) as feed:
            return self.evaluator.fit_direction(params, feed)

    def _fits(self, split: TreeSplit) -> bool:
        return fits(split.features, self._mesh, self._config)


def optimiser(config: ConfigDict, total_steps: int) -> optax.GradientTransformation:
    """The optimiser of the released code, with a rate for each group of parameters.

    All gradients are clipped together, then as in `optim`. The released code decays the biases of
    the hyperbolic layers too, which at its rate of 1e-7 shrinks them by 1.5e-4 of their size in the
    5,085 steps of its training; here no bias is decayed.

    Args:
      config: a configuration of HOVER.
      total_steps: number of steps of the run.
    """
    fields = config.optim
    schedule = optim.SCHEDULES[fields.schedule](fields.learning_rate, fields.warmup, total_steps)

    def factor(names: tuple[str, ...]) -> float:
        if "hyperbolic" in names:
            return float(fields.hyperbolic_rate / fields.learning_rate)
        if "log_scale" in names:
            return float(fields.scale_rate / fields.learning_rate)
        return 1.0

    return optax.chain(
        optax.clip_by_global_norm(fields.global_clip),
        optim.clip_by_tensor_norm(fields.clip_norm),
        optim.scale_by_bert_adam(fields.beta1, fields.beta2, fields.epsilon),
        optax.add_decayed_weights(fields.weight_decay, mask=optim.decay_mask),
        optax.scale_by_learning_rate(schedule),
        optim.scale_by_factor(factor),
    )
