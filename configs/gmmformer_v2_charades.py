"""GMMFormer v2 on Charades-STA, with the released hyper-parameters (Table 7 of the paper).

    python -m hlformer_jax.main --config=configs/gmmformer_v2_charades.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `charades/` as released. Published: R@1 2.5, R@5 8.6, R@10 13.9, R@100 53.2,
SumR 78.2.
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
                "name": "gmmformer_v2",
                "euclidean_blocks": 8,
                "lorentz_blocks": 0,
                "euclidean_widths": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
                "fusion": "consolidation",
                "input_dropout": 0.25,
                "dropout": 0.25,
            },
            "loss": {
                "partial_order": 0.0,
                "optimal_matching": 0.1,
            },
            "optim": {"learning_rate": 2e-4},
        }
    )
    return variant(config, name)
