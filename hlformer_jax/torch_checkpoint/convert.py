"""Turns a checkpoint of the authors' released code into one of ours: of any model of the family.

    python -m hlformer_jax.torch_checkpoint best.ckpt OUT

No torch is needed and nothing in the file is executed (see torch_pickle.py). Sizes are read off
the tensors, the number of heads and the temperature off the options saved with them; what the
released code of a model fixes is known here. The command prints how OUT is evaluated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hlformer_jax.errors import UserError
from hlformer_jax.run import checkpoint
from hlformer_jax.torch_checkpoint import names, pickle_reader

STATES = ("state_dict", "model")
"""Where a released file keeps its parameters: HLFormer and GMMFormer, and MS-SL."""


WIDTHS = {
    "gmmformer_v2": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
    "gmmformer": (0.0, 0.5, 1.0, 5.0),
    "ms_sl": (0.0,),
}
"""Widths of the windows in the released code of a model; HLFormer's are the default."""


AGGREGATION = {
    "hlformer": "maim",
    "gmmformer_v2": "consolidation",
    "gmmformer": "mean",
    "ms_sl": "mean",
}


OPTIONS = {
    "n_heads": ("model.num_heads", int),
    "sft_factor": ("model.temperature", float),
    "map_size": ("data.max_clips", int),
}
"""Options in the file that no tensor's shape tells, by their names there."""


REQUIRED = ("query_input", "query_position", "query_encoder", "query_pooling")


class ConversionError(UserError, ValueError):
    """The file is no checkpoint of a released model; the message says why."""


def convert(source: Path, out: Path) -> dict[str, Any]:
    """Converts one file.

    Args:
      source: a checkpoint written by the released code.
      out: directory to create.

    Returns:
      What is known of the checkpoint: epoch, validation SumR, sizes.

    Raises:
      ConversionError: when the file is not a checkpoint of a released model.
      UnsafeCheckpointError: when it asks for anything beyond tensors and plain containers.
      CheckpointError: when `out` is not empty.
    """
    content = pickle_reader.load(source)
    held = [content.get(name) for name in STATES] if isinstance(content, Mapping) else []
    state = next((value for value in held if isinstance(value, Mapping)), None)
    if state is None:
        raise ConversionError(
            f"{source} has no 'state_dict': give the file that the released code saved (best.ckpt)"
        )
    name, params = _params(source, state)
    known = {**_fixed(name), **sizes(params), **_options(content)}
    info = {"source": source.name, **_progress(content), **known}
    checkpoint.save_params(out, params, info)
    return info


def _params(source: Path, state: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The model's name and its parameters."""
    for name, value in state.items():
        if not isinstance(value, np.ndarray):
            raise ConversionError(f"{source}: state_dict[{name!r}] is not a tensor")
        if not np.all(np.isfinite(value.astype(np.float64))):
            raise ConversionError(f"{source}: {name} holds NaN or infinite values")
    model = names.recognise(state)
    if model is None:
        raise ConversionError(
            f"{source} is no checkpoint of HLFormer, GMMFormer v2, GMMFormer or MS-SL: none of"
            " their video branches is in it"
        )
    try:
        params = names.to_params(state)
    except ValueError as error:
        raise ConversionError(f"{source}: {error}") from None
    if missing := [name for name in REQUIRED if name not in params]:
        raise ConversionError(f"{source} is not a whole checkpoint: it has no {', '.join(missing)}")
    return model, jax.tree.map(lambda value: value.astype(np.float32), params)


def _fixed(model: str) -> dict[str, Any]:
    """What the released code of a model does not leave to its options."""
    fixed: dict[str, Any] = {
        "model.name": model,
        "model.fusion": AGGREGATION[model],
        "model.window": "released",
        "model.video_level": model == "gmmformer",
    }
    if model in WIDTHS:
        fixed["model.euclidean_widths"] = list(WIDTHS[model])
        fixed["model.lorentz_blocks"] = 0
    return fixed


def _progress(content: Mapping[str, Any]) -> dict[str, Any]:
    progress = {}
    for name, ours, kind in (("epoch", "epoch", int), ("model_val", "validation_SumR", float)):
        value = content.get(name)
        if isinstance(value, (int, float, np.ndarray)) and np.size(value) == 1:
            progress[ours] = kind(value)
    return progress


def _options(content: Mapping[str, Any]) -> dict[str, float]:
    """What changes the scores, or what is fed, and no tensor tells."""
    held = (content.get(name) for name in ("config", "model_cfg"))
    config: Mapping[str, Any] = next((x for x in held if isinstance(x, Mapping)), {})
    return {
        ours: kind(config[name])
        for name, (ours, kind) in OPTIONS.items()
        if isinstance(config.get(name), (int, float))
    }


def config_file(info: Mapping[str, Any]) -> str:
    """The configuration that a converted checkpoint is evaluated with.

    Args:
      info: of `convert`.

    Returns:
      Its path; that for ActivityNet where the width of the features is not TVR's.
    """
    model = info["model.name"]
    prefix = "" if model == "hlformer" else f"{model}_"
    return f"configs/{prefix}{'tvr' if info.get('data.visual_dim') == 3072 else 'anet'}.py"


def sizes(params: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a model, by the names of the configuration fields that must match them."""
    found = {
        "model.hidden_size": params["query_pooling"]["kernel"].shape[0],
        "data.text_dim": params["query_input"]["dense"]["kernel"].shape[0],
        "data.max_words": params["query_position"]["embedding"].shape[0],
    }
    for branch in ("clip_branch", "frame_branch"):
        if branch not in params:
            continue
        found["data.visual_dim"] = params[branch]["input"]["dense"]["kernel"].shape[0]
        found["data.max_frames"] = params[branch]["position"]["embedding"].shape[0]
        bank = params[branch]["bank"]
        if "euclidean" in bank:
            query = bank["euclidean"]["attention"]["query"]["bias"]
            found["model.euclidean_blocks"] = query.shape[0]
        if "lorentz" in bank:
            projection = bank["lorentz"]["attention"]["input_proj"]["dense"]["bias"]
            found["model.lorentz_blocks"], found["model.lorentz_dim"] = projection.shape
    return found
