"""GMMFormer on ActivityNet Captions, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/gmmformer_anet.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `activitynet/` as released. Published: R@1 8.3, R@5 24.9, R@10 36.7, R@100 76.1,
SumR 146.0.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import default, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = default()
    config.update(
        {
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
                "query_diversity": 0.015,
            },
        }
    )
    return variant(config, name)
