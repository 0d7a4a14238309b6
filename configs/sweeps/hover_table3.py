"""Table 3 of HOVER: trained on trees of two leaves alone, tested on those of any number.

    python -m hlformer_jax.sweep --config=configs/sweeps/hover_table3.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The table has no figures over all trees; HOVER's t2v R@10 on trees of two leaves, printed as 19.4
and below its R@5, is left out. Beside "flat", the baseline on frozen features, are the published
figures of CLIP4Clip.
"""

from ml_collections import ConfigDict

from hlformer_jax.config.published import FLAT
from hlformer_jax.sweep.definition import define

LEAVES = (1, 2, 3, 4, 5)
METRICS = (
    *(f"leaves={k}/t2v/R@{n}" for k in LEAVES for n in (1, 5, 10)),
    *(f"leaves={k}/t2v/MRR" for k in LEAVES),
    "t2v/MRR",
)
FIGURES = {
    "flat": (
        *((8.0, 20.7, 29.4), (5.3, 16.8, 25.2), (5.0, 19.3, 28.5), (5.8, 18.4, 28.1)),
        *((5.8, 21.5, 32.2), (0.152, 0.121, 0.126, 0.129, 0.142)),
    ),
    "HOVER": (
        *((7.2, 18.7, 27.1), (6.7, 20.4, None), (5.9, 21.5, 32.1), (9.1, 27.2, 37.8)),
        *((8.2, 26.7, 39.0), (0.143, 0.144, 0.141, 0.182, 0.180)),
    ),
}


def get_config(name: str = "") -> ConfigDict:
    """Returns the sweep; "debug" is one that takes minutes."""
    two = {"trees": {"train_leaves": (2,)}}
    flat = {key: [x for row in rows for x in row] for key, rows in FIGURES.items()}
    named = {key: zip(METRICS, values, strict=False) for key, values in flat.items()}
    return define(
        __file__,
        name,
        title="HOVER, Table 3: trained on trees of two leaves, ActivityNet (Hierarchy)",
        base="../hover.py:activitynet",
        variants={"flat": {**FLAT, **two}, "HOVER": two},
        published={
            key: {name: value for name, value in pairs if value is not None}
            for key, pairs in named.items()
        },
        metrics=METRICS,
    )
