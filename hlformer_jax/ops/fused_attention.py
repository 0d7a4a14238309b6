"""Attention of both geometries as one GPU kernel, which keeps its logits out of memory.

The functions have the results of those of `attention` up to rounding. Both geometries are

    softmax(window(query . key / divisor + offset), mask) . value

in a kernel written in Pallas: what makes a hyperboloid of it (the sign of the time, the learned
scale, the norm of the centroid) is done before and after it in JAX, which differentiates it.

A program holds the logits of a block of queries with all keys of one head, so the softmax is the
plain one; that of the keys' gradients those of a block of keys with all queries. The backward pass
computes the logits again from the inputs and from two numbers for each query, the largest logit
and the sum of the exponentials. (They are not joined into a logarithm: beside the huge logit of a
masked key in the Lorentz form it would be lost.) Triton knows sizes that are powers of two only:
positions are padded to one, and padded keys have weight 0; the coordinates are cut into pieces of
such sizes, so that 96 of them need no padding.

Gradients are of first order and reach query, key, value, scale and bias; windows are constants.
"""

import math
import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.attention import EUCLIDEAN_MASKED, broadcast, lorentz_masked
from hlformer_jax.ops.dropout import halves, mix
from hlformer_jax.ops.kernels import SMALLEST, compiler_params, interpreted, pad, power_of_two
from hlformer_jax.ops.numerics import as_float, check_floating, wide
from hlformer_jax.typing import Array

# Of a program: pieces of the coordinates, warps, stages of loads; and queries (or keys), fewer
# where the products are no work for tensor cores. Chosen by the spilled registers (at most 468
# bytes a thread on an H100) and shared memory (80 KiB) that the compiler reports, not by timings.
_PIECES, _WARPS, _STAGES = (64, 32, 16), 8, 1
_EUCLIDEAN_BLOCK, _LORENTZ_BLOCK = 64, 32


class _Form(NamedTuple):
    """What a kernel is compiled for."""

    euclidean: bool  # a masked key's term is added to the logit; otherwise it replaces it
    adds_window: bool  # otherwise the window multiplies the logits
    rate: float  # of dropout
    divisor: float  # of the inner products
    heads: int  # cells to a row of the mask; a cell is a batch element and a head
    rows: int  # queries M and
    length: int  # keys L, both without padding: the shape whose elements dropout counts
    interpret: bool  # run as JAX operations, without a GPU


class _Operands(NamedTuple):
    """Arrays of a kernel, or its references to them; positions and coordinates are padded."""

    query: Any  # [cells, M, d]
    key: Any  # [cells, L, d]
    value: Any  # [cells, L, d]
    offset: Any  # added to all logits, [1]
    window: Any  # [M, L]
    key_term: Any  # [cells / heads, L]; 0 for a real key, minus infinity for one that pads
    seed: Any  # both halves of dropout's key, [2]


class _Rows(NamedTuple):
    """What the backward kernels take besides, for each query."""

    cotangent: Any  # of the attended values, [cells, M, d]
    peak: Any  # largest logit, [cells, M]
    total: Any  # sum of the exponentials of the logits less the largest, [cells, M]
    mean: Any  # of the slopes of the logits, under the weights, [cells, M]


def euclidean_attention(
    query: Float[Array, "*#batch #N M d"],
    key: Float[Array, "*#batch #N L d"],
    value: Float[Array, "*#batch #N L dv"],
    window: Float[Array, "#M #L"] | None = None,
    mask: Bool[Array, "*#batch L"] | None = None,
    dropout_key: Array | None = None,
    rate: float = 0.0,
    interpret: bool | None = None,
) -> Float[Array, "*#batch N M dv"]:
    """`attention.euclidean_attention`, fused.

    Args:
      query: queries at M positions, per head.
      key: keys at L positions, per head.
      value: values at L positions, per head.
      window: factor of the logits before the softmax; a constant.
      mask: True for real keys.
      dropout_key: None for no dropout of the attention weights; otherwise a random key, and the
        weights are those of `ops.dropout.dropout(dropout_key, weights, rate)`.
      rate: rate of the dropout; static.
      interpret: run as JAX operations instead of a GPU kernel; None does so where JAX's default
        backend is not a GPU.

    Returns:
      Attended values, in the dtype of `value`.

    Raises:
      ValueError: for widths or positions that differ, or batch axes that do not broadcast.
      TypeError: for queries, keys or values that are no floating arrays.
    """
    check_floating(query, key, value)
    seed = None
    if dropout_key is not None and rate > 0:
        if rate >= 1:
            query, _, value, *_ = broadcast(query, key, value, window, mask)
            return jnp.zeros((*query.shape[:-1], value.shape[-1]), value.dtype)
        seed = jnp.stack(halves(dropout_key))
    return _padded(query, key, value, None, window, mask, seed, True, False, rate, interpret)


