"""The state of training: one frozen pytree. Random keys are derived from it, none is stored."""

from typing import Any

import flax.struct
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes.

    Attributes:
      step: number of steps taken, Int[Array, ""]; in trees that JAX makes of it, anything.
      params: parameters of the model.
      optimiser: state of the optimiser.
    """

    step: Any
    params: Any
    optimiser: Any


def init_state(params: Any, optimiser: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimiser.init(params))
