"""Evaluation of a checkpoint on the test split."""

import contextlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import files, parallel
from hlformer_jax.retrieval.results import Result
from hlformer_jax.training import checkpoints, families
from hlformer_jax.training.families import ConfiguredFamily


def _check_same_model(path: Path, info: Mapping[str, Any], family: ConfiguredFamily) -> None:
    """Refuses a configuration that means another model than the checkpoint says it is of."""
    wanted = family.describe()
    recorded = {key: info.get(key, value) for key, value in wanted.items()}
    ours, theirs = family.meaning(wanted), family.meaning(recorded)
    differing = [key for key in ours if ours[key] != theirs[key] and wanted[key] != recorded[key]]
    if differing:
        what = ", ".join(f"config.{key} is {wanted[key]}" for key in differing)
        quoted = (shlex.quote(f"--config.{key}={recorded[key]}") for key in differing)
        flags = " ".join(quoted)
        raise checkpoints.CheckpointError(
            f"{path} is of another model: {what}; to evaluate it add {flags}"
        )


def evaluate_checkpoint(
    config: ConfigDict,
    path: Path,
    scores_file: Path | None,
    tell: Callable[[str], None],
    directory: Path | None = None,
    mesh: Mesh | None = None,
) -> Result:
    """Evaluates a checkpoint on the test split.

    Args:
      config: the configuration it was trained with.
      path: a run's directory or a converted checkpoint.
      scores_file: where to write the score matrix (`scores`, `queries`, `videos`), if anywhere.
      tell: takes one line about what was loaded.
      directory: where the result is to be written, if anywhere; not where a run on other data is.
      mesh: the devices; all there are by default.

    Returns:
      The metrics of the test split.

    Raises:
      ConfigError: when the model's options make no sense, or so many devices cannot share it.
      CheckpointError: when there is no checkpoint or it is of another shape.
      DataError: when the data is missing or wrong.
      WorkdirError: when the directory is that of a run on other data.
      OSError: when the scores cannot be written.
    """
    with parallel.first_alone("scores"):
        if scores_file is not None and parallel.is_first():
            files.check_output(scores_file)  # now, and not when all is computed
    mesh = parallel.mesh() if mesh is None else mesh
    family = families.build(config, mesh)
    template = parallel.abstract(mesh, jax.eval_shape(family.init_params))
    with contextlib.closing(checkpoints.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, family)
        params = family.project(saved.restore(template))
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    if parallel.is_first():
        tell(f"checkpoint {path} ({described})")
    if directory is not None:
        checkpoints.check_workdir_data(directory, family.fingerprint)
    if scores_file is None:
        return family.test(params)
    result, arrays = family.test_scores(params)
    if parallel.is_first():
        files.write_npz(scores_file, arrays)
    return result
