"""The configuration: every field with its rule, published values, loading and checking.

The defaults of partially relevant retrieval are those of HLFormer's released code on ActivityNet
Captions. Lengths and widths have the letters of the axis glossary (hlformer_jax/typing.py). A rule
has bounds that no run exceeds, so that a slip of the keyboard is refused by name instead of filling
the memory.

A model is defined by more than `config.model.name`: by its blocks, their aggregation and its
losses, which are fields of their own, so that every part plugs into every model. A file in
``configs/`` starts from `of_model` or `default` and sets what its result needs; nothing else has
defaults. Nothing here loads JAX, so that a wrong command is answered at once.
"""

import dataclasses
import importlib.util
import inspect
import math
import numbers
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.errors import ConfigError as ConfigError  # which users expect here
from hlformer_jax.errors import UserError, suggestion
from hlformer_jax.field_names import field_suggestion

# Published models, data sets and forms

Values = Mapping[str, Mapping[str, Any]]
"""Values of fields by section and name."""

_PLAIN_BLOCK = {
    "euclidean_blocks": 1,
    "lorentz_blocks": 0,
    "euclidean_widths": (),
    "lorentz_widths": (),
    "fusion": "mean",
    "video_level": False,
}
_CONTRASTIVE = {
    "query_diversity": 0.0,
    "diversity_form": "pairs",
    "partial_order": 0.0,
    "optimal_matching": 0.0,
}

_ONE_VECTOR = {
    "model": _PLAIN_BLOCK | {"video_level": True, "glance": False},
    "loss": _CONTRASTIVE | {"frame_triplet": 0.0, "frame_nce": 0.5},
}

DEFINITIONS: Mapping[str, Values] = {
    "hlformer": {
        "model": _PLAIN_BLOCK | {"euclidean_blocks": 4, "lorentz_blocks": 4, "fusion": "maim"},
        "loss": _CONTRASTIVE | {"query_diversity": 0.003, "partial_order": 0.001},
    },
    "gmmformer_v2": {
        "model": _PLAIN_BLOCK
        | {
            "euclidean_blocks": 8,
            "euclidean_widths": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
            "fusion": "consolidation",
        },
        "loss": _CONTRASTIVE | {"query_diversity": 0.003, "optimal_matching": 0.11},
    },
    "gmmformer": {
        "model": _PLAIN_BLOCK
        | {
            "euclidean_blocks": 4,
            "euclidean_widths": (0.0, 0.5, 1.0, 5.0),
            "video_level": True,
        },
        "loss": _CONTRASTIVE | {"query_diversity": 0.015, "diversity_form": "captions"},
    },
    "ms_sl": {"model": _PLAIN_BLOCK, "loss": _CONTRASTIVE},
    "dl_dkd": {
        "model": _PLAIN_BLOCK,
        "loss": _CONTRASTIVE | {"clip_nce": 0.04, "distillation": 0.1, "hard_negative_epoch": 0},
        "data": {"teacher_dim": 512},
    },
    "clip4clip_meanp": _ONE_VECTOR,
    "clip4clip_seqtransf": _ONE_VECTOR,
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

DATA_SET_TITLES = {"anet": "ActivityNet Captions", "charades": "Charades-STA", "tvr": "TVR"}
"""What the papers call the data sets, in the order of their tables."""

PRESETS: Mapping[str, Values] = {
    "corrected": {},
    # What the released code computes: A2 and A9 to A18 of its differences from the paper.
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
    # What the paper prints.
    "printed": {
        "model": {"scale": 1.0, "learned_scale": False},
        "loss": {"form": "printed", "mask_related": "none", "tree_reduction": "sum"},
    },
}
"""The forms of HOVER as a whole, by the name behind the colon of `configs/hover.py`."""

FLAT: Values = {
    "model": {"geometry": "euclidean", "metric": "cosine"},
    "loss": {"tree": 0.0, "chain": 0.0, "order": 0.0},
}
"""HOVER's flat baseline: cosines after a linear layer, and the alignment alone."""

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
        # So many test videos have trees of one leaf, two, three, four, and five or more.
        "data.synthetic_videos": (24, 8, 24),
        "data.max_words": 16,
        "trees.node_frames": 4,
        "trees.train_subset": "full",
        "model.hyperbolic_dim": 16,
        "eval.node_batch": 32,
        "eval.query_batch": 32,
    },
}
"""Sizes and epochs, by family, with which a configuration runs in seconds on a CPU."""


