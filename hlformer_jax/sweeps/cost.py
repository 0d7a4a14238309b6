"""What a model costs: its parameters, and the operations of encoding one video and one caption."""

import math
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from hlformer_jax import measure, models, train_state


class Cost(NamedTuple):
    """Size and work of a model, dropout off.

    Attributes:
      parameters: numbers it learns.
      flops_video: floating-point operations of encoding one video of the configured sizes; None
        where the compiler does not count.
      flops_caption: of encoding one caption.
    """

    parameters: int
    flops_video: float | None
    flops_caption: float | None


def cost(config: ConfigDict) -> Cost:
    """Counts a configuration's parameters and, by the compiler's count, its operations.

    Nothing is computed. The count is that of XLA's programs whatever `config.kernels` says, since
    the compiler cannot see into a kernel.

    Args:
      config: a complete configuration.

    Raises:
      ConfigError: when the model's options make no sense.
    """
    config = config.copy_and_resolve_references()
    config.kernels = "xla"
    model = models.build(config)
    params, batch = jax.eval_shape(
        lambda: (train_state.init_params(model, config), train_state.blank(config))
    )

    def flops(function: Any, inputs: Any) -> float | None:
        count = measure.count(lambda params, x: function(model, params, x), params, inputs)
        return count if math.isfinite(count) else None

    return Cost(
        sum(math.prod(x.shape) for x in jax.tree.leaves(params)),
        flops(models.encode_video, batch.videos),
        flops(models.encode_query, batch.captions),
    )
