"""GMMFormer on the three data sets, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/gmmformer.py:tvr --workdir=DIR \
        --config.data.manual_dir=PATH

The data set stands behind the colon: anet (the default), tvr or charades; with -debug behind it, or
with debug alone, it is a variant that runs in seconds. PATH holds `activitynet/`, `tvr/` or
`charades/` as released. Published:

| | R@1 | R@5 | R@10 | R@100 | SumR |
| --- | --- | --- | --- | --- | --- |
| ActivityNet Captions | 8.3 | 24.9 | 36.7 | 76.1 | 146.0 |
| TVR | 13.9 | 33.3 | 44.5 | 84.9 | 176.6 |
| Charades-STA | 2.1 | 7.8 | 12.5 | 50.6 | 72.9 |
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, on_data_set, parts_of, variant

SETTINGS = {
    "anet": {"model": {"input_dropout": 0.2, "dropout": 0.2}},
    "tvr": {
        "model": {"input_dropout": 0.2, "dropout": 0.2},
        "loss": {
            "margin": 0.1,
            "diversity_margin": 0.15,
            "clip_nce": 0.05,
            "query_diversity": 0.001,
            "hard_negative_epoch": 30,
        },
        "optim": {"learning_rate": 3e-4},
    },
    "charades": {
        "model": {"input_dropout": 0.15, "dropout": 0.15},
        "loss": {
            "frame_nce": 0.02,
            "diversity_margin": 0.15,
            "query_diversity": 0.005,
            "hard_negative_epoch": 100,
        },
    },
}


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a data set; "debug" behind it is one that runs in seconds."""
    data_set, size = parts_of(name)
    config = on_data_set(of_model("gmmformer"), data_set)
    config.update(SETTINGS[data_set])
    return variant(config, size)
