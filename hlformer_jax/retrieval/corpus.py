"""A corpus to search: the vectors that a scorer stores of every video, on the devices.

Videos are stored in blocks, [blocks, B, ...], with the axis B sharded over the devices. Each device
scores its part of every block. No device ever holds the whole corpus, or an array of queries x
videos x positions.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.retrieval.scoring import DTYPES, MaximumSimilarity, build_scorer
from hlformer_jax.runtime import devices
from hlformer_jax.typing import Array

SIMILARITIES_AT_ONCE = 2**26
"""Largest number of similarities of queries and positions in memory at once, on each device."""

SEARCHED_VIDEOS = 2_500
"""Number of videos in the corpus on which queries are timed, as in GMMFormer v2's Table 2."""

BLOCK = 256
"""Videos that are scored together by default."""

COORDINATES_AT_ONCE = 2**22
"""Largest number of coordinates of result videos in memory at once, to locate positions."""


class Corpus(NamedTuple):
    """Videos that can be searched.

    Attributes:
      scorer: the scorer, see `scoring`.
      stored: arrays [blocks, B, ...] that the scorer's `store` returns.
      mask: True for real videos.
    """

    scorer: Any
    stored: Any
    mask: Bool[Array, "blocks B"]


class SearchResult(NamedTuple):
    """The k best videos of each query, best first.

    Ranks beyond the last video with a finite score have index and position -1 and score -inf.

    Attributes:
      videos: indices of the videos.
      scores: their scores.
      positions: index of the best position of each video, by the name of the branch.
    """

    videos: Int[Array, "Q k"]
    scores: Float[Array, "Q k"]
    positions: dict[str, Int[Array, "Q k"]]


def empty(scorer: Any, videos: Any, num_blocks: int, dtype: DTypeLike, mesh: Mesh) -> Corpus:
    """Return a corpus of zeros, to be filled by `write`.

    Args:
      scorer: the scorer of the videos.
      videos: the shapes of an encoded block.
      num_blocks: number of blocks.
      dtype: "float32", "bfloat16" or "int8".
      mesh: the devices.
    """
    sharding = devices.sharded(mesh, axis=1)

    def zeros(x: Any) -> Array:
        return jnp.zeros((num_blocks, *x.shape), x.dtype, device=sharding)

    stored = jax.eval_shape(lambda videos: scorer.store(videos, dtype), videos)
    size = jax.tree.leaves(stored)[0].shape[0]
    mask = jnp.zeros((num_blocks, size), bool, device=sharding)
    return Corpus(devices.replicate(mesh, scorer), jax.tree.map(zeros, stored), mask)


def shardings(mesh: Mesh, corpus: Corpus) -> Corpus:
    """Return the shardings of the arrays of a corpus, in the place of the arrays."""
    block, replicated = devices.sharded(mesh, axis=1), devices.replicated(mesh)
    return Corpus(
        jax.tree.map(lambda x: replicated, corpus.scorer),
        jax.tree.map(lambda x: block, corpus.stored),
        block,  # type: ignore[arg-type]
    )


def write(corpus: Corpus, block: Array, videos: Any, mask: Bool[Array, " B"]) -> Corpus:
    """Return the corpus with encoded videos in one block; for use inside of jit.

    Args:
      corpus: the corpus.
      block: index of the block.
      videos: B encoded videos.
      mask: True for real videos.
    """
    dtype = jax.tree.leaves(corpus.stored)[0].dtype
    stored = corpus.scorer.store(videos, dtype)
    return corpus._replace(
        stored=jax.tree.map(lambda blocks, x: blocks.at[block].set(x), corpus.stored, stored),
        mask=jnp.asarray(corpus.mask).at[block].set(mask),
    )


