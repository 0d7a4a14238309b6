"""The models of the papers, one file each, the choice among them, and what every one can do.

A model is a Linen module with the methods `encode_query`, `encode_video` and `lift`; the functions
here are those methods as pure functions of parameters and arrays.
"""

from typing import Any

import flax.linen as nn
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.models import hlformer
from hlformer_jax.models.hlformer import Lifted, VideoEncoding
from hlformer_jax.typing import Array, Captions, Videos


def build(config: ConfigDict) -> nn.Module:
    """Returns the model that `config.model` asks for.

    Args:
      config: the whole configuration (data sizes and compute dtype matter too).

    Raises:
      ConfigError: for an unknown model, or a combination of options that makes no sense.
    """
    if config.model.name != "hlformer":
        raise ConfigError(f"config.model.name {config.model.name!r} is unknown: use 'hlformer'")
    return hlformer.from_config(config)


def encode_query(
    model: nn.Module, params: Any, captions: Captions, dropout_key: Array | None = None
) -> Float[Array, "Q H"]:
    """Sentence embeddings, float32 at least; with dropout where a key is given."""
    return _apply(model, params, dropout_key, "encode_query", captions)


def encode_video(
    model: nn.Module, params: Any, videos: Videos, dropout_key: Array | None = None
) -> VideoEncoding:
    """Videos encoded at both granularities; with dropout where a key is given."""
    return _apply(model, params, dropout_key, "encode_video", videos)


def lift(
    model: nn.Module, params: Any, videos: VideoEncoding, queries: Float[Array, "Q H"]
) -> Lifted:
    """Videos and sentences as points of the hyperboloid of the partial order loss."""
    lifted: Any = model.apply({"params": params}, videos, queries, method="lift")
    return lifted


def _apply(
    model: nn.Module, params: Any, dropout_key: Array | None, method: str, inputs: Any
) -> Any:
    train = dropout_key is not None
    rngs: Any = None if dropout_key is None else {"dropout": dropout_key}
    return model.apply({"params": params}, inputs, train, rngs=rngs, method=method)
