"""Initial parameters of HOVER, and what holds for them after every step."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from hlformer_jax.models.hover.embedding import Hover
from hlformer_jax.models.hover.options import from_config
from hlformer_jax.ops.dropout import derive_key
from hlformer_jax.typing import Nodes

LARGEST_SCALE = 100.0
"""Of the similarities, as CLIP limits it."""


def build(config: ConfigDict) -> Hover:
    """The model of a configuration."""
    return Hover(from_config(config))


def zero_nodes(config: ConfigDict, count: int = 1) -> Nodes:
    """Nodes of zeros, none of them padding: shapes to initialise or compile with."""
    data, frames = config.data, config.trees.node_frames
    number = jnp.zeros(count, jnp.int32)
    return Nodes(
        jnp.zeros((count, frames, data.visual_dim)),
        jnp.ones((count, frames), bool),
        jnp.zeros((count, data.max_words, data.text_dim)),
        jnp.ones((count, data.max_words), bool),
        jnp.ones(count, bool),
        *(number, number, number),
    )


def init_params(config: ConfigDict) -> Any:
    """Initial parameters, float32, a function of the configuration alone."""
    key = derive_key(config.seed, "params")
    return jax.jit(build(config).init)(key, zero_nodes(config))["params"]


def project(params: dict[str, Any]) -> dict[str, Any]:
    """Keeps a learned scale within its limit, as released."""
    if "log_scale" not in params:
        return params
    return params | {"log_scale": jnp.minimum(params["log_scale"], math.log(LARGEST_SCALE))}
