"""GMMFormer v2 on ActivityNet Captions, with the released hyper-parameters (Table 7 of the paper).

    python -m hlformer_jax.main --config=configs/gmmformer_v2_anet.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `activitynet/` as released. Published: R@1 8.9, R@5 27.1, R@10 40.2, R@100 78.7,
SumR 154.9.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import default, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = default()
    config.update(
        {
            "model": {
                "name": "gmmformer_v2",
                "euclidean_blocks": 8,
                "lorentz_blocks": 0,
                "euclidean_widths": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
                "fusion": "consolidation",
            },
            "loss": {
                "partial_order": 0.0,
                "optimal_matching": 0.11,
            },
        }
    )
    return variant(config, name)
