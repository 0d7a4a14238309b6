"""MS-SL on TVR, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/ms_sl_tvr.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `tvr/` as released. Published: R@1 13.5, R@5 32.1, R@10 43.4, R@100 83.4,
SumR 172.4.
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
                "name": "ms_sl",
                "euclidean_blocks": 1,
                "lorentz_blocks": 0,
                "fusion": "mean",
                "input_dropout": 0.1,
                "dropout": 0.1,
            },
            "loss": {
                "query_diversity": 0.0,
                "partial_order": 0.0,
                "margin": 0.1,
            },
        }
    )
    return variant(config, name)
