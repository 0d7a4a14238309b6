"""Trained parameters from a directory: a loaded run, and the evaluation of a checkpoint."""

import contextlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import files, parallel
from hlformer_jax.config import default, family_of, leaves
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.training import checkpoints, families
from hlformer_jax.training.families import Family


class RunError(UserError, ValueError):
    """A directory that holds no run that this version reads."""


class LoadedRun(NamedTuple):
    """A run that has a checkpoint, with the parameters of its best epoch."""

    directory: Path
    config: ConfigDict
    family: Any
    params: Any


def read_config(directory: Path) -> ConfigDict:
    """The configuration of a run, of whichever family."""
    path = directory / "config.json"
    try:
        recorded = files.parse_json(path.read_text(encoding="utf-8"))["config"]
        recorded = checkpoints.without_retired(recorded)
        config = default(family_of(ConfigDict({"model": recorded["model"]})))
        with config.ignore_type():
            config.update(recorded)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{directory} has no config.json: give the directory of a run (its --workdir)"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is no configuration of this version ({type(error).__name__}): train the model"
            " again"
        ) from None
    return config


def load(directory: Path, changes: Mapping[str, Any] | None = None) -> LoadedRun:
    """Loads a run; its data is opened when it is asked for.

    `changes` are fields by their full names, such as "data.manual_dir", for what has been moved
    since; what the run's family has no field for is left alone.
    """
    config = read_config(directory)
    fields = {name for name, _ in leaves(family_of(config))}
    known = {name: value for name, value in (changes or {}).items() if name in fields}
    config.update_from_flattened_dict(known)
    mesh = parallel.mesh()
    family = families.build(config, mesh)
    with contextlib.closing(checkpoints.open_params(directory)) as saved:
        return LoadedRun(directory, config, family, _restored(saved, family, mesh))


def evaluate_checkpoint(
    config: ConfigDict,
    path: Path,
    scores_file: Path | None,
    report: Callable[[str], None],
    directory: Path | None = None,
    mesh: Mesh | None = None,
    overwrite: bool = False,
) -> Result:
    """Evaluates a run's directory or a converted checkpoint on the test split.

    Args:
      config: the configuration it was trained with.
      path: the checkpoint.
      scores_file: where to write the score matrix (`scores`, `queries`, `videos`), if anywhere.
      report: takes one line about what was loaded.
      directory: where the result is to be written, if anywhere; not where a run on other data is.
      mesh: the devices; all there are by default.
      overwrite: whether scores and a result that are there may be replaced.
    """
    with parallel.first_alone("scores"):
        if parallel.is_first():  # now, and not when all is computed
            if scores_file is not None:
                files.check_output(scores_file, files.replacing(overwrite))
            if directory is not None and directory.is_dir():
                ranking.check_place(directory, files.replacing(overwrite, own=True))
    mesh = parallel.mesh() if mesh is None else mesh
    family, params = open_checkpoint(config, path, report, mesh)
    if directory is not None:
        checkpoints.check_workdir_data(directory, family.fingerprint)
    if scores_file is None:
        return family.test(params)
    result, arrays = family.test_scores(params)
    if parallel.is_first():
        files.write_npz(scores_file, arrays, files.replacing(overwrite))
    return result


def open_checkpoint(
    config: ConfigDict, path: Path, report: Callable[[str], None], mesh: Mesh
) -> tuple[Family, Any]:
    """The family of a configuration, and the parameters of a checkpoint that is of its model."""
    family = families.build(config, mesh)
    with contextlib.closing(checkpoints.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, family)
        params = _restored(saved, family, mesh)
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    if parallel.is_first():
        report(f"checkpoint {path} ({described})")
    return family, params


def _restored(saved: checkpoints.Series, family: Family, mesh: Mesh) -> Any:
    template = parallel.abstract(mesh, jax.eval_shape(family.init_params))
    return family.project(saved.restore(template))


def _check_same_model(path: Path, info: Mapping[str, Any], family: Family) -> None:
    """Refuses a configuration that means another model than the checkpoint says it is of."""
    wanted = family.describe()
    recorded = {key: info.get(key, value) for key, value in wanted.items()}
    ours, theirs = family.meaning(wanted), family.meaning(recorded)
    differing = [key for key in ours if ours[key] != theirs[key] and wanted[key] != recorded[key]]
    if differing:
        what = ", ".join(f"config.{key} is {wanted[key]}" for key in differing)
        flags = " ".join(shlex.quote(f"--config.{key}={recorded[key]}") for key in differing)
        raise checkpoints.CheckpointError(
            f"{path} is of another model: {what}; to evaluate it add {flags}"
        )
