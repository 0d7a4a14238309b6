"""Benefit of hyperbolic blocks on CLIP features: all models, beside MSC's Tables 4 and 5.

    python -m hlformer_jax.sweep --config=configs/sweeps/clip_features.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

trains on TVR. `clip_features.py:anet`, `:charades` and `:qv` train on the other data sets: CLIP
ViT-L/14 features, and for `:qv` (QVHighlights, with joined clips of each video) SlowFast and CLIP
ViT-B/32 features. `-debug` after the name makes a rehearsal without features. PATH is that of
`configs/clip.py`. HLFormer has four Euclidean and four Lorentz blocks; two variants have all eight
blocks in one geometry. The published values are from MSC's paper, on features that its authors
made. For HLFormer nothing is published.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import DATA_SET_TITLES, parts_of
from hlformer_jax.sweep import define, metrics

MODELS = {"GMMFormer v2": "gmmformer_v2", "GMMFormer": "gmmformer", "MS-SL": "ms_sl"}
VECTORS = {"CLIP4Clip-meanP": "clip4clip_meanp", "CLIP4Clip-seqTransf": "clip4clip_seqtransf"}

FEATURES = {
    "tvr": "CLIP ViT-L/14",
    "anet": "CLIP ViT-L/14",
    "charades": "CLIP ViT-L/14",
    "qv": "SlowFast and CLIP ViT-B/32",
}

# SumR on TVR, ActivityNet Captions, Charades-STA and QVHighlights.
PUBLISHED = {
    "GMMFormer v2": (258.1, 196.9, 94.2, 225.2),
    "GMMFormer": (241.1, 187.1, 89.3, 211.1),
    "MS-SL": (251.0, 186.7, 96.0, 222.5),
}
CITED = {
    "MSC": (
        (35.1, 61.6, 71.5, 94.9, 263.1),
        (17.7, 42.0, 55.6, 86.8, 202.1),
        (3.2, 12.6, 20.1, 63.8, 99.7),
        (23.9, 51.5, 63.7, 95.5, 234.6),
    ),
    "ARL": ((260.1,), (190.4,), None, None),
    "ProtoPRVR": ((259.2,), (192.3,), None, (22.6, 48.8, 61.3, 93.9, 226.6)),
    "AMDNet": ((235.6,), (184.5,), (81.1,), (206.6,)),
    "TF-PRVR, training-free": ((178.3,), (193.9,), (80.8,), None),
    "CLIP, zero-shot": ((167.2,), (172.9,), (73.1,), None),
}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep of a data set (tvr, anet, charades, qv); with "-debug" it is a rehearsal."""
    data_sets = ("tvr", "anet", "charades", "qv")
    data_set, size = parts_of(name, data_sets)
    titles = DATA_SET_TITLES | {"qv": "QVHighlights"}
    column = data_sets.index(data_set)
    models = MODELS | ({} if data_set == "qv" else VECTORS)
    cited = {method: rows[column] for method, rows in CITED.items()}
    return define(
        __file__,
        size,
        title="CLIP features",
        base=f"../clip.py:hlformer-{data_set}",
        bases={model: f"../clip.py:{file}-{data_set}" for model, file in models.items()},
        variants={
            "HLFormer": {},
            "HLFormer, all Euclidean": {"model": {"euclidean_blocks": 8, "lorentz_blocks": 0}},
            "HLFormer, all Lorentz": {"model": {"euclidean_blocks": 0, "lorentz_blocks": 8}},
            **{model: {"base": model} for model in models},
        },
        published_on=f"{titles[data_set]}, {FEATURES[data_set]} (MSC's paper and splits)",
        published={model: metrics(rows[column]) for model, rows in PUBLISHED.items()},
        cited={method: metrics(*row) for method, row in cited.items() if row is not None},
    )
