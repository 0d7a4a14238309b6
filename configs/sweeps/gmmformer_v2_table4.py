"""Table 4 of GMMFormer v2: how the Gaussian blocks are aggregated, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_table4.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

Published: temporal consolidation is best, with SumR 154.9; average pooling has 149.0.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    return define(
        __file__,
        name,
        title="GMMFormer v2, Table 4: aggregation",
        base="../gmmformer_v2.py:anet",
        variants={
            "average pooling": {"model": {"fusion": "mean"}},
            "weighted": {"model": {"fusion": "weighted"}},
            "dynamic": {"model": {"fusion": "dynamic"}},
            "temporal consolidation": {"model": {"fusion": "consolidation"}},
        },
        published_on=PUBLISHED_ON["anet"],
        published={
            "average pooling": metrics(8.5, 25.5, 37.9, 77.1, 149.0),
            "weighted": metrics(8.7, 26.2, 38.8, 78.0, 151.7),
            "dynamic": metrics(8.6, 26.6, 39.3, 78.3, 152.8),
            "temporal consolidation": metrics(8.9, 27.1, 40.2, 78.7, 154.9),
        },
    )
