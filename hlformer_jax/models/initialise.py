"""Initial parameters of a model, and the batch that gives their shapes."""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from hlformer_jax.models.constraints import project
from hlformer_jax.models.registry import Model
from hlformer_jax.ops.dropout import derive_key
from hlformer_jax.typing import Batch, Captions, Videos


def zero_batch(config: ConfigDict, videos: int = 1, captions: int = 1) -> Batch:
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


def init_params(model: Model, config: ConfigDict) -> Any:
    """Initial parameters, float32, a function of the model and `config.seed`."""
    key = derive_key(config.seed, "params")
    init = lambda hyperparameters, key, batch: model.module.init(key, *batch, hyperparameters)
    params = jax.jit(init)(model.hyperparameters, key, zero_batch(config))["params"]
    return project(params, config)
