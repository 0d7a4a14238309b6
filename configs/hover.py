"""HOVER: nodes of action trees in the Poincaré ball; the data set stands behind the colon.

    bash launch/local.sh --config=configs/hover.py                        (synthetic trees)
    python -m hlformer_jax.main --config=configs/hover.py:activitynet --workdir=DIR \
        --config.data.manual_dir=PATH

`:synthetic` needs nothing and trains in minutes. For `:activitynet`, `:charades` and `:tvr` PATH
holds released features, and in {collection}/Trees the moments that `hlformer_jax.data.moments`
makes of the annotations. `-released` and `-printed` behind the data set are the released code's and
the paper's losses and options (`config.preset`), `-debug` runs in seconds.

Published on ActivityNet with CLIP ViT-B/32 trained along, which features from files are not: text
to video R@1 7.7, R@5 24.2, R@10 34.6, MRR 0.176 over all orders. The table's own rows contradict
the last: they give 0.1645.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import PRESETS, ConfigError, default, on_data_set, preset, variant

DATA_SETS = {"activitynet": "anet", "charades": "charades", "tvr": "tvr"}


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a data set, "-released", "-printed" or "-debug" behind it."""
    data_set, *options = (name or "synthetic").split("-")
    if data_set in ("debug", "released", "printed"):
        data_set, options = "synthetic", [data_set, *options]
    config = default("hover")
    if data_set == "synthetic":
        config.update(SYNTHETIC)
    elif data_set in DATA_SETS:
        on_data_set(config, DATA_SETS[data_set])
        config.model.text_encoder = "attention"  # the released features are of words
    else:
        known = ", ".join(["synthetic", *DATA_SETS])
        raise ConfigError(f"there is no data set {data_set!r} of this configuration: use {known}")
    for option in options:
        config = preset(config, option) if option in PRESETS else variant(config, option)
    return config


SYNTHETIC = {
    "data": {
        "collection": "synthetic",
        "feature": "planted",
        "synthetic_videos": (400, 60, 250),
        "visual_dim": 64,
        "text_dim": 48,
        "max_frames": 64,
        "max_clips": 1,
        "max_words": 72,
    },
    "model": {"hidden_size": 32, "hyperbolic_dim": 32, "text_encoder": "mean"},
    "optim": {
        "learning_rate": 5e-3,
        "hyperbolic_rate": 5e-3,
        "scale_rate": 5e-3,
        "weight_decay": 0.01,
    },
    "train": {"epochs": 30, "batch_size": 64},
    "eval": {"query_batch": 512},
}
"""A small model of the synthetic trees, made on first use."""
