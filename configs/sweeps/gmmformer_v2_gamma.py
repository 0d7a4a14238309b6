"""Figure 5(a) of GMMFormer v2: the exponent γ of its query diversity, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_gamma.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

Neither the figure's numbers nor its values of γ are printed. The paper says that SumR first grows
with γ and then falls. With the default, γ = 1, SumR is 154.9. γ = 0 is the loss without its focal
factor.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    names = {gamma: f"gamma {gamma:g}" for gamma in GAMMAS}
    return define(
        __file__,
        name,
        title="GMMFormer v2, Figure 5(a): γ of the query diversity",
        base="../gmmformer_v2.py:anet",
        variants={names[gamma]: {"loss": {"diversity_gamma": gamma}} for gamma in GAMMAS},
        published_on=PUBLISHED_ON["anet"],
        published={names[1.0]: metrics(8.9, 27.1, 40.2, 78.7, 154.9)},
        quantity="exponent γ of the focal factor",
        values={names[gamma]: gamma for gamma in GAMMAS},
    )
