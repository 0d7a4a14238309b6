"""Evaluation: encode a split once, score every caption against every video, rank.

Encoding, scores and ranks stay on the devices: what comes back is one rank a caption. Captions are
scored in blocks, and no queries x videos x positions array is kept.
"""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax import (
    checkpoint,
    corpus,
    devices,
    models,
    report,
    retrieval,
    train_state,
    workdir,
)
from hlformer_jax.corpus import Corpus
from hlformer_jax.data import pipeline
from hlformer_jax.data.features import Features, Plan, gather
from hlformer_jax.data.feed import Feed
from hlformer_jax.data.pipeline import Split
from hlformer_jax.data.schedule import in_order
from hlformer_jax.models import TwoBranch
from hlformer_jax.models.two_branch import Constants, VideoEncoding
from hlformer_jax.ops.numerics import unit
from hlformer_jax.typing import Array

WINDOW_BATCHES = 8
"""Batches of videos that are brought to the devices together where a split is streamed."""


class Result(NamedTuple):
    """Metrics of a split, in percent, with the numbers of its queries and videos."""

    metrics: dict[str, float]
    queries: int
    videos: int

    def as_json(self) -> dict[str, float | int]:
        """The form in which test metrics are written."""
        return {**self.metrics, "queries": self.queries, "videos": self.videos}


