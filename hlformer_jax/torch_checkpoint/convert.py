"""Turns a checkpoint of the authors' released code into one of ours: of any model of the family.

    python -m hlformer_jax.torch_checkpoint best.ckpt OUT

No torch is needed and nothing in the file is executed (see pickle_reader.py). Sizes are read off
the tensors; the number of heads, the temperature, the weights of the scores and the collection off
the options saved with them; what the released code of a model fixes is known here. MS-SL and DL-DKD
save neither the weights nor the collection. The command prints how OUT is evaluated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.torch_checkpoint import names, pickle_reader
from hlformer_jax.torch_checkpoint.errors import ConversionError, quoted
from hlformer_jax.training import checkpoints

STATES = ("state_dict", "model")
"""Where a released file keeps its parameters: HLFormer and GMMFormer, and the others."""


WIDTHS = {
    "hlformer": (),
    "gmmformer_v2": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
    "gmmformer": (0.0, 0.5, 1.0, 5.0),
    "ms_sl": (0.0,),
    "dl_dkd": (0.0,),
}
"""Widths of the windows in the released code of a model; empty is the configuration's default."""


AGGREGATION = {
    "hlformer": "maim",
    "gmmformer_v2": "consolidation",
    "gmmformer": "mean",
    "ms_sl": "mean",
    "dl_dkd": "mean",
}


OPTIONS = {
    "n_heads": ("model.num_heads", int),
    "sft_factor": ("model.temperature", float),
    "map_size": ("data.max_clips", int),
    "clip_scale_w": ("model.clip_weight", float),
    "frame_scale_w": ("model.frame_weight", float),
}
"""Options in the file that no tensor's shape tells, by their names there."""


CONFIGS = {"activitynet": "anet", "tvr": "tvr", "charades": "charades"}
"""The configuration of a collection, by the name that the released codes give the collection."""


REQUIRED = (
    "query_input",
    "query_position",
    "query_encoder",
    "query_pooling",
    "clip_branch",
    "frame_branch",
)


def convert(source: Path, out: Path) -> dict[str, Any]:
    """Converts one file.

    Args:
      source: a checkpoint written by the released code.
      out: directory to create.

    Returns:
      What is known of the checkpoint: epoch, validation SumR, collection, and fields of the
      configuration.

    Raises:
      ConversionError: when the file is not a checkpoint of a released model.
      TorchFileError: when it is no PyTorch file, or asks for anything beyond tensors and plain
        containers.
      CheckpointError: when `out` is not empty.
      OSError: when the file cannot be read.
    """
    content = pickle_reader.load(source)
    try:
        params, info = _converted(content, source.stat().st_size)
    except ConversionError as error:
        raise ConversionError(f"{source}: {error}") from None
    info = {"source": source.name, **info}
    checkpoints.save_params(out, params, info)
    return info


