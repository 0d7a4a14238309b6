"""The dtype that geometry, softmax, accumulation and losses use, whatever the compute dtype is."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from hlformer_jax.typing import Array


def wide(dtype: DTypeLike) -> jnp.dtype:
    """float32 for a dtype of 16 bits or fewer, else the dtype itself.

    Unlike `jnp.promote_types` this is defined under strict dtype promotion too.
    """
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else jnp.dtype(dtype)


def widen(x: Array) -> Array:
    """The array in `wide` of its dtype."""
    return x.astype(wide(x.dtype))