class Evaluator:
    """Encodes and ranks splits with a model's parameters; compiles once for each form of split."""

    def __init__(self, model: TwoBranch, config: ConfigDict, mesh: Mesh) -> None:
        self._model, self._config, self._mesh = model, config, mesh
        self._constants = devices.replicate(mesh, models.constants(config))
        self._encode = jax.jit(self._encode_window, donate_argnums=(6, 7))
        self._like: Any = jax.jit(self._encode_step)  # for shapes alone, which it remembers
        whole = devices.replicated(mesh)
        self._pick = jax.jit(
            lambda room, rows: room.reshape(-1, room.shape[-1])[rows], out_shardings=whole
        )
        self._score = jax.jit(corpus.scores, out_shardings=whole)
        self._rank = jax.jit(_rank, static_argnums=3, out_shardings=whole)

    def feed(self, split: Split, resident: bool = False) -> Feed:
        """Windows of a split in its order, for as many evaluations as one likes."""
        # All blocks but the last are full, so that the column of a video is its place.
        size = devices.round_up(self._config.eval.video_batch, self._mesh.size)
        longest = len(split) if resident else WINDOW_BATCHES
        return Feed(split, in_order(len(split), size, longest), self._mesh, size, resident)

    def encode(
        self, params: Any, feed: Feed, dtype: str | None = None
    ) -> tuple[Corpus, Float[Array, "Q H"]]:
        """Encodes all videos and captions of a split.

        Args:
          params: the model's parameters.
          feed: of the split.
          dtype: of the corpus: float32, bfloat16 or int8; None: `config.eval.corpus`.

        Returns:
          The corpus, whose first videos are those of the split, and the captions in their order,
          unit vectors, float32.
        """
        steps = [step for group in feed.groups for step in group.steps]
        videos, queries, _ = self._like.eval_shape(
            self._constants, params, *feed.shapes(), np.int32(0)
        )
        weights = _branch_weights(self._config)
        dtype = dtype or self._config.eval.corpus
        found = corpus.empty(videos, len(steps), weights, dtype, self._mesh)
        shape = (len(steps), *queries.shape)
        sharding = devices.sharded(self._mesh, axis=1)
        room = jnp.zeros(shape, queries.dtype, device=sharding)
        for window in feed.windows():
            place = window.first, window.num_steps
            span = [devices.replicate(self._mesh, np.int32(x)) for x in place]
            inputs = self._constants, params, window.features, window.plans
            found, room = self._encode(*inputs, *span, found, room)
        counts = [int(feed.split.captions_per_video[step].sum()) for step in steps]
        rows = [block * shape[1] + np.arange(count) for block, count in enumerate(counts)]
        return found, self._pick(room, np.concatenate(rows).astype(np.int32))

    def _encode_step(
        self,
        constants: Constants,
        params: Any,
        features: Features,
        plans: Plan,
        number: Int[Array, ""],
    ) -> tuple[VideoEncoding, Float[Array, "Q H"], Array]:
        data = self._config.data
        sizes = data.max_frames, data.max_words
        batch = gather(features, plans, number, *sizes, self._mesh)
        model = models.bind(self._model, constants)
        queries = unit(models.encode_query(model, params, batch.captions))
        videos = models.encode_video(model, params, batch.videos)
        return videos, queries, batch.videos.mask

    def _encode_window(
        self,
        constants: Constants,
        params: Any,
        features: Features,
        plans: Plan,
        first: Int[Array, ""],
        count: Int[Array, ""],
        found: Corpus,
        room: Float[Array, "blocks Q H"],
    ) -> tuple[Corpus, Float[Array, "blocks Q H"]]:
        def body(number: Array, carry: tuple[Corpus, Array]) -> tuple[Corpus, Array]:
            found, room = carry
            videos, queries, mask = self._encode_step(constants, params, features, plans, number)
            found = corpus.write(found, first + number, videos, mask)
            return found, jnp.asarray(room).at[first + number].set(queries)

        found, room = jax.lax.fori_loop(0, count, body, (found, room))
        layout = corpus.shardings(self._mesh, found)
        return jax.lax.with_sharding_constraint(found, layout), devices.constrain(
            self._mesh, room, axis=1
        )

    def scores(self, params: Any, feed: Feed) -> Float[np.ndarray, "Q V"]:
        """Ranking scores of all captions of a split against all its videos (eq. 9).

        Args:
          params: the model's parameters.
          feed: of the split.

        Returns:
          float32 scores, higher is better.
        """
        stored, queries = self.encode(params, feed)
        found = np.empty((len(queries), len(feed.split)), np.float32)
        for start, block in self._blocks(np.asarray(queries)):
            rows = devices.host(self._score(stored, block))
            rows = rows[: len(found) - start, : found.shape[1]]
            found[start : start + len(rows)] = rows
        return found

    def evaluate(self, params: Any, feed: Feed, dtype: str | None = None) -> Result:
        """Metrics of a split, with a corpus of that dtype; its scores never leave the devices."""
        return self.rank(*self.encode(params, feed, dtype), feed.split)

    def rank(self, stored: Corpus, queries: Float[Array, "Q H"], split: Split) -> Result:
        """Metrics of a split whose videos and captions are encoded."""
        own = split.caption_video
        ranks = self._rank(stored, queries, own, self._config.eval.query_batch)
        return Result(retrieval.metrics(devices.host(ranks)), len(own), len(split))

    def result(self, scores: Float[np.ndarray, "Q V"], split: Split) -> Result:
        """Metrics of a score matrix of a split."""
        pairs = zip(self._blocks(scores), self._blocks(split.caption_video), strict=True)
        blocks = [_rank_rows(block, own) for (_, block), (_, own) in pairs]
        ranks = np.concatenate(jax.device_get(blocks))[: len(scores)]
        return Result(retrieval.metrics(ranks), len(scores), len(split))

    def _blocks(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Blocks of one size; zeros fill the last."""
        size = self._config.eval.query_batch
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            yield start, np.pad(block, ((0, size - len(block)),) + ((0, 0),) * (rows.ndim - 1))


_rank_rows = jax.jit(retrieval.ranks)


def _rank(
    stored: Corpus, queries: Float[Array, "Q H"], own: Int[Array, " Q"], size: int
) -> Int[Array, " Q"]:
    """Ranks of all queries, `size` of them at a time."""
    padding = -len(own) % size
    blocks = jnp.pad(queries, ((0, padding), (0, 0))).reshape(-1, size, queries.shape[-1])
    owners = jnp.pad(own, (0, padding)).reshape(-1, size)
    rank = lambda x: retrieval.ranks(corpus.scores(stored, x[0]), x[1])
    return jax.lax.map(rank, (blocks, owners)).reshape(-1)[: len(own)]


def _branch_weights(config: ConfigDict) -> tuple[float, float]:
    model = config.model
    if model.gaze and model.glance:
        return model.clip_weight, model.frame_weight
    return 1.0, 1.0  # of the one branch that there is


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
        options = (f"--config.{key}={value}" for key, value in differing.items())
        flags = " ".join(map(shlex.quote, options))
        raise checkpoint.CheckpointError(
            f"{path} is of another model: {what}; to evaluate it add {flags}"
        )


def evaluate_checkpoint(
    config: ConfigDict,
    path: Path,
    scores_file: Path | None,
    tell: Callable[[str], None],
    directory: Path | None = None,
    mesh: Mesh | None = None,
) -> Result:
    """Evaluates a checkpoint on the test split.

    Args:
      config: the configuration it was trained with.
      path: a run's directory or a converted checkpoint.
      scores_file: where to write the score matrix (`scores`, `queries`, `videos`), if anywhere.
      tell: takes one line about what was loaded.
      directory: where the result is to be written, if anywhere; not where a run on other data is.
      mesh: the devices; all there are by default.

    Returns:
      The metrics of the test split.

    Raises:
      ConfigError: when the model's options make no sense, or so many devices cannot share it.
      CheckpointError: when there is no checkpoint or it is of another shape.
      ReleasedDataError: when the data is missing or wrong.
      WorkdirError: when the directory is that of a run on other data.
      OSError: when the scores cannot be written.
    """
    with devices.first_alone("scores"):
        if scores_file is not None and devices.is_first():
            report.check_place(scores_file)  # now, and not when all is computed
    model = models.build(config)
    mesh = devices.mesh() if mesh is None else mesh
    models.check_devices(config, mesh.size)
    shapes = jax.eval_shape(lambda: train_state.init_params(model, config))
    like = devices.abstract(mesh, shapes)
    with contextlib.closing(checkpoint.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, config)
        params = models.project(saved.restore(like), config)
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    if devices.is_first():
        tell(f"checkpoint {path} ({described})")
    with devices.first_alone("data"):
        data = pipeline.open_data(config)
    if directory is not None:
        workdir.check_data(directory, data.fingerprint)
    split = data.test
    evaluator = Evaluator(model, config, mesh)
    with contextlib.closing(evaluator.feed(split)) as windows:
        if scores_file is None:
            return evaluator.evaluate(params, windows, config.eval.corpus)
        scores = evaluator.scores(params, windows)
    arrays = {"scores": scores, "queries": split.caption_ids(), "videos": split.video_ids}
    if devices.is_first():
        report.write_npz(scores_file, arrays)
    return evaluator.result(scores, split)
