"""What a training left: the configuration of its run, and the parameters of the best epoch."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from hlformer_jax import files, parallel
from hlformer_jax.config import default, family_of
from hlformer_jax.config.families import leaves
from hlformer_jax.errors import UserError
from hlformer_jax.training import checkpoints, families
from hlformer_jax.training.checkpoints import RETIRED


class FinishedError(UserError, ValueError):
    """A directory that holds no run that this version reads."""


class Finished(NamedTuple):
    """A run whose training has ended, or got as far as its first checkpoint.

    Attributes:
      directory: the run's directory.
      config: its configuration.
      family: the family of its model, on its data.
      params: the parameters of its best epoch.
    """

    directory: Path
    config: ConfigDict
    family: Any
    params: Any


def read_config(directory: Path) -> ConfigDict:
    """The configuration of a run, of whichever family.

    Args:
      directory: the run's directory, with its config.json.

    Raises:
      FinishedError: when the directory has none that this version reads.
    """
    path = directory / "config.json"
    try:
        recorded = files.parse_json(path.read_text(encoding="utf-8"))["config"]
        recorded = {name: value for name, value in recorded.items() if name not in RETIRED}
        config = default(family_of(ConfigDict({"model": recorded["model"]})))
        with config.ignore_type():
            config.update(recorded)
    except (FileNotFoundError, NotADirectoryError):
        raise FinishedError(
            f"{directory} has no config.json: give the directory of a run (its --workdir)"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FinishedError(
            f"{path} is no configuration of this version ({type(error).__name__}): train the model"
            " again"
        ) from None
    return config


def load(directory: Path, changes: Mapping[str, Any] | None = None) -> Finished:
    """Loads a run; its data is opened when it is asked for.

    Args:
      directory: the run's directory.
      changes: values of fields by their full names, such as "data.manual_dir", for what has been
        moved since; what the run's family has no field for is left alone.

    Raises:
      FinishedError: when it has no configuration that this version reads.
      CheckpointError: when there is no checkpoint, or it is damaged.
      ConfigError: when its options make no sense.
    """
    config = read_config(directory)
    fields = {name for name, _ in leaves(family_of(config))}
    known = {name: value for name, value in (changes or {}).items() if name in fields}
    config.update_from_flattened_dict(known)
    mesh = parallel.mesh()
    family = families.build(config, mesh)
    template = parallel.abstract(mesh, jax.eval_shape(family.init_params))
    with contextlib.closing(checkpoints.open_params(directory)) as saved:
        params = family.project(saved.restore(template))
    return Finished(directory, config, family, params)
