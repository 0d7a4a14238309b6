"""Largest cosine and dot product over the positions of a video, as one GPU kernel.

All Q x V x L products are computed, in one matrix product for both maxima, and never written to
memory: what is, besides the maxima, is where they are. That is all the backward pass needs, too.
Its two kernels lay the gradients of the maxima out over the positions again, a tile at a time, and
multiply that by queries or positions; so it costs two products like that of the forward pass, and
not the Q x V x H numbers of memory of gathering the positions that were chosen.

Where several positions have the largest value, the gradient goes to the first one. (That of
`jnp.max` is shared by them; with real features they differ in rounding only.)
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Float

from hlformer_jax.ops.kernels import compiler_params, interpreted, pad, power_of_two
from hlformer_jax.ops.numerics import as_float, inverse_norm
from hlformer_jax.typing import Array

# Queries and coordinates that a program takes at a time, warps, stages of its loads. Chosen by the
# registers and shared memory that the compiler reports, not by timings.
_QUERIES, _FEATURES, _WARPS, _STAGES = 64, 64, 8, 2

Maxima = tuple[Float[Array, "Q V"], Float[Array, "Q V"]]


def max_similarities(
    queries: Float[Array, "Q H"],
    positions: Float[Array, "V L H"],
    interpret: bool | None = None,
) -> Maxima:
    """Largest cosine and largest inner product of a query with any position of a video.

    Args:
      queries: query vectors.
      positions: position vectors of each video; zero ones have cosine 0 with everything.
      interpret: run as JAX operations instead of a GPU kernel; None does so where JAX's default
        backend is not a GPU.

    Returns:
      The maxima over L of q . x / (|q| |x|) and of q . x, float32 at least.

    Raises:
      ValueError: for queries and positions of different widths.

    References:
      HLFormer eq. 8.
    """
    queries, positions = as_float(queries), as_float(positions)
    if queries.shape[-1] != positions.shape[-1]:
        shapes = f"queries {queries.shape} and positions {positions.shape}"
        raise ValueError(f"vectors of different widths: {shapes}")
    inverses = inverse_norm(positions)
    scaled, dots = _maxima(interpreted(interpret), queries, positions, inverses)
    return scaled * inverse_norm(queries)[:, None], dots


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _maxima(
    interpret: bool,
    queries: Float[Array, "Q H"],
    positions: Float[Array, "V L H"],
    inverse_norm: Float[Array, "V L"],
) -> Maxima:
    """Maxima over L of q . x inverse_norm and of q . x."""
    return _forward(interpret, queries, positions, inverse_norm)[0]


def _forward(
    interpret: bool, queries: Array, positions: Array, inverse_norm: Array
) -> tuple[Maxima, Any]:
    (count, _), (videos, length, _) = queries.shape, positions.shape
    q, x = _padded(queries, positions)
    block = min(q.shape[0], _QUERIES)
    norm = pad(inverse_norm, x.shape[1:2])
    per_pair = pl.BlockSpec((None, block), lambda at, video: (video, at))
    pairs = lambda dtype: jax.ShapeDtypeStruct((videos, q.shape[0]), dtype)
    # Queries first: programs that run at the same time share a video.
    scaled, dots, *argmaxima = pl.pallas_call(
        partial(_forward_kernel, length),
        out_shape=[pairs(q.dtype), pairs(q.dtype), pairs(jnp.int32), pairs(jnp.int32)],
        grid=(q.shape[0] // block, videos),
        in_specs=[
            pl.BlockSpec((block, q.shape[1]), lambda at, video: (at, 0)),
            pl.BlockSpec((None, *x.shape[1:]), lambda at, video: (video, 0, 0)),
            pl.BlockSpec((None, x.shape[1]), lambda at, video: (video, 0)),
        ],
        out_specs=[per_pair] * 4,
        compiler_params=compiler_params(_WARPS, _STAGES),
        interpret=interpret,
        name="similarity",
    )(q, x, norm)
    scaled, dots = scaled[:, :count].T, dots[:, :count].T
    return (scaled, dots), (queries, positions, inverse_norm, scaled, argmaxima)


def _backward(interpret: bool, saved: Any, gradients: Maxima) -> tuple[Array, Array, Array]:
    queries, positions, inverse_norm, scaled, argmaxima = saved
    q, x = _padded(queries, positions)
    videos, length, features = x.shape
    block, feature = min(q.shape[0], _QUERIES), _feature_block(features)
    of_scaled, of_dots = (pad(g.T, (q.shape[0],)) for g in gradients)
    # What a product weighs in the maximum of the scaled ones: its position's inverse norm.
    videos_first = jnp.arange(videos, dtype=jnp.int32)[:, None]
    argmax = jnp.minimum(argmaxima[0], inverse_norm.shape[1] - 1)
    factor = inverse_norm[videos_first, argmax]
    tiles = of_scaled * factor, of_dots, *argmaxima
    call = partial(
        pl.pallas_call, compiler_params=compiler_params(_WARPS, _STAGES), interpret=interpret
    )
    per_query = pl.BlockSpec((videos, block), lambda at, piece: (0, at))
    query = call(
        partial(_query_kernel, videos),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(q.shape[0] // block, features // feature),
        in_specs=[
            pl.BlockSpec((videos, length, feature), lambda at, piece: (0, 0, piece)),
            *[per_query] * 4,
        ],
        out_specs=pl.BlockSpec((block, feature), lambda at, piece: (at, piece)),
        name="similarity_query",
    )(x, *tiles)
    per_video = pl.BlockSpec((None, q.shape[0]), lambda video, piece: (video, 0))
    position = call(
        partial(_position_kernel, block),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(videos, features // feature),
        in_specs=[
            pl.BlockSpec((q.shape[0], feature), lambda video, piece: (0, piece)),
            *[per_video] * 4,
        ],
        out_specs=pl.BlockSpec((None, length, feature), lambda video, piece: (video, 0, piece)),
        name="similarity_position",
    )(q, *tiles)
    # d scaled / d inverse_norm is the product itself, scaled / inverse_norm.
    count = queries.shape[0]
    slope = of_scaled[:, :count] * scaled.T / jnp.where(factor == 0, 1, factor)[:, :count]
    norm = jnp.zeros_like(inverse_norm).at[videos_first, argmax[:, :count]].add(slope)
    rows, columns = positions.shape[1:]
    return query[:count, :columns], position[:, :rows, :columns], norm


_maxima.defvjp(_forward, _backward)


def _padded(queries: Array, positions: Array) -> tuple[Array, Array]:
    """Pads queries and positions to powers of two, coordinates to a multiple of what is loaded."""
    (count, features), length = queries.shape, positions.shape[1]
    step = min(power_of_two(features), _FEATURES)
    features = -(-features // step) * step
    block = min(power_of_two(count), _QUERIES)
    count = -(-count // block) * block
    return pad(queries, (count, features)), pad(positions, (power_of_two(length), features))


def _feature_block(features: int) -> int:
    return min(features, _FEATURES)


def _forward_kernel(
    length: int, query: Any, position: Any, norm: Any, scaled: Any, dots: Any, *argmaxima: Any
) -> None:
    rows, columns, step = query.shape[0], position.shape[0], _feature_block(query.shape[1])

    def add(i: Any, total: Array) -> Array:
        at = pl.ds(i * step, step)
        return total + _dot(query[:, at], position[:, at], (1, 1))

    start = jnp.zeros((rows, columns), query.dtype)
    product = jax.lax.fori_loop(0, query.shape[1] // step, add, start)
    column = jax.lax.broadcasted_iota(jnp.int32, product.shape, 1)
    for x, out, argmax in (
        (product * norm[...][None, :], scaled, argmaxima[0]),
        (product, dots, argmaxima[1]),
    ):
        x = jnp.where(column < length, x, -jnp.inf)
        largest = jnp.max(x, axis=1)
        out[...] = largest
        argmax[...] = jnp.min(jnp.where(x == largest[:, None], column, columns), axis=1)


def _query_kernel(
    videos: int, position: Any, of_scaled: Any, of_dots: Any, *argmaxima_and_out: Any
) -> None:
    *argmaxima, out = argmaxima_and_out

    def add(video: Any, total: Array) -> Array:
        tile = [x[video, :] for x in (of_scaled, of_dots, *argmaxima)]
        return total + _dot(_spread(tile, position.shape[1]), position[video, :, :], (1, 0))

    out[...] = jax.lax.fori_loop(0, videos, add, jnp.zeros(out.shape, out.dtype))


def _position_kernel(
    block: int, query: Any, of_scaled: Any, of_dots: Any, *argmaxima_and_out: Any
) -> None:
    *argmaxima, out = argmaxima_and_out

    def add(i: Any, total: Array) -> Array:
        at = pl.ds(i * block, block)
        tile = [x[at] for x in (of_scaled, of_dots, *argmaxima)]
        return total + _dot(_spread(tile, out.shape[0]), query[at, :], (0, 0))

    steps = query.shape[0] // block
    out[...] = jax.lax.fori_loop(0, steps, add, jnp.zeros(out.shape, out.dtype))


def _spread(tile: list[Array], columns: int) -> Array:
    """Gradients of products with each of a video's positions, from those of the two maxima."""
    of_scaled, of_dots, scaled_place, dots_place = tile
    column = jax.lax.broadcasted_iota(jnp.int32, (of_dots.shape[0], columns), 1)
    of_products = jnp.where(column == scaled_place[:, None], of_scaled[:, None], 0)
    return of_products + jnp.where(column == dots_place[:, None], of_dots[:, None], 0)


def _dot(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    axes = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(x, y, axes, preferred_element_type=x.dtype)
