"""A corpus to search: unit vectors of every position of every video, on the devices.

Videos stand in blocks, [blocks, B, L, H], of which the axis B is sharded: each device scores its
part of every block, and no device ever holds all of the corpus, nor queries x videos x positions.
Vectors are float32, bfloat16, or int8 with one scale per vector.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.ops.numerics import unit
from hlformer_jax.parallel import devices
from hlformer_jax.typing import Array

DTYPES = ("float32", "bfloat16", "int8")

SCORES_AT_ONCE = 2**24
"""Similarities of single positions that may lie in memory at once, on each device."""

COORDINATES_AT_ONCE = 2**22
"""Coordinates of found videos that may lie in memory at once, while their positions are found."""


class Vectors(NamedTuple):
    """Unit vectors of one branch.

    Attributes:
      values: [blocks, B, L, H].
      scale: [blocks, B, L], what int8 values are multiplied by; None for other dtypes.
    """

    values: Array
    scale: Array | None


class Corpus(NamedTuple):
    """Encoded videos; a branch that the model does not have is None.

    Attributes:
      clips: unit vectors of the clips; zero vectors stay zero.
      frames: unit vectors of the frames, zero where there is none.
      weights: of both branches in the score, float32 [2].
      mask: True for real videos.
      guided: unit vectors that stand for the frames, one for each clip; the frame score is that of
        the best clip's (MS-SL). None for models that score frames.
    """

    clips: Vectors | None
    frames: Vectors | None
    weights: Float[Array, " 2"]
    mask: Bool[Array, "blocks B"]
    guided: Vectors | None = None

    def branches(self) -> tuple[Vectors | None, Vectors | None, Vectors | None]:
        """Clips, frames and guided vectors."""
        return self.clips, self.frames, self.guided


class Found(NamedTuple):
    """Results of a search, best first.

    Attributes:
      videos: indices in the corpus; -1 beyond the last video.
      scores: their scores, -inf beyond the last.
      clips: position of the best clip of each, -1 without the branch.
      frames: position of its best frame, -1 without the branch.
    """

    videos: Int[Array, "Q k"]
    scores: Float[Array, "Q k"]
    clips: Int[Array, "Q k"]
    frames: Int[Array, "Q k"]


def store(vectors: Float[Array, "*batch H"], dtype: DTypeLike) -> Vectors:
    """Unit vectors in the dtype of a corpus.

    int8 rounds each coordinate to a 127th of its vector's largest: an error of at most half of
    that, 0.4 % of the largest coordinate.
    """
    units = unit(vectors)
    if jnp.dtype(dtype) != jnp.int8:
        return Vectors(units.astype(dtype), None)
    largest = jnp.max(jnp.abs(units), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0) / 127
    return Vectors(jnp.round(units / scale).astype(jnp.int8), scale[..., 0])


def empty(
    like: VideoEncoding, blocks: int, weights: tuple[float, float], dtype: DTypeLike, mesh: Mesh
) -> Corpus:
    """A corpus without videos, sharded, to be filled block by block.

    Args:
      like: shapes of one encoded block: [B, C, H] and [B, F, H].
      blocks: number of blocks.
      weights: of the clip and the frame branch.
      dtype: one of `DTYPES`.
      mesh: the devices; B is a multiple of their number.

    Returns:
      Zeros.
    """

    def room(encoded: Array | None) -> Vectors | None:
        if encoded is None:
            return None
        shape = (blocks, *encoded.shape)
        scale = zeros(shape[:-1], np.float32) if jnp.dtype(dtype) == jnp.int8 else None
        return Vectors(zeros(shape, dtype), scale)

    zeros = lambda shape, dtype: jnp.zeros(shape, dtype, device=devices.sharded(mesh, axis=1))
    size = next(encoded.shape[0] for encoded in like if encoded is not None)
    return Corpus(
        room(like.clips),
        room(like.frames),
        devices.replicate(mesh, np.asarray(weights, np.float32)),
        zeros((blocks, size), bool),
        room(like.guided),
    )


def shardings(mesh: Mesh, corpus: Corpus) -> Corpus:
    """How the arrays of a corpus lie on the devices, in its own form."""
    block, whole = devices.sharded(mesh, axis=1), devices.replicated(mesh)
    return jax.tree.map(lambda x: block, corpus)._replace(weights=whole)


def write(corpus: Corpus, block: Array, videos: VideoEncoding, mask: Bool[Array, " B"]) -> Corpus:
    """The corpus with one block filled by encoded videos (inside of jit)."""

    def put(vectors: Vectors | None, encoded: Array | None) -> Vectors | None:
        if vectors is None or encoded is None:
            return None
        stored = store(encoded, vectors.values.dtype)
        return jax.tree.map(lambda room, x: room.at[block].set(x), vectors, stored)

    return corpus._replace(
        clips=put(corpus.clips, videos.clips),
        frames=put(corpus.frames, videos.frames),
        mask=jnp.asarray(corpus.mask).at[block].set(mask),
        guided=put(corpus.guided, videos.guided),
    )


def build(
    videos: VideoEncoding,
    weights: tuple[float, float] = (0.7, 0.3),
    dtype: DTypeLike = "bfloat16",
    block: int = 256,
    mesh: Mesh | None = None,
) -> Corpus:
    """A corpus of encoded videos.

    Args:
      videos: [V, C, H] and [V, F, H], of any norm; padded frames are zero.
      weights: of the clip and the frame branch in the score.
      dtype: "float32", "bfloat16" or "int8".
      block: videos that are scored together.
      mesh: the devices; all there are by default.

    Returns:
      The corpus, sharded over the devices.

    Raises:
      ValueError: for another dtype, or when there is no video.
    """
    if jnp.dtype(dtype).name not in DTYPES:
        raise ValueError(f"a corpus of dtype {dtype} is unknown: use {', '.join(DTYPES)}")
    count = next((len(encoded) for encoded in videos if encoded is not None), 0)
    if count == 0:
        raise ValueError("a corpus needs at least one encoded video")
    mesh = devices.mesh() if mesh is None else mesh
    size = devices.round_up(min(block, count), mesh.size)
    blocks = -(-count // size)

    def cut(encoded: Array) -> Array:
        numpy = np if isinstance(encoded, np.ndarray) else jnp
        padded = numpy.pad(encoded, ((0, blocks * size - count), (0, 0), (0, 0)))
        return padded.reshape(blocks, size, *encoded.shape[1:])

    def make(videos: VideoEncoding) -> Corpus:
        stored = [None if encoded is None else store(encoded, dtype) for encoded in videos]
        mask = jnp.arange(blocks * size).reshape(blocks, size) < count
        return Corpus(stored[0], stored[1], jnp.asarray(weights), mask, stored[2])

    # Each device gets its own videos alone: all of them may be more than it has room for.
    laid = devices.place(jax.tree.map(cut, videos), devices.sharded(mesh, axis=1))
    return jax.jit(make, out_shardings=shardings(mesh, jax.eval_shape(make, laid)))(laid)


def scores(corpus: Corpus, queries: Float[Array, "Q H"]) -> Float[Array, "Q V"]:
    """Ranking scores of queries against all videos; -inf for padding (inside of jit).

    Args:
      corpus: encoded videos.
      queries: sentence embeddings of any norm.

    Returns:
      float32 scores; V counts the padding of the last block.

    References:
      HLFormer eq. 8, 9.
    """
    blocks, size = corpus.mask.shape
    positions = sum(x.values.shape[2] for x in corpus.branches() if x is not None)
    at_once = max(SCORES_AT_ONCE // max(len(queries) * size * positions, 1), 1)
    dtype = next(x.values.dtype for x in corpus.branches() if x is not None)
    query = store(queries, dtype)
    clip_weight, frame_weight = corpus.weights

    def score(part: Corpus) -> Float[Array, "Q B"]:
        found = jnp.zeros((len(queries), size), jnp.float32)
        if part.clips is not None:
            clips = _similarity(query, part.clips)
            found = found + clip_weight * jnp.max(clips, axis=-1)
            if part.guided is not None:
                best = jnp.argmax(clips, axis=-1)[..., None]
                guided = jnp.take_along_axis(_similarity(query, part.guided), best, axis=-1)
                found = found + frame_weight * guided[..., 0]
        if part.frames is not None:
            found = found + frame_weight * jnp.max(_similarity(query, part.frames), axis=-1)
        return jnp.where(part.mask[None], found, -jnp.inf)

    parts = corpus._replace(weights=jnp.zeros(blocks))
    found = jax.lax.map(score, parts, batch_size=min(at_once, blocks))
    return jnp.moveaxis(found, 0, 1).reshape(len(queries), -1)


def _similarity(query: Vectors, vectors: Vectors) -> Float[Array, "Q B L"]:
    """Inner products, accumulated in float32, or in int32 for int8."""
    wide = jnp.int32 if vectors.scale is not None else jnp.float32
    exact = jax.lax.Precision.HIGHEST  # of float32 vectors; a GPU may round them to fewer bits
    if len(query.values) == 1:  # a matrix by a vector, for which XLA has a better program on CPUs
        rows = vectors.values.reshape(-1, vectors.values.shape[-1])
        products = jnp.dot(rows, query.values[0], precision=exact, preferred_element_type=wide)
        products = products.reshape(1, *vectors.values.shape[:-1])
    else:
        products = jnp.einsum(
            "qh,blh->qbl",
            query.values,
            vectors.values,
            precision=exact,
            preferred_element_type=wide,
        )
    if vectors.scale is None or query.scale is None:
        return products
    return products.astype(jnp.float32) * vectors.scale[None] * query.scale[:, None, None]


def search(corpus: Corpus, queries: Float[Array, "Q H"], k: int) -> Found:
    """The k best videos of each query, with the positions that made their scores.

    Args:
      corpus: encoded videos.
      queries: sentence embeddings of any norm.
      k: how many, at least 1.

    Returns:
      Videos, scores and positions, best first.

    Raises:
      ValueError: when k is below 1, or a query has another width than the corpus.
    """
    width = next(x.values.shape[-1] for x in corpus.branches() if x is not None)
    if k < 1 or queries.ndim != 2 or queries.shape[-1] != width:
        raise ValueError(
            f"search wants k >= 1 and queries of shape [Q, {width}], not k = {k} and"
            f" {tuple(queries.shape)}"
        )
    return _search(corpus, queries, k)


def _search_traced(corpus: Corpus, queries: Float[Array, "Q H"], k: int) -> Found:
    found = scores(corpus, queries)
    _, size = corpus.mask.shape
    among = min(k, found.shape[-1])
    best, videos = jax.lax.top_k(found, among)
    real = jnp.isfinite(best)

    def position(vectors: Vectors | None) -> Int[Array, "Q k"]:
        if vectors is None:
            return jnp.full(videos.shape, -1, jnp.int32)
        stored = store(queries, vectors.values.dtype)

        def of_place(chosen: Int[Array, " Q"]) -> Int[Array, " Q"]:
            own = jax.tree.map(lambda x: x[chosen // size, chosen % size], vectors)
            products = jnp.einsum(
                "qh,qlh->ql",
                stored.values.astype(jnp.float32),
                own.values.astype(jnp.float32),
            )
            products = products if own.scale is None else products * own.scale
            return jnp.argmax(products, axis=-1).astype(jnp.int32)

        # A program for each place among the k would take longer than its work, for few queries.
        each = len(queries) * vectors.values.shape[-2] * vectors.values.shape[-1]
        at_once = min(max(COORDINATES_AT_ONCE // max(each, 1), 1), among)
        return jnp.where(real, jax.lax.map(of_place, videos.T, batch_size=at_once).T, -1)

    places = [position(corpus.clips), position(corpus.frames)]
    rest = ((0, 0), (0, k - among))
    pad = lambda x, value: jnp.pad(x, rest, constant_values=value)
    return Found(
        pad(jnp.where(real, videos.astype(jnp.int32), -1), -1),
        pad(best, -jnp.inf),
        *(pad(place, -1) for place in places),
    )


_search = jax.jit(_search_traced, static_argnums=2)