# Fields and their rules


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a field may be: the end of "it must be …", a test of any value, and known names."""

    meaning: str
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def whole(low: int, high: int) -> Rule:
    """A whole number of at least `low` and at most `high`."""
    return Rule(
        f"a whole number from {low:,} to {high:,}",
        lambda x: _is_number(x) and isinstance(x, numbers.Integral) and low <= int(x) <= high,
    )


def real(low: float, high: float) -> Rule:
    """A finite number of at least `low` and at most `high`."""
    return Rule(
        f"a number from {_written(low)} to {_written(high)}",
        lambda x: _is_number(x) and low <= x <= high,
    )


def positive(high: float) -> Rule:
    """A finite number above 0 and at most `high`."""
    return Rule(
        f"a number above 0 and at most {_written(high)}",
        lambda x: _is_number(x) and 0 < x <= high,
    )


def one_of(*choices: str) -> Rule:
    """One of several names."""
    *others, last = choices
    return Rule(f"{', '.join(others)} or {last}", lambda x: x in choices, choices)


def wholes(low: int, high: int) -> Rule:
    """A tuple of whole numbers of at least `low` and at most `high`; it may be empty."""
    number = whole(low, high)
    return Rule(
        f"a tuple of whole numbers from {low:,} to {high:,}",
        lambda x: isinstance(x, tuple | list) and all(map(number.holds, x)),
    )


def split_sizes(high: int) -> Rule:
    """The numbers of videos of three splits: all positive, or all 0."""
    sizes = wholes(0, high)
    return Rule(
        f"three whole numbers from 1 to {high:,}, or three zeros",
        lambda x: sizes.holds(x) and len(x) == 3 and (min(x) > 0 or not any(x)),
    )


def _is_number(x: Any) -> bool:
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        return False
    # An int beyond every float is compared with bounds as it is.
    return isinstance(x, numbers.Integral) or math.isfinite(x)


def _is_line(x: Any) -> bool:
    return isinstance(x, str) and bool(x.strip()) and x.isprintable()


def _written(x: float) -> str:
    return f"{x:,.0f}" if x == int(x) and abs(x) < 1e10 else f"{x:g}"


FLAG = Rule("True or False", lambda x: isinstance(x, bool))
SHARE = Rule("a number of at least 0 and below 1", lambda x: _is_number(x) and 0 <= x < 1)
LINE = Rule("a name on one line", _is_line)
PATH = Rule("a path on one line", lambda x: isinstance(x, str) and (not x or x.isprintable()))
FOLDER = Rule(
    "the name of a folder, without a slash",
    lambda x: _is_line(x) and not any(mark in x for mark in "/\\") and x[0] not in ".~",
)
WIDTHS = Rule(  # of windows
    "a tuple of numbers from 0 to 1,000,000",
    lambda x: isinstance(x, tuple | list) and all(map(real(0, 1e6).holds, x)),
)
RATE, WEIGHT, CURVATURE = real(0, 100), real(0, 1e6), real(1e-5, 1e3)
SIZE, COUNT = whole(1, 2**16), whole(1, 10**9)


class Field(NamedTuple):
    """One field: its value in `config.default`, and what it may be."""

    default: Any
    rule: Rule


Fields = Mapping[str, Field | Mapping[str, Field]]

PRVR: Mapping[str, Any] = {
    "seed": Field(0, whole(0, 2**31 - 1)),
    # Compute dtype of the encoders. Parameters, geometry, softmax and losses are float32 whatever
    # it is. How much bfloat16 costs a trained model is not settled; nothing chooses it by default.
    "dtype": Field("float32", one_of("float32", "bfloat16")),
    # Of float32 products of dense layers on a GPU: all bits, or TensorFloat-32, with 10 of 23.
    "precision": Field("highest", one_of("highest", "tf32")),
    # Compile for the least time to compile, not for speed: for runs of seconds.
    "compile_fast": Field(False, FLAG),
    "data": {
        # Folder below manual_dir, prefix of the text files.
        "collection": Field("activitynet", FOLDER),
        "feature": Field("i3d", FOLDER),  # folder below FeatureData
        "manual_dir": Field("", PATH),  # holds activitynet/, tvr/, charades/ as released
        # Videos of train, val and test of a synthetic corpus, used when manual_dir is "".
        "synthetic_videos": Field((0, 0, 0), split_sizes(10**7)),
        "data_dir": Field("", PATH),  # holds the prepared sets; "": ~/tensorflow_datasets
        "visual_dim": Field(1024, SIZE),  # D
        "text_dim": Field(1024, SIZE),  # E
        "storage": Field("float32", one_of("float32", "float16")),  # of the prepared features
        # Width of the features of a teacher, whose likeness of captions and frames is distilled
        # (CLIP's, 512, as DL-DKD released them); 0: the data set has none, or they are not read.
        "teacher_dim": Field(0, whole(0, 2**16)),
        "max_frames": Field(128, whole(1, 2**14)),  # F
        "max_clips": Field(32, whole(1, 2**12)),  # C
        "max_words": Field(30, whole(1, 2**12)),  # W, as released; printed for ActivityNet: 64
        # Dtype of the transformed features in memory and on the devices.
        "dtype": Field("float16", one_of("float32", "float16")),
        # Whether the training and the validation split live on the devices: "auto" (where they
        # fit), "always" or "never". Changes no result.
        "resident": Field("auto", one_of("auto", "always", "never")),
        # GiB of transformed features kept in memory, for each split.
        "cache_gib": Field(4.0, real(0, 2**20)),
    },
    "model": {
        # Which model is built. Its blocks, aggregation and losses are fields of their own:
        # `of_model(name)` sets them too, and every file of configs/ starts there.
        "name": Field("hlformer", one_of(*DEFINITIONS)),
        "hidden_size": Field(384, SIZE),  # H
        "lorentz_dim": Field(127, SIZE),  # n; n + 1 is divisible by num_heads
        "num_heads": Field(4, whole(1, 2**10)),  # N
        "euclidean_blocks": Field(4, whole(0, 256)),
        "lorentz_blocks": Field(4, whole(0, 256)),
        # Width of each block's Gaussian window; 0 is no window. Empty: 0, 2, 4, 8, … for each
        # geometry. A single width stands for all blocks.
        "euclidean_widths": Field((), WIDTHS),
        "lorentz_widths": Field((), WIDTHS),
        # "released": a Gaussian over normalised positions. "printed": eq. 10. "boxcar",
        # "bartlett": windows of the same standard deviation.
        "window": Field("released", one_of("released", "printed", "boxcar", "bartlett")),
        # "released": multiplies logits that are <= 0, which favours far positions.
        # "corrected": its logarithm is added, which favours near ones.
        "lorentz_window": Field("released", one_of("released", "corrected")),
        # "released": heads concatenated, off the hyperboloid. "hyperboloid": merged on it.
        "head_merge": Field("released", one_of("released", "hyperboloid")),
        # Divisor of the Lorentz attention's logits: "learned" from √(n + 1) on, with a bias, as
        # released, or "fixed" at √(n + 1) without one, as printed.
        "lorentz_divisor": Field("learned", one_of("learned", "fixed")),
        # Curvature of the Lorentz blocks: "fixed" at 1 as released, or "shared", one that all
        # learn together within x10 of that.
        "block_curvature": Field("fixed", one_of("fixed", "shared")),
        # Aggregation of the blocks: HLFormer's mean-guided one, GMMFormer v2's temporal
        # consolidation and its ablations, or concatenation and a linear layer.
        "fusion": Field(
            "maim", one_of("maim", "consolidation", "dynamic", "weighted", "mean", "concat")
        ),
        "temperature": Field(0.6, real(1e-4, 1e4)),  # tau of the fusion weights
        "gaze": Field(True, FLAG),  # the frame branch; of dl_dkd the one that explores
        "glance": Field(True, FLAG),  # the clip branch; of dl_dkd the one that inherits
        # Frames pooled to one vector a video, as GMMFormer does.
        "video_level": Field(False, FLAG),
        "frame_weight": Field(0.3, WEIGHT),  # alpha_f of the ranking score
        "clip_weight": Field(0.7, WEIGHT),  # alpha_c of the ranking score
        "input_dropout": Field(0.31, SHARE),
        "dropout": Field(0.31, SHARE),
        # Initial curvature of the partial order loss, and whether it is learned, within x10, as
        # released; printed: fixed at 1.
        "curvature": Field(1.0, CURVATURE),
        "learned_curvature": Field(True, FLAG),
    },
    "loss": {  # a weight of 0 leaves its term out
        "clip_triplet": Field(1.0, WEIGHT),
        "frame_triplet": Field(1.0, WEIGHT),
        "clip_nce": Field(0.02, WEIGHT),
        "frame_nce": Field(0.04, WEIGHT),
        "query_diversity": Field(0.003, WEIGHT),
        "partial_order": Field(0.001, WEIGHT),  # needs a hyperbolic lift, which only hlformer has
        "optimal_matching": Field(0.0, WEIGHT),  # GMMFormer v2's; a term of the clips
        # DL-DKD's, by a teacher; a sum over the captions of a batch.
        "distillation": Field(0.0, WEIGHT),
        "distillation_temperature": Field(0.2, positive(1e4)),  # divides the cosines of both
        "distillation_rate": Field(0.95, positive(1)),  # by which the weight falls in an epoch
        "margin": Field(0.2, real(0, 100)),  # m of the triplet loss, added to cosines
        "hard_negative_epoch": Field(20, whole(0, 10**9)),  # first epoch, from 0, with them
        "hard_pool_size": Field(20, COUNT),  # hardest videos a caption's negative is drawn from
        "diversity_margin": Field(0.2, real(-100, 100)),  # delta, added to cosines
        "diversity_scale": Field(32.0, positive(1e4)),  # alpha
        "diversity_gamma": Field(1.0, real(0, 100)),  # gamma
        # "pairs": a sum over pairs with the focal factor. "captions": GMMFormer's, a logarithm
        # of each caption's sum over the others, without it.
        # "videos": GMMFormer v2's printed eq. 5, the sum of each video times 2 / (M (M - 1)).
        "diversity_form": Field("pairs", one_of("pairs", "captions", "videos")),
        # The mean of the optimal matching: over all pairs of the batch, as released, or, as
        # printed, over the captions of each video and then over videos.
        "matching_mean": Field("pairs", one_of("pairs", "videos")),
        # K of the entailment cones, whose half aperture is arcsin(2 K / (√c r)). Where √c r <= 2 K
        # a cone is a half-space; at 1 that is so up to a distance of asinh(2) = 1.4 / √c from the
        # origin, and far beyond it no order is left. Below 1e-6 a cone is a ray in float32.
        "min_radius": Field(0.1, real(1e-6, 1)),
    },
    "optim": {
        "learning_rate": Field(2.5e-4, positive(100)),
        "warmup": Field(0.01, SHARE),  # share of all steps
        "beta1": Field(0.9, SHARE),
        "beta2": Field(0.999, SHARE),
        "epsilon": Field(1e-6, positive(1)),
        "weight_decay": Field(0.01, real(0, 100)),
        "clip_norm": Field(1.0, positive(1e30)),  # per parameter tensor of the released model
    },
    "train": {
        "epochs": Field(100, whole(1, 10**6)),
        "batch_size": Field(128, SIZE),  # videos, with all their captions
        # Parts of a batch whose videos are encoded one after another, and again for the gradient:
        # less memory for more arithmetic. The masks of dropout are those of the whole batch, so
        # that results differ by rounding alone. Divides the videos of each device.
        "encode_parts": Field(1, SIZE),
        # Epochs without a better eval.select before the run stops. The released code says 10, and
        # stops after 11.
        "patience": Field(11, COUNT),
        "log_every": Field(10, COUNT),  # steps between two records of the training metrics
        # Seconds between two checkpoints, each at the end of an epoch; the last epoch has one too.
        "checkpoint_seconds": Field(60.0, real(0, 1e9)),
        "baseline": Field(False, FLAG),  # also report a mean-pooled linear baseline
    },
    "eval": {
        # Validation metric that chooses the best epoch, the higher the better; the names are
        # those that the evaluation of the model's family gives: SumR, R@1, R@5, R@10, R@100; with
        # `moments` IoU 0.3, IoU 0.5, IoU 0.7 and mIoU. "last": the last epoch, however it is.
        "select": Field("SumR", LINE),
        # Times of the captions' moments, by which every evaluation adds the localisation of the
        # first moment (retrieval/moments.py): a file (docs/data.md), of which a relative
        # path begins at {manual_dir}/{collection}; "data": those that the data set has itself; "":
        # none.
        "moments": Field("", PATH),
        "video_batch": Field(64, SIZE),
        "query_batch": Field(1024, SIZE),  # captions that are ranked together
        # Dtype in which encoded videos are kept.
        "corpus": Field("float32", one_of("float32", "bfloat16", "int8")),
    },
}
"""Partially relevant video retrieval: HLFormer and its ancestors."""


HOVER: Mapping[str, Any] = {
    "seed": PRVR["seed"],
    "dtype": PRVR["dtype"],
    "precision": PRVR["precision"],
    "compile_fast": PRVR["compile_fast"],
    "data": PRVR["data"] | {"max_words": Field(72, whole(1, 2**12))},
    "trees": {
        # How leaves are composed: "released", neighbours level by level, the last two of an odd
        # level once more; "shallow", all under one root; "balanced", the odd one rises as it is.
        "form": Field("released", one_of("released", "shallow", "balanced")),
        "node_frames": Field(12, whole(1, 2**10)),  # F of a node
        # Frames of a node in a video of at most so many: within its "span", or, as released, the
        # "whole" video.
        "short_video": Field("span", one_of("span", "whole")),
        # Numbers of leaves of the trees that are trained on; empty: all.
        "train_leaves": Field((), wholes(1, 10**4)),
        # Training trees: "full", "fewshot", a tenth of them, or a file of videos' ids, one a line.
        "train_subset": Field("full", LINE),
        # What is validated on: the split "val", or "held_out", a twentieth of the training trees.
        "validation": Field("val", one_of("val", "held_out")),
        # Of the synthetic corpus: chance that a moment shows what belongs to its place in time.
        "precedence": Field(0.7, real(0, 1)),
    },
    "model": {
        "name": Field("hover", one_of("hover")),
        "hidden_size": Field(512, SIZE),  # H
        "hyperbolic_dim": Field(512, SIZE),  # n
        # Space of the embeddings. "lorentz" is the same map as "poincare" in coordinates that do
        # not crowd at a rim; "euclidean" has the same layers without exponential maps.
        "geometry": Field("poincare", one_of("poincare", "lorentz", "euclidean")),
        # What is compared: "distance", or, in Euclidean space, also "cosine", of unit vectors.
        "metric": Field("distance", one_of("distance", "cosine")),
        "curvature": Field(1.0, CURVATURE),  # c, fixed
        # "given": sentence vectors as they are, those of a parent's moments averaged unless its
        # text was encoded as a whole (docs/hover.md); "mean": words through the input layer,
        # averaged; "attention": the query encoder of HLFormer.
        "text_encoder": Field("given", one_of("given", "attention", "mean")),
        "num_heads": Field(4, whole(1, 2**10)),  # N of the attention
        # Length of a feature before the exponential map: "unit" as released, or "radius", learned
        # from the feature.
        "lift": Field("unit", one_of("unit", "radius")),
        # Hyperbolic layers start as the identity without bias, or, as released, uniformly random.
        "hyperbolic_init": Field("identity", one_of("identity", "kaiming")),
        "scale": Field(1 / 0.07, positive(100)),  # s, at the start where it is learned; printed: 1
        "learned_scale": Field(True, FLAG),  # within (0, 100]
        # Largest radius √c |x| of a point of the ball; 1: as far out as floating point goes.
        # Released: 0.999.
        "max_radius": Field(1.0, positive(1)),
        # Whether the gradient of a lifted feature is scaled as if the feature were a parameter on
        # the ball, as released.
        "riemannian_factor": Field(False, FLAG),
    },
    "loss": {  # a weight of 0 leaves its term out
        "align": Field(1.0, WEIGHT),
        "tree": Field(1.0, WEIGHT),
        "chain": Field(1.0, WEIGHT),  # alpha_1
        "order": Field(0.2, WEIGHT),  # alpha_2
        # "corrected": margins that pull what violates them. "printed": the hinges of the paper,
        # which push what satisfies them. "released": those, and the tree and the chain over the
        # parent itself and the left child in place of both children.
        "form": Field("corrected", one_of("corrected", "printed", "released")),
        # Whether ancestors and descendants of a node are no negatives of it in the tree loss.
        "mask_related": Field("tree", one_of("none", "tree")),
        "tree_reduction": Field("mean", one_of("mean", "sum")),  # over subtrees
        # What a child of the chain is to its parent: farther from the origin ("norm"), or inside
        # of its entailment cone ("cone"), HLFormer's partial order, which the paper does not have.
        "chain_form": Field("norm", one_of("norm", "cone")),
        # K of the cones, whose half aperture is arcsin(K (1 − c |p|²) / (√c |p|)) in the ball and
        # arcsin(K / |p|) in Euclidean space. Only of the form "cone".
        "min_radius": Field(0.1, real(1e-6, 1)),
        "chain_margin": Field(0.1, real(0, 100)),  # epsilon_1; of norms of ball coordinates
        # The direction of time j: a true cosine with a random start, or, as released, a product
        # with a vector that starts as ones.
        "order_base": Field("unit", one_of("unit", "released")),
        "order_margin": Field(0.1, real(0, 2)),  # epsilon_2
    },
    "optim": {
        "learning_rate": Field(1e-4, positive(100)),
        "hyperbolic_rate": Field(1e-4, RATE),  # of the hyperbolic layers; released: 1e-7
        "scale_rate": Field(1e-4, RATE),  # of the learned scale; released: 1e-7
        "warmup": Field(0.1, SHARE),  # share of all steps
        "beta1": Field(0.9, SHARE),
        "beta2": Field(0.98, SHARE),
        "epsilon": Field(1e-6, positive(1)),
        "weight_decay": Field(0.2, real(0, 100)),
        "global_clip": Field(1.0, positive(1e30)),  # of all gradients together, before
        "clip_norm": Field(1.0, positive(1e30)),  # per parameter tensor
    },
    "train": {
        name: field
        for name, field in PRVR["train"].items()
        if name not in ("encode_parts", "baseline")
    }
    | {
        "epochs": Field(15, whole(1, 10**6)),
        "batch_size": Field(64, SIZE),  # subtrees
    },
    "eval": {
        # Validation metric that chooses the best epoch, the higher the better: t2v/MRR, v2t/R@1, …
        # "last": the last epoch, however it is, as released.
        "select": Field("t2v/MRR", LINE),
        "node_batch": Field(256, SIZE),  # nodes that are encoded together
        "query_batch": Field(256, SIZE),  # queries that are ranked together
        # Zero-shot: the collection whose test split is tested on, and its feature; "" for the one
        # that is trained on. Its features have the same widths.
        "test_collection": Field("", PATH),
        "test_feature": Field("", PATH),
    },
}
"""Every field of a configuration of HOVER."""

FIELDS: Mapping[str, Fields] = {"prvr": PRVR, "hover": HOVER}
"""The fields of a configuration by the family of its model; `model.name` tells the family."""


def leaves(family: str = "prvr") -> Iterator[tuple[str, Field]]:
    """Yields every field of a family by its full name, such as "model.dropout", in order."""
    for name, field in FIELDS[family].items():
        if isinstance(field, Field):
            yield name, field
        else:
            yield from ((f"{name}.{key}", inner) for key, inner in field.items())


def conflicts(config: ConfigDict, family: str = "prvr") -> Iterator[tuple[str, str]]:
    """Yields each field that contradicts others, and what it must be; its own rule holds."""
    yield from CONFLICTS[family](config)
    if config.data.max_clips > config.data.max_frames:
        yield "data.max_frames", "at least config.data.max_clips, whose positions share its table"


def _prvr_conflicts(config: ConfigDict) -> Iterator[tuple[str, str]]:
    model, loss = config.model, config.loss
    if not (model.gaze or model.glance):
        yield "model.gaze", "True where config.model.glance is False: keep one branch"
    if model.video_level and not model.gaze:
        yield "model.video_level", "False where config.model.gaze is False: it pools the frames"
    if model.name.startswith("clip4clip") and (model.glance or not model.gaze):
        yield "model.glance", "False for CLIP4Clip, with config.model.gaze: it has frames alone"
    if model.video_level and model.name in ("ms_sl", "dl_dkd"):
        yield "model.video_level", f"False for {model.name}, which scores every frame"
    if not (model.euclidean_blocks or model.lorentz_blocks):
        yield "model.euclidean_blocks", "at least 1 where config.model.lorentz_blocks is 0"
    for geometry in ("euclidean", "lorentz"):
        if len(model[f"{geometry}_widths"]) not in (0, 1, model[f"{geometry}_blocks"]):
            blocks = f"config.model.{geometry}_blocks, {model[f'{geometry}_blocks']}"
            yield f"model.{geometry}_widths", f"one width for all blocks, or as many as {blocks}"
    if not model.lorentz_blocks:
        for name in ("lorentz_window", "head_merge", "lorentz_divisor", "block_curvature"):
            default = PRVR["model"][name].default
            if model[name] != default:
                yield f"model.{name}", f"{default!r} where there is no Lorentz block"
    elif (model.lorentz_dim + 1) % model.num_heads or model.lorentz_dim + 1 < 2 * model.num_heads:
        yield (
            "model.lorentz_dim",
            "one less than a multiple of config.model.num_heads, at least twice as large",
        )
    if model.hidden_size % model.num_heads:
        yield "model.hidden_size", f"a multiple of config.model.num_heads, {model.num_heads}"
    if model.clip_weight + model.frame_weight == 0:
        yield "model.clip_weight", "positive where config.model.frame_weight is 0"
    if loss.diversity_form == "captions" and loss.diversity_gamma != 1:
        yield "loss.diversity_gamma", "1 where the form is 'captions', which has no focal factor"


def _hover_conflicts(config: ConfigDict) -> Iterator[tuple[str, str]]:
    model, loss = config.model, config.loss
    if model.metric == "cosine" and model.geometry != "euclidean":
        yield "model.metric", "'distance' where config.model.geometry is not 'euclidean'"
    if model.text_encoder == "attention" and model.hidden_size % model.num_heads:
        yield "model.hidden_size", f"a multiple of config.model.num_heads, {model.num_heads}"
    if not (loss.align or loss.tree or loss.chain or loss.order):
        yield "loss.order", "positive where all other weights of config.loss are 0"
    if loss.chain_form == "cone" and loss.form != "corrected":
        yield "loss.chain_form", "'norm' where the form is not 'corrected': the paper has no cones"
    if bool(config.eval.test_feature) != bool(config.eval.test_collection):
        yield "eval.test_feature", "given with config.eval.test_collection, or neither"


CONFLICTS = {"prvr": _prvr_conflicts, "hover": _hover_conflicts}


# Configurations


def default(family: str = "prvr") -> ConfigDict:
    """Returns the complete configuration of a family, locked: an unknown field is an error."""
    values = {
        name: field.default
        if isinstance(field, Field)
        else {key: inner.default for key, inner in field.items()}
        for name, field in _known("family of models", family, FIELDS).items()
    }
    return ConfigDict(values).lock()


def of_model(name: str) -> ConfigDict:
    """Returns the default configuration with the fields that define a model."""
    config = _updated(default(), _known("model", name, DEFINITIONS))
    config.model.name = name
    return config


def on_data_set(config: ConfigDict, data_set: str) -> ConfigDict:
    """Sets the fields that say which of the released features, of `DATA_SETS`, a run is on."""
    return _updated(config, {"data": DATA_SETS[data_set]})


def preset(config: ConfigDict, name: str) -> ConfigDict:
    """Sets the fields of a form of HOVER, of `PRESETS`; returns the configuration."""
    return _updated(config, _known("form of HOVER", name, PRESETS))


def debug(config: ConfigDict) -> ConfigDict:
    """Shrinks a configuration until it runs in seconds on a CPU, without any features.

    What makes the result is kept (losses, weights, optimiser, options of the model); sizes,
    epochs and the number of blocks are not. Without `manual_dir` the data is synthetic, with the
    widths that the configuration has, so that released features work as well.
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
    """The variant of a configuration that stands behind the colon of `configs/x.py:NAME`."""
    if name not in ("", "debug"):
        raise ConfigError(f"there is no variant {name!r} of the configuration: only 'debug'")
    return debug(config) if name else config


