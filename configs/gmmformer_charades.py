"""GMMFormer on Charades-STA, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/gmmformer_charades.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `charades/` as released. Published: R@1 2.1, R@5 7.8, R@10 12.5, R@100 50.6,
SumR 72.9.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import default, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = default()
    config.update(
        {
            "data": {"collection": "charades", "feature": "i3d_rgb_lgi"},
            "model": {
                "name": "gmmformer",
                "euclidean_blocks": 4,
                "lorentz_blocks": 0,
                "euclidean_widths": (0.0, 0.5, 1.0, 5.0),
                "fusion": "mean",
                "video_level": True,
                "input_dropout": 0.15,
                "dropout": 0.15,
            },
            "loss": {
                "partial_order": 0.0,
                "diversity_form": "captions",
                "frame_nce": 0.02,
                "diversity_margin": 0.15,
                "query_diversity": 0.005,
                "hard_negative_epoch": 100,
            },
        }
    )
    return variant(config, name)
