"""Fields that are set together: models, data sets, forms of HOVER, and the debug size.

A file in `configs/` starts from `of_model` or `default`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.fields import default, family_of, look_up
from hlformer_jax.config.models import DEFINITIONS, Values
from hlformer_jax.errors import ConfigError

DATA_SETS: Mapping[str, Mapping[str, Any]] = {
    "anet": {"collection": "activitynet", "feature": "i3d", "visual_dim": 1024, "text_dim": 1024},
    "tvr": {"collection": "tvr", "feature": "i3d_resnet", "visual_dim": 3072, "text_dim": 768},
    "charades": {
        "collection": "charades",
        "feature": "i3d_rgb_lgi",
        "visual_dim": 1024,
        "text_dim": 1024,
    },
}
"""The released features of each data set."""

DATA_SET_TITLES = {"anet": "ActivityNet Captions", "charades": "Charades-STA", "tvr": "TVR"}
"""Names of the data sets in the papers, in the order of their tables."""

PRESETS: Mapping[str, Values] = {
    "corrected": {},
    # The released code.
    "released": {
        "model": {
            "scale": 100.0,
            "hyperbolic_init": "kaiming",
            "max_radius": 0.999,
            "riemannian_factor": True,
        },
        "loss": {
            "form": "released",
            "mask_related": "none",
            "order": 0.0,
            "order_base": "released",
        },
        "optim": {"hyperbolic_rate": 1e-7, "scale_rate": 1e-7, "weight_decay": 0.3},
        "trees": {"short_video": "whole"},
        "eval": {"select": "last"},
    },
    # The paper's equations.
    "printed": {
        "model": {"scale": 1.0, "learned_scale": False},
        "loss": {"form": "printed", "mask_related": "none", "tree_reduction": "sum"},
    },
}
"""The forms of HOVER, by their name after the colon of `configs/hover.py`."""

FLAT: Values = {
    "model": {"geometry": "euclidean", "metric": "cosine"},
    "loss": {"tree": 0.0, "chain": 0.0, "order": 0.0},
}
"""HOVER's flat baseline: cosines after a linear layer, and the alignment as the only loss."""

_DEBUG = {
    "compile_fast": True,
    "data.synthetic_videos": (24, 8, 8),
    "model.hidden_size": 16,
    "train.epochs": 2,
    "train.batch_size": 8,
    "train.log_every": 1,
}
DEBUG: Mapping[str, Mapping[str, Any]] = {
    "prvr": _DEBUG
    | {
        "data.max_frames": 32,
        "data.max_clips": 8,
        "model.lorentz_dim": 15,
        "loss.hard_negative_epoch": 1,
        "eval.video_batch": 8,
        "eval.query_batch": 16,
    },
    "hover": _DEBUG
    | {
        # Enough test videos for trees of one, two, three, four, and five or more leaves.
        "data.synthetic_videos": (24, 8, 24),
        "data.max_words": 16,
        "trees.node_frames": 4,
        "trees.train_subset": "full",
        "model.hyperbolic_dim": 16,
        "eval.node_batch": 32,
        "eval.query_batch": 32,
    },
}
"""Fields, by family, with which a configuration runs in seconds on a CPU."""


def of_model(name: str) -> ConfigDict:
    """Return the default configuration with the fields that define a model.

    Args:
      name: name of the model, a key of `DEFINITIONS`.

    Raises:
      ConfigError: for an unknown name.
    """
    config = _update(default(), look_up("model", name, DEFINITIONS))
    config.model.name = name
    return config


def on_data_set(config: ConfigDict, data_set: str) -> ConfigDict:
    """Set the fields of a data set's released features, and return the configuration.

    Args:
      config: the configuration, which is changed.
      data_set: a key of `DATA_SETS`.
    """
    return _update(config, {"data": DATA_SETS[data_set]})