def lorentz_attention(
    query: Float[Array, "*#batch #N M d"],
    key: Float[Array, "*#batch #N L d"],
    value: Float[Array, "*#batch #N L dv"],
    scale: ArrayLike,
    bias: ArrayLike = 0.0,
    window: Float[Array, "#M #L"] | None = None,
    log_window: Float[Array, "#M #L"] | None = None,
    mask: Bool[Array, "*#batch L"] | None = None,
    interpret: bool | None = None,
) -> Float[Array, "*#batch N M dv"]:
    """`attention.lorentz_attention`, fused, with its arguments, result and errors.

    Both windows are constants; `interpret` is that of `euclidean_attention`.
    """
    if window is not None and log_window is not None:
        raise ValueError("lorentz_attention takes a window or a log_window, not both")
    query, key, value = as_float(query), as_float(key), as_float(value)
    # (2 + 2 <q, k>) / scale + bias, as a plain inner product and an offset.
    factor = jnp.asarray(2 / scale, query.dtype)
    offset = (factor + jnp.asarray(bias, query.dtype)).reshape(1)
    query = jnp.concatenate([-query[..., :1], query[..., 1:]], axis=-1) * factor
    adds = log_window is not None
    window = log_window if adds else window
    mean = _padded(query, key, value, offset, window, mask, None, False, adds, 0.0, interpret)
    # Of one point, the centroid is that point, normalised. (The weights add up to 1.)
    return lorentz.centroid(mean[..., None, :], exact=False)[..., 0, :]


