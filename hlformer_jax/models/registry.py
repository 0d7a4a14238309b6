"""The models by name, and the one that a configuration asks for."""

from collections.abc import Callable
from typing import Any

import flax.struct
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.models import options
from hlformer_jax.models.dl_dkd import DLDKD
from hlformer_jax.models.gmmformer import GMMFormer
from hlformer_jax.models.gmmformer_v2 import GMMFormerV2
from hlformer_jax.models.hlformer import HLFormer
from hlformer_jax.models.ms_sl import MSSL
from hlformer_jax.models.options import Hyperparameters
from hlformer_jax.models.two_branch import TwoBranch

MODELS: dict[str, type[TwoBranch]] = {
    "hlformer": HLFormer,
    "gmmformer_v2": GMMFormerV2,
    "gmmformer": GMMFormer,
    "ms_sl": MSSL,
    "dl_dkd": DLDKD,
}

TITLES = {
    "hlformer": "HLFormer",
    "gmmformer_v2": "GMMFormer v2",
    "gmmformer": "GMMFormer",
    "ms_sl": "MS-SL",
    "dl_dkd": "DL-DKD",
    "hover": "HOVER",
}
"""What the papers call the models, by `config.model.name`; `hover` is of another family."""


@flax.struct.dataclass
class Model:
    """A model as an argument of compiled programs: a pytree of its hyperparameters.

    Attributes:
      module: the Linen module, part of a program.
      hyperparameters: numbers that are arguments of a program.
    """

    module: TwoBranch = flax.struct.field(pytree_node=False)
    hyperparameters: Hyperparameters

    def apply(
        self, params: Any, *inputs: Any, method: str | Callable[..., Any], **options: Any
    ) -> Any:
        """Calls a method of the module with these parameters."""
        return self.module.apply({"params": params}, *inputs, method=method, **options)


def build(config: ConfigDict) -> Model:
    """Returns the model that `config.model` asks for.

    Args:
      config: the whole configuration (data sizes and compute dtype matter too).

    Raises:
      ConfigError: for an unknown model, or a combination of options that makes no sense.
    """
    name = config.model.name
    if name not in MODELS:
        raise ConfigError(f"config.model.name {name!r} is unknown: use {', '.join(MODELS)}")
    return Model(MODELS[name].from_config(config), options.hyperparameters(config))
