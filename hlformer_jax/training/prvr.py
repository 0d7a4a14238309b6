"""The family of HLFormer and its ancestors: objective (HLFormer eq. 21, 31) and `Family`."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict, FrozenConfigDict

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.data.dataset import Data, open_data, warn_of_other_data
from hlformer_jax.data.feed import Group, KeptFeed, VideoFeed, fits
from hlformer_jax.data.sources import synthetic
from hlformer_jax.data.sources.protocol import SPLITS, DataError
from hlformer_jax.data.sources.released.layouts import CLIP_SPACE, keeps_last_row
from hlformer_jax.data.split import Split
from hlformer_jax.losses import Terms, numbers, options, retrieval, weighted_sum
from hlformer_jax.losses.retrieval import NegativeRanks, Pairs
from hlformer_jax.models import Cost, Model, cost, meaning
from hlformer_jax.ops.dropout import derive_key
from hlformer_jax.ops.numerics import wide
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.retrieval import evaluation, moments, scoring
from hlformer_jax.retrieval import ranking as ranks
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.retrieval.scoring import MaximumSimilarity
from hlformer_jax.runtime import devices, processes
from hlformer_jax.training import optim
from hlformer_jax.training.step import list_program_fields
from hlformer_jax.typing import Array, Batch

TERMS = {
    "clip_triplet": "glance",
    "frame_triplet": "gaze",
    "clip_nce": "glance",
    "frame_nce": "gaze",
    "query_diversity": "",
    "partial_order": "",
    "optimal_matching": "glance",
    "distillation": "glance",
}
"""For each term, by the name of its weight in `config.loss`, the field of `config.model` that
switches on its branch, or "". The order is the order of the log."""


class Negatives(NamedTuple):
    """Negatives of the triplet loss, drawn separately for each branch, as released."""

    clip: NegativeRanks
    frame: NegativeRanks


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss of a batch, see `step.Loss`.

    Attributes:
      model: the model.
      scorer: the scorer of the model.
      seed: seed of negatives and dropout.
      numbers: weights and constants by their names in `config.loss`.
      options: options of `config.loss`.
      terms: names of the terms with a weight other than 0.
      encode_parts: number of parts in which the videos are encoded, see `models.encode_video`.
      steps_per_epoch: number of steps of an epoch.
      max_captions: largest number of captions of a video; None for the number of captions that fit
        in a batch.
    """

    model: Model
    scorer: Any
    seed: Any
    numbers: dict[str, Any]
    options: FrozenConfigDict = dataclasses.field(metadata=STATIC)
    terms: tuple[str, ...] = dataclasses.field(metadata=STATIC)
    encode_parts: int = dataclasses.field(metadata=STATIC)
    steps_per_epoch: int = dataclasses.field(metadata=STATIC)
    max_captions: int | None = dataclasses.field(metadata=STATIC)

    def __call__(
        self, params: Any, batch: Batch, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], Terms]:
        """Return the loss at a step, and its terms without their weights.

        Negatives and dropout depend on the seed and the step. The switch to hard negatives is part
        of the program, so that the program is compiled only once.
        """
        epoch = step // self.steps_per_epoch
        negatives = draw_negatives(
            derive_key(self.seed, "negatives", step),
            batch,
            epoch >= self.numbers["hard_negative_epoch"],
            self.numbers["hard_pool_size"],
            self.scorer.frame_columns,
        )
        dropout_key = derive_key(self.seed, "dropout", step)
        return self.evaluate(params, batch, negatives, dropout_key, epoch)

    def evaluate(
        self,
        params: Any,
        batch: Batch,
        negatives: Negatives,
        dropout_key: Array | None = None,
        epoch: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, ""], Terms]:
        """Return the loss for given negatives, and its terms without their weights.

        Args:
          params: parameters of the model.
          batch: videos with their captions.
          negatives: negatives of the triplet losses.
          dropout_key: random key of the dropout; None switches it off.
          epoch: index of the epoch, from 0, which determines the weight of the distillation.

        Raises:
          ValueError: if the distillation has a weight and the batch has no teacher features.
        """
        model, values = self.model, self.numbers
        scorer: MaximumSimilarity = self.scorer
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        queries = models.encode_query(model, params, batch.captions, keys[0])
        videos = models.encode_video(model, params, batch.videos, keys[1], self.encode_parts)
        pairs = Pairs.from_batch(batch)
        similar: Any = scorer.similarities(queries, videos, pairs.video)
        caption_columns = scorer.frame_columns == "captions"
        columns = retrieval.identity_pairs(pairs) if caption_columns else pairs
        clip_queries = scorer.of_branches(queries)["clips"]
        margin = values["margin"]

        def frame_nce() -> Float[Array, ""]:
            if caption_columns:
                return retrieval.joint_nce(similar.frame_dot, pairs.caption_mask)
            return retrieval.nce(similar.frame_dot, pairs)

        def query_diversity() -> Float[Array, ""]:
            constants = values["diversity_margin"], values["diversity_scale"]
            if self.options.diversity_form == "captions":
                return retrieval.caption_diversity(queries, pairs, *constants)
            gamma, per_video = values["diversity_gamma"], self.options.diversity_form == "videos"
            return retrieval.query_diversity(queries, pairs, *constants, gamma, per_video)

        def partial_order() -> Float[Array, ""]:
            lifted = models.lift(model, params, videos, queries)
            return retrieval.partial_order(*lifted, pairs, values["min_radius"])

        def divergence() -> Float[Array, ""]:
            teacher, temperature = batch.captions.teacher, values["distillation_temperature"]
            if teacher is None:
                raise ValueError(
                    "the batch has no teacher features: its split was opened without"
                    " data.teacher_dim"
                )
            frames = videos.clips, teacher, batch.videos.frame_mask
            return retrieval.distillation(clip_queries, *frames, pairs, temperature)

        terms = {
            "clip_triplet": lambda: retrieval.triplet(
                similar.clip_cosine, pairs, negatives.clip, margin
            ),
            "frame_triplet": lambda: retrieval.triplet(
                similar.frame_cosine, columns, negatives.frame, margin
            ),
            "clip_nce": lambda: retrieval.nce(similar.clip_dot, pairs),
            "frame_nce": frame_nce,
            "query_diversity": query_diversity,
            "partial_order": partial_order,
            "optimal_matching": lambda: retrieval.optimal_matching(
                clip_queries,
                videos.clips,
                pairs,
                self.max_captions,
                self.options.matching_mean == "videos",
            ),
            "distillation": divergence,
        }
        weights = values
        if "distillation" in self.terms:
            rate = values["distillation_rate"]
            share = rate ** jnp.asarray(epoch, rate.dtype)
            weights = values | {"distillation": values["distillation"] * share}
        return weighted_sum({name: terms[name]() for name in self.terms}, weights)


