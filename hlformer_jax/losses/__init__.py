"""Training losses as pure functions of arrays.

    retrieval      triplet and contrastive losses of scores; diversity, optimal matching, partial
                   order and distillation of embeddings
    trees          alignment, tree, chain and order of action trees (HOVER)

The content of padding never reaches a value or a gradient. The training loss of a model is a
weighted sum of such terms. `config.loss` has their weights, constants and options. Numbers are
arguments of the compiled step, so that changing one does not compile it again; options (texts and
flags) are part of the program.
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
else:  # without a configuration they are not loaded
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
    """Return the weights and constants of `config.loss`; integers stay integers."""
    return {
        name: jnp.asarray(x, jnp.int32 if isinstance(x, int) else dtype)
        for name, x in loss.items()
        if not isinstance(x, str | bool)
    }


def options(loss: ConfigDict) -> FrozenConfigDict:
    """Return the options of `config.loss`, hashable."""
    from ml_collections import FrozenConfigDict

    return FrozenConfigDict({name: x for name, x in loss.items() if isinstance(x, str | bool)})


def weighted_sum(
    terms: Terms, weights: Mapping[str, Float[Array, ""]]
) -> tuple[Float[Array, ""], Terms]:
    """Sum the terms, each times the weight of its name; return the sum and the plain terms."""
    total: Any = 0.0
    for name, value in terms.items():
        total = total + weights[name] * value
    return jnp.asarray(total), terms
