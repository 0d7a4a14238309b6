"""Table 3 of GMMFormer v2: its components, added one after another, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_table3.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The baseline (Exp. 1) has a video-level branch, which is the frame branch pooled to one vector, and
one Transformer layer without a window in each branch. Exp. 2 does not pool the frames. Exp. 3 adds
the Gaussian blocks with temporal consolidation, Exp. 4 query diversity, Exp. 5 optimal matching.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

ONE_LAYER = {
    "euclidean_blocks": 1,
    "lorentz_blocks": 0,
    "euclidean_widths": (0.0,),
    "fusion": "mean",
}
BASIC = {"query_diversity": 0.0, "optimal_matching": 0.0}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    return define(
        __file__,
        name,
        title="GMMFormer v2, Table 3: components",
        base="../gmmformer_v2.py:anet",
        variants={
            "baseline": {"model": {**ONE_LAYER, "video_level": True}, "loss": BASIC},
            "+ frame-level branch": {"model": ONE_LAYER, "loss": BASIC},
            "+ TC-GMMBlock": {"loss": BASIC},
            "+ query diversity": {"loss": {"optimal_matching": 0.0}},
            "+ optimal matching": {},
        },
        published_on=PUBLISHED_ON["anet"],
        published={
            "baseline": metrics(6.8, 22.8, 34.8, 75.3, 139.7),
            "+ frame-level branch": metrics(7.5, 23.5, 35.8, 76.7, 143.5),
            "+ TC-GMMBlock": metrics(8.2, 25.5, 38.1, 77.1, 149.0),
            "+ query diversity": metrics(8.6, 26.3, 39.5, 78.4, 152.7),
            "+ optimal matching": metrics(8.9, 27.1, 40.2, 78.7, 154.9),
        },
    )
