"""Table 2 of HOVER: trained on the trees of ActivityNet, tested on those of Charades.

    python -m hlformer_jax.sweep --config=configs/sweeps/hover_table2.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

PATH contains both collections, with features of the same widths. The table's other data sets,
MSR-VTT and MSVD, are only cited: they have no moments, and this package reads no file with their
captions. "flat" is this package's Euclidean baseline on frozen features, without published results.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import FLAT
from hlformer_jax.sweep import change_of, define

METRICS = ("t2v/R@1", "t2v/R@5", "t2v/R@10", "v2t/R@1", "v2t/R@5", "v2t/R@10", "t2v/MRR")
COLUMNS = (*METRICS, change_of("t2v/MRR"))

PUBLISHED = {"HOVER": (1.0, 4.7, 8.1, 1.0, 3.9, 6.3, 0.032, 10.34)}
CITED = {
    "CLIP4Clip": (0.7, 2.8, 5.0, 0.8, 2.6, 4.5, 0.025),
    "Frozen": (0.6, 3.7, 6.0, 1.1, 3.5, 5.6, 0.029),
    "HOVER on MSR-VTT": (30.4, 51.2, 60.7, 25.1, 48.5, 59.2, 0.407, 26.40),
    "CLIP4Clip on MSR-VTT": (11.9, 24.5, 32.0, 13.5, 31.9, 41.8, 0.188),
    "Frozen on MSR-VTT": (21.8, 42.3, 54.2, 21.4, 44.5, 55.0, 0.322),
    "HOVER on MSVD": (41.3, 69.9, 79.8, 59.6, 82.8, 86.8, 0.544, 12.40),
    "CLIP4Clip on MSVD": (35.0, 64.8, 75.1, 42.5, 73.3, 82.2, 0.484),
}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal, which is tested on the corpus that it trains on."""
    elsewhere = {"test_collection": "charades", "test_feature": "i3d_rgb_lgi"}
    zero_shot = {} if name == "debug" else {"eval": elsewhere}

    def named(row: tuple[float, ...]) -> dict[str, float]:
        return dict(zip(COLUMNS, row, strict=False))

    return define(
        __file__,
        name,
        title="HOVER, Table 2, zero-shot",
        base="../hover.py:activitynet",
        variants={"flat": {**FLAT, **zero_shot}, "HOVER": zero_shot},
        published_on="Charades (Hierarchy), MSR-VTT and MSVD after training on ActivityNet"
        " (Hierarchy), with CLIP ViT-B/32 trained along",
        published={variant: named(row) for variant, row in PUBLISHED.items()},
        cited={method: named(row) for method, row in CITED.items()},
        notes=[
            "Δ is measured against flat; the published one is against the best Euclidean method of"
            " the set: Frozen on Charades and MSR-VTT, CLIP4Clip on MSVD",
        ],
        metrics=METRICS,
        relative={"HOVER": "flat"},
    )
