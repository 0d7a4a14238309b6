"""Evaluation: encode the corpus once, score every caption against every video, rank.

Videos are encoded batch by batch and each batch is scored against all captions at once, blocks of
captions at a time, so that no encoded corpus and no queries x videos x positions array is kept.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax import checkpoint, models, report, retrieval, train_state
from hlformer_jax.data import pipeline
from hlformer_jax.data.pipeline import Split
from hlformer_jax.models import hlformer
from hlformer_jax.ops.numerics import unit
from hlformer_jax.typing import Array, Captions, Videos


class Result(NamedTuple):
    """Metrics of a split, in percent, with the numbers of its queries and videos."""

    metrics: dict[str, float]
    queries: int
    videos: int

    def as_json(self) -> dict[str, float | int]:
        """The form in which test metrics are written."""
        return {**self.metrics, "queries": self.queries, "videos": self.videos}


class Evaluator:
    """Scores splits with a model's parameters; compiles once for each number of captions."""

    def __init__(self, model: nn.Module, config: ConfigDict) -> None:
        self._config = config
        self._encode = jax.jit(functools.partial(_encode_queries, model))
        self._score = jax.jit(functools.partial(_score_videos, model, _branch_weights(config)))
        self._rank = jax.jit(retrieval.ranks)

    def scores(self, params: Any, split: Split) -> Float[np.ndarray, "Q V"]:
        """Ranking scores of all captions of a split against all its videos (eq. 9).

        Args:
          params: the model's parameters.
          split: captions and videos; captions are grouped by video.

        Returns:
          float32 scores, higher is better.
        """
        data, sizes = self._config.data, self._config.eval
        captions = pipeline.caption_batches(split, sizes.query_batch, data.max_words)
        queries = jnp.stack([self._encode(params, batch) for batch in captions])
        num_queries, num_videos = len(split.caption_video), len(split)
        scores = np.empty((num_queries, num_videos), np.float32)
        videos = pipeline.video_batches(split, sizes.video_batch, data.max_frames)
        pending: list[tuple[int, Array]] = []
        for start, batch in zip(range(0, num_videos, sizes.video_batch), videos, strict=True):
            pending.append((start, self._score(params, batch, queries)))
            if len(pending) > 2:  # fetch while the next are computed
                _fetch(pending.pop(0), scores)
        for item in pending:
            _fetch(item, scores)
        return scores

    def ranks(self, scores: Float[np.ndarray, "Q V"], split: Split) -> np.ndarray:
        """Ranks of each caption's own video, int32 [Q]."""
        size = self._config.eval.query_batch
        ranks = []
        for start in range(0, len(scores), size):
            block, own = scores[start : start + size], split.caption_video[start : start + size]
            ranks.append(np.asarray(self._rank(block, own)))
        return np.concatenate(ranks)

    def evaluate(self, params: Any, split: Split) -> Result:
        """Metrics of a split."""
        return self.result(self.scores(params, split), split)

    def result(self, scores: Float[np.ndarray, "Q V"], split: Split) -> Result:
        """Metrics of a score matrix of a split."""
        metrics = retrieval.metrics(self.ranks(scores, split))
        return Result(metrics, len(split.caption_video), len(split))


def _fetch(item: tuple[int, Array], scores: np.ndarray) -> None:
    start, columns = item
    width = min(columns.shape[-1], scores.shape[1] - start)
    rows = np.asarray(columns).reshape(-1, columns.shape[-1])
    scores[:, start : start + width] = rows[: len(scores), :width]


def _encode_queries(model: nn.Module, params: Any, captions: Captions) -> Float[Array, "Q H"]:
    return unit(models.encode_query(model, params, captions))


def _branch_weights(config: ConfigDict) -> tuple[float, float]:
    model = config.model
    if model.gaze and model.glance:
        return model.clip_weight, model.frame_weight
    return 1.0, 1.0  # of the one branch that there is


def _score_videos(
    model: nn.Module,
    weights: tuple[float, float],
    params: Any,
    videos: Videos,
    queries: Float[Array, "B Q H"],
) -> Float[Array, "B Q V"]:
    encoding = models.encode_video(model, params, videos)
    positions = [
        (weight, unit(encoded))
        for weight, encoded in zip(weights, (encoding.clips, encoding.frames), strict=True)
        if encoded is not None
    ]

    def score(block: Float[Array, "Q H"]) -> Float[Array, "Q V"]:
        scores = [weight * retrieval.max_similarity(block, units) for weight, units in positions]
        return functools.reduce(jnp.add, scores)

    return jax.lax.map(score, queries)


NOT_OF_THE_MODEL = ("input_dropout", "dropout", "frame_weight", "clip_weight")
"""Fields of `config.model` that may differ between training and evaluation."""


def model_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields that a checkpoint shares with whoever evaluates it, as JSON has them."""
    fields = {
        f"model.{name}": value
        for name, value in config.model.items()
        if name not in NOT_OF_THE_MODEL
    }
    for name in ("visual_dim", "text_dim", "max_frames", "max_clips", "max_words"):
        fields[f"data.{name}"] = config.data[name]
    return json.loads(json.dumps(fields))


def _check_same_model(path: Path, info: Mapping[str, Any], config: ConfigDict) -> None:
    """Refuses a configuration that differs from what the checkpoint says of its own."""
    wanted = model_fields(config)
    differing = {key: info[key] for key in wanted if key in info and info[key] != wanted[key]}
    if differing:
        what = ", ".join(f"config.{key} is {wanted[key]}" for key in differing)
        flags = " ".join(f"--config.{key}={value}" for key, value in differing.items())
        raise checkpoint.CheckpointError(
            f"{path} is of another model: {what}; to evaluate it add {flags}"
        )


def evaluate_checkpoint(
    config: ConfigDict, path: Path, scores_file: Path | None, tell: Callable[[str], None]
) -> Result:
    """Evaluates a checkpoint on the test split.

    Args:
      config: the configuration it was trained with.
      path: a run's directory or a converted checkpoint.
      scores_file: where to write the score matrix (`scores`, `queries`, `videos`), if anywhere.
      tell: takes one line about what was loaded.

    Returns:
      The metrics of the test split.

    Raises:
      CheckpointError: when there is no checkpoint or it is of another shape.
      ReleasedDataError: when the data is missing or wrong.
    """
    model = models.build(config)
    like = jax.eval_shape(lambda: train_state.init_params(model, config))
    with contextlib.closing(checkpoint.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, config)
        params = hlformer.project(saved.restore(like), config.model.curvature)
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    tell(f"checkpoint {path} ({described})")
    split = pipeline.open_data(config).test
    evaluator = Evaluator(model, config)
    scores = evaluator.scores(params, split)
    if scores_file is not None:
        arrays = {"scores": scores, "queries": split.caption_ids(), "videos": split.video_ids}
        report.write_npz(scores_file, arrays)
    return evaluator.result(scores, split)
