"""Dropout from a cheap, counter-based generator, and random keys derived from names.

A hash of (key, i) decides whether element i is kept: a 32-bit finaliser (two multiply and xor-shift
rounds, as in hash tables), applied once for each half of the key. These dozen integer operations
fuse into the kernel that uses them; JAX's default generator takes about a hundred operations. The
mask does not depend on how an array is sharded or, inside `part_of_batch`, on how a batch is split.
The random bits are uniform and independent enough for dropout, but not for cryptography.
"""

import contextlib
import contextvars
import functools
import zlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Integer, UInt32

from hlformer_jax.ops.arguments import check_floating
from hlformer_jax.typing import Array


def derive_key(seed: int | Int[Array, ""], name: str, step: Int[Array, ""] | int = 0) -> Array:
    """Return the random key for one purpose at one step; a pure function of its arguments.

    Args:
      seed: seed of the run.
      name: name of the purpose, such as the name of a dropout layer.
      step: training step.

    Returns:
      A typed JAX key.
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.random.fold_in(key, step)


_PART: contextvars.ContextVar[tuple[Integer[Array, ""] | int, int]] = contextvars.ContextVar(
    "part of a batch", default=(0, 1)
)


@contextlib.contextmanager
def part_of_batch(part: Integer[Array, ""] | int, parts: int) -> Iterator[None]:
    """Let `random_bits` give a part of a batch the same bits as in the whole batch.

    It affects functions that are traced inside the block. Along their first axis, their arrays must
    hold the rows part, part + parts, part + 2 parts, … of the batch.

    Args:
      part: number of the part, from 0; it may be traced.
      parts: number of parts of the batch.
    """
    token = _PART.set((part, parts))
    try:
        yield
    finally:
        _PART.reset(token)


def random_bits(key: Array, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return 32 random bits for every element of an array of fewer than 2^32 elements.

    The bits of the row-major element i depend on the key and on i alone. Inside `part_of_batch`, i
    counts the elements of the whole batch.

    Args:
      key: a JAX key, typed or raw.
      shape: shape of the array.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    data = jax.random.key_data(key) if typed else jnp.asarray(key)
    low, high = data[..., 0], data[..., -1]
    strides = np.cumprod((1, *shape[:0:-1]), dtype=np.uint64)[::-1] if shape else ()
    index = jnp.zeros(shape, jnp.uint32)
    for axis, stride in enumerate(strides):
        counter = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        if axis == 0:
            part, parts = _PART.get()
            if parts > 1:
                counter = counter * jnp.uint32(parts) + jnp.asarray(part, jnp.uint32)
        index = index + counter * jnp.uint32(stride % 2**32)
    return _mix(_mix(index ^ low) ^ high)


def dropout(key: Array | None, x: Array, rate: float) -> Array:
    """Set elements to zero with probability ``rate`` and divide the others by 1 - rate.

    Args:
      key: a JAX random key; None switches dropout off.
      x: any floating array.
      rate: probability, in [0, 1].

    Returns:
      An array of the shape and dtype of ``x``.

    Raises:
      TypeError: for an array that is not floating.
    """
    check_floating(x)
    if key is None or rate <= 0:
        return x
    if rate >= 1:
        return jnp.zeros_like(x)
    threshold = jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    is_kept = random_bits(key, x.shape) >= threshold
    return jnp.where(is_kept, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def relu_dropout(key: Array | None, x: Array, rate: float) -> Array:
    """Apply `dropout` to max(x, 0), with a gradient that needs only the result.

    A positive element of the result shows that x was positive and not dropped. So the backward pass
    needs neither x nor the mask; the result is stored for the next layer in any case.

    Args:
      key: a JAX random key; None switches dropout off.
      x: any floating array.
      rate: probability, in [0, 1].

    Returns:
      An array of the shape and dtype of ``x``.

    Raises:
      TypeError: for an array that is not floating.
    """
    result = jax.lax.stop_gradient(dropout(key, jax.nn.relu(x), rate))
    return _where_positive(0.0 if key is None else rate, result, x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _where_positive(rate: float, result: Array, x: Array) -> Array:
    """Return ``result``, with the derivative 1 / (1 - rate) in x where it is positive, else 0."""
    del rate, x
    return result


@_where_positive.defjvp
def _where_positive_jvp(rate: float, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (result, x), (_, slope) = primals, tangents
    if 0 < rate < 1:
        slope = slope / jnp.asarray(1 - rate, slope.dtype)
    slope = jnp.where(result > 0, slope, jnp.zeros((), slope.dtype))
    # Not `result`, which is a constant: derivatives of this function's derivatives would lack it.
    return _where_positive(rate, result, x), slope


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Map 32-bit words one to one, so that every input bit affects every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)
