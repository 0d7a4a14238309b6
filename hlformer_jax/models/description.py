"""What a checkpoint says of its model, by the fields of the configuration."""

import json
from typing import Any

from ml_collections import ConfigDict

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
