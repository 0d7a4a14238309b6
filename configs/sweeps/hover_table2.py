"""Table 2 of HOVER: trained on the trees of ActivityNet, tested on those of Charades.

    python -m hlformer_jax.sweep --config=configs/sweeps/hover_table2.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

PATH holds both collections, with features of the same widths. The table's other sets, MSR-VTT and
MSVD, are not here: they have no moments, and their captions are in no file that the project reads.
Beside "flat", the baseline on frozen features, are the published figures of CLIP4Clip.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import FLAT
from hlformer_jax.sweep import define

METRICS = ("t2v/R@1", "t2v/R@5", "t2v/R@10", "v2t/R@1", "v2t/R@5", "v2t/R@10", "t2v/MRR")


def get_config(name: str = "") -> ConfigDict:
    """Returns the sweep; "debug" is one that takes minutes, tested on the corpus it trains on."""
    elsewhere = {"test_collection": "charades", "test_feature": "i3d_rgb_lgi"}
    zero_shot = {} if name == "debug" else {"eval": elsewhere}
    figures = lambda *values: dict(zip(METRICS, values, strict=True))
    return define(
        __file__,
        name,
        title="HOVER, Table 2: from ActivityNet to Charades (Hierarchy), zero-shot",
        base="../hover.py:activitynet",
        variants={"flat": {**FLAT, **zero_shot}, "HOVER": zero_shot},
        published={
            "flat": figures(0.7, 2.8, 5.0, 0.8, 2.6, 4.5, 0.025),
            "HOVER": figures(1.0, 4.7, 8.1, 1.0, 3.9, 6.3, 0.032),
        },
        metrics=METRICS,
        relative={"HOVER": "flat"},
    )
