"""MS-SL on Charades-STA, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/ms_sl_charades.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `charades/` as released. Published: R@1 1.8, R@5 7.1, R@10 11.8, R@100 47.7,
SumR 68.4.
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
                "name": "ms_sl",
                "euclidean_blocks": 1,
                "lorentz_blocks": 0,
                "fusion": "mean",
                "input_dropout": 0.1,
                "dropout": 0.1,
                "clip_weight": 0.5,
                "frame_weight": 0.5,
            },
            "loss": {
                "query_diversity": 0.0,
                "partial_order": 0.0,
            },
        }
    )
    return variant(config, name)
