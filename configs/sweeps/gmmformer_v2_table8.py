"""Table 8 of GMMFormer v2: the form of the blocks' window, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_table8.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

Published: the Gaussian is best, with SumR 154.9; the boxcar has 150.3. All have the same widths.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    return define(
        __file__,
        name,
        title="GMMFormer v2, Table 8: form of the window",
        base="../gmmformer_v2.py:anet",
        variants={
            "boxcar": {"model": {"window": "boxcar"}},
            "Bartlett": {"model": {"window": "bartlett"}},
            "Gaussian": {"model": {"window": "released"}},
        },
        published_on=PUBLISHED_ON["anet"],
        published={
            "boxcar": metrics(8.4, 25.4, 38.3, 78.2, 150.3),
            "Bartlett": metrics(8.6, 25.9, 38.8, 78.3, 151.6),
            "Gaussian": metrics(8.9, 27.1, 40.2, 78.7, 154.9),
        },
    )
