"""The models of the papers, one file each, the choice among them, and what every one can do.

A model is a Linen module with the methods `encode_query` and `encode_video`, and `lift` if it has a
hyperbolic lift; the functions here are those methods as pure functions of parameters and arrays.
"""

import jax.numpy as jnp
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.models import options
from hlformer_jax.models.gmmformer import GMMFormer
from hlformer_jax.models.gmmformer_v2 import GMMFormerV2
from hlformer_jax.models.hlformer import HLFormer
from hlformer_jax.models.ms_sl import MSSL
from hlformer_jax.models.two_branch import Constants, TwoBranch
from hlformer_jax.nn.bank import GaussianBank
from hlformer_jax.ops.numerics import wide

MODELS: dict[str, type[TwoBranch]] = {
    "hlformer": HLFormer,
    "gmmformer_v2": GMMFormerV2,
    "gmmformer": GMMFormer,
    "ms_sl": MSSL,
}


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
