"""Whether hyperbolic blocks help on CLIP ViT-L/14 features: the family beside MSC's Table 5.

    python -m hlformer_jax.sweep --config=configs/sweeps/clip_features.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

is TVR; `clip_features.py:anet` and `:charades` are the other two, and `:debug`, `:anet-debug`,
`:charades-debug` rehearse without features. PATH is that of `configs/clip.py`. Beside HLFormer with
half of its blocks in either geometry are all eight in one. Published is SumR, by MSC's paper, on
features that its authors made; nothing is published of HLFormer.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import parts_of
from hlformer_jax.config.published import DATA_SET_TITLES
from hlformer_jax.sweep.definition import define, metrics

MODELS = {"GMMFormer v2": "gmmformer_v2", "GMMFormer": "gmmformer", "MS-SL": "ms_sl"}

# SumR on TVR, ActivityNet Captions and Charades-STA.
PUBLISHED = {
    "GMMFormer v2": (258.1, 196.9, 94.2),
    "GMMFormer": (241.1, 187.1, 89.3),
    "MS-SL": (251.0, 186.7, 96.0),
}
CITED = {
    "MSC": (
        (35.1, 61.6, 71.5, 94.9, 263.1),
        (17.7, 42.0, 55.6, 86.8, 202.1),
        (3.2, 12.6, 20.1, 63.8, 99.7),
    ),
    "ARL": ((260.1,), (190.4,), None),
    "ProtoPRVR": ((259.2,), (192.3,), None),
    "AMDNet": ((235.6,), (184.5,), (81.1,)),
    "TF-PRVR, training-free": ((178.3,), (193.9,), (80.8,)),
    "CLIP, zero-shot": ((167.2,), (172.9,), (73.1,)),
}


def get_config(name: str = "") -> ConfigDict:
    """Returns the sweep; the name is a data set (anet, charades), debug, or both with a hyphen."""
    data_sets = ("tvr", "anet", "charades")
    data_set, size = parts_of(name, data_sets)
    column = data_sets.index(data_set)
    cited = {method: rows[column] for method, rows in CITED.items()}
    return define(
        __file__,
        size,
        title=f"CLIP ViT-L/14 features, {DATA_SET_TITLES[data_set]}",
        base=f"../clip.py:hlformer-{data_set}",
        bases={model: f"../clip.py:{file}-{data_set}" for model, file in MODELS.items()},
        variants={
            "HLFormer": {},
            "HLFormer, all Euclidean": {"model": {"euclidean_blocks": 8, "lorentz_blocks": 0}},
            "HLFormer, all Lorentz": {"model": {"euclidean_blocks": 0, "lorentz_blocks": 8}},
            **{model: {"base": model} for model in MODELS},
        },
        published={model: metrics(rows[column]) for model, rows in PUBLISHED.items()},
        cited={method: metrics(*row) for method, row in cited.items() if row is not None},
    )