def parts_of(name: str, data_sets: Sequence[str] = tuple(DATA_SETS)) -> tuple[str, str]:
    """What stands behind the colon of `configs/x.py:NAME`: the data set, and "debug" or "".

    The first of the data sets that a file has is its default.
    """
    known = {"": (data_sets[0], ""), "debug": (data_sets[0], "debug")}
    for data_set in data_sets:
        known |= {data_set: (data_set, ""), f"{data_set}-debug": (data_set, "debug")}
    return _known("variant", name, known)


def family_of(config: ConfigDict) -> str:
    """The name of the family that a configuration is of; "prvr" where its model is unknown."""
    section = config.get("model")
    name = section.get("name") if isinstance(section, ConfigDict) else None
    of_hover = dict(leaves("hover"))["model.name"].rule.holds(name)
    return "hover" if of_hover else "prvr"


def check(config: ConfigDict) -> None:
    """Refuses a configuration that no run could mean, naming the field, what it is and may be."""
    family = family_of(config)
    known, given = {name for name, _ in leaves(family)}, set(flat(config))
    for name in sorted(given - known):
        raise ConfigError(f"config.{name}: there is no such field{field_suggestion(name, known)}")
    for name in sorted(known - given):
        start = "" if family == "prvr" else repr(family)
        raise ConfigError(
            f"config.{name} is missing: start from hlformer_jax.config.default({start})"
        )
    if other := _owner_of_blocks(config):
        name = config.model.name
        file = {"hlformer": "anet"}.get(name, "clip" if "clip4clip" in name else name)
        raise ConfigError(
            f"config.model.name is {name!r}, but the blocks and their aggregation are those of"
            f" {other}: start from configs/{file}.py, in Python from config.of_model({name!r})"
        )
    check_values(config)


