"""Fields of a configuration: the default, the rule and the meaning of each.

A model has a family, which has its own fields. The family "prvr" has the defaults of HLFormer's
released code on ActivityNet Captions; the files in `configs/` state the published values of each
model and data set. Lengths and widths have the letters of the axis glossary
(hlformer_jax/typing.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.config.models import DEFINITIONS
from hlformer_jax.config.rules import (
    COUNT,
    CURVATURE,
    FLAG,
    FOLDER,
    LINE,
    PATH,
    RATE,
    SHARE,
    SIZE,
    WEIGHT,
    WINDOW_WIDTHS,
    Rule,
    choice,
    integer,
    integers,
    number,
    positive,
    split_sizes,
)
from hlformer_jax.errors import ConfigError
from hlformer_jax.text import suggestion


class Field(NamedTuple):
    """A field: its default value and the rule for its values."""

    default: Any
    rule: Rule


Fields = Mapping[str, Field | Mapping[str, Field]]

PRVR: Mapping[str, Any] = {
    "seed": Field(0, integer(0, 2**31 - 1)),
    # Compute dtype of the encoders; parameters, geometry, softmax and losses are always float32.
    # No configuration sets bfloat16: its effect on the metrics of a trained model is not settled.
    "dtype": Field("float32", choice("float32", "bfloat16")),
    # Float32 products of dense layers on a GPU: with all bits ("highest"), or in TensorFloat-32,
    # which keeps 10 of 23 bits of the mantissa.
    "precision": Field("highest", choice("highest", "tf32")),
    # Compile in the least time, not for speed: for runs of seconds.
    "compile_fast": Field(False, FLAG),
    "data": {
        # Folder below manual_dir, and prefix of the text files.
        "collection": Field("activitynet", FOLDER),
        "feature": Field("i3d", FOLDER),  # folder below FeatureData
        "manual_dir": Field("", PATH),  # holds activitynet/, tvr/ and charades/ as released
        # Numbers of train, val and test videos of a synthetic corpus, if manual_dir is "".
        "synthetic_videos": Field((0, 0, 0), split_sizes(10**7)),
        "data_dir": Field("", PATH),  # holds the prepared sets; "": ~/tensorflow_datasets
        "visual_dim": Field(1024, SIZE),  # D
        "text_dim": Field(1024, SIZE),  # E
        "storage": Field("float32", choice("float32", "float16")),  # dtype of prepared features
        # Width of the features of the teacher for the distillation (512 for CLIP, as released by
        # DL-DKD); 0: no teacher is read.
        "teacher_dim": Field(0, integer(0, 2**16)),
        "max_frames": Field(128, integer(1, 2**14)),  # F
        "max_clips": Field(32, integer(1, 2**12)),  # C
        "max_words": Field(30, integer(1, 2**12)),  # W; released: 30, printed for ActivityNet: 64
        # Dtype of the transformed features in memory and on the devices.
        "dtype": Field("float16", choice("float32", "float16")),
        # Whether the training and validation splits stay on the devices; "auto": if they fit. It
        # changes no result.
        "resident": Field("auto", choice("auto", "always", "never")),
        # GiB of transformed features kept in memory, for each split.
        "cache_gib": Field(4.0, number(0, 2**20)),
    },
    "model": {
        # The model's class. Its blocks, aggregation and losses are separate fields: `of_model`
        # sets them together, and every file of configs/ starts there.
        "name": Field("hlformer", choice(*DEFINITIONS)),
        "hidden_size": Field(384, SIZE),  # H
        "lorentz_dim": Field(127, SIZE),  # n; n + 1 is divisible by num_heads
        "num_heads": Field(4, integer(1, 2**10)),  # N
        "euclidean_blocks": Field(4, integer(0, 64)),  # at most training.optim.MAX_SLICES
        "lorentz_blocks": Field(4, integer(0, 64)),
        # Width of each block's Gaussian window; 0: no window. (): 0, 2, 4, 8, … in each geometry.
        # A single width applies to all blocks.
        "euclidean_widths": Field((), WINDOW_WIDTHS),
        "lorentz_widths": Field((), WINDOW_WIDTHS),
        # "released": a Gaussian over normalised positions. "printed": eq. 10. "boxcar",
        # "bartlett": windows of the same standard deviation.
        "window": Field("released", choice("released", "printed", "boxcar", "bartlett")),
        # "released": the window multiplies the logits, which are <= 0; this favours far positions.
        # "corrected": the window's logarithm is added; this favours near positions.
        "lorentz_window": Field("released", choice("released", "corrected")),
        # "released": heads are concatenated, which leaves the hyperboloid. "hyperboloid": heads are
        # merged into a point of a hyperboloid.
        "head_merge": Field("released", choice("released", "hyperboloid")),
        # Divisor of the Lorentz attention's logits: "learned", starting at √(n + 1), with a bias
        # (released), or "fixed" at √(n + 1) without a bias (printed).
        "lorentz_divisor": Field("learned", choice("learned", "fixed")),
        # Curvature of the Lorentz blocks: "fixed" at 1 (released), or "shared": all blocks learn
        # one curvature between 0.1 and 10.
        "block_curvature": Field("fixed", choice("fixed", "shared")),
        # Aggregation of the blocks: HLFormer's mean-guided aggregation ("maim"), GMMFormer v2's
        # temporal consolidation and its ablations "dynamic", "weighted" and "mean", or a linear
        # layer on the concatenated features.
        "fusion": Field(
            "maim", choice("maim", "consolidation", "dynamic", "weighted", "mean", "concat")
        ),
        "temperature": Field(0.6, number(1e-4, 1e4)),  # tau of the fusion weights
        "gaze": Field(True, FLAG),  # the frame branch; in dl_dkd the exploration branch
        "glance": Field(True, FLAG),  # the clip branch; in dl_dkd the inheritance branch
        # Pool the frames to one vector a video, as GMMFormer does.
        "video_level": Field(False, FLAG),
        "frame_weight": Field(0.3, WEIGHT),  # alpha_f of the ranking score
        "clip_weight": Field(0.7, WEIGHT),  # alpha_c of the ranking score
        "input_dropout": Field(0.31, SHARE),
        "dropout": Field(0.31, SHARE),
        # Initial curvature of the partial order loss, and whether the curvature is learned, within
        # a factor of 10 (released), or fixed (printed: at 1).
        "curvature": Field(1.0, CURVATURE),
        "learned_curvature": Field(True, FLAG),
    },
    "loss": {  # a weight of 0 leaves its term out
        "clip_triplet": Field(1.0, WEIGHT),
        "frame_triplet": Field(1.0, WEIGHT),
        "clip_nce": Field(0.02, WEIGHT),
        "frame_nce": Field(0.04, WEIGHT),
        "query_diversity": Field(0.003, WEIGHT),
        "partial_order": Field(0.001, WEIGHT),  # needs hlformer's hyperbolic lift
        "optimal_matching": Field(0.0, WEIGHT),  # GMMFormer v2's term of the clips
        # DL-DKD's distillation from a teacher: a sum over the captions of a batch.
        "distillation": Field(0.0, WEIGHT),
        "distillation_temperature": Field(0.2, positive(1e4)),  # divides both cosines
        "distillation_rate": Field(0.95, positive(1)),  # decay of the weight in each epoch
        "margin": Field(0.2, number(0, 100)),  # m of the triplet loss, added to cosines
        # First epoch with hard negatives, counted from 0.
        "hard_negative_epoch": Field(20, integer(0, 10**9)),
        # Number of hardest videos from which a caption's negative is drawn.
        "hard_pool_size": Field(20, COUNT),
        "diversity_margin": Field(0.2, number(-100, 100)),  # delta, added to cosines
        "diversity_scale": Field(32.0, positive(1e4)),  # alpha
        "diversity_gamma": Field(1.0, number(0, 100)),  # gamma
        # "pairs": a sum over pairs with the focal factor. "captions": GMMFormer's form, the
        # logarithm of a sum over the other captions, without the factor. "videos": GMMFormer v2's
        # printed eq. 5, the sum of each video times 2 / (M (M - 1)).
        "diversity_form": Field("pairs", choice("pairs", "captions", "videos")),
        # Mean of the optimal matching: over all pairs of the batch (released), or over the
        # captions of each video and then over videos (printed).
        "matching_mean": Field("pairs", choice("pairs", "videos")),
        # K of the entailment cones. The half aperture is arcsin(2 K / (√c r)) for the norm r of the
        # apex's space components; for √c r <= 2 K the cone is a half-space. At the upper bound
        # K = 1 this holds up to a distance of asinh(2) / √c = 1.4 / √c from the origin; a much
        # larger K would leave no order. Below the lower bound a cone is a ray in float32.
        "min_radius": Field(0.1, number(1e-6, 1)),
    },
    "optim": {
        "learning_rate": Field(2.5e-4, positive(100)),
        "warmup": Field(0.01, SHARE),  # share of all steps
        "beta1": Field(0.9, SHARE),
        "beta2": Field(0.999, SHARE),
        "epsilon": Field(1e-6, positive(1)),
        "weight_decay": Field(0.01, number(0, 100)),
        "clip_norm": Field(1.0, positive(1e30)),  # for each parameter tensor of the released model
    },
    "train": {
        "epochs": Field(100, integer(1, 10**6)),
        "batch_size": Field(128, SIZE),  # videos, with all their captions; at least 2 to train
        # Number of parts into which the videos of a batch are split. The parts are encoded one
        # after another, and again for the gradient, which takes less memory and more arithmetic.
        # Dropout masks are drawn for the whole batch, so that results differ only by rounding. It
        # must divide the number of videos on each device.
        "encode_parts": Field(1, SIZE),
        # Number of epochs without an improvement of eval.select after which a run stops. The
        # released code has the number 10 and stops after 11 epochs.
        "patience": Field(11, COUNT),
        "log_every": Field(10, COUNT),  # steps between two records of the training metrics
        # Least seconds between two checkpoints. They are saved at the end of an epoch, and at the
        # end of the run.
        "checkpoint_seconds": Field(60.0, number(0, 1e9)),
        "baseline": Field(False, FLAG),  # also report a mean-pooled linear baseline
    },
    "eval": {
        # Validation metric that chooses the best epoch; the highest value wins. The evaluation of
        # a family names the metrics: SumR, R@1, R@5, R@10, R@100, and with `moments` IoU 0.3,
        # IoU 0.5, IoU 0.7 and mIoU. "last": keep the last epoch.
        "select": Field("SumR", LINE),
        # Times of the captions' moments: a file (docs/data.md), relative to
        # {manual_dir}/{collection}; "data" for the times in the data set itself; "" for none. With
        # times, each evaluation adds the localisation of the first moment (retrieval/moments.py).
        "moments": Field("", PATH),
        "video_batch": Field(64, SIZE),
        "query_batch": Field(1024, SIZE),  # captions that are ranked together
        # Dtype of the encoded videos in memory.
        "corpus": Field("float32", choice("float32", "bfloat16", "int8")),
    },
}
"""Partially relevant video retrieval: HLFormer and its ancestors."""


HOVER: Mapping[str, Any] = {
    "seed": PRVR["seed"],
    "dtype": PRVR["dtype"],
    "precision": PRVR["precision"],
    "compile_fast": PRVR["compile_fast"],
    "data": PRVR["data"] | {"max_words": Field(72, integer(1, 2**12))},
    "trees": {
        # Composition of the leaves. "released": neighbours are paired level by level; in a level of
        # odd length the last two nodes are an additional pair. "balanced": in such a level the last
        # node moves up unchanged. "shallow": all leaves are below one root.
        "form": Field("released", choice("released", "shallow", "balanced")),
        "node_frames": Field(12, integer(1, 2**10)),  # F of a node
        # Frames of a node in a video of at most node_frames frames: the frames of the node's
        # "span", or of the "whole" video, as released.
        "short_video": Field("span", choice("span", "whole")),
        # Train on trees with these numbers of leaves; (): all.
        "train_leaves": Field((), integers(1, 10**4)),
        # Training trees: "full", "fewshot" (a tenth of the trees), or a file with a video id in
        # each line.
        "train_subset": Field("full", LINE),
        # Validate on the split "val", or on "held_out", a twentieth of the training trees.
        "validation": Field("val", choice("val", "held_out")),
        # Synthetic corpus: probability that a moment shows the action that fits its position.
        "precedence": Field(0.7, number(0, 1)),
    },
    "model": {
        "name": Field("hover", choice("hover")),
        "hidden_size": Field(512, SIZE),  # H
        "hyperbolic_dim": Field(512, SIZE),  # n
        # Space of the embeddings. "lorentz" is the same map as "poincare" in coordinates of the
        # hyperboloid, which do not crowd near a boundary. "euclidean" has the same layers without
        # exponential maps.
        "geometry": Field("poincare", choice("poincare", "lorentz", "euclidean")),
        # Compare by "distance", or, in Euclidean space only, by "cosine" of unit vectors.
        "metric": Field("distance", choice("distance", "cosine")),
        "curvature": Field(1.0, CURVATURE),  # c, fixed
        # "given": sentence vectors unchanged; the vector of a parent is the mean of its moments'
        # vectors unless its text was encoded as a whole (docs/hover.md). "mean": the mean of the
        # words after the input layer. "attention": HLFormer's query encoder.
        "text_encoder": Field("given", choice("given", "attention", "mean")),
        "num_heads": Field(4, integer(1, 2**10)),  # N of the attention
        # Length of a feature before the exponential map: "unit" as released, or "radius", learned
        # from the feature.
        "lift": Field("unit", choice("unit", "radius")),
        # Initial hyperbolic layers: "identity" without bias, or "kaiming", uniformly random, as
        # released.
        "hyperbolic_init": Field("identity", choice("identity", "kaiming")),
        # s, the factor of the similarities; the initial value if it is learned. Printed: 1.
        "scale": Field(1 / 0.07, positive(100)),
        "learned_scale": Field(True, FLAG),  # within (0, 100]
        # Largest radius √c |x| of a point of the ball; 1: the limit of floating point. Released:
        # 0.999.
        "max_radius": Field(1.0, positive(1)),
        # Scale the gradient of a lifted feature as if the feature were a parameter on the ball,
        # as released.
        "riemannian_factor": Field(False, FLAG),
    },
    "loss": {  # a weight of 0 leaves its term out
        "align": Field(1.0, WEIGHT),
        "tree": Field(1.0, WEIGHT),
        "chain": Field(1.0, WEIGHT),  # alpha_1
        "order": Field(0.2, WEIGHT),  # alpha_2
        # Hinges of the chain and the order (losses/trees.py). "corrected": they move pairs that
        # violate the margin. "printed": the paper's hinges, which move pairs that are in order.
        # "released": the printed hinges; in tree and chain the parent itself and the left child
        # take the places of the two children.
        "form": Field("corrected", choice("corrected", "printed", "released")),
        # "tree": ancestors and descendants of a node are not its negatives in the tree loss.
        # "none": they are.
        "mask_related": Field("tree", choice("none", "tree")),
        "tree_reduction": Field("mean", choice("mean", "sum")),  # over subtrees
        # A child in the chain is farther from the origin than its parent ("norm"), or inside its
        # parent's entailment cone ("cone": HLFormer's partial order; not in the paper).
        "chain_form": Field("norm", choice("norm", "cone")),
        # K of the cones, whose half aperture is arcsin(K (1 − c |p|²) / (√c |p|)) in the ball and
        # arcsin(K / |p|) in Euclidean space. Read if chain_form is "cone".
        "min_radius": Field(0.1, number(1e-6, 1)),
        "chain_margin": Field(0.1, number(0, 100)),  # epsilon_1, a norm of ball coordinates
        # Use of the direction of time j. "unit": cosines with j, which starts random. "released":
        # products of unit vectors with j, which starts as a vector of ones.
        "order_base": Field("unit", choice("unit", "released")),
        "order_margin": Field(0.1, number(0, 2)),  # epsilon_2
    },
    "optim": {
        "learning_rate": Field(1e-4, positive(100)),
        "hyperbolic_rate": Field(1e-4, RATE),  # for the hyperbolic layers; released: 1e-7
        "scale_rate": Field(1e-4, RATE),  # for the learned scale; released: 1e-7
        "warmup": Field(0.1, SHARE),  # share of all steps
        "beta1": Field(0.9, SHARE),
        "beta2": Field(0.98, SHARE),
        "epsilon": Field(1e-6, positive(1)),
        "weight_decay": Field(0.2, number(0, 100)),
        "global_clip": Field(1.0, positive(1e30)),  # for all gradients together, applied first
        "clip_norm": Field(1.0, positive(1e30)),  # for each parameter tensor
    },
    "train": {
        name: field
        for name, field in PRVR["train"].items()
        if name not in ("encode_parts", "baseline")
    }
    | {
        "epochs": Field(15, integer(1, 10**6)),
        "batch_size": Field(64, SIZE),  # subtrees
    },
    "eval": {
        # Validation metric that chooses the best epoch, such as t2v/MRR or v2t/R@1; the highest
        # value wins, so the median and mean rank (MedR, MnR) are refused. "last": keep the last
        # epoch, as released.
        "select": Field("t2v/MRR", LINE),
        "node_batch": Field(256, SIZE),  # nodes that are encoded together
        "query_batch": Field(256, SIZE),  # queries that are ranked together
        # Collection and features for a zero-shot test, with the feature widths of the training
        # data; "": test on the collection of the training data.
        "test_collection": Field("", PATH),
        "test_feature": Field("", PATH),
    },
}
"""HOVER: retrieval of the nodes of action trees."""

FIELDS: Mapping[str, Fields] = {"prvr": PRVR, "hover": HOVER}
"""Fields by family of models; `model.name` determines the family."""


def leaves(family: str = "prvr") -> Iterator[tuple[str, Field]]:
    """Yield each field of a family, with its full name, such as "model.dropout", first."""
    for name, field in FIELDS[family].items():
        if isinstance(field, Field):
            yield name, field
        else:
            yield from ((f"{name}.{key}", inner) for key, inner in field.items())


def flat(fields: Mapping[str, Any] | ConfigDict, section: str = "") -> dict[str, Any]:
    """Return nested values by their full names, such as "model.dropout".

    A section without fields is a value, so that a wrong name of a section is found.

    Args:
      fields: sections and values.
      section: prefix of the names.
    """
    values: dict[str, Any] = {}
    for key, value in fields.items():
        is_section = isinstance(value, Mapping | ConfigDict) and value
        values |= flat(value, f"{section}{key}.") if is_section else {f"{section}{key}": value}
    return values


def default(family: str = "prvr") -> ConfigDict:
    """Return the default configuration of a family, with all fields.

    The configuration is locked: assigning an unknown field is an error.

    Raises:
      ConfigError: for an unknown family.
    """
    values = {
        name: field.default
        if isinstance(field, Field)
        else {key: inner.default for key, inner in field.items()}
        for name, field in look_up("family of models", family, FIELDS).items()
    }
    return ConfigDict(values).lock()


def family_of(config: ConfigDict) -> str:
    """Return the family of a configuration's model; "prvr" for an unknown model."""
    section = config.get("model")
    name = section.get("name") if isinstance(section, ConfigDict) else None
    is_hover = dict(leaves("hover"))["model.name"].rule.holds(name)
    return "hover" if is_hover else "prvr"


def look_up(kind: str, name: str, table: Any) -> Any:
    """Return the entry of a table.

    Args:
      kind: noun for the names of the table, for the error message.
      name: the name to look up.
      table: a mapping from names; the name "" is not suggested.

    Raises:
      ConfigError: if the table lacks the name.
    """
    if name not in table:
        names = ", ".join(filter(None, table))
        raise ConfigError(f"there is no {kind} {name!r}: use {names}{suggestion(name, table)}")
    return table[name]
