"""Table 6 of GMMFormer v2: its two losses in MS-SL, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_table6.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The table's other model, DL-DKD (147.6, 150.8, 152.2), is not implemented here. The weights are
those of GMMFormer v2 on this data set (Table 7).
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep.definition import define, metrics


def get_config(name: str = "") -> ConfigDict:
    """Returns the sweep; "debug" is one that takes minutes."""
    losses = lambda diversity, matching: {
        "loss": {
            "query_diversity": diversity,
            "diversity_gamma": 1.0,
            "optimal_matching": matching,
        }
    }
    return define(
        __file__,
        name,
        title="GMMFormer v2, Table 6: its losses in MS-SL, ActivityNet Captions",
        base="../ms_sl.py:anet",
        variants={
            "MS-SL": losses(0.0, 0.0),
            "+ query diversity": losses(3e-3, 0.0),
            "+ query diversity, optimal matching": losses(3e-3, 0.11),
        },
        published={
            "MS-SL": metrics(7.1, 22.5, 34.7, 75.8, 140.1),
            "+ query diversity": metrics(144.3),
            "+ query diversity, optimal matching": metrics(146.6),
        },
    )
