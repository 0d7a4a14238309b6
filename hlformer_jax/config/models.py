"""The models: the fields that define each, and its name in the papers."""

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
"""The fields that define a model; the weights of its losses are those on ActivityNet Captions."""

MODEL_TITLES: Mapping[str, str] = {
    "hlformer": "HLFormer",
    "gmmformer_v2": "GMMFormer v2",
    "gmmformer": "GMMFormer",
    "ms_sl": "MS-SL",
    "dl_dkd": "DL-DKD",
    "clip4clip_meanp": "CLIP4Clip-meanP",
    "clip4clip_seqtransf": "CLIP4Clip-seqTransf",
    "hover": "HOVER",
}
"""Names of the models in the papers, by `config.model.name`; `hover` is another family."""
