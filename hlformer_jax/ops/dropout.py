"""Dropout from a cheap, counter-based generator, and random keys derived by name.

Element i is kept or dropped by a hash of (key, i): a 32-bit finaliser (two multiply and xor-shift
rounds of the kind used in hash tables), run once for each half of the key. These dozen integer
operations compile into the kernel that uses them, where JAX's default generator takes about a
hundred. Masks are the same however an array is sharded, and, inside of `part_of_batch`, however a
batch is split. The streams pass the tests of uniformity and independence that dropout needs, not
cryptographic ones.
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

from hlformer_jax.ops.numerics import check_floating
from hlformer_jax.typing import Array


def derive_key(seed: int | Int[Array, ""], name: str, step: Int[Array, ""] | int = 0) -> Array:
    """A random key for one purpose at one step; a function of its arguments alone."""
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.random.fold_in(key, step)


_PART: contextvars.ContextVar[tuple[Integer[Array, ""] | int, int]] = contextvars.ContextVar(
    "part of a batch", default=(0, 1)
)


@contextlib.contextmanager
def part_of_batch(part: Integer[Array, ""] | int, parts: int) -> Iterator[None]:
    """Give each array inside the bits that its rows have in the whole batch.

    For functions that are traced inside the block, whose arrays have the rows part, part + parts,
    part + 2 parts, … of the batch along their first axis.

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
    """32 random bits for every element of an array of fewer than 2^32 elements.

    Row-major element i is a function of the key, typed or raw, and i alone. Inside of
    `part_of_batch`, i is the element of the whole batch.
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
    """Sets elements to zero with probability ``rate`` and divides the others by 1 - rate.

    ``rate`` is in [0, 1]; a key None switches dropout off. TypeError is raised for an array that is
    not floating, whose dtype has no 1 - rate.
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
    """`dropout` of max(x, 0), whose gradient is read off the result, which is kept anyhow.

    Where the result is positive, x is and was kept: neither x nor a mask is stored or made again.

    Args:
      key: a JAX random key; None switches dropout off.
      x: any floating array.
      rate: probability, in [0, 1].
    """
    result = jax.lax.stop_gradient(dropout(key, jax.nn.relu(x), rate))
    return _where_positive(0.0 if key is None else rate, result, x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _where_positive(rate: float, result: Array, x: Array) -> Array:
    """`result`, with the gradient 1 / (1 - rate) by x where it is positive, else 0."""
    del rate, x
    return result


@_where_positive.defjvp
def _where_positive_jvp(rate: float, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    result, slope = primals[0], tangents[1]
    if 0 < rate < 1:
        slope = slope / jnp.asarray(1 - rate, slope.dtype)
    return result, jnp.where(result > 0, slope, jnp.zeros((), slope.dtype))


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words in which every input bit moves every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)
