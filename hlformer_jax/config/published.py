"""The values that define the published models, data sets and forms.

A model is defined by more than `config.model.name`: by its blocks, their aggregation and its
losses, which are fields of their own, so that every part plugs into every model.
"""

from collections.abc import Mapping
from typing import Any

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
        "data.max_words": 16,
        "trees.node_frames": 4,
        "trees.train_subset": "full",
        "model.hyperbolic_dim": 16,
        "eval.node_batch": 32,
        "eval.query_batch": 32,
    },
}
"""Sizes and epochs, by family, with which a configuration runs in seconds on a CPU."""
