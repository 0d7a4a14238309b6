"""The state of training: one frozen pytree. Random keys are derived from it, none is stored."""

from typing import Any

import flax.struct
import jax.numpy as jnp
import optax
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax.models import TwoBranch
from hlformer_jax.models.initialise import init_params
from hlformer_jax.typing import Array


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes.

    Attributes:
      step: number of steps taken.
      params: the model's parameters.
      optimiser: the optimiser's state.
    """

    step: Int[Array, ""]
    params: Any
    optimiser: Any


def init_state(
    model: TwoBranch, config: ConfigDict, optimiser: optax.GradientTransformation
) -> TrainState:
    """The state before the first step."""
    params = init_params(model, config)
    return TrainState(jnp.zeros((), jnp.int32), params, optimiser.init(params))