def check_values(config: ConfigDict, prefix: str = "") -> None:
    """Refuses values of the fields that begin with `prefix`, by their rules, then beside others."""
    family = family_of(config)
    for name, field in leaves(family):
        value = _value(config, name)
        if name.startswith(prefix) and not field.rule.holds(value):
            near = suggestion(value, field.rule.choices) if isinstance(value, str) else ""
            raise ConfigError(_refusal(config, name, field.rule.meaning) + near)
    for name, meaning in conflicts(config, family):
        if name.startswith(prefix):
            raise ConfigError(_refusal(config, name, meaning))


def _owner_of_blocks(config: ConfigDict) -> str | None:
    """The other model whose blocks and aggregation a configuration has, all of them.

    They are compared as they are published and as `debug` shrinks them. Where one of them differs,
    somebody chose the combination. One plain block, as of MS-SL and DL-DKD, is an ablation of any
    model.
    """
    if config.model.name not in DEFINITIONS:
        return None
    for name, fields in DEFINITIONS.items():
        if fields["model"]["euclidean_blocks"] == 1:
            continue
        for published in (of_model(name), debug(of_model(name))):
            if all(config.model[field] == published.model[field] for field in fields["model"]):
                return None if name == config.model.name else name
    return None


def _refusal(config: ConfigDict, name: str, meaning: str) -> str:
    try:
        shown = repr(_value(config, name))
    except ValueError:  # Python writes no whole number of thousands of digits
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    return f"config.{name} is {shown}: it must be {meaning}"


