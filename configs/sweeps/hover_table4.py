"""Table 4 of HOVER: subsets of its losses, on ActivityNet; and rows that the table lacks.

    python -m hlformer_jax.sweep --config=configs/sweeps/hover_table4.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

`hover_table4.py:FOLDER` trains on extracted CLIP features, as in `hover_table1.py`. Additional rows
are the alignment alone, the alignment with the order, entailment cones instead of the chain's
norms, and all losses in Euclidean space, which separates the effect of the space from that of the
losses.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config import default
from hlformer_jax.sweep import define, hover_base

METRICS = ("t2v/R@1", "t2v/R@5", "t2v/R@10", "t2v/MRR")


def terms(*names: str) -> Mapping[str, Any]:
    """Return the fields of a loss with the alignment and these terms, at their default weights."""
    loss = default("hover").loss
    return {"loss": {name: loss[name] * (name in names) for name in ("tree", "chain", "order")}}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    base, size = hover_base(name)

    def figures(*values: float) -> dict[str, float]:
        return dict(zip(METRICS, values, strict=True))

    return define(
        __file__,
        size,
        title="HOVER, Table 4: the losses",
        base=base,
        published_on="ActivityNet (Hierarchy), with CLIP ViT-B/32 trained along",
        variants={
            "align": terms(),
            "align, order": terms("order"),
            "align, tree": terms("tree"),
            "align, chain": terms("chain"),
            "align, tree, chain": terms("tree", "chain"),
            "all": {},
            "all, the chain by cones": {"loss": {"chain_form": "cone"}},
            "Euclidean, all": {"model": {"geometry": "euclidean"}},
        },
        published={
            "align, tree": figures(7.6, 24.0, 34.5, 0.163),
            "align, chain": figures(7.3, 23.4, 33.5, 0.158),
            "align, tree, chain": figures(7.6, 24.1, 34.4, 0.164),
            "all": figures(7.8, 24.0, 34.5, 0.164),
        },
        metrics=METRICS,
    )
