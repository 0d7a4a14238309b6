"""A small HLFormer on the synthetic corpus with planted moments, made on first use in seconds.

    bash launch/local.sh --config=configs/synthetic.py

Expected: test R@10 above 90; the mean-pooled linear baseline has 18, and chance is 8.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, variant


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration; "debug" is a variant that runs in seconds."""
    config = of_model("hlformer")

    config.data.collection = "synthetic"
    config.data.feature = "planted"
    config.data.synthetic_videos = (384, 64, 128)  # train, val, test
    config.data.visual_dim = 64
    config.data.text_dim = 48
    config.data.max_frames = 64
    config.data.max_clips = 16
    config.data.max_words = 12

    config.model.hidden_size = 64
    config.model.lorentz_dim = 31
    config.model.euclidean_blocks = 2
    config.model.lorentz_blocks = 2
    config.model.input_dropout = 0.1
    config.model.dropout = 0.1

    # The weights of the losses are HLFormer's on ActivityNet Captions (configs/anet.py).
    config.loss.hard_negative_epoch = 5
    config.optim.learning_rate = 1e-3
    config.train.epochs = 15
    config.train.batch_size = 64
    config.train.baseline = True
    config.eval.moments = "data"
    return variant(config, name)