def preset(config: ConfigDict, name: str) -> ConfigDict:
    """Set the fields of a form of HOVER, and return the configuration.

    Args:
      config: the configuration, which is changed.
      name: a key of `PRESETS`.

    Raises:
      ConfigError: for an unknown name.
    """
    return _update(config, look_up("form of HOVER", name, PRESETS))


def debug(config: ConfigDict) -> ConfigDict:
    """Shrink a configuration until it runs in seconds on a CPU.

    Sizes, epochs and the number of blocks shrink; losses, weights, the optimiser and the options of
    the model stay. Without `manual_dir` the data is synthetic. The widths of the features stay, so
    that the configuration also runs on the released features.

    Args:
      config: the configuration, which is changed.

    Returns:
      The configuration.
    """
    family = family_of(config)
    config.update_from_flattened_dict(DEBUG[family])
    if family == "prvr":
        for geometry in ("euclidean", "lorentz"):
            blocks = min(config.model[f"{geometry}_blocks"], 2)
            config.model[f"{geometry}_blocks"] = blocks
            config.model[f"{geometry}_widths"] = tuple(config.model[f"{geometry}_widths"])[:blocks]
    return config


def variant(config: ConfigDict, name: str) -> ConfigDict:
    """Return a variant of a configuration.

    Args:
      config: the configuration, which may be changed.
      name: "" for the configuration itself, "debug" for its debug size.

    Raises:
      ConfigError: for another name.
    """
    if name not in ("", "debug"):
        raise ConfigError(f"the configuration has no variant {name!r}: the only variant is 'debug'")
    return debug(config) if name else config


def parts_of(name: str, data_sets: Sequence[str] = tuple(DATA_SETS)) -> tuple[str, str]:
    """Split the name after the colon of `configs/x.py:NAME` into data set and size.

    Args:
      name: a data set, "debug", both joined by a hyphen, or "".
      data_sets: the data sets of the file; the first is the default.

    Returns:
      The data set, and "debug" or "".

    Raises:
      ConfigError: if the file has no such data set or size.
    """
    parts = {"": (data_sets[0], ""), "debug": (data_sets[0], "debug")}
    for data_set in data_sets:
        parts |= {data_set: (data_set, ""), f"{data_set}-debug": (data_set, "debug")}
    return look_up("variant", name, parts)


def describe_data(config: Mapping[str, Any] | ConfigDict) -> dict[str, Any]:
    """Describe a configuration's data set from its fields; no file is opened.

    Args:
      config: a configuration, or its content read from JSON.

    Returns:
      "title", "feature", "visual_dim", "text_dim" and "synthetic"; "tested_on" if the test split
      belongs to another data set.
    """
    data, has_trees = config["data"], "trees" in config
    synthetic = not data["manual_dir"] and any(data["synthetic_videos"])
    if synthetic:
        title = f"synthetic {'action trees' if has_trees else 'captioned videos'}"
    else:
        title = _collection_title(data["collection"]) + (", action trees" if has_trees else "")
    description = {
        "title": title,
        "feature": "planted" if synthetic else data["feature"],
        "visual_dim": data["visual_dim"],
        "text_dim": data["text_dim"],
        "synthetic": synthetic,
    }
    if not synthetic and (test := config["eval"].get("test_collection")):
        description["tested_on"] = f"{_collection_title(test)} ({config['eval']['test_feature']})"
    return description


def _collection_title(collection: str) -> str:
    """Return the readable name of a collection, for released data sets the name in the papers."""
    titles = {str(fields["collection"]): DATA_SET_TITLES[key] for key, fields in DATA_SETS.items()}
    titles |= {
        "own": "own videos",
        "qvhighlights": "QVHighlights",
        "qvhighlights_youtube": "QVHighlights, regrouped by video",
    }
    return titles.get(collection, collection)


def _update(config: ConfigDict, values: Any) -> ConfigDict:
    config.update({section: dict(fields) for section, fields in values.items()})
    return config