def build_objective(
    config: ConfigDict,
    model: Model,
    steps_per_epoch: int = 1,
    max_captions: int | None = None,
) -> Objective:
    """Build the objective of a configuration.

    Args:
      config: the configuration.
      model: the model.
      steps_per_epoch: number of steps of an epoch.
      max_captions: largest number of captions of a video; None for the number that fit in a batch.

    Raises:
      ConfigError: if the model or the data does not support a term, or if there is no term.
    """
    return Objective(
        model=model,
        scorer=scoring.build_scorer(config, model),
        seed=jnp.asarray(config.seed, jnp.int32),
        numbers=numbers(config.loss, wide(jnp.dtype(config.dtype))),
        options=options(config.loss),
        terms=active_terms(config, model),
        encode_parts=config.train.encode_parts,
        steps_per_epoch=steps_per_epoch,
        max_captions=max_captions,
    )


def active_terms(config: ConfigDict, model: Model) -> tuple[str, ...]:
    """Return the names of the terms whose weight is not 0 and whose branch is on.

    Raises:
      ConfigError: if a term has a weight but the model or the data does not support it, or if there
        is no term.
    """
    loss, name = config.loss, config.model.name
    glance, module = config.model.glance, model.module
    for term, is_available, reason in (
        ("optimal_matching", glance, "config.model.glance is False: set it to True"),
        ("partial_order", module.has_lift, f"{name} has no hyperbolic lift: use hlformer"),
        ("distillation", module.query_per_branch, f"{name} has no teacher: use dl_dkd"),
        (
            "distillation",
            glance,
            "config.model.glance, the inheritance branch, is False: set it to True",
        ),
        (
            "distillation",
            config.data.teacher_dim,
            "config.data.teacher_dim is 0: set it to the width of the teacher's features"
            " (512 in the released data)",
        ),
    ):
        if loss[term] != 0 and not is_available:
            raise ConfigError(
                f"config.loss.{term} is {loss[term]}, but {reason}, or set config.loss.{term} to 0"
            )
    active = tuple(
        term
        for term, branch in TERMS.items()
        if loss[term] != 0 and (not branch or config.model[branch])
    )
    if not active:
        raise ConfigError(
            "every weight of config.loss is 0, so there is nothing to train: set one of them"
        )
    return active


