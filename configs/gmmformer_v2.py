"""GMMFormer v2 on the three data sets, with the released hyper-parameters (Table 7 of the paper).

    python -m hlformer_jax.main --config=configs/gmmformer_v2.py:tvr --workdir=DIR \
        --config.data.manual_dir=PATH

The data set stands behind the colon: anet (the default), tvr or charades; with -debug behind it, or
with debug alone, it is a variant that runs in seconds. PATH holds `activitynet/`, `tvr/` or
`charades/` as released. Published:

| | R@1 | R@5 | R@10 | R@100 | SumR |
| --- | --- | --- | --- | --- | --- |
| ActivityNet Captions | 8.9 | 27.1 | 40.2 | 78.7 | 154.9 |
| TVR | 16.2 | 37.6 | 48.8 | 86.4 | 189.1 |
| Charades-STA | 2.5 | 8.6 | 13.9 | 53.2 | 78.2 |
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, on_data_set, parts_of, variant

SETTINGS = {
    "anet": {},  # of_model's own
    "tvr": {
        "model": {"temperature": 0.09, "input_dropout": 0.2, "dropout": 0.2},
        "loss": {
            "margin": 0.1,
            "diversity_margin": 0.15,
            "clip_nce": 0.05,
            "query_diversity": 8e-5,
            "optimal_matching": 0.09,
        },
        "optim": {"learning_rate": 3e-4},
    },
    "charades": {
        "model": {"input_dropout": 0.25, "dropout": 0.25},
        "loss": {"optimal_matching": 0.1},
        "optim": {"learning_rate": 2e-4},
    },
}


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a data set; "debug" behind it is one that runs in seconds."""
    data_set, size = parts_of(name)
    config = on_data_set(of_model("gmmformer_v2"), data_set)
    config.update(SETTINGS[data_set])
    return variant(config, size)
