"""The configuration: every field, its default and its meaning, in one place.

A file in ``configs/`` takes `default` and sets what its result needs; nothing else has defaults.
The values below are those of the released code on ActivityNet Captions.
"""

import importlib.util
import inspect
import math
import os
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.errors import UserError

WEIGHTS = (
    "clip_triplet",
    "frame_triplet",
    "clip_nce",
    "frame_nce",
    "query_diversity",
    "partial_order",
    "optimal_matching",
)
"""Fields of `config.loss` that are weights of its terms, in the order of the log."""


class ConfigError(UserError, ValueError):
    """A field has a value that is unknown or makes no sense; the message names the field."""


def default() -> ConfigDict:
    """Returns the complete configuration, locked: an unknown field is an error, not a new field."""
    config = ConfigDict(
        {
            "seed": 0,
            # Compute dtype of the encoders, float32 or bfloat16. Parameters, geometry, softmax and
            # losses are float32 whatever it is.
            "dtype": "float32",
            # Who makes the programs of attention and similarity: "xla", the compiler, or "pallas",
            # ops/fused_*.py, for one GPU. Equal up to rounding.
            "kernels": "xla",
            # Compile for the least time to compile, not for speed: for runs of seconds.
            "compile_fast": False,
            "data": {
                "collection": "activitynet",  # folder below manual_dir, prefix of the text files
                "feature": "i3d",  # folder below FeatureData
                "manual_dir": "",  # holds activitynet/, tvr/, charades/ as released
                # Videos of train, val and test of a synthetic corpus, used when manual_dir is "".
                "synthetic_videos": (0, 0, 0),
                "data_dir": "",  # holds the prepared sets; "": ~/tensorflow_datasets
                "visual_dim": 1024,  # D
                "text_dim": 1024,  # E
                "storage": "float32",  # of the prepared features: float32 or float16
                "max_frames": 128,  # F
                "max_clips": 32,  # C
                "max_words": 30,  # W
                # Of the transformed features in memory and on the devices: float32, float16.
                "dtype": "float16",
                # Whether the training and the validation split live on the devices: "auto" (where
                # they fit), "always" or "never". Changes no result.
                "resident": "auto",
                "cache_gib": 4.0,  # transformed features kept in memory, for each split
            },
            "model": {
                "name": "hlformer",  # hlformer, gmmformer_v2, gmmformer or ms_sl
                "hidden_size": 384,  # H
                "lorentz_dim": 127,  # n; n + 1 is divisible by num_heads
                "num_heads": 4,  # N
                "euclidean_blocks": 4,
                "lorentz_blocks": 4,
                # Width of each block's Gaussian window; 0 is no window. Empty: 0, 2, 4, 8, … for
                # each geometry. One number stands for all blocks.
                "euclidean_widths": (),
                "lorentz_widths": (),
                # "released": a Gaussian over normalised positions. "printed": eq. 10. "boxcar",
                # "bartlett": of the same standard deviation. "none": no window in any block.
                "window": "released",
                # "released": multiplies logits that are <= 0, which favours far positions.
                # "corrected": its logarithm is added, which favours near ones.
                "lorentz_window": "released",
                # "released": heads concatenated, off the hyperboloid. "hyperboloid": merged on it.
                "head_merge": "released",
                # Curvature of the Lorentz blocks: "fixed" at 1 as released, "shared", one that all
                # learn together, or "block", one each; learned within x10 of the start.
                "block_curvature": "fixed",
                "block_curvature_start": 1.0,
                # maim, consolidation (GMMFormer v2's), dynamic, weighted, mean, or concat
                # (concatenation + linear).
                "fusion": "maim",
                "temperature": 0.6,  # tau of the fusion weights
                "gaze": True,  # the frame branch
                "glance": True,  # the clip branch
                "video_level": False,  # frames pooled to one vector a video, as GMMFormer does
                "frame_weight": 0.3,  # alpha_f of the ranking score
                "clip_weight": 0.7,  # alpha_c of the ranking score
                "input_dropout": 0.31,
                "dropout": 0.31,
                "curvature": 1.0,  # initial curvature of the partial order loss, learned within x10
            },
            "loss": {  # a weight of 0 leaves its term out
                "clip_triplet": 1.0,
                "frame_triplet": 1.0,
                "clip_nce": 0.02,
                "frame_nce": 0.04,
                "query_diversity": 0.003,
                "partial_order": 0.001,  # needs a hyperbolic lift, which only hlformer has
                "optimal_matching": 0.0,  # GMMFormer v2's; a term of the clips
                "margin": 0.2,  # m of the triplet loss
                "hard_negative_epoch": 20,  # first epoch, from 0, with hard negatives
                "hard_pool_size": 20,  # hardest videos a caption's negative is drawn from
                "diversity_margin": 0.2,  # delta
                "diversity_scale": 32.0,  # alpha
                "diversity_gamma": 1.0,  # gamma
                # "pairs": a sum over pairs with the focal factor. "captions": GMMFormer's, a
                # logarithm of each caption's sum over the others, without it.
                "diversity_form": "pairs",
                "min_radius": 0.1,  # of the entailment cones
            },
            "optim": {
                "learning_rate": 2.5e-4,
                "warmup": 0.01,  # share of all steps
                "beta1": 0.9,
                "beta2": 0.999,
                "epsilon": 1e-6,
                "weight_decay": 0.01,
                "clip_norm": 1.0,  # per parameter tensor of the released model
            },
            "train": {
                "epochs": 100,
                "batch_size": 128,  # videos, with all their captions
                # Parts of a batch whose videos are encoded one after another, and again for the
                # gradient: memory for arithmetic. Changes results by rounding alone. Divides the
                # videos of each device.
                "encode_parts": 1,
                "patience": 10,  # epochs without a better validation SumR before the run stops
                "log_every": 10,  # steps between two records of the training metrics
                # Between two checkpoints, each at the end of an epoch; the last epoch has one too.
                "checkpoint_seconds": 60.0,
                "baseline": False,  # also report a mean-pooled linear baseline
            },
            "eval": {
                "video_batch": 64,
                "query_batch": 256,  # captions that are ranked together
                "select": "SumR",  # validation metric that chooses the best epoch
                "corpus": "float32",  # how encoded videos are kept: float32, bfloat16 or int8
            },
        }
    )
    return config.lock()


