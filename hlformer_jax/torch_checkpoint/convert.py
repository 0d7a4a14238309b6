"""Conversion of released checkpoints to checkpoints of this package, and their evaluation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import training
from hlformer_jax.cli import command_line
from hlformer_jax.config import DATA_SETS, DEFINITIONS, ConfigError, flat
from hlformer_jax.config import load as load_config
from hlformer_jax.torch_checkpoint.names import ConversionError, recognise, to_params
from hlformer_jax.torch_checkpoint.reader import load, quoted
from hlformer_jax.training import checkpoints

OPTIONS = {
    "n_heads": ("model.num_heads", int),
    "sft_factor": ("model.temperature", float),
    "map_size": ("data.max_clips", int),
    "clip_scale_w": ("model.clip_weight", float),
    "frame_scale_w": ("model.frame_weight", float),
    "curv_init": ("model.curvature", float),  # of HLFormer; the bounds of the learned curvature
}
"""Options in the file that no tensor's shape determines: field of the configuration, and type."""

NAMING = "parameters by their names and shapes in this package"
"""Note in errors: users may know the names and shapes of the released code."""

MAX_LISTED = 5
"""Largest number of parameters that an error names."""

MAX_OPTION = 2**16
"""Largest accepted value of an option."""

_DATA_SETS = {fields["collection"]: name for name, fields in DATA_SETS.items()}

_REQUIRED = (
    *("query_input", "query_position", "query_encoder", "query_pooling"),
    *("clip_branch", "frame_branch"),
)


def convert(
    source: str | Path, out: str | Path, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Convert a released checkpoint into a new directory.

    Args:
      source: the file.
      out: the directory to create.
      report: receives a line for each parameter that evaluation clamps to the bounds of the model.

    Returns:
      Facts about the checkpoint: "source", the name of the file; "epoch", "validation_SumR" and
      "collection", if the file has them; and fields of the configuration by their full names, such
      as "model.name".

    Raises:
      TorchFileError: if the file is not a PyTorch checkpoint.
      ConversionError: if it is not a complete checkpoint of a released model: a tensor is missing,
        is not of the model or has another shape.
      CheckpointError: if `out` is not a new directory.
      OSError: if the file cannot be read or the directory cannot be written.
    """
    source, out = Path(source), Path(out)
    checkpoints.check_new(out)
    content = load(source)
    try:
        params, info = _convert_parameters(content, source.stat().st_size)
        family = _family(info)
        _check_shapes(params, family)
    except ConversionError as error:
        raise ConversionError(f"{source}: {error}") from None
    info = {"source": source.name, **info}
    checkpoints.save_params(out, params, info)
    for line in _describe_clamped(params, family):
        report(line)
    return info


def _family(info: Mapping[str, Any]) -> Any:
    """Return the family of the model of a converted checkpoint.

    Raises:
      ConversionError: if the sizes of the tensors contradict each other.
    """
    config = _configuration(info)
    config.update_from_flattened_dict({name: x for name, x in _fields(info).items() if "." in name})
    try:
        return training.build(config)
    except ConfigError as error:
        raise ConversionError(f"it is not a complete checkpoint: {error}") from None


def _check_shapes(params: Mapping[str, Any], family: Any) -> None:
    """Compare the shapes of converted parameters with those of the model.

    Raises:
      ConversionError: names up to `MAX_LISTED` parameters of each kind of difference.
    """
    converted, expected = (
        {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (params, jax.eval_shape(family.init_params))
    )
    differing = [
        f"{name} has the shape {converted[name]} instead of {shape}"
        for name, shape in expected.items()
        if converted.get(name, shape) != shape
    ]
    problems = {
        "it lacks ": [name for name in expected if name not in converted],
        "the model has no ": [name for name in converted if name not in expected],
        "": differing,
    }
    if any(problems.values()):
        listed = "; ".join(kind + _shorten_list(names) for kind, names in problems.items() if names)
        raise ConversionError(f"it is not a complete checkpoint ({NAMING}): {listed}")


def _shorten_list(names: Sequence[str]) -> str:
    """Return at most `MAX_LISTED` names, separated by commas, and the number of further names."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _describe_clamped(params: Mapping[str, Any], family: Any) -> list[str]:
    """Return a line for each parameter outside of the bounds that the released code clamps it to.

    The file has the parameters before the clamp, which precedes every forward pass.
    """
    bounded = family.project(params)
    lines = []
    for (path, value), limited in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(bounded), strict=True
    ):
        limited = np.asarray(limited)
        if (outside := value != limited).any():
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            lines.append(
                f"{name} is {value[outside][0]:g} in the file, outside of the bounds of the model:"
                f" evaluation uses {limited[outside][0]:g}, as the released code does"
            )
    return lines


