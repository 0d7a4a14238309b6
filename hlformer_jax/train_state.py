"""The state of training: one frozen pytree. Random keys are derived from it, none is stored."""

import zlib
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.models import TwoBranch
from hlformer_jax.typing import Array, Batch, Captions, Videos


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


def derive_key(seed: int | Int[Array, ""], name: str, step: Int[Array, ""] | int = 0) -> Array:
    """A random key for one purpose at one step; a function of its arguments alone."""
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    return jax.random.fold_in(key, step)


def blank(config: ConfigDict, videos: int = 1, captions: int = 1) -> Batch:
    """A batch of zeros, none of them padding: shapes to initialise or compile with."""
    data = config.data
    return Batch(
        Videos(
            jnp.zeros((videos, data.max_clips, data.visual_dim)),
            jnp.zeros((videos, data.max_frames, data.visual_dim)),
            jnp.ones((videos, data.max_frames), bool),
            jnp.ones(videos, bool),
        ),
        Captions(
            jnp.zeros((captions, data.max_words, data.text_dim)),
            jnp.ones((captions, data.max_words), bool),
            jnp.zeros(captions, jnp.int32),
            jnp.ones(captions, bool),
        ),
    )


def init_params(model: TwoBranch, config: ConfigDict) -> Any:
    """Initial parameters, float32, a function of the model and `config.seed`."""
    key = derive_key(config.seed, "params")
    init = lambda numbers, key, batch: models.bind(model, numbers).init(key, *batch)["params"]
    params = jax.jit(init)(models.constants(config), key, blank(config))
    return models.project(params, config)


def init_state(
    model: TwoBranch, config: ConfigDict, optimiser: optax.GradientTransformation
) -> TrainState:
    """The state before the first step."""
    params = init_params(model, config)
    return TrainState(jnp.zeros((), jnp.int32), params, optimiser.init(params))
