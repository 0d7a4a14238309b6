"""A small HLFormer on the synthetic corpus with planted moments; made on first use, in seconds.

    bash launch/local.sh --config=configs/synthetic.py

Expected: test R@10 above 90, where the mean-pooled linear baseline has 18 and chance 8.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = of_model("hlformer")
    config.update(
        {
            "data": {
                "collection": "synthetic",
                "feature": "planted",
                "synthetic_videos": (384, 64, 128),
                "visual_dim": 64,
                "text_dim": 48,
                "max_frames": 64,
                "max_clips": 16,
                "max_words": 12,
            },
            "model": {
                "hidden_size": 64,
                "lorentz_dim": 31,
                "euclidean_blocks": 2,
                "lorentz_blocks": 2,
                "input_dropout": 0.1,
                "dropout": 0.1,
            },
            "loss": {"hard_negative_epoch": 5},
            "optim": {"learning_rate": 1e-3},
            "train": {"epochs": 15, "batch_size": 64, "baseline": True},
            "eval": {"moments": "data"},
        }
    )
    return variant(config, name)
