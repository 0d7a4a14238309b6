"""Training losses as pure functions of arrays.

    retrieval      triplet and contrastive losses of scores; diversity, optimal matching, partial
                   order and distillation of embeddings
    trees          alignment, tree, chain and order of action trees (HOVER)

Padding never reaches a value or a gradient, whatever it holds. What a model is trained by is a
weighted sum of such terms. `config.loss` has their weights, constants and options. Its numbers are
arguments of the compiled step, so that a change of one compiles nothing anew; its options, text and
flags, are part of the program.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float

from hlformer_jax import lazy
from hlformer_jax.typing import Array

if TYPE_CHECKING:
    from ml_collections import ConfigDict, FrozenConfigDict
else:  # for who has no configuration, and need not load them
    ConfigDict = FrozenConfigDict = object

__getattr__, __dir__, _public = lazy.namespace(
    __name__,
    {
        "retrieval": "NegativeRanks Pairs caption_diversity distillation draw_negative_ranks"
        " identity_pairs joint_nce nce optimal_matching partial_order query_diversity triplet",
        "trees": "alignment entailment hinge tree",
    },
)
__all__ = ["numbers", "options", "weighted_sum", *_public]

Terms = dict[str, Float[Array, ""]]


def numbers(loss: ConfigDict, dtype: DTypeLike) -> dict[str, Array]:
    """The weights and constants of `config.loss`; integers stay integers."""
    arrays = lambda x: jnp.asarray(x, jnp.int32 if isinstance(x, int) else dtype)
    return {name: arrays(x) for name, x in loss.items() if not isinstance(x, str | bool)}


def options(loss: ConfigDict) -> FrozenConfigDict:
    """The options of `config.loss`, hashable."""
    from ml_collections import FrozenConfigDict

    return FrozenConfigDict({name: x for name, x in loss.items() if isinstance(x, str | bool)})


def weighted_sum(
    terms: Terms, weights: Mapping[str, Float[Array, ""]]
) -> tuple[Float[Array, ""], Terms]:
    """The sum of the terms, each times the weight of its name, and the terms without weights."""
    total: Any = 0.0
    for name, value in terms.items():
        total = total + weights[name] * value
    return jnp.asarray(total), terms
