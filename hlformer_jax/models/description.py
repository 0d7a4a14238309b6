"""What a checkpoint says of its model, by the fields of the configuration."""

import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.models.options import default_widths

NOT_OF_THE_MODEL = ("input_dropout", "dropout", "frame_weight", "clip_weight")
"""Fields of `config.model` that may differ between training and evaluation."""


def describe(config: ConfigDict) -> dict[str, Any]:
    """The fields that a checkpoint must share with a configuration that evaluates it."""
    fields = {
        f"model.{name}": value
        for name, value in config.model.items()
        if name not in NOT_OF_THE_MODEL
    }
    for name in ("visual_dim", "text_dim", "max_frames", "max_clips", "max_words"):
        fields[f"data.{name}"] = config.data[name]
    return json.loads(json.dumps(fields))


def meaning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `describe` with a width for each block, however they are written."""
    meaning = dict(fields)
    for geometry in ("euclidean", "lorentz"):
        blocks, widths = fields[f"model.{geometry}_blocks"], fields[f"model.{geometry}_widths"]
        each = widths or default_widths(blocks)
        meaning[f"model.{geometry}_widths"] = list(each) * (blocks if len(each) == 1 else 1)
    if not fields["model.lorentz_blocks"]:
        meaning["model.lorentz_dim"] = None  # of no block
    return meaning
