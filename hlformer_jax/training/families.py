"""The families of models by name, and the one that a configuration is of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.config import family_of
from hlformer_jax.training.hover import HOVER
from hlformer_jax.training.prvr import PRVR

if TYPE_CHECKING:
    from hlformer_jax.training.family import ConfiguredFamily as ConfiguredFamily
else:
    # Where annotations are executed, to look at the properties of a family would open its data.
    ConfiguredFamily = Any

FAMILIES: dict[str, Callable[[ConfigDict, Mesh], ConfiguredFamily]] = {"prvr": PRVR, "hover": HOVER}
"""What makes a family of a configuration and devices; the names are those of `config.families`."""


def build(config: ConfigDict, mesh: Mesh | None = None) -> ConfiguredFamily:
    """The family of models that a configuration asks for, on its data.

    Args:
      config: the whole configuration.
      mesh: the devices; all there are by default.

    Raises:
      ConfigError: when the model's options make no sense, or so many devices cannot share it.
    """
    return FAMILIES[family_of(config)](config, parallel.mesh() if mesh is None else mesh)
