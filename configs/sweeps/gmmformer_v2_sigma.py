"""Figure 5(b) of GMMFormer v2: a single Gaussian block of each width, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_sigma.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The figure's numbers are not printed. The paper says that a larger width is generally better, and
that the default, eight blocks of different widths (SumR 154.9), is better than any single block.
The widths here are those of the eight blocks. An infinite width means no window, which the
configuration writes as 0.
"""

import math

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

WIDTHS = (0.1, 0.5, 1.0, 3.0, 5.0, 8.0, 10.0, math.inf)


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    names = {width: f"sigma {width:g}" for width in WIDTHS}
    written = {width: 0.0 if math.isinf(width) else width for width in WIDTHS}
    one = {"euclidean_blocks": 1, "fusion": "mean"}  # a single block needs no fusion
    default = "eight blocks (default)"
    return define(
        __file__,
        name,
        title="GMMFormer v2, Figure 5(b): width of a single block",
        base="../gmmformer_v2.py:anet",
        variants={
            names[width]: {"model": one | {"euclidean_widths": (number,)}}
            for width, number in written.items()
        }
        | {default: {}},
        published_on=PUBLISHED_ON["anet"],
        published={default: metrics(8.9, 27.1, 40.2, 78.7, 154.9)},
        quantity="width σ of the Gaussian window",
        values={names[width]: width for width in WIDTHS},
    )