def _fields(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a checkpoint, with tuples for lists, as a configuration has them."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in info.items()}


def evaluation_command(info: Mapping[str, Any], out: str) -> str:
    """Return the command line that evaluates a converted checkpoint.

    It contains PATH, which the user replaces by the directory of the released features.

    Args:
      info: the facts that `convert` has returned.
      out: the directory of the converted checkpoint.
    """
    fields = {f"config.{name}": value for name, value in _fields(info).items() if "." in name}
    options = {
        "config": config_file(info),
        "mode": "evaluate",
        "checkpoint": out,
        **fields,
        "config.data.manual_dir": "PATH",
    }
    return command_line("main", *(f"--{name}={value}" for name, value in options.items()))


def undetermined_fields(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the file does not determine, with the values of `config_file`.

    Args:
      info: the facts that `convert` has returned.
    """
    # Without the option, the curvature is the tensor's, within its usual bounds.
    defaults, determined = flat(_configuration(info)), {"model.curvature", *info}
    if info["model.fusion"] == "mean":
        determined.add("model.temperature")  # not used
    return {field: defaults[field] for field, _ in OPTIONS.values() if field not in determined}


def differing_blocks(info: Mapping[str, Any]) -> list[str]:
    """Return a text for each number of blocks that differs from `config_file`.

    Args:
      info: the facts that `convert` has returned.
    """
    defaults = flat(_configuration(info))
    return [
        f"{field} is {info[field]} in the file, but {defaults[field]} in {config_file(info)}"
        for field in ("model.euclidean_blocks", "model.lorentz_blocks")
        if field in info and info[field] != defaults[field]
    ]


def _configuration(info: Mapping[str, Any]) -> ConfigDict:
    """Return the published configuration of the model of a converted checkpoint."""
    file, _, data_set = config_file(info).partition(":")
    return load_config(file, data_set)


def config_file(info: Mapping[str, Any]) -> str:
    """Return the configuration that evaluates a converted checkpoint, such as configs/anet.py.

    If the checkpoint does not name its collection, the width of the video features decides.

    Args:
      info: the facts that `convert` has returned.
    """
    model = info["model.name"]
    by_width = "tvr" if info["data.visual_dim"] == 3072 else "activitynet"
    data_set = _DATA_SETS[info.get("collection", by_width)]
    return f"configs/{data_set}.py" if model == "hlformer" else f"configs/{model}.py:{data_set}"


def _convert_parameters(
    content: Mapping[Any, Any], file_size: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the facts about the checkpoint."""
    state = _section(content, "state_dict", "model")
    if state is None:
        raise ConversionError(
            "it has no 'state_dict': give the file that the released code saved (best.ckpt)"
        )
    tensors = _without_module(_tensors(state, file_size))
    model = recognise(tensors)
    if model is None:
        raise ConversionError(
            "it has no video branch of HLFormer, GMMFormer v2, GMMFormer, MS-SL or DL-DKD"
        )
    params = to_params(tensors)
    if missing := [name for name in _REQUIRED if name not in params]:
        raise ConversionError(
            f"it is not a complete checkpoint ({NAMING}): it lacks {', '.join(missing)}"
        )
    clip, frame = (_block_counts(params[f"{branch}_branch"]) for branch in ("clip", "frame"))
    if differing := [bank for bank in clip | frame if clip.get(bank) != frame.get(bank)]:
        bank = differing[0]
        raise ConversionError(
            f"it is not a complete checkpoint: its clip branch has {clip.get(bank, 0)} blocks"
            f" ({bank}), its frame branch {frame.get(bank, 0)}"
        )
    options = _section(content, "config", "model_cfg") or {}
    collection = options.get("collection")
    has_collection = isinstance(collection, str) and collection in _DATA_SETS
    return params, {
        **_progress(content),
        **({"collection": collection} if has_collection else {}),
        **_definition(model),
        **_sizes(params),
        **_options(options),
    }


def _section(content: Mapping[Any, Any], *names: str) -> Mapping[Any, Any] | None:
    """Return the first of these entries that is a dictionary: released codes differ in its name."""
    return next((content[k] for k in names if isinstance(content.get(k), Mapping)), None)


def _tensors(state: Mapping[Any, Any], file_size: int) -> dict[str, np.ndarray]:
    """Return the tensors by their names, in float32.

    Raises:
      ConversionError: if a value is not a tensor or not finite, or all are larger than the file.
    """
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray) or not value.size:
            raise ConversionError(f"state_dict[{quoted(name)}] is not a tensor with elements")
    # Tensors that share their elements could together be far larger than the file.
    if sum(value.nbytes for value in state.values()) > 2 * file_size:
        raise ConversionError("its tensors together are larger than the file")
    tensors = {}
    for name, value in state.items():
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite
            tensors[name] = np.asarray(value).astype(np.float32)
        if not np.all(np.isfinite(tensors[name])):
            raise ConversionError(f"{quoted(name)} holds NaN or infinite values")
    return tensors


def _without_module(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Remove the prefix that PyTorch's DataParallel adds to every name."""
    if all(name.startswith("module.") for name in tensors):
        return {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _block_counts(branch: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of blocks of each bank of a branch, such as bank.euclidean."""
    counts = {}
    for path, blocks in jax.tree_util.tree_leaves_with_path(branch):
        if len(path) > 2 and path[0].key in ("bank", "bank_2") and blocks.ndim:
            counts[jax.tree_util.keystr(path[:2], simple=True, separator=".")] = len(blocks)
    return counts


def _definition(model: str) -> dict[str, Any]:
    """Return the fields that the released code of a model fixes."""
    definition = DEFINITIONS[model]["model"]
    fixed: dict[str, Any] = {
        f"model.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in definition.items()
        if not name.endswith("_blocks")  # the tensors determine the number of blocks
    }
    fixed |= {"model.name": model, "model.window": "released"}
    if not definition["lorentz_blocks"]:
        fixed["model.lorentz_blocks"] = 0
    if model == "dl_dkd":
        fixed["data.teacher_dim"] = 0  # only training reads the teacher
    return fixed


def _progress(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the epoch and its validation SumR, if the file has them."""
    progress: dict[str, Any] = {}
    epoch, metrics = content.get("epoch"), content.get("model_val")
    if type(epoch) is int and 0 <= epoch < 2**31:
        progress["epoch"] = epoch
    # The file has a list of the recalls at 1, 5, 10 and 100 and their sum, or only the sum.
    sum_recall: Any = metrics[-1] if isinstance(metrics, list | tuple) and metrics else metrics
    if isinstance(sum_recall, np.ndarray) and sum_recall.size == 1:
        sum_recall = sum_recall.item()
    if type(sum_recall) in (int, float) and 0 <= sum_recall <= 400:
        progress["validation_SumR"] = float(sum_recall)
    return progress


def _options(options: Mapping[Any, Any]) -> dict[str, float]:
    """Return the fields that only the options of the file determine."""
    fields = {}
    for name, (field, kind) in OPTIONS.items():
        value = options.get(name)
        if value is None:
            continue
        low = 1 if kind is int else 0
        # The range is checked first, because int(value) raises an error for an infinite number.
        in_range = type(value) in (int, float) and low <= value <= MAX_OPTION
        if not in_range or kind(value) != value:
            raise ConversionError(
                f"its option {name} is {quoted(value)}, not a number from {low} to {MAX_OPTION}"
            )
        fields[field] = kind(value)
    return fields


def _sizes(params: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields that the shapes of the parameters determine."""
    max_words, hidden_size = _matrix_shape(params, "query_position.embedding")
    sizes = {
        "model.hidden_size": hidden_size,
        "data.text_dim": _matrix_shape(params, "query_input.dense.kernel")[0],
        "data.visual_dim": _matrix_shape(params, "frame_branch.input.dense.kernel")[0],
        "data.max_frames": _matrix_shape(params, "frame_branch.position.embedding")[0],
        "data.max_words": max_words,
    }
    bank = params["frame_branch"].get("bank", {})
    if "euclidean" in bank:
        query = _matrix_shape(params, "frame_branch.bank.euclidean.attention.query.bias")
        sizes["model.euclidean_blocks"] = query[0]
    if "lorentz" in bank:
        path = "frame_branch.bank.lorentz.attention.input_proj.dense.bias"
        sizes["model.lorentz_blocks"], sizes["model.lorentz_dim"] = _matrix_shape(params, path)
    return sizes


def _matrix_shape(params: Mapping[str, Any], path: str) -> tuple[int, int]:
    value: Any = params
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, np.ndarray) or value.ndim != 2:
        raise ConversionError(
            f"it is not a complete checkpoint ({NAMING}): it has no matrix {path}"
        )
    return value.shape