def _padded(
    query: Array,
    key: Array,
    value: Array,
    offset: Array | None,
    window: Array | None,
    mask: Array | None,
    seed: Array | None,
    euclidean: bool,
    adds_window: bool,
    rate: float,
    interpret: bool | None,
) -> Array:
    """Runs the kernel on arrays of any shape; batch axes and heads broadcast."""
    query, key, value, window, mask = broadcast(query, key, value, window, mask)
    divisor = math.sqrt(query.shape[-1]) if euclidean else 1.0
    sizes = query.shape[-3], query.shape[-2], key.shape[-2]
    form = _Form(euclidean, adds_window, rate, divisor, *sizes, interpreted(interpret))
    rows, columns, dtype = power_of_two(form.rows), power_of_two(form.length), wide(query.dtype)

    def cells(x: Array, positions: int) -> Array:
        x = x.reshape(-1, *x.shape[-2:])
        return pad(x, (positions, -(-x.shape[-1] // SMALLEST) * SMALLEST))

    if window is not None:
        window = pad(jax.lax.stop_gradient(window).astype(dtype), (rows, columns))
    key_term: Array | None = None
    if mask is not None or columns != form.length:
        real = jnp.ones((*key.shape[:-3], form.length), bool) if mask is None else mask
        masked = jnp.asarray(EUCLIDEAN_MASKED if form.euclidean else lorentz_masked(dtype), dtype)
        term = jnp.where(real, jnp.zeros((), dtype), masked).reshape(-1, form.length)
        key_term = pad(term, (columns,), -math.inf)
    arrays = cells(query, rows), cells(key, columns), cells(value, columns)
    attended = _attend(form, _Operands(*arrays, offset, window, key_term, seed))
    attended = attended[:, : form.rows, : value.shape[-1]]
    return attended.reshape(*query.shape[:-1], value.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: _Form, operands: _Operands) -> Array:
    return _attend_forward(form, operands)[0]


def _attend_forward(form: _Form, operands: _Operands) -> tuple[Array, Any]:
    query, value = operands.query, operands.value
    attended = jax.ShapeDtypeStruct((*query.shape[:2], value.shape[2]), value.dtype)
    row = jax.ShapeDtypeStruct(query.shape[:2], wide(query.dtype))
    like = attended, row, row
    attended, peak, total = _call("attention", _forward_kernel, form, operands, None, like, True)
    return attended, (operands, attended, peak, total)


def _attend_backward(form: _Form, saved: Any, cotangent: Array) -> tuple[_Operands]:
    operands, attended, peak, total = saved
    mean = jnp.sum(cotangent.astype(peak.dtype) * attended.astype(peak.dtype), axis=-1)
    rows = _Rows(cotangent, peak, total, mean)
    like = operands.query, peak
    query, offset = _call("attention_query", _query_kernel, form, operands, rows, like, True)
    like = operands.key, operands.value
    key, value = _call("attention_key", _key_kernel, form, operands, rows, like, False)
    offset = None if operands.offset is None else jnp.sum(offset).reshape(1)
    return (_Operands(query, key, value, offset, None, None, None),)


_attend.defvjp(_attend_forward, _attend_backward)


def _call(
    name: str,
    kernel: Callable[..., None],
    form: _Form,
    operands: _Operands,
    rows: _Rows | None,
    like: tuple[Any, ...],
    by_query: bool,
) -> Any:
    """Runs a kernel on every cell: one program for each block of queries, or of keys.

    The kernel takes `form`, the cell and the first row and column of its tile, the operands,
    `rows` and the outputs, which are `like`: [cells, M, ...] if `by_query`, else [cells, L, ...].
    """
    cells, positions = like[0].shape[:2]
    block = min(positions, _EUCLIDEAN_BLOCK if form.euclidean else _LORENTZ_BLOCK)
    height = block if by_query else operands.query.shape[1]
    width = operands.key.shape[1] if by_query else block
    row = lambda at: at if by_query else 0
    column = lambda at: 0 if by_query else at

    def per_query(x: Any) -> pl.BlockSpec:
        rest = (0,) * (x.ndim - 2)
        return pl.BlockSpec((None, height, *x.shape[2:]), lambda i, at: (i, row(at), *rest))

    def per_key(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, width, x.shape[2]), lambda i, at: (i, column(at), 0))

    specs = _Operands(
        query=per_query,
        key=per_key,
        value=per_key,
        offset=lambda _: pl.BlockSpec((1,), lambda i, at: (0,)),
        window=lambda _: pl.BlockSpec((height, width), lambda i, at: (row(at), column(at))),
        key_term=lambda _: pl.BlockSpec((None, width), lambda i, at: (i // form.heads, column(at))),
        seed=lambda _: pl.BlockSpec((2,), lambda i, at: (0,)),
    )
    pairs = [*zip(operands, specs, strict=True), *((x, per_query) for x in rows or ())]
    inputs, structure = jax.tree.flatten((operands, rows))

    def body(*references: Any) -> None:
        given, made = references[: len(inputs)], references[len(inputs) :]
        cell, start = pl.program_id(0), pl.program_id(1) * block
        tile_start = (cell, start, 0) if by_query else (cell, 0, start)
        kernel(form, tile_start, *jax.tree.unflatten(structure, given), *made)

    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like],
        grid=(cells, positions // block),
        in_specs=[spec(x) for x, spec in pairs if x is not None],
        out_specs=[per_query(x) if by_query else per_key(x) for x in like],
        compiler_params=compiler_params(_WARPS, _STAGES),
        interpret=form.interpret,
        name=name,
    )(*inputs)


def _forward_kernel(
    form: _Form, tile_start: Any, operands: _Operands, _: None, out: Any, peak: Any, total: Any
) -> None:
    logits = _logits(form, operands)
    # The largest logit is finite: there is at least one key that does not pad.
    largest = jnp.max(logits, axis=1)
    weights = jnp.exp(logits - largest[:, None])
    mass = jnp.sum(weights, axis=1)
    peak[...], total[...] = largest, mass
    kept = _kept(form, operands, tile_start, weights.shape)
    dropped = _drop(form, (weights / mass[:, None]).astype(out.dtype), kept)
    for piece in _pieces(out):
        out[:, piece] = _dot(form, dropped, operands.value[:, piece], (1, 0)).astype(out.dtype)


def _query_kernel(
    form: _Form, tile_start: Any, operands: _Operands, rows: _Rows, out: Any, offset: Any
) -> None:
    _, slopes = _slopes(form, tile_start, operands, rows)
    offset[...] = jnp.sum(slopes, axis=1)
    slopes = (slopes / form.divisor).astype(out.dtype)
    for piece in _pieces(out):
        out[:, piece] = _dot(form, slopes, operands.key[:, piece], (1, 0)).astype(out.dtype)


def _key_kernel(
    form: _Form, tile_start: Any, operands: _Operands, rows: _Rows, key: Any, value: Any
) -> None:
    weights, slopes = _slopes(form, tile_start, operands, rows)
    for piece in _pieces(value):
        gradient = _dot(form, weights, rows.cotangent[:, piece], (0, 0))
        value[:, piece] = gradient.astype(value.dtype)
    slopes = (slopes / form.divisor).astype(key.dtype)
    for piece in _pieces(key):
        gradient = _dot(form, slopes, operands.query[:, piece], (0, 0))
        key[:, piece] = gradient.astype(key.dtype)


def _logits(form: _Form, operands: _Operands) -> Array:
    logits = _product(form, operands.query, operands.key) / form.divisor
    if operands.offset is not None:
        logits = logits + operands.offset[0]
    if operands.window is not None:
        window = operands.window[...]
        logits = logits + window if form.adds_window else logits * window
    if operands.key_term is None:
        return logits
    term = jnp.broadcast_to(operands.key_term[...][None, :], logits.shape)
    return logits + term if form.euclidean else jnp.where(term == 0, logits, term)


def _slopes(form: _Form, tile_start: Any, operands: _Operands, rows: _Rows) -> tuple[Array, Array]:
    """Weights after dropout, and the gradient of the logits before window and mask."""
    weights = jnp.exp(_logits(form, operands) - rows.peak[...][:, None]) / rows.total[...][:, None]
    kept = _kept(form, operands, tile_start, weights.shape)
    slopes = _drop(form, _product(form, rows.cotangent, operands.value), kept)
    slopes = weights * (slopes - rows.mean[...][:, None])
    if operands.key_term is not None and not form.euclidean:
        slopes = jnp.where(operands.key_term[...][None, :] == 0, slopes, jnp.zeros_like(slopes))
    if operands.window is not None and not form.adds_window:
        slopes = slopes * operands.window[...]
    return _drop(form, weights.astype(rows.cotangent.dtype), kept), slopes


def _kept(
    form: _Form, operands: _Operands, tile_start: Any, shape: tuple[int, ...]
) -> Bool[Array, "rows columns"] | None:
    """Which weights dropout keeps, None for all: the bits of `ops.dropout.random_bits`."""
    if operands.seed is None:
        return None
    low, high = (operands.seed[i] for i in range(2))
    unsigned = lambda index: jnp.asarray(index).astype(jnp.uint32)
    cell = unsigned(tile_start[0])
    row, column = (
        unsigned(tile_start[1 + i] + jax.lax.broadcasted_iota(jnp.int32, shape, i)) for i in (0, 1)
    )
    element = (cell * np.uint32(form.rows) + row) * np.uint32(form.length) + column
    bits = mix(mix(element ^ low) ^ high)
    return bits >= np.uint32(min(round(form.rate * 2**32), 2**32 - 1))


def _drop(form: _Form, x: Array, kept: Array | None) -> Array:
    """`ops.dropout.dropout`, given what to keep."""
    if kept is None:
        return x
    # Division in float32 and rounding give what division in a narrower dtype does.
    share = float(np.asarray(1 - form.rate, x.dtype))
    return jnp.where(kept, x.astype(wide(x.dtype)) / share, 0.0).astype(x.dtype)


def _product(form: _Form, x: Any, y: Any) -> Array:
    """Inner products of all rows of two references."""
    products = [_dot(form, x[:, piece], y[:, piece], (1, 1)) for piece in _pieces(x)]
    return reduce(operator.add, products)


def _dot(form: _Form, x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    """Matrix product over the given axis of each factor, accumulated in float32 at least."""
    axes = (((contracted[0],), (contracted[1],)), ((), ()))
    precision = None if form.euclidean else jax.lax.Precision.HIGHEST
    return jax.lax.dot_general(x, y, axes, precision, preferred_element_type=wide(x.dtype))


def _pieces(reference: Any) -> list[slice]:
    """Cuts the coordinates, of which there is a multiple of 16, into powers of two."""
    pieces, start = [], 0
    for size in _PIECES:
        while reference.shape[-1] - start >= size:
            pieces.append(slice(start, start + size))
            start += size
    return pieces
