"""A training loss is a weighted sum of terms.

`config.loss` has a weight for each term, and the constants and options of the terms. Its numbers
are arguments of the compiled step, so that a change of one compiles nothing anew; its options, text
and flags, are part of the program.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float
from ml_collections import ConfigDict, FrozenConfigDict

from hlformer_jax.typing import Array

Terms = dict[str, Float[Array, ""]]


def numbers(loss: ConfigDict, dtype: DTypeLike) -> dict[str, Array]:
    """The weights and constants of `config.loss`; integers stay integers."""
    arrays = lambda x: jnp.asarray(x, jnp.int32 if isinstance(x, int) else dtype)
    return {name: arrays(x) for name, x in loss.items() if not isinstance(x, str | bool)}


def options(loss: ConfigDict) -> FrozenConfigDict:
    """The options of `config.loss`, hashable."""
    return FrozenConfigDict({name: x for name, x in loss.items() if isinstance(x, str | bool)})


def weighted_sum(
    terms: Terms, weights: Mapping[str, Float[Array, ""]]
) -> tuple[Float[Array, ""], Terms]:
    """The sum of the terms, each times the weight of its name, and the terms without weights."""
    total: Any = 0.0
    for name, value in terms.items():
        total = total + weights[name] * value
    return jnp.asarray(total), terms
