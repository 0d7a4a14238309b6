"""Table 6 of GMMFormer v2: its two losses in MS-SL and in DL-DKD, on ActivityNet Captions.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_table6.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The table has SumR only; the recalls of MS-SL and DL-DKD are those of the paper's Table 1. DL-DKD
needs its teacher's features; without them its variants are skipped.

The weights are those of GMMFormer v2 on this data set (Table 7). The paper does not say how the
losses apply to DL-DKD, which has two embeddings of a sentence. Here query diversity applies to the
concatenated embeddings, and optimal matching to the frames of the inheritance branch.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import DEFINITIONS
from hlformer_jax.sweep import PUBLISHED_ON, define, metrics


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""

    def losses(diversity: float, matching: float, model: str = "ms_sl") -> dict[str, dict]:
        fields = {section: dict(values) for section, values in DEFINITIONS[model].items()}
        fields["model"] = {"name": model}  # MS-SL and DL-DKD have one block without a window
        fields["loss"] |= {
            "query_diversity": diversity,
            "diversity_gamma": 1.0,
            "optimal_matching": matching,
        }
        return fields

    return define(
        __file__,
        name,
        title="GMMFormer v2, Table 6: its losses in MS-SL and DL-DKD",
        base="../ms_sl.py:anet",
        variants={
            "MS-SL": losses(0.0, 0.0),
            "+ query diversity": losses(3e-3, 0.0),
            "+ query diversity, optimal matching": losses(3e-3, 0.11),
            "DL-DKD": losses(0.0, 0.0, "dl_dkd"),
            "DL-DKD + query diversity": losses(3e-3, 0.0, "dl_dkd"),
            "DL-DKD + query diversity, optimal matching": losses(3e-3, 0.11, "dl_dkd"),
        },
        published_on=PUBLISHED_ON["anet"],
        published={
            "MS-SL": metrics(7.1, 22.5, 34.7, 75.8, 140.1),
            "+ query diversity": metrics(144.3),
            "+ query diversity, optimal matching": metrics(146.6),
            "DL-DKD": metrics(8.0, 25.0, 37.5, 77.1, 147.6),
            "DL-DKD + query diversity": metrics(150.8),
            "DL-DKD + query diversity, optimal matching": metrics(152.2),
        },
    )
