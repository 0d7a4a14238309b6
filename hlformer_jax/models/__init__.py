"""The models of the papers, one file each, the choice among them, and what every one can do.

A model is a Linen module with the methods `encode_query` and `encode_video`, and `lift` if it has a
hyperbolic lift; the functions here are those methods as pure functions of parameters and arrays.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.bank import GaussianBank
from hlformer_jax.config import ConfigError
from hlformer_jax.models import options
from hlformer_jax.models.gmmformer import GMMFormer
from hlformer_jax.models.gmmformer_v2 import GMMFormerV2
from hlformer_jax.models.hlformer import HLFormer, Lifted
from hlformer_jax.models.ms_sl import MSSL
from hlformer_jax.models.two_branch import Constants, TwoBranch, VideoEncoding
from hlformer_jax.ops.dropout import part_of
from hlformer_jax.ops.numerics import wide
from hlformer_jax.typing import Array, Captions, Videos

MODELS: dict[str, type[TwoBranch]] = {
    "hlformer": HLFormer,
    "gmmformer_v2": GMMFormerV2,
    "gmmformer": GMMFormer,
    "ms_sl": MSSL,
}

MAX_CURVATURE_FACTOR = 10.0
"""A learned curvature stays within this factor of its initial value."""


def build(config: ConfigDict) -> TwoBranch:
    """Returns the model that `config.model` asks for.

    Args:
      config: the whole configuration (data sizes, compute dtype and losses matter too).

    Raises:
      ConfigError: for an unknown model, or a combination of options that makes no sense.
    """
    name = config.model.name
    if name not in MODELS:
        raise ConfigError(f"config.model.name {name!r} is unknown: use {', '.join(MODELS)}")
    arguments = options.arguments(config)
    if config.loss.optimal_matching != 0 and not config.model.glance:
        raise ConfigError(
            "config.loss.optimal_matching assigns captions to clips, but config.model.glance is"
            " off: set it to 0, or switch the clips on"
        )
    if name == "ms_sl" and config.model.video_level:
        raise ConfigError(
            "config.model.video_level pools the frames, among which ms_sl's clips are to choose:"
            " switch it off"
        )
    if name == "ms_sl" and config.kernels != "xla":
        raise ConfigError(f"config.kernels {config.kernels!r} has no kernel for ms_sl: use 'xla'")
    if hasattr(MODELS[name], "lift"):
        arguments["curvature"] = config.model.curvature
    elif config.loss.partial_order != 0:
        raise ConfigError(
            f"config.loss.partial_order is {config.loss.partial_order}, but {name} has no"
            " hyperbolic lift: set it to 0, or use hlformer"
        )
    return MODELS[name](**arguments)


def check_devices(config: ConfigDict, number: int) -> None:
    """Refuses kernels that so many devices cannot share.

    Raises:
      ConfigError: saying what to change.
    """
    if config.kernels == "pallas" and number > 1:
        raise ConfigError(
            f"config.kernels is 'pallas', which is for one device, and there are {number}: set"
            " 'xla', or show the process one GPU"
        )


def constants(config: ConfigDict) -> Constants:
    """The numbers of a configuration that `bind` takes for a model of `build`."""
    dtype = wide(jnp.dtype(config.dtype))
    bank = GaussianBank(
        **options.arguments(config)["bank"], num_heads=config.model.num_heads, dropout=0.0
    )
    return Constants(
        jnp.asarray(config.model.temperature, dtype),
        bank.windows(config.data.max_clips, dtype),
        bank.windows(config.data.max_frames, dtype),
    )


def bind(model: TwoBranch, constants: Constants) -> TwoBranch:
    """The model with these numbers in place of its own; inside of a program, its arguments."""
    return model.clone(constants=constants)


def encode_query(
    model: nn.Module, params: Any, captions: Captions, dropout_key: Array | None = None
) -> Float[Array, "Q H"]:
    """Sentence embeddings, float32 at least; with dropout where a key is given."""
    return _apply(model, params, dropout_key, "encode_query", captions)


def encode_video(
    model: nn.Module,
    params: Any,
    videos: Videos,
    dropout_key: Array | None = None,
    parts: int = 1,
) -> VideoEncoding:
    """Videos encoded at both granularities; with dropout where a key is given.

    Args:
      model: a model of `build`.
      params: its parameters.
      videos: a batch.
      dropout_key: random key of the dropout; None switches it off.
      parts: how many parts of the batch, of equal size, are encoded one after another, and once
        more when a gradient is asked for: memory for arithmetic. Changes results by rounding alone.

    Returns:
      The encoded videos, float32 at least.

    Raises:
      ValueError: when there are no parts of equal size.
    """
    if parts == 1:
        return _apply(model, params, dropout_key, "encode_video", videos)
    if len(videos.mask) % parts:
        raise ValueError(f"{len(videos.mask)} videos do not make {parts} parts of equal size")

    # In a loop XLA need not be kept from taking the second computation for the first.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def encode(number: Array, part: Videos) -> VideoEncoding:
        with part_of(number, parts):
            return _apply(model, params, dropout_key, "encode_video", part)

    # Part p has videos p, p + parts, …, so that each device has its share of every part.
    split = lambda x: jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1)
    join = lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])
    numbered = jnp.arange(parts, dtype=jnp.uint32), jax.tree.map(split, videos)
    return jax.tree.map(join, jax.lax.map(lambda part: encode(*part), numbered))


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


def project(params: dict[str, Any], config: ConfigDict) -> dict[str, Any]:
    """Clamps the stored scalars, as the released HLFormer does before each forward.

    Learned curvatures within a factor of ten of their initial value; the logarithms of the scales
    before the exponential maps (`*_alpha`) at most 0. Any model with Lorentz blocks has some.

    Args:
      params: the model's parameters.
      config: the whole configuration; of it, the initial curvatures.

    Returns:
      Parameters that satisfy the constraints.
    """
    start = {
        "curv": config.model.curvature,
        "attention_curv": config.model.block_curvature_start,
    }

    def clamp(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clamp(key, child) for key, child in value.items()}
        if name in start:
            middle, reach = math.log(start[name]), math.log(MAX_CURVATURE_FACTOR)
            return jnp.clip(value, middle - reach, middle + reach)
        if name in ("video_alpha", "textual_alpha", "scale_alpha"):
            return jnp.minimum(value, 0.0)
        return value

    return clamp("", params)
