"""The published models and data sets: what defines each, and the variants behind a file's colon.

A model is defined by more than `config.model.name`: by its blocks, their aggregation and its
losses, which are fields of their own, so that every part plugs into every model. `of_model` gives a
configuration with all of them. A name that is changed alone changes no other field, so that a
recorded configuration says what was built; `check` refuses it while the blocks and the aggregation
are, all of them, those of another model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.fields import default
from hlformer_jax.config.rules import ConfigError
from hlformer_jax.errors import suggestion

DEFINITIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "hlformer": {
        "model": {
            "euclidean_blocks": 4,
            "lorentz_blocks": 4,
            "euclidean_widths": (),
            "lorentz_widths": (),
            "fusion": "maim",
            "video_level": False,
        },
        "loss": {
            "query_diversity": 0.003,
            "diversity_form": "pairs",
            "partial_order": 0.001,
            "optimal_matching": 0.0,
        },
    },
    "gmmformer_v2": {
        "model": {
            "euclidean_blocks": 8,
            "lorentz_blocks": 0,
            "euclidean_widths": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
            "lorentz_widths": (),
            "fusion": "consolidation",
            "video_level": False,
        },
        "loss": {
            "query_diversity": 0.003,
            "diversity_form": "pairs",
            "partial_order": 0.0,
            "optimal_matching": 0.11,
        },
    },
    "gmmformer": {
        "model": {
            "euclidean_blocks": 4,
            "lorentz_blocks": 0,
            "euclidean_widths": (0.0, 0.5, 1.0, 5.0),
            "lorentz_widths": (),
            "fusion": "mean",
            "video_level": True,
        },
        "loss": {
            "query_diversity": 0.015,
            "diversity_form": "captions",
            "partial_order": 0.0,
            "optimal_matching": 0.0,
        },
    },
    "ms_sl": {
        "model": {
            "euclidean_blocks": 1,
            "lorentz_blocks": 0,
            "euclidean_widths": (),
            "lorentz_widths": (),
            "fusion": "mean",
            "video_level": False,
        },
        "loss": {
            "query_diversity": 0.0,
            "diversity_form": "pairs",
            "partial_order": 0.0,
            "optimal_matching": 0.0,
        },
    },
    "dl_dkd": {
        "model": {
            "euclidean_blocks": 1,
            "lorentz_blocks": 0,
            "euclidean_widths": (),
            "lorentz_widths": (),
            "fusion": "mean",
            "video_level": False,
        },
        "loss": {
            "clip_nce": 0.04,
            "query_diversity": 0.0,
            "diversity_form": "pairs",
            "partial_order": 0.0,
            "optimal_matching": 0.0,
            "distillation": 0.1,
            "hard_negative_epoch": 0,
        },
        "data": {"teacher_dim": 512},
    },
}
"""The fields that define a model; weights of its losses are those on ActivityNet Captions."""

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
"""The released features of a data set."""


BETWEEN_FIELDS: Sequence[tuple[str, Callable[[ConfigDict], bool], str]] = (
    (
        "model.clip_weight",
        lambda config: config.model.clip_weight + config.model.frame_weight > 0,
        "positive where config.model.frame_weight is 0",
    ),
    (
        "loss.diversity_gamma",
        lambda config: config.loss.diversity_form == "pairs" or config.loss.diversity_gamma == 1,
        "1 where config.loss.diversity_form is 'captions', which has no focal factor",
    ),
    (
        "loss.distillation_rate",
        lambda config: (
            config.loss.distillation_decay == "sigmoid" or config.loss.distillation_rate <= 1
        ),
        "at most 1 where config.loss.distillation_decay is not 'sigmoid'",
    ),
    (
        "data.max_frames",
        lambda config: config.data.max_clips <= config.data.max_frames,
        "at least config.data.max_clips, whose positions share its table",
    ),
)
"""Rules between several fields: the field that is named, the rule, and the end of the sentence."""


def of_model(name: str) -> ConfigDict:
    """Returns the default configuration with the fields that define a model.

    Raises:
      ConfigError: when there is no such model.
    """
    if name not in DEFINITIONS:
        known = ", ".join(DEFINITIONS)
        raise ConfigError(f"there is no model {name!r}: use {known}{suggestion(name, DEFINITIONS)}")
    config = default()
    config.update({section: dict(fields) for section, fields in DEFINITIONS[name].items()})
    config.model.name = name
    return config


def on_data_set(config: ConfigDict, data_set: str) -> ConfigDict:
    """Sets the fields of a configuration that say which of the released features it is on.

    Args:
      config: a configuration; changed.
      data_set: one of `DATA_SETS`.

    Returns:
      The same configuration.
    """
    config.data.update(DATA_SETS[data_set])
    return config


def parts_of(name: str, data_sets: Sequence[str] = tuple(DATA_SETS)) -> tuple[str, str]:
    """What stands behind the colon of `configs/x.py:NAME`: a data set, "debug", or both.

    Args:
      name: "", DATA_SET, "debug" or DATA_SET-debug.
      data_sets: those that the file has; the first is the default.

    Returns:
      The data set, and "debug" or "" for `variant`.

    Raises:
      ConfigError: when there is no variant of that name.
    """
    known = {"": (data_sets[0], ""), "debug": (data_sets[0], "debug")}
    for data_set in data_sets:
        known |= {data_set: (data_set, ""), f"{data_set}-debug": (data_set, "debug")}
    if name not in known:
        names = ", ".join(filter(None, known))
        raise ConfigError(f"there is no variant {name!r} of this configuration: use {names}")
    return known[name]


def debug(config: ConfigDict) -> ConfigDict:
    """Shrinks a configuration until it runs in seconds on a CPU, without any features.

    What makes the result is kept (losses, weights, optimiser, options of the model); sizes,
    epochs and the number of blocks are not. Without `manual_dir` the data is synthetic, with the
    widths that the configuration has, so that released features work as well.
    """
    config.compile_fast = True
    config.data.synthetic_videos = (24, 8, 8)
    config.data.max_frames = 32
    config.data.max_clips = 8
    config.model.hidden_size = 16
    config.model.lorentz_dim = 15
    for geometry in ("euclidean", "lorentz"):
        blocks = min(config.model[f"{geometry}_blocks"], 2)
        config.model[f"{geometry}_blocks"] = blocks
        config.model[f"{geometry}_widths"] = tuple(config.model[f"{geometry}_widths"])[:blocks]
    config.loss.hard_negative_epoch = 1
    config.train.epochs = 2
    config.train.batch_size = 8
    config.train.log_every = 1
    config.eval.video_batch = 8
    config.eval.query_batch = 16
    return config


def owner_of_blocks(config: ConfigDict) -> str | None:
    """The other model whose blocks and aggregation a configuration has, all of them.

    They are compared as they are published and as `debug` shrinks them. Where one of them differs,
    somebody chose the combination. One plain block, as MS-SL and DL-DKD have it, is an ablation of
    any model.

    Args:
      config: a configuration.

    Returns:
      The name of that model; None where they are those of `config.model.name`, or of no model.
    """
    plain = ("ms_sl", "dl_dkd")
    banks = {name: fields for name, fields in DEFINITIONS.items() if name not in plain}
    for name, fields in banks.items():
        for published in (of_model(name), debug(of_model(name))):
            if all(config.model[field] == published.model[field] for field in fields["model"]):
                return None if name == config.model.name else name
    return None


def check_blocks(config: ConfigDict) -> None:
    """Refuses a model whose blocks and aggregation are, all of them, those of another.

    Raises:
      ConfigError: saying where to start.
    """
    if other := owner_of_blocks(config):
        name = config.model.name
        file = "anet" if name == "hlformer" else name
        raise ConfigError(
            f"config.model.name is {name!r}, but the blocks and their aggregation are those of"
            f" {other}: start from configs/{file}.py, in Python from config.of_model({name!r})"
        )
