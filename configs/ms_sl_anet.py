"""MS-SL on ActivityNet Captions, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/ms_sl_anet.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `activitynet/` as released. Published: R@1 7.1, R@5 22.5, R@10 34.7, R@100 75.8,
SumR 140.1.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import default, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = default()
    config.update(
        {
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
            },
        }
    )
    return variant(config, name)
