"""The fields of HOVER: those that all families share, and its own; and its presets.

HOVER retrieves the nodes of action trees: its model, losses and trees are other fields than those
of partially relevant retrieval. Where its paper and its released code differ a field has both; the
default is what both evidently intend, and `preset` gives each of them as a whole.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.fields import CURVATURE, FIELDS, SIZE, WEIGHT, Field
from hlformer_jax.config.rules import (
    ConfigError,
    flag,
    line,
    one_of,
    path,
    positive,
    real,
    share,
    whole,
    wholes,
)

RATE = real(0, 100)

_DATA: Any = FIELDS["data"]
_TRAIN: Any = FIELDS["train"]

HOVER: Mapping[str, Field | Mapping[str, Field]] = {
    "seed": FIELDS["seed"],
    "dtype": FIELDS["dtype"],
    "compile_fast": FIELDS["compile_fast"],
    "data": dict(_DATA) | {"max_words": Field(72, whole(1, 2**12))},
    "trees": {
        # How leaves are composed: "released", neighbours level by level, the last two of an odd
        # level once more; "shallow", all under one root; "balanced", the odd one rises as it is.
        "form": Field("released", one_of("released", "shallow", "balanced")),
        # Text of a parent: as "released", or its moments' sentences "joined".
        "parent_text": Field("released", one_of("released", "joined")),
        "node_frames": Field(12, whole(1, 2**10)),  # F of a node
        # Frames of a node in a video of at most so many: within its "span", or, as released, the
        # "whole" video.
        "short_video": Field("span", one_of("span", "whole")),
        # Numbers of leaves of the trees that are trained on; empty: all.
        "train_leaves": Field((), wholes(1, 10**4)),
        # Training trees: "full", "fewshot", a tenth of them, or a file of videos' ids, one a line.
        "train_subset": Field("full", line()),
        # What is validated on: the split "val", or "held_out", a twentieth of the training trees.
        "validation": Field("val", one_of("val", "held_out")),
        # Of the synthetic corpus: chance that a moment shows what belongs to its place in time,
        # and concepts that it shares with the moment before it.
        "precedence": Field(0.7, real(0, 1)),
        "shared_concepts": Field(0, whole(0, 2)),
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
        # Length of a feature before the exponential map: "unit" as released; "radius", learned
        # from the feature; "mean", that of the averaged feature.
        "lift": Field("unit", one_of("unit", "radius", "mean")),
        # Hyperbolic layers start as the identity without bias, or, as released, uniformly random.
        "hyperbolic_init": Field("identity", one_of("identity", "kaiming")),
        "scale": Field(1 / 0.07, positive(100)),  # s, at the start where it is learned; printed: 1
        "learned_scale": Field(True, flag()),  # within (0, 100]
        # Largest radius √c |x| of a point of the ball; 1: as far out as floating point goes.
        # Released: 0.999.
        "max_radius": Field(1.0, positive(1)),
        # Whether the gradient of a lifted feature is scaled as if the feature were a parameter on
        # the ball, as released.
        "riemannian_factor": Field(False, flag()),
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
        # The softmax of the alignment: over a slot of all subtrees, or over all nodes of the batch.
        "align_over": Field("slots", one_of("slots", "batch")),
        # Where ancestors and descendants of a node are no negatives of it.
        "mask_related": Field("tree", one_of("none", "tree", "all")),
        "tree_reduction": Field("mean", one_of("mean", "sum")),  # over subtrees
        "tree_anchor": Field("parent", one_of("parent", "both")),  # or parent and child
        # Pairs of the tree loss: a parent and its child, or a node and each descendant.
        "tree_edges": Field("direct", one_of("direct", "closure")),
        "chain_edges": Field("all", one_of("all", "single")),  # single: of parents with one child
        # What a child of the chain is to its parent: farther from the origin ("norm"), or inside
        # of its entailment cone ("cone"), HLFormer's partial order, which the paper does not have.
        "chain_form": Field("norm", one_of("norm", "cone")),
        # K of the cones, whose half aperture is arcsin(K (1 − c |p|²) / (√c |p|)) in the ball and
        # arcsin(K / |p|) in Euclidean space. Only of the form "cone".
        "min_radius": Field(0.1, real(1e-6, 1)),
        # Norm of the chain: of ball coordinates as printed, or the distance from the origin.
        "chain_norm": Field("ball", one_of("ball", "distance")),
        "chain_margin": Field(0.1, real(0, 100)),  # epsilon_1; of the norms
        # The direction of time j: a true cosine with a random start, or, as released, a product
        # with a vector that starts as ones.
        "order_base": Field("unit", one_of("unit", "released")),
        # Pairs of the order: children of one parent, or all leaves of a tree in the batch.
        "order_pairs": Field("siblings", one_of("siblings", "leaves")),
        "order_margin": Field(0.1, real(0, 2)),  # epsilon_2
    },
    "optim": {
        "learning_rate": Field(1e-4, positive(100)),
        "hyperbolic_rate": Field(1e-4, RATE),  # of the hyperbolic layers; released: 1e-7
        "scale_rate": Field(1e-4, RATE),  # of the learned scale; released: 1e-7
        # After the warm-up: a cosine of the share of all steps, as released, or a line, to 0.
        "schedule": Field("warmup_cosine", one_of("warmup_cosine", "linear")),
        "warmup": Field(0.1, share()),  # share of all steps
        "beta1": Field(0.9, share()),
        "beta2": Field(0.98, share()),
        "epsilon": Field(1e-6, positive(1)),
        "weight_decay": Field(0.2, real(0, 100)),
        "global_clip": Field(1.0, positive(1e30)),  # of all gradients together, before
        "clip_norm": Field(1.0, positive(1e30)),  # per parameter tensor
    },
    "train": {
        name: field for name, field in _TRAIN.items() if name not in ("encode_parts", "baseline")
    }
    | {
        "epochs": Field(15, whole(1, 10**6)),
        "batch_size": Field(64, SIZE),  # subtrees
    },
    "eval": {
        # Validation metric that chooses the best epoch, the higher the better: t2v/MRR, v2t/R@1, …
        "select": Field("t2v/MRR", line()),
        "node_batch": Field(256, SIZE),  # nodes that are encoded together
        "query_batch": Field(256, SIZE),  # queries that are ranked together
        # Candidates of a query: all nodes, or those of trees with as many leaves.
        "pool": Field("all", one_of("all", "group")),
        # Zero-shot: the collection whose test split is tested on, and its feature; "" for the one
        # that is trained on. Its features have the same widths.
        "test_collection": Field("", path()),
        "test_feature": Field("", path()),
    },
}
"""Every field of a configuration of HOVER."""

BETWEEN_FIELDS = (
    (
        "model.metric",
        lambda config: config.model.metric == "distance" or config.model.geometry == "euclidean",
        "'distance' where config.model.geometry is not 'euclidean'",
    ),
    (
        "loss.order",
        lambda config: any(config.loss[name] for name in ("align", "tree", "chain", "order")),
        "positive where all other weights of config.loss are 0",
    ),
    (
        "loss.tree_edges",
        lambda config: config.loss.tree_edges == "direct" or config.loss.form != "released",
        "'direct' where config.loss.form is 'released', whose edges are slots",
    ),
    (
        "loss.chain_edges",
        lambda config: config.loss.chain_edges == "all" or config.loss.form != "released",
        "'all' where config.loss.form is 'released', whose edges are slots",
    ),
    (
        "loss.chain_form",
        lambda config: config.loss.chain_form == "norm" or config.loss.form == "corrected",
        "'norm' where config.loss.form is not 'corrected': the paper has no cones",
    ),
    (
        "model.hidden_size",
        lambda config: (
            config.model.text_encoder != "attention"
            or config.model.hidden_size % config.model.num_heads == 0
        ),
        "a multiple of config.model.num_heads",
    ),
    (
        "eval.test_feature",
        lambda config: bool(config.eval.test_feature) == bool(config.eval.test_collection),
        "given with config.eval.test_collection, or neither",
    ),
    (
        "data.max_frames",
        lambda config: config.data.max_clips <= config.data.max_frames,
        "at least config.data.max_clips",
    ),
)
"""Rules between several fields; see `validation`."""

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
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
    },
    # What the paper prints.
    "printed": {
        "model": {"scale": 1.0, "learned_scale": False},
        "loss": {"form": "printed", "mask_related": "none", "tree_reduction": "sum"},
    },
}
"""The forms of HOVER as a whole, by the name behind the colon of `configs/hover.py`."""


FLAT: Mapping[str, Mapping[str, Any]] = {
    "model": {"geometry": "euclidean", "metric": "cosine"},
    "loss": {"tree": 0.0, "chain": 0.0, "order": 0.0},
}
"""What differs in the flat baseline: cosines after a linear layer, and the alignment alone."""


def preset(config: ConfigDict, name: str) -> ConfigDict:
    """Sets the fields of one of `PRESETS`.

    Args:
      config: a configuration of HOVER; changed.
      name: "corrected", "released" or "printed".

    Returns:
      The same configuration.

    Raises:
      ConfigError: when there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no form {name!r} of HOVER: use {', '.join(PRESETS)}")
    config.update({section: dict(fields) for section, fields in PRESETS[name].items()})
    return config


def debug(config: ConfigDict) -> ConfigDict:
    """Shrinks a configuration until it runs in seconds on a CPU, without any features.

    As `published.debug`: what makes the result is kept, sizes and epochs are not.
    """
    config.compile_fast = True
    config.data.synthetic_videos = (24, 8, 8)
    config.data.max_words = 16
    config.trees.node_frames = 4
    config.trees.train_subset = "full"
    config.model.hidden_size = 16
    config.model.hyperbolic_dim = 16
    config.train.epochs = 2
    config.train.batch_size = 8
    config.train.log_every = 1
    config.eval.node_batch = 32
    config.eval.query_batch = 32
    return config
