"""Evaluation: encode a split once, score every caption against every video, rank.

Encoding, scores and ranks stay on the devices: what comes back is one rank a caption. Captions are
scored in blocks, and no queries x videos x positions array is kept.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.data.feed import Feed
from hlformer_jax.data.packed import Features, Plan, gather
from hlformer_jax.data.schedule import in_order
from hlformer_jax.data.split import Split
from hlformer_jax.models import TwoBranch
from hlformer_jax.models.two_branch import Constants, VideoEncoding
from hlformer_jax.ops.numerics import unit
from hlformer_jax.parallel import devices
from hlformer_jax.retrieval import corpus, ranking
from hlformer_jax.retrieval.corpus import Corpus
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
        return Result(ranking.metrics(devices.host(ranks)), len(own), len(split))

    def result(self, scores: Float[np.ndarray, "Q V"], split: Split) -> Result:
        """Metrics of a score matrix of a split."""
        pairs = zip(self._blocks(scores), self._blocks(split.caption_video), strict=True)
        blocks = [_rank_rows(block, own) for (_, block), (_, own) in pairs]
        ranks = np.concatenate(jax.device_get(blocks))[: len(scores)]
        return Result(ranking.metrics(ranks), len(scores), len(split))

    def _blocks(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Blocks of one size; zeros fill the last."""
        size = self._config.eval.query_batch
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            yield start, np.pad(block, ((0, size - len(block)),) + ((0, 0),) * (rows.ndim - 1))


_rank_rows = jax.jit(ranking.ranks)


def _rank(
    stored: Corpus, queries: Float[Array, "Q H"], own: Int[Array, " Q"], size: int
) -> Int[Array, " Q"]:
    """Ranks of all queries, `size` of them at a time."""
    padding = -len(own) % size
    blocks = jnp.pad(queries, ((0, padding), (0, 0))).reshape(-1, size, queries.shape[-1])
    owners = jnp.pad(own, (0, padding)).reshape(-1, size)
    rank = lambda x: ranking.ranks(corpus.scores(stored, x[0]), x[1])
    return jax.lax.map(rank, (blocks, owners)).reshape(-1)[: len(own)]


def _branch_weights(config: ConfigDict) -> tuple[float, float]:
    model = config.model
    if model.gaze and model.glance:
        return model.clip_weight, model.frame_weight
    return 1.0, 1.0  # of the one branch that there is
