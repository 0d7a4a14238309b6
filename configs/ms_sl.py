"""MS-SL on the three data sets, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/ms_sl.py:tvr --workdir=DIR \
        --config.data.manual_dir=PATH

The data set stands behind the colon: anet (the default), tvr or charades; with -debug behind it, or
with debug alone, it is a variant that runs in seconds. PATH holds `activitynet/`, `tvr/` or
`charades/` as released. Published:

| | R@1 | R@5 | R@10 | R@100 | SumR |
| --- | --- | --- | --- | --- | --- |
| ActivityNet Captions | 7.1 | 22.5 | 34.7 | 75.8 | 140.1 |
| TVR | 13.5 | 32.1 | 43.4 | 83.4 | 172.4 |
| Charades-STA | 1.8 | 7.1 | 11.8 | 47.7 | 68.4 |
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, on_data_set, parts_of, variant

SETTINGS = {
    "anet": {"model": {"input_dropout": 0.1, "dropout": 0.1}},
    "tvr": {
        "model": {"input_dropout": 0.1, "dropout": 0.1},
        "loss": {"margin": 0.1},
    },
    "charades": {
        "model": {
            "input_dropout": 0.1,
            "dropout": 0.1,
            "clip_weight": 0.5,
            "frame_weight": 0.5,
        },
    },
}


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a data set; "debug" behind it is one that runs in seconds."""
    data_set, size = parts_of(name)
    config = on_data_set(of_model("ms_sl"), data_set)
    config.update(SETTINGS[data_set])
    return variant(config, size)