def _value(config: ConfigDict, name: str) -> Any:
    for part in name.split("."):
        config = config[part]
    return config


def describe_data(config: Mapping[str, Any] | ConfigDict) -> dict[str, Any]:
    """Return the name of a configuration's data set, its features, and whether it is synthetic.

    Nothing is opened: without a folder of features the videos are synthetic.

    Args:
      config: a configuration, or one as JSON has it.

    Returns:
      "title", "feature", "visual_dim", "text_dim" and "synthetic"; "tested_on" where the test split
      is another data set's.
    """
    data, has_trees = config["data"], "trees" in config
    synthetic = not data["manual_dir"] and any(data["synthetic_videos"])
    if synthetic:
        title = f"synthetic {'action trees' if has_trees else 'captioned videos'}"
    else:
        title = _collection_title(data["collection"]) + (", action trees" if has_trees else "")
    described = {
        "title": title,
        "feature": "planted" if synthetic else data["feature"],
        "visual_dim": data["visual_dim"],
        "text_dim": data["text_dim"],
        "synthetic": synthetic,
    }
    if not synthetic and (other := config["eval"].get("test_collection")):
        described["tested_on"] = f"{_collection_title(other)} ({config['eval']['test_feature']})"
    return described


def _collection_title(collection: str) -> str:
    """Return what the papers call a collection of `config.data`."""
    titles = {str(fields["collection"]): DATA_SET_TITLES[key] for key, fields in DATA_SETS.items()}
    titles |= {
        "own": "own videos",
        "qvhighlights": "QVHighlights",
        "qvhighlights_youtube": "QVHighlights, regrouped by video",
    }
    return titles.get(collection, collection)


