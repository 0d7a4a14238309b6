"""The training objective of the family: its terms, and their weighted sum (HLFormer eq. 21, 31).

`Objective` is a loss as the trainer wants one (see `step.Loss`): a pytree that is called with
parameters, a batch and the number of the step. Its hyperparameters are arguments of the compiled
step, its options are part of the program.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.models import Model
from hlformer_jax.ops.dropout import derive_key
from hlformer_jax.ops.numerics import wide
from hlformer_jax.retrieval import scorers
from hlformer_jax.retrieval.scoring import TrainingScorer
from hlformer_jax.training import distillation, losses
from hlformer_jax.training.losses import Pairs
from hlformer_jax.training.terms import FRAME_COLUMNS, TERMS, Encoded, FrameColumns, Negatives
from hlformer_jax.typing import Array, Batch

Terms = dict[str, Float[Array, ""]]


class Hyperparameters(NamedTuple):
    """Numbers of the objective: arguments of its programs, so changing them does not recompile.

    Attributes:
      seed: seed of the negatives and the dropout.
      values: weights and constants, by their names in `config.loss`.
      hard_negative_epoch: first epoch, from 0, with hard negatives.
      hard_pool_size: number of hardest videos that a caption's negative is drawn from.
    """

    seed: Int[Array, ""]
    values: dict[str, Float[Array, ""]]
    hard_negative_epoch: Int[Array, ""]
    hard_pool_size: Int[Array, ""]


@flax.struct.dataclass
class Objective:
    """The loss of a batch.

    Attributes:
      model: the model.
      scorer: the scorer of the model.
      hyperparameters: numbers of the loss.
      terms: names of the terms with a weight other than 0, in the order of the log.
      diversity_form: form of the query diversity, see config/fields.py.
      distillation_decay: form of the decay of the distillation's weight, likewise.
      encode_twice: whether captions are encoded once more, see config/fields.py.
      encode_parts: number of parts in which videos are encoded, see `models.encode_video`.
      steps_per_epoch: number of steps in an epoch, which tells the epoch of a step.
      most_captions: largest number of captions of a video, see `losses.optimal_matching`.
    """

    model: Model
    scorer: Any
    hyperparameters: Hyperparameters
    terms: tuple[str, ...] = flax.struct.field(pytree_node=False)
    diversity_form: str = flax.struct.field(pytree_node=False)
    distillation_decay: str = flax.struct.field(pytree_node=False)
    encode_twice: bool = flax.struct.field(pytree_node=False)
    encode_parts: int = flax.struct.field(pytree_node=False)
    steps_per_epoch: int = flax.struct.field(pytree_node=False)
    most_captions: int | None = flax.struct.field(pytree_node=False)

    def __call__(
        self, params: Any, batch: Batch, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Terms]:
        """The loss at a step: its negatives and its dropout depend on the seed and the step.

        The hard-negative phase begins inside, by the epoch of the step, so that there is one
        compilation.
        """
        hyperparameters = self.hyperparameters
        epoch = step // self.steps_per_epoch
        negatives = draw_negatives(
            derive_key(hyperparameters.seed, "negatives", step),
            batch,
            epoch >= hyperparameters.hard_negative_epoch,
            hyperparameters.hard_pool_size,
            FRAME_COLUMNS[self.scorer.frame_columns],
        )
        dropout_key = derive_key(hyperparameters.seed, "dropout", step)
        return self.evaluate(params, batch, negatives, dropout_key, epoch)

    def evaluate(
        self,
        params: Any,
        batch: Batch,
        negatives: Negatives,
        dropout_key: Array | None = None,
        epoch: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, ""], Terms]:
        """The loss with given negatives.

        Args:
          params: parameters of the model.
          batch: videos with all their captions.
          negatives: ranks of the triplet loss's negatives.
          dropout_key: random key of the dropout; None switches dropout off.
          epoch: counted from 0; by it the weight of the distillation falls.

        Returns:
          The weighted sum and the terms without their weights; terms of weight 0 are not computed.
        """
        model = self.model
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        queries = models.encode_query(model, params, batch.captions, keys[0])
        videos = models.encode_video(model, params, batch.videos, keys[1], self.encode_parts)
        alone = queries
        if self.encode_twice and keys[0] is not None:
            again = jax.random.fold_in(keys[0], 1)
            alone = models.encode_query(model, params, batch.captions, again)
        pairs = _pairs(batch)
        scorer: TrainingScorer = self.scorer
        encoded = Encoded(
            queries=alone,
            videos=videos,
            lift=lambda: models.lift(model, params, videos, alone),
            similarities=scorer.similarities(queries, videos, pairs.video),
            pairs=pairs,
            columns=FRAME_COLUMNS[scorer.frame_columns],
            negatives=negatives,
            values=self.hyperparameters.values,
            diversity_form=self.diversity_form,
            most_captions=self.most_captions,
            clip_queries=scorer.of_branches(alone)["clips"],
            frame_mask=batch.videos.frame_mask,
            teacher=batch.captions.teacher,
        )
        terms = {name: TERMS[name].compute(encoded) for name in self.terms}
        total = jnp.zeros((), queries.dtype)
        for name, value in terms.items():
            total = total + self._weight(name, epoch) * value
        return total, terms

    def _weight(self, name: str, epoch: Int[Array, ""] | int) -> Float[Array, ""]:
        values = self.hyperparameters.values
        if name != "distillation":
            return values[name]
        rate = values["distillation_rate"]
        return values[name] * distillation.decay(self.distillation_decay, rate, epoch)


def build(
    config: ConfigDict,
    model: Model,
    steps_per_epoch: int = 1,
    most_captions: int | None = None,
) -> Objective:
    """The objective of a configuration.

    Args:
      config: the whole configuration.
      model: the model of the configuration.
      steps_per_epoch: number of steps in an epoch.
      most_captions: largest number of captions of a video; None: as many as a batch can hold.

    Raises:
      ConfigError: when the losses make no sense, or not for this model.
    """
    return Objective(
        model=model,
        scorer=scorers.build(config, model),
        hyperparameters=hyperparameters(config),
        terms=active_terms(config, model),
        diversity_form=config.loss.diversity_form,
        distillation_decay=config.loss.distillation_decay,
        encode_twice=config.loss.encode_twice,
        encode_parts=config.train.encode_parts,
        steps_per_epoch=steps_per_epoch,
        most_captions=most_captions,
    )


def hyperparameters(config: ConfigDict) -> Hyperparameters:
    """The hyperparameters that a configuration gives its objective."""
    other = (
        "hard_negative_epoch",
        "hard_pool_size",
        "diversity_form",
        "distillation_decay",
        "encode_twice",
    )
    dtype = wide(jnp.dtype(config.dtype))
    return Hyperparameters(
        jnp.asarray(config.seed, jnp.int32),
        {
            name: jnp.asarray(value, dtype)
            for name, value in config.loss.items()
            if name not in other
        },
        jnp.asarray(config.loss.hard_negative_epoch, jnp.int32),
        jnp.asarray(config.loss.hard_pool_size, jnp.int32),
    )


def active_terms(config: ConfigDict, model: Model) -> tuple[str, ...]:
    """Names of the terms with a weight other than 0 whose branch is on.

    Raises:
      ConfigError: when there is none, or the model lacks what one needs.
    """
    if config.loss.optimal_matching != 0 and not config.model.glance:
        raise ConfigError(
            "config.loss.optimal_matching assigns captions to clips, but config.model.glance is"
            " off: set it to 0, or switch the clips on"
        )
    if config.loss.partial_order != 0 and not model.module.has_lift:
        raise ConfigError(
            f"config.loss.partial_order is {config.loss.partial_order}, but {config.model.name} has"
            " no hyperbolic lift: set it to 0, or use hlformer"
        )
    if config.loss.distillation != 0:
        _check_distillation(config, model)
    active = tuple(
        name
        for name, term in TERMS.items()
        if config.loss[name] != 0 and (not term.branch or config.model[term.branch])
    )
    if not active:
        raise ConfigError("config.loss has no term with a weight other than 0: nothing to train")
    return active


def _check_distillation(config: ConfigDict, model: Model) -> None:
    weight = f"config.loss.distillation is {config.loss.distillation}, but"
    if not model.module.query_per_branch:
        raise ConfigError(
            f"{weight} {config.model.name} has no branch that inherits from a teacher: set it to 0,"
            " or use dl_dkd"
        )
    if not config.model.glance:
        raise ConfigError(
            f"{weight} config.model.glance, the branch that inherits, is off: set it to 0, or"
            " switch the branch on"
        )
    if not config.data.teacher_dim:
        raise ConfigError(
            f"{weight} config.data.teacher_dim is 0, which is a data set without the features of a"
            " teacher: set it to their width (512 of the released ones), or loss.distillation to 0"
        )


def draw_negatives(
    key: Array,
    batch: Batch,
    hard: bool | Bool[Array, ""],
    pool: int | Int[Array, ""],
    columns: FrameColumns = FRAME_COLUMNS["videos"],
) -> Negatives:
    """Draws the negatives of both branches; see `losses.draw_negative_ranks`."""
    clip_key, frame_key = jax.random.split(key)
    pairs = _pairs(batch)
    pools = (pool, pool) if columns.pools_captions else (pool,)
    return Negatives(
        losses.draw_negative_ranks(clip_key, pairs, hard, pool),
        losses.draw_negative_ranks(frame_key, columns.pairs(pairs), hard, *pools),
    )


def _pairs(batch: Batch) -> Pairs:
    return Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)
