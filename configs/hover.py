"""HOVER: nodes of action trees in the Poincaré ball. The colon is followed by the data set.

    bash launch/local.sh --config=configs/hover.py                        (synthetic trees)
    python -m hlformer_jax.main --config=configs/hover.py:activitynet --workdir=DIR \
        --config.data.manual_dir=PATH

`:synthetic` (the default) needs no data and trains in minutes. For `:activitynet`, `:charades` and
`:tvr`, PATH contains released features, and {collection}/Trees in it the moments that
`hlformer_jax.data.moments` makes from annotations. `-released` or `-printed` after the data set
selects the losses and options of the released code or of the paper (`config.preset`). `-debug`
selects a variant that runs in seconds.

Published on ActivityNet, over all numbers of leaves: text to video R@1 7.7, R@5 24.2, R@10 34.6,
MRR 0.176. There CLIP ViT-B/32 was trained too; features from files stay fixed. The rows of the
published table contradict the MRR: they give 0.1645.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import PRESETS, ConfigError, default, on_data_set, preset, variant

DATA_SETS = {"activitynet": "anet", "charades": "charades", "tvr": "tvr"}


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of a data set; see the docstring of this module for its options."""
    data_set, *options = (name or "synthetic").split("-")
    if data_set in ("debug", "released", "printed"):
        data_set, options = "synthetic", [data_set, *options]
    if data_set != "synthetic" and data_set not in DATA_SETS:
        names = ", ".join(["synthetic", *DATA_SETS])
        raise ConfigError(f"there is no data set {data_set!r} of this configuration: use {names}")
    config = default("hover")
    config.seed = 0

    # Trees: neighbouring leaves are composed level by level.
    config.trees.form = "released"
    config.trees.node_frames = 12
    config.trees.short_video = "span"  # released: "whole"
    config.data.max_words = 72

    # Embeddings in the Poincaré ball.
    config.model.hidden_size = 512
    config.model.hyperbolic_dim = 512
    config.model.geometry = "poincare"
    config.model.metric = "distance"
    config.model.curvature = 1.0
    config.model.lift = "unit"
    config.model.hyperbolic_init = "identity"  # released: "kaiming"
    config.model.scale = 1 / 0.07  # at the start; released: 100, printed: 1, fixed
    config.model.learned_scale = True
    config.model.max_radius = 1.0  # released: 0.999
    config.model.riemannian_factor = False  # released: True

    # Losses. "corrected": as the paper evidently intends (docs/hover.md).
    config.loss.form = "corrected"
    config.loss.align = 1.0
    config.loss.tree = 1.0
    config.loss.tree_reduction = "mean"  # printed: "sum"
    config.loss.mask_related = "tree"  # released and printed: "none"
    config.loss.chain = 1.0  # α_1
    config.loss.chain_form = "norm"
    config.loss.chain_margin = 0.1  # ε_1
    config.loss.order = 0.2  # α_2; released: 0
    config.loss.order_base = "unit"  # released: "released"
    config.loss.order_margin = 0.1  # ε_2

    # Adam with a warm-up and a cosine decay.
    config.optim.learning_rate = 1e-4
    config.optim.hyperbolic_rate = 1e-4  # released: 1e-7
    config.optim.scale_rate = 1e-4  # released: 1e-7
    config.optim.warmup = 0.1
    config.optim.beta1 = 0.9
    config.optim.beta2 = 0.98
    config.optim.epsilon = 1e-6
    config.optim.weight_decay = 0.2  # released: 0.3
    config.optim.global_clip = 1.0
    config.optim.clip_norm = 1.0

    config.train.epochs = 15
    config.train.batch_size = 64  # subtrees
    config.train.patience = 11
    config.eval.select = "t2v/MRR"  # released: "last"

    if data_set == "synthetic":
        _set_synthetic(config)
    else:
        on_data_set(config, DATA_SETS[data_set])
        config.model.text_encoder = "attention"  # the released text features are word features
    for option in options:
        config = preset(config, option) if option in PRESETS else variant(config, option)
    return config


def _set_synthetic(config: ConfigDict) -> None:
    """Set a small model on the synthetic trees, which are made on first use."""
    config.data.collection = "synthetic"
    config.data.feature = "planted"
    config.data.synthetic_videos = (400, 60, 250)
    config.data.visual_dim = 64
    config.data.text_dim = 48
    config.data.max_frames = 64
    config.data.max_clips = 1
    config.model.hidden_size = 32
    config.model.hyperbolic_dim = 32
    config.model.text_encoder = "mean"
    config.optim.learning_rate = 5e-3
    config.optim.hyperbolic_rate = 5e-3
    config.optim.scale_rate = 5e-3
    config.optim.weight_decay = 0.01
    config.train.epochs = 30
    config.eval.query_batch = 512
