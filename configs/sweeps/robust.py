"""Robustness of differences: all models, and doubtful choices, on three corpora with three seeds.

    python -m hlformer_jax.sweep --config=configs/sweeps/robust.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

PATH contains three corpora in the released layout, PATH/5/tvr, PATH/6/tvr and PATH/7/tvr. Their
features are 128 wide, and each has the times of its moments in moments.json (docs/data.md). The
sweep prints means, ranks, the localisation of first moments, and for each pair of variants whether
their difference is real, by a paired bootstrap over queries and seeds (sweep/tables.py). `:debug`
takes minutes on the synthetic corpus.

Every model has its TVR configuration except for sizes and schedule, which are small enough for a
CPU: a run takes a minute and a half. docs/results.md has the measured tables.
"""

import itertools

from ml_collections import ConfigDict

from hlformer_jax.sweep import define

FAMILY = ("MS-SL", "GMMFormer", "GMMFormer v2", "HLFormer")

CHOICES = {
    "HLFormer": {
        "corrected window": {"model": {"lorentz_window": "corrected"}},
        "heads on the hyperboloid": {"model": {"head_merge": "hyperboloid"}},
        "learned curvature": {"model": {"block_curvature": "shared"}},
        "w/o partial order": {"loss": {"partial_order": 0.0}},
    },
    "GMMFormer v2": {
        "v2 w/o optimal matching": {"base": "GMMFormer v2", "loss": {"optimal_matching": 0.0}},
    },
}
"""Doubtful choices, each compared with the model that it changes."""

SMALL = {
    "data": {
        "visual_dim": 128,
        "text_dim": 128,
        "max_frames": 32,
        "max_clips": 16,
        "max_words": 20,
    },
    "model": {"hidden_size": 32, "lorentz_dim": 31, "input_dropout": 0.1, "dropout": 0.1},
    "loss": {"hard_negative_epoch": 12},
    "optim": {"learning_rate": 1e-3},
    "train": {"epochs": 20, "batch_size": 32},
    "eval": {"moments": "moments.json"},
}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    return define(
        __file__,
        name,
        title="What holds up: three corpora, three seeds",
        base="../tvr.py",
        bases={
            "MS-SL": "../ms_sl.py:tvr",
            "GMMFormer": "../gmmformer.py:tvr",
            "GMMFormer v2": "../gmmformer_v2.py:tvr",
        },
        settings={"eval": {"moments": "data"}} if name == "debug" else SMALL,
        corpora={} if name == "debug" else {"5": "5", "6": "6", "7": "7"},
        variants={
            **{model: {} if model == "HLFormer" else {"base": model} for model in FAMILY},
            **{choice: fields for own in CHOICES.values() for choice, fields in own.items()},
        },
        pairs=[
            *itertools.combinations(reversed(FAMILY), 2),
            *((choice, model) for model, own in CHOICES.items() for choice in own),
        ],
    )
