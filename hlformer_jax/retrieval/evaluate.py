"""Evaluation of a checkpoint on the test split."""

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.data import source
from hlformer_jax.models import options
from hlformer_jax.parallel import devices, processes
from hlformer_jax.retrieval.evaluator import Evaluator, Result
from hlformer_jax.run import checkpoint, files, workdir

NOT_OF_THE_MODEL = ("input_dropout", "dropout", "frame_weight", "clip_weight")
"""Fields of `config.model` that may differ between training and evaluation."""


def model_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields that a checkpoint shares with whoever evaluates it, as JSON has them."""
    fields = {
        f"model.{name}": value
        for name, value in config.model.items()
        if name not in NOT_OF_THE_MODEL
    }
    for name in ("visual_dim", "text_dim", "max_frames", "max_clips", "max_words"):
        fields[f"data.{name}"] = config.data[name]
    return json.loads(json.dumps(fields))


def _check_same_model(path: Path, info: Mapping[str, Any], config: ConfigDict) -> None:
    """Refuses a configuration that means another model than the checkpoint says it is of."""
    wanted = model_fields(config)
    recorded = {key: info.get(key, value) for key, value in wanted.items()}
    ours, theirs = _meaning(wanted), _meaning(recorded)
    differing = [key for key in ours if ours[key] != theirs[key] and wanted[key] != recorded[key]]
    if differing:
        what = ", ".join(f"config.{key} is {wanted[key]}" for key in differing)
        quoted = (shlex.quote(f"--config.{key}={recorded[key]}") for key in differing)
        flags = " ".join(quoted)
        raise checkpoint.CheckpointError(
            f"{path} is of another model: {what}; to evaluate it add {flags}"
        )


def _meaning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `model_fields` with a width for each block, however they are written."""
    meaning = dict(fields)
    for geometry in ("euclidean", "lorentz"):
        blocks, widths = fields[f"model.{geometry}_blocks"], fields[f"model.{geometry}_widths"]
        each = widths or options.default_widths(blocks)
        meaning[f"model.{geometry}_widths"] = list(each) * (blocks if len(each) == 1 else 1)
    if not fields["model.lorentz_blocks"]:
        meaning["model.lorentz_dim"] = None  # of no block
    return meaning


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
      ReleasedDataError: when the data is missing or wrong.
      WorkdirError: when the directory is that of a run on other data.
      OSError: when the scores cannot be written.
    """
    with processes.first_alone("scores"):
        if scores_file is not None and processes.is_first():
            files.check_place(scores_file)  # now, and not when all is computed
    model = models.build(config)
    mesh = devices.mesh() if mesh is None else mesh
    models.check_devices(config, mesh.size)
    shapes = jax.eval_shape(lambda: models.init_params(model, config))
    like = devices.abstract(mesh, shapes)
    with contextlib.closing(checkpoint.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, config)
        params = models.project(saved.restore(like), config)
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    if processes.is_first():
        tell(f"checkpoint {path} ({described})")
    with processes.first_alone("data"):
        data = source.open_data(config)
    if directory is not None:
        workdir.check_data(directory, data.fingerprint)
    split = data.test
    evaluator = Evaluator(model, config, mesh)
    with contextlib.closing(evaluator.feed(split)) as windows:
        if scores_file is None:
            return evaluator.evaluate(params, windows, config.eval.corpus)
        scores = evaluator.scores(params, windows)
    arrays = {"scores": scores, "queries": split.caption_ids(), "videos": split.video_ids}
    if processes.is_first():
        files.write_npz(scores_file, arrays)
    return evaluator.result(scores, split)