def build(
    videos: Any,
    scorer: Any = None,
    dtype: DTypeLike = "bfloat16",
    block: int = BLOCK,
    mesh: Mesh | None = None,
) -> Corpus:
    """Build a corpus of encoded videos.

    Args:
      videos: encoded videos, arrays [V, ...] of any norm; padded frames are zero.
      scorer: a scorer of these videos; by default, for a `VideoEncoding`, the sum of 0.7 times the
        best clip and 0.3 times the best frame, as released.
      dtype: "float32", "bfloat16" or "int8".
      block: number of videos that are scored together.
      mesh: the devices; by default all devices.

    Returns:
      The corpus, sharded over the devices.

    Raises:
      ValueError: for another dtype, or if there is no video.
    """
    if jnp.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    count = next((len(encoded) for encoded in jax.tree.leaves(videos)), 0)
    if count == 0:
        raise ValueError("a corpus needs at least one encoded video")
    if scorer is None:
        scorer = MaximumSimilarity(np.asarray([0.7, 0.3], np.float32))
    mesh = devices.mesh() if mesh is None else mesh
    size = devices.round_up(min(block, count), mesh.size)
    num_blocks = -(-count // size)

    def cut(encoded: Array) -> Array:
        numpy = np if isinstance(encoded, np.ndarray) else jnp
        rest = ((0, num_blocks * size - count), *[(0, 0)] * (encoded.ndim - 1))
        return numpy.pad(encoded, rest).reshape(num_blocks, size, *encoded.shape[1:])

    def make(videos: Any, scorer: Any) -> Corpus:
        stored = jax.vmap(lambda block: scorer.store(block, dtype))(videos)
        mask = jnp.arange(num_blocks * size).reshape(num_blocks, size) < count
        return Corpus(scorer, stored, mask)

    # Each device receives only its own videos, since all videos may not fit on one device.
    laid = devices.place(jax.tree.map(cut, videos), devices.sharded(mesh, axis=1))
    layout = shardings(mesh, jax.eval_shape(make, laid, scorer))
    return jax.jit(make, out_shardings=layout)(laid, scorer)


def encoded_shapes(config: ConfigDict, videos: int) -> Any:
    """Return the shapes of a number of encoded videos."""

    def encode() -> Any:
        model = models.build(config)
        params = models.init_params(model, config)
        return models.encode_video(model, params, models.zero_batch(config, videos).videos)

    return jax.eval_shape(encode)


def random(config: ConfigDict, videos: int, dtype: str) -> Corpus:
    """Return a corpus of random vectors in the shapes of a model's encoding, to measure speed.

    Args:
      config: the configuration of the model.
      videos: number of videos.
      dtype: "float32", "bfloat16" or "int8".
    """
    mesh, model = devices.mesh(), models.build(config)
    size = devices.round_up(min(BLOCK, videos), mesh.size)
    shapes, treedef = jax.tree.flatten(encoded_shapes(config, size))
    scorer, blocks = build_scorer(config, model), -(-videos // size)
    stored = empty(scorer, jax.tree.unflatten(treedef, shapes), blocks, dtype, mesh)

    # Filled block by block, as in an evaluation, since all blocks in float32 may not fit in memory.
    @functools.partial(jax.jit, donate_argnums=0, out_shardings=shardings(mesh, stored))
    def fill(stored: Corpus, block: Array) -> Corpus:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), block), len(shapes))
        random = [jax.random.normal(key, x.shape) for key, x in zip(keys, shapes, strict=True)]
        real = block * size + jnp.arange(size) < videos
        return write(stored, block, jax.tree.unflatten(treedef, random), real)

    for block in range(blocks):
        stored = fill(stored, devices.replicate(mesh, np.int32(block)))
    return stored


