"""Training losses as pure functions of arrays.

    retrieval      triplet and contrastive losses on scores; diversity, optimal matching, partial
                   order and distillation on embeddings
    trees          alignment, tree, chain and order losses on action trees (HOVER)

Padding never changes a value or a gradient. The training loss of a model is a weighted sum of such
terms. `config.loss` has their weights, constants and options. Weights and constants are arguments
of the compiled step, so that a changed number does not compile it again. Options (texts and flags)
are part of the compiled program. A loss compares all items of a batch: on a mesh with explicit
axes, call `jax.sharding.auto_axes(loss, out_sharding=jax.P())`.
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
"""Values of the terms of a loss, without their weights, by the names of their weights."""


def numbers(loss: ConfigDict, dtype: DTypeLike) -> dict[str, Array]:
    """Return the weights and constants of `config.loss` as scalar arrays.

    Args:
      loss: the section `config.loss`.
      dtype: dtype of the real numbers; integers become int32.
    """
    return {
        name: jnp.asarray(x, jnp.int32 if isinstance(x, int) else dtype)
        for name, x in loss.items()
        if not isinstance(x, str | bool)
    }


def options(loss: ConfigDict) -> FrozenConfigDict:
    """Return the options of `config.loss`, its texts and flags, as a hashable mapping."""
    from ml_collections import FrozenConfigDict

    return FrozenConfigDict({name: x for name, x in loss.items() if isinstance(x, str | bool)})


def weighted_sum(
    terms: Terms, weights: Mapping[str, Float[Array, ""]]
) -> tuple[Float[Array, ""], Terms]:
    """Return the sum of the terms times their weights, and the terms without their weights.

    Args:
      terms: values of the terms by name.
      weights: weights by the same names; other entries are ignored.
    """
    total: Any = 0.0
    for name, value in terms.items():
        total = total + weights[name] * value
    return jnp.asarray(total), terms
