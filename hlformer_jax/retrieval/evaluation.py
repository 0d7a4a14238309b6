"""Evaluation: encode a split once, score every caption against every video, rank.

Encodings and scores stay on the devices, which return one rank per caption. Captions are scored in
blocks, and no array of queries x videos x positions is stored.

    InCone    for a model with a hyperbolic lift: percentage of captions inside the entailment
              cone of their own video (HLFormer eq. 18-20)
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.data import transforms
from hlformer_jax.data.feed import Features, GatherIndices, VideoFeed, gather, in_order
from hlformer_jax.data.sources.released.layouts import keeps_last_row
from hlformer_jax.data.split import Split
from hlformer_jax.models import Model
from hlformer_jax.ops import cones
from hlformer_jax.ops.numerics import unit
from hlformer_jax.retrieval import corpus, moments, ranking, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.retrieval.segments import segments
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.typing import Array, Captions

CHUNK_BATCHES = 8
"""Batches of videos that are copied to the devices together if a split is streamed."""

PENALTIES = tuple(10.0**power for power in range(-4, 4))
"""Ridge penalties of the linear baseline to choose from, in mean variances of its inputs."""


class Queries(NamedTuple):
    """Encoded captions.

    Attributes:
      vectors: unit vectors.
      inside: True for a caption inside the entailment cone of its own video, see
        `losses.retrieval.partial_order`; None for a model without a hyperbolic lift.
    """

    vectors: Float[Array, "*blocks Q H"]
    inside: Bool[Array, "*blocks Q"] | None


@dataclasses.dataclass(frozen=True)
class SplitEncoder:
    """Encodes batches of a split; its fields are constants of the compiled programs."""

    max_frames: int
    max_words: int
    min_radius: float
    mesh: Mesh

    def encode_batch(
        self,
        model: Model,
        params: Any,
        features: Features,
        indices: GatherIndices,
        step: Int[Array, ""],
    ) -> tuple[Any, Queries, Array]:
        """Encode one batch of videos and their captions.

        Args:
          model: the model.
          params: parameters of the model.
          features: features of a chunk of the split's feed.
          indices: gather indices of the chunk.
          step: index of the batch in the chunk.

        Returns:
          The encoded videos, the encoded captions, and a mask that is True for real videos.
        """
        sizes = self.max_frames, self.max_words
        batch = gather(features, indices, step, *sizes, self.mesh)
        queries = models.encode_query(model, params, batch.captions)
        videos = models.encode_video(model, params, batch.videos)
        inside = None
        if model.module.has_lift:
            lifted = models.lift(model, params, videos, queries)
            apex = lifted.videos[batch.captions.video]
            energy = cones.energy(apex, lifted.captions, lifted.curvature, self.min_radius)
            inside = energy <= 0
        return videos, Queries(unit(queries), inside), batch.videos.mask

    def encode_chunk(
        self,
        model: Model,
        params: Any,
        features: Features,
        indices: GatherIndices,
        first: Int[Array, ""],
        count: Int[Array, ""],
        stored: Corpus,
        encoded: Queries,
    ) -> tuple[Corpus, Queries]:
        """Encode the batches of a chunk, and write them into the corpus and the encoded captions.

        Args:
          model: the model.
          params: parameters of the model.
          features: features of the chunk.
          indices: gather indices of the chunk.
          first: block of the first batch.
          count: number of batches.
          stored: the corpus.
          encoded: the encoded captions, in blocks.
        """

        def body(step: Array, carry: tuple[Corpus, Queries]) -> tuple[Corpus, Queries]:
            stored, encoded = carry
            videos, queries, mask = self.encode_batch(model, params, features, indices, step)
            stored = corpus.write(stored, first + step, videos, mask)
            return stored, jax.tree.map(
                lambda blocks, x: blocks.at[first + step].set(x), encoded, queries
            )

        stored, encoded = jax.lax.fori_loop(0, count, body, (stored, encoded))
        layout = corpus.shardings(self.mesh, stored)
        return jax.lax.with_sharding_constraint(stored, layout), devices.constrain(
            self.mesh, encoded, axis=1
        )


class Programs(NamedTuple):
    """Compiled functions of an evaluation, shared by all evaluators with the same constants."""

    encode_batch: Any
    encode_chunk: Any
    pick_rows: Any
    score: Any
    rank: Any
    locate: Any


@functools.lru_cache(maxsize=8)
def _programs(encoder: SplitEncoder, options: tuple[tuple[str, str | bool], ...]) -> Programs:
    """Return the programs for an encoder's constants and the compiler's options."""
    replicated = devices.replicated(encoder.mesh)
    compiled = functools.partial(jax.jit, compiler_options=dict(options) or None)
    return Programs(
        compiled(encoder.encode_batch),  # for eval_shape; the trace is cached
        compiled(encoder.encode_chunk, donate_argnums=(6, 7)),
        compiled(_pick_rows, out_shardings=replicated),
        compiled(corpus.scores, out_shardings=replicated),
        compiled(rank_queries, static_argnums=3, out_shardings=replicated),
        compiled(_position_cosines, static_argnums=3, out_shardings=replicated),
    )


class Evaluator:
    """Encodes and ranks splits with a model's parameters.

    Programs are compiled once for each set of shapes of a split's batches.
    """

    def __init__(self, model: Model, config: ConfigDict, mesh: Mesh) -> None:
        self.scorer = scoring.build_scorer(config, model)
        self._config, self._mesh, self._given = config, mesh, model
        data, radius = config.data, config.loss.min_radius
        encoder = SplitEncoder(data.max_frames, data.max_words, radius, mesh)
        self.encode_batch, self.encode_chunk = encoder.encode_batch, encoder.encode_chunk
        options = compiler.compiler_options(config) or {}
        self._programs = _programs(encoder, tuple(options.items()))

    @functools.cached_property
    def _model(self) -> Model:
        """The model on the devices.

        It is placed at first use, since a plan may be made for devices that are absent.
        """
        placed: Model = devices.replicate(self._mesh, self._given)
        return placed

    def feed(self, split: Split, resident: bool = False) -> VideoFeed:
        """Return a feed of a split in its order, for any number of evaluations.

        Args:
          split: the split.
          resident: whether the whole split stays on the devices.
        """
        # All blocks but the last are full, so that the column of a video is its index.
        size = devices.round_up(self._config.eval.video_batch, self._mesh.size)
        longest = len(split) if resident else CHUNK_BATCHES
        return VideoFeed(split, in_order(len(split), size, longest), self._mesh, size, resident)

    def encode(
        self, params: Any, feed: VideoFeed, dtype: str | None = None
    ) -> tuple[Corpus, Queries]:
        """Encode the videos and captions of a split.

        Args:
          params: parameters of the model.
          feed: the feed of the split.
          dtype: dtype of the corpus; `config.eval.corpus` by default.

        Returns:
          A corpus whose first videos are the split's videos, and the encoded captions.
        """
        steps = [step for group in feed.groups for step in group.steps]
        videos, queries, _ = self._programs.encode_batch.eval_shape(
            self._model, params, *feed.shapes(), np.int32(0)
        )
        dtype = dtype or self._config.eval.corpus
        stored = corpus.empty(self.scorer, videos, len(steps), dtype, self._mesh)
        sharding = devices.sharded(self._mesh, axis=1)
        encoded = jax.tree.map(
            lambda x: jnp.zeros((len(steps), *x.shape), x.dtype, device=sharding), queries
        )
        for chunk in feed.counted_chunks("video"):
            span = chunk.first, chunk.num_steps
            first, count = (devices.replicate(self._mesh, np.int32(x)) for x in span)
            inputs = self._model, params, chunk.features, chunk.indices
            stored, encoded = self._programs.encode_chunk(*inputs, first, count, stored, encoded)
            jax.block_until_ready(encoded)  # the feed makes the next chunk meanwhile
        counts = [int(feed.split.captions_per_video[step].sum()) for step in steps]
        size = len(queries.vectors)
        rows = [block * size + np.arange(count) for block, count in enumerate(counts)]
        return stored, self._programs.pick_rows(encoded, np.concatenate(rows).astype(np.int32))

    def score(self, stored: Corpus, queries: Queries, split: Split) -> Float[np.ndarray, "Q V"]:
        """Return float32 scores of encoded captions against all videos; higher is better.

        Args:
          stored: the corpus from `encode`.
          queries: the captions from `encode`.
          split: the split.

        Raises:
          ScoreError: if a score is not finite.
        """
        vectors, size = np.asarray(queries.vectors), self._config.eval.query_batch
        scores = np.empty((len(vectors), len(split)), np.float32)
        for start in range(0, len(vectors), size):
            block = vectors[start : start + size]
            padded = np.pad(block, ((0, size - len(block)), (0, 0)))
            rows = devices.to_host(self._programs.score(stored, padded))
            scores[start : start + size] = rows[: len(block), : len(split)]
        ranking.check_finite(np.all(np.isfinite(scores), axis=-1))
        return scores

    def positions(self, stored: Corpus, split: Split) -> dict[str, Float[np.ndarray, "V L H"]]:
        """Return the unit vectors of all positions of a split's videos, by branch.

        Args:
          stored: a float32 corpus from `encode`.
          split: the split whose videos the corpus holds.
        """
        blocks = {name: devices.to_host(branch.values) for name, branch in stored.stored.items()}
        return {name: x.reshape(-1, *x.shape[2:])[: len(split)] for name, x in blocks.items()}

    def evaluate(self, params: Any, feed: VideoFeed, dtype: str | None = None) -> Result:
        """Return the metrics of a split; the scores never leave the devices.

        Args:
          params: parameters of the model.
          feed: the feed of the split.
          dtype: dtype of the corpus; `config.eval.corpus` by default.
        """
        return self.rank(*self.encode(params, feed, dtype), feed.split)

    def rank(self, stored: Corpus, queries: Queries, split: Split) -> Result:
        """Return the metrics of a split whose videos and captions are encoded.

        Raises:
          ScoreError: if a score is not finite.
        """
        vectors, size = queries.vectors, self._config.eval.query_batch
        ranks = devices.to_host(self._programs.rank(stored, vectors, split.caption_video, size))
        ranking.check_finite(ranks > 0)
        more: dict[str, float] = {}
        if queries.inside is not None:
            more["InCone"] = 100 * float(np.mean(devices.to_host(queries.inside)))
        arrays: dict[str, np.ndarray] = {}
        if split.spans:
            rows = self.scores_over_time(stored, vectors, split.caption_video, split)
            arrays["overlaps"] = moments.overlaps(rows, split.caption_spans())
            more |= moments.metrics(arrays["overlaps"])
        return self._result(ranks, split, more, arrays)

    def result(self, scores: Float[np.ndarray, "Q V"], split: Split) -> Result:
        """Return the metrics of a split's score matrix that depend only on ranks.

        Raises:
          ScoreError: if a score is not finite.
        """
        ranking.check_finite(np.all(np.isfinite(scores), axis=-1))
        ranks = np.asarray(ranking.ranks(scores, split.caption_video))
        return self._result(ranks, split, {}, {})

    def _result(
        self,
        ranks: Int[np.ndarray, " Q"],
        split: Split,
        more: Mapping[str, float],
        arrays: Mapping[str, np.ndarray],
    ) -> Result:
        """Return the result of ranks, also by the ratio of moment to video if times are known."""
        metrics = {**ranking.metrics(ranks), **more}
        if split.spans:
            metrics |= ranking.metrics_by_ratio(ranks, moments.ratios(split.caption_spans()))
        per_query = {"ranks": ranks, "videos": split.caption_video, **arrays}
        return Result(metrics, len(ranks), len(split), per_query)

    def scores_over_time(
        self,
        stored: Corpus,
        queries: Float[Array, "Q H"],
        videos: Int[np.ndarray, " Q"],
        split: Split,
    ) -> list[Float[np.ndarray, " F"]]:
        """Return the scores of each query over the frames of one video.

        Args:
          stored: the corpus.
          queries: encoded queries.
          videos: for each query, the index of the video.
          split: the split of the videos.

        Returns:
          For each query a score of each of the F frames that the video has in its source.
        """
        located = self._programs.locate(stored, queries, videos, self._config.eval.query_batch)
        cosines = {name: devices.to_host(rows) for name, rows in located.items()}
        data, scores = self._config.data, []
        # Captions of a video follow one another, and are scored together.
        for captions in np.split(np.arange(len(videos)), np.flatnonzero(np.diff(videos)) + 1):
            frames = int(split.source_frames_per_video[videos[captions[0]]])
            rows = {name: x[captions] for name, x in cosines.items()}
            scores += list(self.scorer.over_time(rows, frames, data.max_clips, data.max_frames))
        return scores


def encode_words(
    model: Model, params: Any, words: Sequence[Float[np.ndarray, "_ E"]], config: ConfigDict
) -> Float[np.ndarray, "Q H"]:
    """Return the unit vectors, float32, of sentences that are given by features of their words.

    Args:
      model: a model of `models.build`.
      params: parameters of the model.
      words: features of the words of each sentence; at most `data.max_words` are read.
      config: the whole configuration.
    """
    data, keeps_last = config.data, keeps_last_row(config)
    cut = [transforms.cut_words(sentence, data.max_words, keeps_last) for sentence in words]
    padded, mask = transforms.pad(cut, (len(words), data.max_words, data.text_dim), data.dtype)
    captions = Captions(padded, mask, np.zeros(len(words), np.int32), np.ones(len(words), bool))
    encoded = np.asarray(_encode_words(model, params, captions), np.float64)
    return transforms.unit(encoded).astype(np.float32)


@jax.jit
def _encode_words(model: Model, params: Any, captions: Captions) -> Array:
    return jnp.asarray(models.encode_query(model, params, captions))


def _pick_rows(rows: Any, index: Int[Array, " Q"]) -> Any:
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[index], rows)


def rank_queries(
    stored: Corpus, queries: Float[Array, "Q H"], videos: Int[Array, " Q"], size: int
) -> Int[Array, " Q"]:
    """Return the rank of each query's own video; 0 for a query with a score that is not finite.

    Args:
      stored: the corpus.
      queries: encoded queries.
      videos: index of each query's own video.
      size: number of queries to score at a time.
    """
    is_padding = ~jnp.asarray(stored.mask).reshape(1, -1)

    def rank(x: tuple[Array, Array]) -> Array:
        scores = corpus.scores(stored, x[0])
        is_finite = jnp.all(jnp.isfinite(scores) | is_padding, axis=-1)
        return jnp.where(is_finite, ranking.ranks(scores, x[1]), 0)

    return jax.lax.map(rank, _in_blocks(queries, videos, size)).reshape(-1)[: len(videos)]


def _position_cosines(
    stored: Corpus, queries: Float[Array, "Q H"], videos: Int[Array, " Q"], size: int
) -> dict[str, Float[Array, "Q _"]]:
    """Return cosines of each query and the positions of its video, `size` queries at a time."""

    def block(x: tuple[Array, Array]) -> dict[str, Array]:
        query, video = x
        rows = corpus.rows(stored, video)
        return stored.scorer.position_cosines(query, rows)

    cosines = jax.lax.map(block, _in_blocks(queries, videos, size))
    return {name: rows.reshape(-1, rows.shape[-1])[: len(videos)] for name, rows in cosines.items()}


def _in_blocks(
    queries: Float[Array, "Q H"], videos: Int[Array, " Q"], size: int
) -> tuple[Float[Array, "blocks size H"], Int[Array, "blocks size"]]:
    """Cut queries and their own videos into blocks of one size; zeros fill the last."""
    padding = -len(videos) % size
    blocks = jnp.pad(queries, ((0, padding), (0, 0))).reshape(-1, size, queries.shape[-1])
    return blocks, jnp.pad(videos, (0, padding)).reshape(-1, size)


def mean_pooled_scores(train: Split, val: Split, test: Split) -> Float[np.ndarray, "Q V"]:
    """Return the scores of the test split by a linear baseline.

    Ridge regression from the mean of a caption's words to the mean of its video's frames. It uses
    the features of a model without their positions in time, so the difference to a model shows the
    value of finding the moment. The penalty with the best mean rank on the validation split is
    used.

    Args:
      train: the split to fit.
      val: the split to choose the penalty on.
      test: the split to score.

    Returns:
      Cosines of captions and videos.
    """
    words, frames = _pooled(train)
    targets = frames[train.caption_video]
    word_mean, frame_mean = words.mean(axis=0), frames.mean(axis=0)
    x, y = words - word_mean, targets - frame_mean
    gram, cross = x.T @ x, x.T @ y
    scale = np.trace(gram) / len(gram)

    def scores(split: Split, penalty: float) -> Float[np.ndarray, "Q V"]:
        weights = np.linalg.solve(gram + penalty * scale * np.eye(len(gram)), cross)
        words, frames = _pooled(split)
        return (
            transforms.unit((words - word_mean) @ weights) @ transforms.unit(frames - frame_mean).T
        )

    def mean_rank(penalty: float) -> float:
        similarity = scores(val, penalty)
        relevant = similarity[np.arange(len(similarity)), val.caption_video]
        return float(np.mean(np.sum(similarity > relevant[:, None], axis=1)))

    return scores(test, min(PENALTIES, key=mean_rank))


def zero_shot_scores(test: Split) -> dict[str, Float[np.ndarray, "Q V"]]:
    """Return scores of the test split by untrained CLIP, by the name of the method.

    The features of words and frames must lie in one space, as CLIP's do. The vector of a caption is
    the vector of its last token, the end of the text. The score of a video is the cosine of the
    caption with its best frame, with the mean of its frames (CLIP4Clip's meanP), or with its best
    interval (TF-PRVR; only with PyWavelets, from the extra `search`).
    """
    frames = [transforms.unit(test[k].frames.astype(np.float32)) for k in range(len(test))]
    words = [rows[-1].astype(np.float32) for k in range(len(test)) for rows in test[k].words]
    captions = transforms.unit(np.stack(words))
    means = transforms.unit(np.stack([rows.mean(axis=0) for rows in frames]))
    best = np.stack([(captions @ rows.T).max(axis=-1) for rows in frames], axis=-1)
    scores = {"zero-shot, best frame": best, "zero-shot, mean of frames": captions @ means.T}
    if importlib.util.find_spec("pywt") is not None:
        intervals = [segments(rows, np.arange(float(len(rows))))[1] for rows in frames]
        best = np.stack([(captions @ rows.T).max(axis=-1) for rows in intervals], axis=-1)
        scores["zero-shot, best interval"] = best
    return scores


def _pooled(split: Split) -> tuple[Float[np.ndarray, "Q E"], Float[np.ndarray, "V D"]]:
    words: list[np.ndarray] = []
    frames: list[np.ndarray] = []
    for index in range(len(split)):
        example = split[index]
        words.extend(caption.mean(axis=0, dtype=np.float64) for caption in example.words)
        frames.append(example.frames.mean(axis=0, dtype=np.float64))
    return np.stack(words), np.stack(frames)
