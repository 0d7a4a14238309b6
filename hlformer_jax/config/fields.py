"""Every field of a configuration, of each family: its default, what it may be, and its meaning.

The defaults of partially relevant retrieval are those of HLFormer's released code on ActivityNet
Captions. Lengths and widths have the letters of the axis glossary (hlformer_jax/typing.py). A rule
has bounds that no run exceeds, so that a slip of the keyboard is refused by name instead of filling
the memory.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.config.published import DEFINITIONS


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
    # it is.
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
        # Initial curvature of the partial order loss, learned within x10.
        "curvature": Field(1.0, CURVATURE),
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
        "diversity_form": Field("pairs", one_of("pairs", "captions")),
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
        # memory for arithmetic. Changes results by rounding alone. Divides the videos of each
        # device.
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
        # `moments` IoU 0.3, IoU 0.5, IoU 0.7 and mIoU.
        "select": Field("SumR", LINE),
        # Times of the captions' moments, by which every evaluation adds the localisation of the
        # first moment (retrieval/localisation.py): a file (docs/data.md), of which a relative
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
        # "given": sentence vectors as they are, those of a parent's moments averaged; "mean":
        # words through the input layer, averaged; "attention": the query encoder of HLFormer.
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
        for name in ("lorentz_window", "head_merge", "block_curvature"):
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