def flat(fields: Mapping[str, Any] | ConfigDict, section: str = "") -> dict[str, Any]:
    """Nested fields by their full names, such as "model.dropout"."""
    named: dict[str, Any] = {}
    for key, value in fields.items():
        inner = isinstance(value, Mapping | ConfigDict)
        named |= flat(value, f"{section}{key}.") if inner else {f"{section}{key}": value}
    return named


def _known(what: str, name: str, known: Any) -> Any:
    if name not in known:
        names = ", ".join(filter(None, known))
        raise ConfigError(f"there is no {what} {name!r}: use {names}{suggestion(name, known)}")
    return known[name]


def _updated(config: ConfigDict, values: Any) -> ConfigDict:
    config.update({section: dict(fields) for section, fields in values.items()})
    return config


CONFIGS = Path(__file__).parent / "configs"
"""The configuration files of the package; in a checkout a link to configs/."""


def locate(file: str | os.PathLike[str]) -> Path:
    """A configuration file: of this path, else the package's, as `sweeps/robust`."""
    path = Path(file).expanduser()
    own = CONFIGS.joinpath(*path.parts[path.parts[:1] == ("configs",) :])
    if not path.is_file() and not path.is_absolute() and own != CONFIGS:
        own = own if own.suffix == ".py" else own.with_name(f"{own.name}.py")
        return own if own.is_file() else path
    return path


