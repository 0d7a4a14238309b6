"""The Gaussian window of the Lorentz blocks: as released, corrected, or none.

    python -m hlformer_jax.sweep --config=configs/sweeps/lorentz_window.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The released code multiplies logits, which are at most 0, by the window; this favours positions that
are far apart. "corrected" adds the logarithm of the window to the logits, which favours near
positions (`config.model.lorentz_window`). Only the released window has a published result: SumR
154.9.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    return define(
        __file__,
        name,
        title="HLFormer: window of the Lorentz blocks",
        base="../anet.py",
        variants={
            "released": {"model": {"lorentz_window": "released"}},
            "corrected": {"model": {"lorentz_window": "corrected"}},
            "none": {"model": {"lorentz_widths": (0.0,)}},
        },
        published_on=PUBLISHED_ON["anet"],
        published={"released": metrics(8.7, 27.1, 40.1, 79.0, 154.9)},
    )
