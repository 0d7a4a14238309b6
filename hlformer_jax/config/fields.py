"""Every field of a configuration of HLFormer and its ancestors: default, rule and meaning.

The values below are those of HLFormer's released code on ActivityNet Captions. Lengths and widths
have the letters of the axis glossary (hlformer_jax/typing.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.config.rules import (
    Rule,
    flag,
    folder,
    line,
    one_of,
    path,
    positive,
    real,
    share,
    split_sizes,
    whole,
    widths,
)

WEIGHTS = (
    "clip_triplet",
    "frame_triplet",
    "clip_nce",
    "frame_nce",
    "query_diversity",
    "partial_order",
    "optimal_matching",
    "distillation",
)
"""Fields of `config.loss` that are weights of its terms, in the order of the log."""


MODELS = ("hlformer", "gmmformer_v2", "gmmformer", "ms_sl", "dl_dkd")
"""What `config.model.name` may be."""


class Field(NamedTuple):
    """One field.

    Attributes:
      default: its value in `default`.
      rule: what it may be.
    """

    default: Any
    rule: Rule


SIZE, COUNT = whole(1, 2**16), whole(1, 10**9)
WEIGHT, CURVATURE = real(0, 1e6), real(1e-5, 1e3)

FIELDS: Mapping[str, Field | Mapping[str, Field]] = {
    "seed": Field(0, whole(0, 2**31 - 1)),
    # Compute dtype of the encoders. Parameters, geometry, softmax and losses are float32 whatever
    # it is.
    "dtype": Field("float32", one_of("float32", "bfloat16")),
    # Compile for the least time to compile, not for speed: for runs of seconds.
    "compile_fast": Field(False, flag()),
    "data": {
        # Folder below manual_dir, prefix of the text files.
        "collection": Field("activitynet", folder()),
        "feature": Field("i3d", folder()),  # folder below FeatureData
        "manual_dir": Field("", path()),  # holds activitynet/, tvr/, charades/ as released
        # Videos of train, val and test of a synthetic corpus, used when manual_dir is "".
        "synthetic_videos": Field((0, 0, 0), split_sizes(10**7)),
        "data_dir": Field("", path()),  # holds the prepared sets; "": ~/tensorflow_datasets
        "visual_dim": Field(1024, SIZE),  # D
        "text_dim": Field(1024, SIZE),  # E
        "storage": Field("float32", one_of("float32", "float16")),  # of the prepared features
        # Width of the features of a teacher, whose likeness of captions and frames is distilled
        # (CLIP's, 512, as DL-DKD released them); 0: the data set has none, or they are not read.
        "teacher_dim": Field(0, whole(0, 2**16)),
        "max_frames": Field(128, whole(1, 2**14)),  # F
        "max_clips": Field(32, whole(1, 2**12)),  # C
        "max_words": Field(30, whole(1, 2**12)),  # W
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
        "name": Field("hlformer", one_of(*MODELS)),
        "hidden_size": Field(384, SIZE),  # H
        "lorentz_dim": Field(127, SIZE),  # n; n + 1 is divisible by num_heads
        "num_heads": Field(4, whole(1, 2**10)),  # N
        "euclidean_blocks": Field(4, whole(0, 256)),
        "lorentz_blocks": Field(4, whole(0, 256)),
        # Width of each block's Gaussian window; 0 is no window. Empty: 0, 2, 4, 8, … for each
        # geometry. A single width stands for all blocks.
        "euclidean_widths": Field((), widths()),
        "lorentz_widths": Field((), widths()),
        # "released": a Gaussian over normalised positions. "printed": eq. 10. "boxcar",
        # "bartlett": windows of the same standard deviation. "none": no window in any block.
        "window": Field("released", one_of("released", "printed", "boxcar", "bartlett", "none")),
        # "released": multiplies logits that are <= 0, which favours far positions.
        # "corrected": its logarithm is added, which favours near ones.
        "lorentz_window": Field("released", one_of("released", "corrected")),
        # "released": heads concatenated, off the hyperboloid. "hyperboloid": merged on it.
        "head_merge": Field("released", one_of("released", "hyperboloid")),
        # Curvature of the Lorentz blocks: "fixed" at 1 as released, "shared", one that all
        # learn together, or "block", one each; learned within x10 of the start.
        "block_curvature": Field("fixed", one_of("fixed", "shared", "block")),
        "block_curvature_start": Field(1.0, CURVATURE),
        # Aggregation of the blocks: HLFormer's mean-guided one, GMMFormer v2's temporal
        # consolidation and its ablations, or concatenation and a linear layer.
        "fusion": Field(
            "maim", one_of("maim", "consolidation", "dynamic", "weighted", "mean", "concat")
        ),
        "temperature": Field(0.6, real(1e-4, 1e4)),  # tau of the fusion weights
        "gaze": Field(True, flag()),  # the frame branch; of dl_dkd the one that explores
        "glance": Field(True, flag()),  # the clip branch; of dl_dkd the one that inherits
        # Frames pooled to one vector a video, as GMMFormer does.
        "video_level": Field(False, flag()),
        "frame_weight": Field(0.3, WEIGHT),  # alpha_f of the ranking score
        "clip_weight": Field(0.7, WEIGHT),  # alpha_c of the ranking score
        "input_dropout": Field(0.31, share()),
        "dropout": Field(0.31, share()),
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
        # How the weight falls from epoch to epoch e: "exponential", k^e; "linear", 1 - k e, at
        # least 0.05; "sigmoid", k / (k + e^(100 e / k)); or "none".
        "distillation_decay": Field(
            "exponential", one_of("exponential", "linear", "sigmoid", "none")
        ),
        "distillation_rate": Field(0.95, positive(1e6)),  # k; as released 0.95, 0.01, 800
        # Whether all terms but the triplet and contrastive ones see captions that were encoded once
        # more, under another mask of dropout, as released.
        "encode_twice": Field(False, flag()),
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
        "warmup": Field(0.01, share()),  # share of all steps
        "beta1": Field(0.9, share()),
        "beta2": Field(0.999, share()),
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
        "baseline": Field(False, flag()),  # also report a mean-pooled linear baseline
    },
    "eval": {
        # Validation metric that chooses the best epoch, the higher the better; the names are
        # those that the evaluation of the model's family gives: SumR, R@1, R@5, R@10, R@100; with
        # `moments` IoU 0.3, IoU 0.5, IoU 0.7 and mIoU.
        "select": Field("SumR", line()),
        # Times of the captions' moments, by which every evaluation adds the localisation of the
        # first moment (retrieval/localisation.py): a file (docs/data.md), of which a relative
        # path begins at {manual_dir}/{collection}; "data": those that the data set has itself; "":
        # none.
        "moments": Field("", path()),
        "video_batch": Field(64, SIZE),
        "query_batch": Field(256, SIZE),  # captions that are ranked together
        # Dtype in which encoded videos are kept.
        "corpus": Field("float32", one_of("float32", "bfloat16", "int8")),
    },
}


def default(fields: Mapping[str, Field | Mapping[str, Field]] = FIELDS) -> ConfigDict:
    """Returns the complete configuration, locked: an unknown field is an error, not a new field.

    Args:
      fields: the fields of a family; by default those of partially relevant video retrieval.
    """
    values = {
        name: field.default
        if isinstance(field, Field)
        else {key: inner.default for key, inner in field.items()}
        for name, field in fields.items()
    }
    return ConfigDict(values).lock()


def leaves(
    fields: Mapping[str, Field | Mapping[str, Field]] = FIELDS,
) -> Iterator[tuple[str, Field]]:
    """Yields every field by its full name, such as "model.dropout", in their order."""
    for name, field in fields.items():
        if isinstance(field, Field):
            yield name, field
        else:
            yield from ((f"{name}.{key}", inner) for key, inner in field.items())
