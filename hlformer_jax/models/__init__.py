"""The models of the papers, one file each, and the choice among them by configuration."""

import flax.linen as nn
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.models import hlformer


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
