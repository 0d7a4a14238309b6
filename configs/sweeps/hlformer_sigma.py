"""Figure 6 of HLFormer: one width of the Gaussian window for all blocks, on Charades-STA.

    python -m hlformer_jax.sweep --config=configs/sweeps/hlformer_sigma.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The figure's numbers are not printed. The paper says that a larger width is better up to a point,
and that the default, a different width for each block (SumR 78.7), is better than any single width.
An infinite width means no window, which the configuration writes as 0.
"""

import math

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

WIDTHS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf)


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    names = {width: f"sigma {width:g}" for width in WIDTHS}
    written = {width: 0.0 if math.isinf(width) else width for width in WIDTHS}
    default = "one width each (default)"
    return define(
        __file__,
        name,
        title="HLFormer, Figure 6: width of the Gaussian window",
        base="../charades.py",
        variants={
            names[width]: {"model": {"euclidean_widths": (number,), "lorentz_widths": (number,)}}
            for width, number in written.items()
        }
        | {default: {}},
        published_on=PUBLISHED_ON["charades"],
        published={default: metrics(2.6, 8.5, 13.7, 54.0, 78.7)},
        quantity="width σ of all Gaussian windows",
        values={names[width]: width for width in WIDTHS},
    )
