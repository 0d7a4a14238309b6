"""GMMFormer on TVR, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/gmmformer_tvr.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `tvr/` as released. Published: R@1 13.9, R@5 33.3, R@10 44.5, R@100 84.9,
SumR 176.6.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import default, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = default()
    config.update(
        {
            "data": {
                "collection": "tvr",
                "feature": "i3d_resnet",
                "visual_dim": 3072,
                "text_dim": 768,
            },
            "model": {
                "name": "gmmformer",
                "euclidean_blocks": 4,
                "lorentz_blocks": 0,
                "euclidean_widths": (0.0, 0.5, 1.0, 5.0),
                "fusion": "mean",
                "video_level": True,
                "input_dropout": 0.2,
                "dropout": 0.2,
            },
            "loss": {
                "partial_order": 0.0,
                "diversity_form": "captions",
                "margin": 0.1,
                "diversity_margin": 0.15,
                "clip_nce": 0.05,
                "query_diversity": 0.001,
                "hard_negative_epoch": 30,
            },
            "optim": {"learning_rate": 3e-4},
        }
    )
    return variant(config, name)
