"""What a model costs: its parameters, and the operations of encoding one video and one caption."""

import math
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.models.encode import encode_query, encode_video
from hlformer_jax.models.initialise import init_params, zero_batch
from hlformer_jax.models.registry import build


class Cost(NamedTuple):
    """Size and work of a model, dropout off.

    Attributes:
      parameters: numbers it learns.
      flops_video: floating-point operations of encoding one video of the configured sizes; NaN
        where no compiler counts them.
      flops_caption: floating-point operations of encoding one caption.
    """

    parameters: int
    flops_video: float
    flops_caption: float


def cost(config: ConfigDict) -> Cost:
    """Counts a configuration's parameters and, by the compiler's count, its operations.

    Nothing is computed; the operations are those of `countable`.

    Args:
      config: a complete configuration.

    Raises:
      ConfigError: when the model's options make no sense.
    """
    config = countable(config)
    model = build(config)
    params, batch = jax.eval_shape(lambda: (init_params(model, config), zero_batch(config)))

    def flops(function: Any, inputs: Any) -> float:
        return parallel.count_flops(lambda params, x: function(model, params, x), params, inputs)

    return Cost(
        sum(math.prod(x.shape) for x in jax.tree.leaves(params)),
        flops(encode_video, batch.videos),
        flops(encode_query, batch.captions),
    )


def countable(config: ConfigDict) -> ConfigDict:
    """The configuration of the same operations in a form that `parallel.count_flops` sees.

    The compiler counts a loop over parts of a batch as one part.
    """
    plain = config.copy_and_resolve_references()
    plain.train.encode_parts = 1
    return plain
