"""Random keys, derived from a seed, a name and a step: none is carried or stored."""

import zlib

import jax
from jaxtyping import Int

from hlformer_jax.typing import Array


def derive_key(seed: int | Int[Array, ""], name: str, step: Int[Array, ""] | int = 0) -> Array:
    """A random key for one purpose at one step; a function of its arguments alone."""
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.random.fold_in(key, step)
