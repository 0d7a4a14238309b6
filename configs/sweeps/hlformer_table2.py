"""Table 2 of HLFormer: branches, loss terms and aggregation, on each of the three data sets.

    python -m hlformer_jax.sweep --config=configs/sweeps/hlformer_table2.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

trains on ActivityNet Captions, `hlformer_table2.py:tvr` and `:charades` on the other data sets.
`:debug`, `:tvr-debug` and `:charades-debug` take minutes and need no features. The paper has one
seed, 0.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import DATA_SET_TITLES, parts_of
from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

VARIANTS = {
    "full": {},
    "w/o gaze": {"model": {"gaze": False}},
    "w/o glance": {"model": {"glance": False}},
    "L_sim only": {"loss": {"query_diversity": 0.0, "partial_order": 0.0}},
    "w/o L_div": {"loss": {"query_diversity": 0.0}},
    "w/o L_pop": {"loss": {"partial_order": 0.0}},
    "w/ MP": {"model": {"fusion": "mean"}},
    "w/ CL": {"model": {"fusion": "concat"}},
}

PUBLISHED = {
    "anet": {
        "full": metrics(8.7, 27.1, 40.1, 79.0, 154.9),
        "w/o gaze": metrics(7.6, 24.4, 36.7, 77.3, 146.1),
        "w/o glance": metrics(6.4, 21.7, 33.6, 75.4, 137.2),
        "L_sim only": metrics(7.7, 25.0, 38.1, 78.3, 149.1),
        "w/o L_div": metrics(8.5, 26.6, 39.6, 78.8, 153.5),
        "w/o L_pop": metrics(8.6, 26.9, 39.7, 78.8, 154.0),
        "w/ MP": metrics(8.5, 25.7, 38.2, 77.8, 150.2),
        "w/ CL": metrics(8.7, 26.8, 39.5, 78.6, 153.6),
    },
    "charades": {
        "full": metrics(2.6, 8.5, 13.7, 54.0, 78.7),
        "w/o gaze": metrics(1.8, 8.0, 13.9, 50.8, 74.5),
        "w/o glance": metrics(1.6, 7.7, 13.1, 48.4, 70.8),
        "L_sim only": metrics(2.0, 8.1, 13.2, 52.0, 75.3),
        "w/o L_div": metrics(2.0, 7.8, 13.6, 53.0, 76.4),
        "w/o L_pop": metrics(2.2, 8.4, 14.0, 53.0, 77.6),
        "w/ MP": metrics(2.0, 8.0, 13.2, 52.1, 75.3),
        "w/ CL": metrics(2.0, 8.2, 13.9, 52.0, 76.1),
    },
    "tvr": {
        "full": metrics(15.7, 37.1, 48.5, 86.4, 187.7),
        "w/o gaze": metrics(13.9, 34.0, 45.2, 85.3, 178.3),
        "w/o glance": metrics(11.4, 30.5, 41.8, 82.4, 166.1),
        "L_sim only": metrics(15.1, 36.2, 47.8, 86.0, 185.2),
        "w/o L_div": metrics(15.7, 36.4, 48.4, 86.0, 186.5),
        "w/o L_pop": metrics(15.6, 36.8, 48.4, 86.0, 186.8),
        "w/ MP": metrics(15.2, 36.5, 47.4, 86.0, 185.1),
        "w/ CL": metrics(15.3, 36.9, 48.4, 86.0, 186.6),
    },
}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; the name is a data set (tvr, charades), "debug", or both with a hyphen."""
    data_set, size = parts_of(name, tuple(DATA_SET_TITLES))
    return define(
        __file__,
        size,
        title="HLFormer, Table 2",
        base=f"../{data_set}.py",
        variants=VARIANTS,
        published_on=PUBLISHED_ON[data_set],
        published=PUBLISHED[data_set],
    )