def load(file: str | os.PathLike[str], name: str = "") -> ConfigDict:
    """Returns the configuration of a file such as ``configs/anet.py``, which is executed.

    Args:
      file: defines `get_config`, which takes a name or has none to take.
      name: what would stand behind a colon on the command line, for example "debug".

    Raises:
      ConfigError: when there is no such file, or it has no configuration of that name.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such configuration file")
    spec: Any = importlib.util.spec_from_file_location(f"hlformer_config_{path.stem}", path)
    if spec is None:
        raise ConfigError(f"{path}: a configuration file is a .py file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"{path} is no configuration file: it does not define get_config")
    takes_name = bool(inspect.signature(module.get_config).parameters)
    if name and not takes_name:
        raise ConfigError(f"{path} has no variant {name!r}: its get_config takes no name")
    config: ConfigDict = module.get_config(name) if takes_name else module.get_config()
    return config


def variant(config: ConfigDict, name: str) -> ConfigDict:
    """The variant of a configuration that stands behind the colon of `configs/x.py:NAME`.

    Raises:
      ConfigError: when there is none of that name.
    """
    if name not in ("", "debug"):
        raise ConfigError(f"there is no variant {name!r} of the configuration: only 'debug'")
    return debug(config) if name else config


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


def check(config: ConfigDict) -> None:
    """Refuses values that no run could mean; options of the model are checked where it is built.

    Raises:
      ConfigError: naming the field, what it is and what it may be.
    """

    def require(field: str, holds: bool, meaning: str) -> None:
        if not holds:
            value = config
            for part in field.split("."):
                value = value[part]
            raise ConfigError(f"config.{field} is {value!r}: it must be {meaning}")

    for field in (
        "data.visual_dim",
        "data.text_dim",
        "data.max_frames",
        "data.max_clips",
        "data.max_words",
        "model.hidden_size",
        "model.lorentz_dim",
        "model.num_heads",
        "loss.hard_pool_size",
        "train.epochs",
        "train.batch_size",
        "train.encode_parts",
        "train.patience",
        "train.log_every",
        "eval.video_batch",
        "eval.query_batch",
    ):
        section, name = field.split(".")
        require(field, config[section][name] >= 1, "at least 1")
    for section in ("data", "model", "loss", "optim", "train", "eval"):
        for name, value in config[section].items():
            if isinstance(value, float):
                require(f"{section}.{name}", math.isfinite(value), "a finite number")
    for field in (*(f"loss.{name}" for name in WEIGHTS), "loss.margin", "loss.diversity_gamma"):
        require(field, config.loss[field.removeprefix("loss.")] >= 0, "at least 0")
    require("loss.hard_negative_epoch", config.loss.hard_negative_epoch >= 0, "at least 0")
    require("train.checkpoint_seconds", config.train.checkpoint_seconds >= 0, "at least 0")
    require("optim.weight_decay", config.optim.weight_decay >= 0, "at least 0")
    for name in ("frame_weight", "clip_weight"):
        require(f"model.{name}", config.model[name] >= 0, "at least 0")
    require(
        "model.clip_weight",
        config.model.clip_weight + config.model.frame_weight > 0,
        "positive where config.model.frame_weight is 0",
    )
    for name in ("input_dropout", "dropout"):
        require(f"model.{name}", 0 <= config.model[name] < 1, "in [0, 1)")
    for field, value in (
        ("model.temperature", config.model.temperature),
        ("model.curvature", config.model.curvature),
        ("model.block_curvature_start", config.model.block_curvature_start),
        ("loss.min_radius", config.loss.min_radius),
        ("optim.learning_rate", config.optim.learning_rate),
        ("optim.clip_norm", config.optim.clip_norm),
    ):
        require(field, value > 0, "positive")
    require("optim.warmup", 0 <= config.optim.warmup < 1, "in [0, 1)")
    require(
        "loss.diversity_form",
        config.loss.diversity_form in ("pairs", "captions"),
        "pairs or captions",
    )
    require(
        "loss.diversity_gamma",
        config.loss.diversity_form == "pairs" or config.loss.diversity_gamma == 1,
        "1 where config.loss.diversity_form is 'captions', which has no focal factor",
    )
    require("dtype", config.dtype in ("float32", "bfloat16"), "float32 or bfloat16")
    require("data.dtype", config.data.dtype in ("float32", "float16"), "float32 or float16")
    require(
        "data.resident",
        config.data.resident in ("auto", "always", "never"),
        "auto, always or never",
    )
    require(
        "eval.corpus",
        config.eval.corpus in ("float32", "bfloat16", "int8"),
        "float32, bfloat16 or int8",
    )
    require("data.storage", config.data.storage in ("float32", "float16"), "float32 or float16")
    for name in ("euclidean_blocks", "lorentz_blocks"):
        require(f"model.{name}", config.model[name] >= 0, "at least 0")
    for name in ("euclidean_widths", "lorentz_widths"):
        widths = config.model[name]
        numbers = all(isinstance(w, (int, float)) and math.isfinite(w) for w in widths)
        require(f"model.{name}", numbers and all(w >= 0 for w in widths), "numbers of at least 0")
    sizes = config.data.synthetic_videos
    require(
        "data.synthetic_videos",
        len(sizes) == 3 and (min(sizes) > 0 or not any(sizes)),
        "three positive numbers, or three zeros",
    )
    require("seed", 0 <= config.seed < 2**31, "in [0, 2^31)")
    require(
        "data.max_frames",
        config.data.max_clips <= config.data.max_frames,
        "at least config.data.max_clips, whose positions share its table",
    )
