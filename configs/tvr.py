"""HLFormer on TVR, with the released hyper-parameters (Table 4 of the paper).

    python -m hlformer_jax.main --config=configs/tvr.py --workdir=DIR --config.data.manual_dir=PATH

PATH holds `tvr/` as released. Published: R@1 15.7, R@5 37.1, R@10 48.5, R@100 86.4, SumR 187.7.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, variant


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration; "debug" is a variant that runs in seconds."""
    config = of_model("hlformer")
    config.seed = 0

    # Features that MS-SL's authors released.
    config.data.collection = "tvr"
    config.data.feature = "i3d_resnet"
    config.data.visual_dim = 3072
    config.data.text_dim = 768
    config.data.max_frames = 128
    config.data.max_clips = 32
    config.data.max_words = 30

    # Blocks of each branch, and their aggregation.
    config.model.hidden_size = 384
    config.model.num_heads = 4
    config.model.lorentz_dim = 127
    config.model.euclidean_blocks = 4
    config.model.lorentz_blocks = 4
    config.model.euclidean_widths = ()  # 0 (no window), 2, 4, 8
    config.model.lorentz_widths = ()
    config.model.window = "released"
    config.model.lorentz_window = "released"
    config.model.head_merge = "released"
    config.model.lorentz_divisor = "learned"  # printed: fixed at √(n + 1)
    config.model.block_curvature = "fixed"  # at 1
    config.model.fusion = "maim"
    config.model.temperature = 0.09  # τ
    config.model.input_dropout = 0.2
    config.model.dropout = 0.2

    # Ranking: α_f of the frame branch (gaze) and α_c of the clip branch (glance).
    config.model.gaze = True
    config.model.glance = True
    config.model.video_level = False
    config.model.frame_weight = 0.3
    config.model.clip_weight = 0.7

    # Similarity loss of both branches.
    config.loss.clip_triplet = 1.0
    config.loss.frame_triplet = 1.0
    config.loss.clip_nce = 0.05  # λ_c
    config.loss.frame_nce = 0.04  # λ_f
    config.loss.margin = 0.1  # m
    config.loss.hard_negative_epoch = 20
    config.loss.hard_pool_size = 20

    # Query diversity loss.
    config.loss.query_diversity = 8e-5  # λ_1
    config.loss.diversity_form = "pairs"
    config.loss.diversity_margin = 0.15  # δ
    config.loss.diversity_scale = 32.0  # α
    config.loss.diversity_gamma = 1.0  # printed: 0, no focal factor

    # Partial order loss.
    config.loss.partial_order = 0.001  # λ_2
    config.loss.min_radius = 0.1  # K
    config.model.curvature = 1.0
    config.model.learned_curvature = True  # printed: fixed

    # BERT's Adam: linear warm-up and decay.
    config.optim.learning_rate = 3e-4
    config.optim.warmup = 0.01
    config.optim.beta1 = 0.9
    config.optim.beta2 = 0.999
    config.optim.epsilon = 1e-6
    config.optim.weight_decay = 0.01
    config.optim.clip_norm = 1.0

    config.train.epochs = 100
    config.train.batch_size = 128
    config.train.patience = 11  # the released code says 10 and stops after 11
    config.eval.select = "SumR"
    return variant(config, name)