def draw_negatives(
    key: Array,
    batch: Batch,
    hard: bool | Bool[Array, ""],
    pool: int | Int[Array, ""],
    frame_columns: str = "videos",
) -> Negatives:
    """Draw the negatives of the triplet losses of both branches, as released.

    Args:
      key: random key.
      batch: videos with their captions.
      hard: whether the hard phase has begun.
      pool: number of hardest videos to draw from in the hard phase, see `draw_negative_ranks`.
      frame_columns: "videos", or "captions" if the frame branch has a column for each caption
        (MS-SL); then its captions are also drawn from the `pool` hardest.
    """
    clip_key, frame_key = jax.random.split(key)
    pairs = Pairs.from_batch(batch)
    clip = retrieval.draw_negative_ranks(clip_key, pairs, hard, pool)
    if frame_columns == "captions":
        columns = retrieval.identity_pairs(pairs)
        return Negatives(clip, retrieval.draw_negative_ranks(frame_key, columns, hard, pool, pool))
    return Negatives(clip, retrieval.draw_negative_ranks(frame_key, pairs, hard, pool))


class PRVR:
    """Partially relevant video retrieval: videos with all their captions.

    Attributes:
      trained_on: fingerprint of the data of a loaded checkpoint; None if it is unknown.
    """

    trained_on: str | None = None

    def __init__(self, config: ConfigDict, mesh: Mesh) -> None:
        self._config, self._mesh = config, mesh
        self.model = models.build(config)
        self.evaluator = Evaluator(self.model, config, mesh)
        self._validation = KeptFeed(lambda: self._resident_feed(self.data.val))

    @functools.cached_property
    def data(self) -> Data:
        """The splits; prepared on first use."""
        with processes.first_alone("data"):
            data = open_data(self._config)
        warn_of_other_data(data.fingerprint, self.trained_on)
        return data

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data; see `Family`."""
        return self.data.fingerprint

    @property
    def moments_fingerprint(self) -> str | None:
        """Digest of the times of moments of validation and test; see `Family`."""
        splits = self.data.val, self.data.test
        times = [split.caption_spans() for split in splits if split.spans]
        return hashlib.sha256(json.dumps(times).encode()).hexdigest() if times else None

    @property
    def num_examples(self) -> int:
        """Number of training videos; see `Family`."""
        return len(self.data.train)

    def check_trainable(self) -> None:
        """Check that the configuration can be trained; see `Family`."""
        check_trainable(self._config, self._mesh.size)
        ranks.check_select(self._config.eval.select, self.metric_names())

    def metric_names(self) -> tuple[str, ...]:
        """Return the names of the metrics of a validation."""
        names = [*(f"R@{k}" for k in ranks.RECALLS), "SumR"]
        if self.model.module.has_lift:
            names.append("InCone")
        if self._config.eval.moments:
            bounds = (0.0, *ranks.RATIOS, 1.0)
            groups = [f"ratio={low:g}-{high:g}" for low, high in itertools.pairwise(bounds)]
            recalls = [f"{group}/{name}" for group in groups for name in names[:5]]
            names += [*moments.METRICS, *recalls]
        return tuple(names)

    def summary(self) -> str:
        """Return the data in one line: its title, videos and captions."""
        data, config = self.data, self._config.data
        splits = [
            f"{name} {len(split):,} videos, {len(split.caption_video):,} captions"
            for name, split in zip(SPLITS, data[:3], strict=True)
        ]
        return f"{synthetic.corpus_title(config)}: {'; '.join(splits)}"

    def notes(self) -> list[str]:
        """Return remarks on the data after an epoch: the number of captions that were cut."""
        notes, data = [], self.data
        rest = "middle" if keeps_last_row(self._config) else "rest"
        for name, split in zip(SPLITS, data[:3], strict=True):
            if cut := split.num_cut_captions():
                notes.append(
                    f"{cut:,} of {len(split.caption_video):,} captions of {name} have more than"
                    f" {split.max_words} words; the {rest} of each is not read"
                    " (config.data.max_words)"
                )
        return notes

    def learning_rate(self, total_steps: int) -> optax.Schedule:
        """Return the schedule of the learning rate for a run of `total_steps` steps."""
        return optim.learning_rate(self._config.optim, total_steps)

    def init_params(self) -> Any:
        """Return the initial parameters; see `Family`."""
        return models.init_params(self.model, self._config)

    def project(self, params: Any) -> Any:
        """Clamp learned curvatures and scales to their bounds; see `Family`."""
        return models.project(self.model, params)

    def loss(self, steps_per_epoch: int) -> Objective:
        """Return the objective; see `Family`.

        Raises:
          DataError: if there is only one training video.
          ConfigError: if the validation split has no caption for the metric `eval.select`.
        """
        counts = self.data.train.captions_per_video
        if len(counts) < 2:
            raise DataError(
                "the training split has one video: it must have at least 2, because the negatives"
                " of a caption are the other videos of its batch"
            )
        self._check_ratio()
        max_captions = int(counts.max())
        return build_objective(self._config, self.model, steps_per_epoch, max_captions)

    def optimiser(self, total_steps: int) -> optax.GradientTransformation:
        """Return the released optimiser; see `Family`."""
        return optim.build(self._config.optim, self.model.module, total_steps)

    def feed(self, groups: Sequence[Group]) -> VideoFeed:
        """Return the feed of training batches, on the devices if they fit; see `Family`."""
        train, batch_size = self.data.train, self._config.train.batch_size
        resident = fits(train, self._mesh, self._config)
        return VideoFeed(train, groups, self._mesh, batch_size, resident)

    def program_constants(self) -> Hashable:
        """Return the constants of a program of training steps; see `Family`."""
        return self.fingerprint, list_program_fields(self._config)

    def describe(self) -> dict[str, Any]:
        """Return the fields that define the model; see `Family`."""
        return models.describe(self._config)

    def meaning(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `describe` with a width for each block; see `Family`."""
        return meaning(fields)

    def cost(self) -> Cost:
        """Return the number of parameters, and the operations to encode a video and a caption."""
        return cost(self._config)

    def validate(self, params: Any) -> Result:
        """Return the metrics of the validation split, which stays on the devices."""
        return self.evaluator.evaluate(params, self._validation.get())

    def test(self, params: Any) -> Result:
        """Return the metrics of the test split; see `Family`."""
        with contextlib.closing(self.evaluator.feed(self.data.test)) as test:
            return self.evaluator.evaluate(params, test)

    def test_scores(self, params: Any) -> tuple[Result, dict[str, Any]]:
        """Return test metrics and the scores of the test split; see `Family`."""
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as test:
            encoded = self.evaluator.encode(params, test)
        scores = self.evaluator.score(*encoded, split)
        arrays = {
            "scores": scores,
            "queries": split.caption_ids(),
            "videos": split.video_ids,
            "relevant": split.caption_video,
            "sentences": split.caption_sentences(),
            "data": self.fingerprint,
        }
        return self.evaluator.rank(*encoded, split), arrays

    def test_embeddings(self, params: Any) -> dict[str, Any]:
        """Return the embeddings of the test split; see `Family`.

        `queries` is [Q, H]; in DL-DKD it concatenates the vectors of both branches. For each name
        in `branches` there is an array [V, L, H] of the positions: unit vectors, zero where padded.
        A score is the sum over branches of the weight in `weights` times the largest cosine. In
        MS-SL with both branches, the second cosine is that of the best proposal's guided vector.
        """
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as test:
            stored, queries = self.evaluator.encode(params, test, "float32")
        branches = self.evaluator.positions(stored, split)
        return {
            "queries": devices.to_host(queries.vectors),
            "query_ids": split.caption_ids(),
            "video_ids": split.video_ids,
            "relevant": split.caption_video,
            "branches": list(branches),
            "weights": [
                weight
                for name, weight in zip(
                    self.evaluator.scorer.branches, self.evaluator.scorer.weights, strict=True
                )
                if name in branches
            ],
            **branches,
        }

    def references(self) -> dict[str, Result]:
        """Return test metrics of baselines; empty unless `config.train.baseline` is set.

        They are the mean-pooled linear baseline, chance, and on CLIP features zero-shot CLIP.
        """
        if not self._config.train.baseline:
            return {}
        data = self.data
        scores = evaluation.mean_pooled_scores(data.train, data.val, data.test)
        linear = self.evaluator.result(scores, data.test)
        references = {"mean-pooled linear baseline": linear}
        if self._config.data.feature in CLIP_SPACE:
            for name, scores in evaluation.zero_shot_scores(data.test).items():
                references[name] = self.evaluator.result(scores, data.test)
        return references | {"chance": _chance(linear)}

    def close(self) -> None:
        """Release memory on the devices; see `Family`."""
        self._validation.close()

    def _check_ratio(self) -> None:
        """Raise ConfigError if the validation split lacks the group of `eval.select`."""
        group = self._config.eval.select.rpartition("/")[0]
        if not group.startswith("ratio="):
            return
        ratios = moments.ratios(self.data.val.caption_spans())
        metrics = ranks.metrics_by_ratio(np.ones(len(ratios), np.int32), ratios)
        groups = sorted({name.rpartition("/")[0] for name in metrics})
        if group not in groups:
            raise ConfigError(
                f"config.eval.select is {self._config.eval.select!r}, but the validation split has"
                f" only captions of {', '.join(groups)}: use one of these, or SumR"
            )

    def _resident_feed(self, split: Split) -> VideoFeed:
        return self.evaluator.feed(split, fits(split, self._mesh, self._config))


def check_trainable(config: ConfigDict, num_devices: int) -> None:
    """Check that a configuration can be trained on `num_devices` devices.

    Raises:
      ConfigError: if the terms of the loss or the sizes of the batch do not allow it.
    """
    model = models.build(config)
    active_terms(config, model)
    size, parts = config.train.batch_size, config.train.encode_parts
    if size == 1:
        raise ConfigError(
            "config.train.batch_size is 1: it must be at least 2, because the negatives of a"
            " caption are the other videos of its batch"
        )
    if parts > 1 and devices.round_up(size, num_devices) % (parts * num_devices):
        raise ConfigError(
            f"config.train.batch_size is {size}: it must be a multiple of"
            f" config.train.encode_parts times the number of devices, {parts} x {num_devices}"
        )


def _chance(linear: Result) -> Result:
    """Return the expected metrics of a random ranking of the same videos."""
    names = (*(f"R@{k}" for k in ranks.RECALLS), "SumR")
    expected = {name: ranks.chance(name, linear) or 0.0 for name in names}
    return Result(expected, linear.queries, linear.videos)