def load(file: str | os.PathLike[str], name: str = "") -> ConfigDict:
    """Returns the configuration of a file, as `locate` finds it, which is executed.

    `name` is what would stand behind a colon on the command line, for example "debug". What a file
    does wrong is a ConfigError that has its line.
    """
    path = locate(file)
    if not path.is_file():
        known = [str(own.relative_to(CONFIGS).with_suffix("")) for own in CONFIGS.rglob("*.py")]
        raise ConfigError(
            f"{path}: there is no such configuration file{suggestion(path.with_suffix(''), known)}"
        )
    spec: Any = importlib.util.spec_from_file_location(f"hlformer_config_{path.stem}", path)
    if spec is None:
        raise ConfigError(f"{path}: a configuration file is a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ConfigError("it is no configuration file: it does not define get_config")
        takes_name = bool(inspect.signature(module.get_config).parameters)
        if name and not takes_name:
            raise ConfigError(f"it has no variant {name!r}: its get_config takes no name")
        config: ConfigDict = module.get_config(name) if takes_name else module.get_config()
    except UserError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:  # whatever a file does wrong, its line says it best
        raise ConfigError(fault(path, error)) from error
    return config


def fault(path: Path, error: Exception) -> str:
    """Return where a Python file failed, the code there, and the first line of the error."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {kind}: {error.msg}"
    # ml_collections quotes an error within an error, and lists all fields that there are.
    reason = (str(error).strip().splitlines() or [kind])[0]
    reason = reason.partition(" Other fields present")[0].strip("\"'")[:200]
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not lines:
        return f"{path}: {reason} ({kind})"
    return f"{path}:{lines[-1].lineno}: {lines[-1].line}: {reason} ({kind})"