def scores(corpus: Corpus, queries: Float[Array, "Q H"]) -> Float[Array, "Q V"]:
    """Return float32 scores of all videos, -inf for padded videos; for use inside of jit.

    Args:
      corpus: the corpus, whose number of columns includes the padding of the last block.
      queries: encoded queries, of any norm.
    """
    num_blocks, size = corpus.mask.shape
    block = jax.eval_shape(lambda stored: jax.tree.map(lambda x: x[0], stored), corpus.stored)
    similarities = corpus.scorer.similarities_per_video(block)
    at_once = max(SIMILARITIES_AT_ONCE // max(len(queries) * size * similarities, 1), 1)
    at_once = min(at_once, num_blocks)

    def score(stored: Any, mask: Array) -> Float[Array, "Q B"]:
        scored = corpus.scorer.scores(queries, stored)
        return jnp.where(mask[None], scored, -jnp.inf)

    def score_group(group: Array, scored: Float[Array, "blocks Q B"]) -> Float[Array, "blocks Q B"]:
        # The last group begins so early that it has the same size as the others. `lax.map` splits
        # off a remainder instead, for which XLA would copy the whole corpus.
        first = jnp.minimum(group * at_once, num_blocks - at_once)
        stored, mask = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, first, at_once), (corpus.stored, corpus.mask)
        )
        part = jax.vmap(score)(stored, mask)
        return jax.lax.dynamic_update_slice_in_dim(scored, part, first, axis=0)

    scored = jnp.zeros((num_blocks, len(queries), size), jnp.float32)
    scored = jax.lax.fori_loop(0, -(-num_blocks // at_once), score_group, scored)
    return jnp.moveaxis(scored, 0, 1).reshape(len(queries), -1)


def rows(corpus: Corpus, videos: Int[Array, " n"]) -> Any:
    """Return the stored arrays [n, ...] of videos, by their index; for use inside of jit."""
    _, size = corpus.mask.shape
    return jax.tree.map(lambda x: x[videos // size, videos % size], corpus.stored)


def search(corpus: Corpus, queries: Float[Array, "Q H"], k: int) -> SearchResult:
    """Return the k best videos of each query, and the best position of each branch.

    Args:
      corpus: the corpus.
      queries: encoded queries, of any norm.
      k: number of results, at least 1.

    Returns:
      The results, best first, padded to k if the corpus has fewer videos.

    Raises:
      ValueError: for a k below 1, or queries of another width.
    """
    width = corpus.scorer.width(corpus.stored)
    if k < 1 or queries.ndim != 2 or queries.shape[-1] != width:
        raise ValueError(
            f"search needs k >= 1 and queries of shape [Q, {width}], got k = {k} and queries"
            f" of shape {tuple(queries.shape)}"
        )
    return _search(corpus, queries, k)


def _search_traced(corpus: Corpus, queries: Float[Array, "Q H"], k: int) -> SearchResult:
    all_scores = scores(corpus, queries)
    all_scores = jnp.where(jnp.isnan(all_scores), -jnp.inf, all_scores)  # `top_k` puts NaN first
    available = min(k, all_scores.shape[-1])
    best, videos = jax.lax.top_k(all_scores, available)
    real = jnp.isfinite(best)

    def locate(videos_of_rank: Int[Array, " Q"]) -> dict[str, Int[Array, " Q"]]:
        return corpus.scorer.locate(queries, rows(corpus, videos_of_rank))

    # Several ranks are located at once: with few queries, a kernel for each of the k ranks would
    # take longer to start than to run.
    per_video = sum(x.size for x in jax.tree.leaves(corpus.stored)) // corpus.mask.size
    at_once = min(max(COORDINATES_AT_ONCE // max(len(queries) * per_video, 1), 1), available)
    positions = jax.lax.map(locate, videos.T, batch_size=at_once)
    rest = ((0, 0), (0, k - available))

    def pad(x: Array, value: Any) -> Array:
        return jnp.pad(jnp.where(real, x, value), rest, constant_values=value)

    return SearchResult(
        pad(videos.astype(jnp.int32), -1),
        pad(best, -jnp.inf),
        {name: pad(position.T, -1) for name, position in positions.items()},
    )


_search = jax.jit(_search_traced, static_argnums=2)
