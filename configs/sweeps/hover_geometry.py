"""Spaces and losses of HOVER, separated: three spaces, with the alignment alone and all losses.

    python -m hlformer_jax.sweep --config=configs/sweeps/hover_geometry.py --workdir=DIR

trains on the synthetic trees, whose hierarchy and order are known. `hover_geometry.py:tvr` trains
on a data set of `configs/hover.py`. Nothing is published. Ball and hyperboloid are coordinates of
the same space, so that their results differ only by rounding. With the printed weights, the
alignment outweighs the chain and the order, because distances are about fifteen times as large as a
margin. "× 30" has thirty times the weights of the chain and the order, and learned lengths. The
Euclidean space is also compared by cosines.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import FLAT, default
from hlformer_jax.sweep import define

METRICS = (
    *("t2v/R@1", "t2v/R@10", "v2t/MRR", "hierarchy/cross/NormAcc", "hierarchy/cross/OrderAcc"),
    *("hierarchy/t2v/OwnTree", "hierarchy/t2v/MAP", "t2v/MRR"),
)


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep on a data set; "debug" alone, or as in "tvr-debug", takes minutes."""
    data_set, _, option = ("synthetic-debug" if name == "debug" else name).partition("-")
    data_set = data_set or "synthetic"
    loss = default("hover").loss
    heavy = {"chain": 30 * loss.chain, "order": 30 * loss.order}
    spaces = {
        "ball": {"geometry": "poincare"},
        "hyperboloid": {"geometry": "lorentz"},
        "Euclidean": {"geometry": "euclidean"},
    }
    variants = {"Euclidean cosine, align": FLAT, "Euclidean cosine, all": {"model": FLAT["model"]}}
    for space, fields in spaces.items():
        longer = fields | {"lift": "radius"}
        variants[f"{space}, align"] = {"model": fields, "loss": FLAT["loss"]}
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
