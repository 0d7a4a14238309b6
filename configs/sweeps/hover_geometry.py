"""Spaces and losses of HOVER apart: ball, hyperboloid and Euclidean, with and without the losses.

    python -m hlformer_jax.sweep --config=configs/sweeps/hover_geometry.py --workdir=DIR

On the synthetic trees, of which the hierarchy and the order are known, or on a data set of
`configs/hover.py` behind a colon: `hover_geometry.py:tvr`. Nothing is published. The
ball and the hyperboloid hold the same points, so that what differs between them is rounding. With
the printed weights the distances, some fifteen times as large as a margin, outweigh the chain and
the order; "× 30" weighs both thirty times as much, with lengths that are learned.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import FLAT, default
from hlformer_jax.sweep import define

METRICS = (
    *("t2v/R@1", "t2v/R@10", "v2t/MRR", "hierarchy/cross/NormAcc", "hierarchy/cross/OrderAcc"),
    *("hierarchy/t2v/OwnTree", "hierarchy/t2v/MAP", "t2v/MRR"),
)


def get_config(name: str = "") -> ConfigDict:
    """Returns the sweep on a data set; "debug" alone or behind it, "tvr-debug", takes minutes."""
    data_set, _, option = ("synthetic-debug" if name == "debug" else name).partition("-")
    data_set = data_set or "synthetic"
    loss = default("hover").loss
    alone = {"tree": 0.0, "chain": 0.0, "order": 0.0}
    heavy = {"chain": 30 * loss.chain, "order": 30 * loss.order}
    cosine = {"geometry": "euclidean", "metric": "cosine"}
    spaces = {
        "ball": {"geometry": "poincare"},
        "hyperboloid": {"geometry": "lorentz"},
        "Euclidean": {"geometry": "euclidean"},
    }
    variants = {"Euclidean cosine, align": FLAT, "Euclidean cosine, all": {"model": cosine}}
    for space, fields in spaces.items():
        longer = fields | {"lift": "radius"}
        variants[f"{space}, align"] = {"model": fields, "loss": alone}
        variants[f"{space}, all"] = {"model": fields}
        variants[f"{space}, all, × 30"] = {"model": longer, "loss": heavy}
    return define(
        __file__,
        option,
        title="HOVER: spaces and losses",
        base=f"../hover.py:{data_set}",
        variants=variants,
        metrics=METRICS,
    )