def _converted(content: Mapping[Any, Any], file_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters, and what else is known of the checkpoint."""
    candidates = [content.get(name) for name in STATES]
    state = next((value for value in candidates if isinstance(value, Mapping)), None)
    if state is None:
        raise ConversionError(
            "it has no 'state_dict': give the file that the released code saved (best.ckpt)"
        )
    tensors = _tensors(state, file_size)
    model = names.recognise(tensors)
    if model is None:
        raise ConversionError(
            "is no checkpoint of HLFormer, GMMFormer v2, GMMFormer, MS-SL or DL-DKD: none of their"
            " video branches is in it"
        )
    params = names.to_params(tensors)
    if missing := [name for name in REQUIRED if name not in params]:
        raise ConversionError(f"is not a whole checkpoint: it has no {', '.join(missing)}")
    return params, {
        **_progress(content),
        **_collection(content),
        **_fixed(model),
        **sizes(params),
        **_options(content),
    }


def _tensors(state: Mapping[Any, Any], file_size: int) -> dict[str, np.ndarray]:
    """The tensors by their names, in 32 bit."""
    for name, value in state.items():
        if not isinstance(name, str):
            raise ConversionError(f"state_dict has the key {quoted(name)}, which is not a name")
        if not isinstance(value, np.ndarray):
            raise ConversionError(f"state_dict[{quoted(name)}] is not a tensor")
        if not value.size:
            raise ConversionError(f"{quoted(name)} has no elements: its shape is {value.shape}")
    # Tensors that share their elements could together hold far more than the file.
    if sum(value.nbytes for value in state.values()) > 2 * file_size:
        raise ConversionError("its tensors together are larger than the file")
    tensors = {}
    for name, value in state.items():
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            tensors[name] = value.astype(np.float32)
        if not np.all(np.isfinite(tensors[name])):
            raise ConversionError(f"{quoted(name)} holds NaN or infinite values")
    return tensors


def _fixed(model: str) -> dict[str, Any]:
    """What the released code of a model does not leave to its options."""
    fixed: dict[str, Any] = {
        "model.name": model,
        "model.fusion": AGGREGATION[model],
        "model.window": "released",
        "model.video_level": model == "gmmformer",
        "model.euclidean_widths": list(WIDTHS[model]),
        "model.lorentz_widths": [],
    }
    if model == "dl_dkd":
        fixed["data.teacher_dim"] = 0  # which training alone reads
    return fixed if model == "hlformer" else fixed | {"model.lorentz_blocks": 0}


def _progress(content: Mapping[Any, Any]) -> dict[str, Any]:
    """The epoch and its validation SumR, as far as the file says them."""
    progress: dict[str, Any] = {}
    epoch, metrics = content.get("epoch"), content.get("model_val")
    if type(epoch) is int and 0 <= epoch < 2**31:
        progress["epoch"] = epoch
    # A list of the recalls at 1, 5, 10 and 100 and their sum, or the sum alone.
    sum_recall: Any = metrics[-1] if isinstance(metrics, list | tuple) and metrics else metrics
    if isinstance(sum_recall, np.ndarray) and sum_recall.size == 1:
        sum_recall = sum_recall.item()
    if type(sum_recall) in (int, float) and 0 <= sum_recall <= 400:
        progress["validation_SumR"] = float(sum_recall)
    return progress


def _config(content: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The options that the file holds: HLFormer's and GMMFormer's, or the others'."""
    candidates = (content.get(name) for name in ("config", "model_cfg"))
    return next((value for value in candidates if isinstance(value, Mapping)), {})


def _collection(content: Mapping[Any, Any]) -> dict[str, str]:
    """The collection that the file says it was trained on, if it is one of the three."""
    collection: Any = _config(content).get("collection")
    named = isinstance(collection, str) and collection in CONFIGS
    return {"collection": collection} if named else {}


def _options(content: Mapping[Any, Any]) -> dict[str, float]:
    """What changes the scores, or what is fed, and no tensor tells."""
    options, config = {}, _config(content)
    for name, (field, kind) in OPTIONS.items():
        value = config.get(name)
        if value is None:
            continue
        # Comparing comes first: converting an infinite or a gigantic number raises an error.
        least = 1 if kind is int else 0
        if type(value) not in (int, float) or not least <= value <= 2**16 or kind(value) != value:
            raise ConversionError(f"its option {name} is {quoted(value)}, which no model can have")
        options[field] = kind(value)
    return options


def config_file(info: Mapping[str, Any]) -> str:
    """The configuration that a converted checkpoint is evaluated with.

    Args:
      info: the result of `convert`.

    Returns:
      Its path, and behind a colon the data set. Where the file does not say which, it is the one
      whose features are as wide, ActivityNet before Charades.
    """
    model = info["model.name"]
    by_width = "tvr" if info["data.visual_dim"] == 3072 else "activitynet"
    data = CONFIGS[info.get("collection", by_width)]
    return f"configs/{data}.py" if model == "hlformer" else f"configs/{model}.py:{data}"


def sizes(params: Mapping[str, Any]) -> dict[str, int]:
    """Reads the sizes of a model off its parameters.

    Args:
      params: nested parameters of ours.

    Returns:
      Sizes by the configuration fields that must match them.

    Raises:
      ConversionError: when a tensor that tells a size is missing or has other axes.
    """
    (max_words, hidden_size) = _matrix(params, "query_position.embedding")
    (max_frames, _) = _matrix(params, "frame_branch.position.embedding")
    result = {
        "model.hidden_size": hidden_size,
        "data.text_dim": _matrix(params, "query_input.dense.kernel")[0],
        "data.visual_dim": _matrix(params, "frame_branch.input.dense.kernel")[0],
        "data.max_frames": max_frames,
        "data.max_words": max_words,
    }
    bank = params["frame_branch"].get("bank", {})
    if "euclidean" in bank:
        query = _matrix(params, "frame_branch.bank.euclidean.attention.query.bias")
        result["model.euclidean_blocks"] = query[0]
    if "lorentz" in bank:
        projection = _matrix(params, "frame_branch.bank.lorentz.attention.input_proj.dense.bias")
        result["model.lorentz_blocks"], result["model.lorentz_dim"] = projection
    return result


def _matrix(params: Mapping[str, Any], path: str) -> tuple[int, int]:
    """The shape of the matrix at a dotted path."""
    value: Any = params
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, np.ndarray):
        raise ConversionError(f"is not a whole checkpoint: it has no {path}")
    if value.ndim != 2:
        raise ConversionError(f"{path} has {value.ndim} axes instead of two")
    return value.shape
