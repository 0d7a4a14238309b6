"""Figure 3 of HLFormer: the number of Gaussian blocks, and the share of Lorentz blocks among 8.

    python -m hlformer_jax.sweep --config=configs/sweeps/hlformer_blocks.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

trains on ActivityNet Captions, `hlformer_blocks.py:tvr` and `:charades` on the other data sets. The
figure's numbers are not printed. The paper says that SumR grows with the number of blocks up to
about 8, and that with 8 blocks both geometries together are better than either alone. The default
is 4 and 4 blocks, with SumR 154.9 on ActivityNet. The windows are the default ones for each number
of blocks: none, 2, 4, 8, … in each geometry.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import DATA_SET_TITLES, parts_of
from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

PUBLISHED = {
    "anet": metrics(8.7, 27.1, 40.1, 79.0, 154.9),
    "charades": metrics(2.6, 8.5, 13.7, 54.0, 78.7),
    "tvr": metrics(15.7, 37.1, 48.5, 86.4, 187.7),
}

SPLITS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (8, 0), (6, 2), (2, 6), (0, 8))  # Euclidean first


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; the name is a data set (tvr, charades), "debug", or both with a hyphen."""
    data_set, size = parts_of(name, tuple(DATA_SET_TITLES))
    names = {split: f"{split[0]} Euclidean, {split[1]} Lorentz" for split in SPLITS}
    return define(
        __file__,
        size,
        title="HLFormer, Figure 3: Gaussian blocks",
        base=f"../{data_set}.py",
        variants={
            names[split]: {"model": {"euclidean_blocks": split[0], "lorentz_blocks": split[1]}}
            for split in SPLITS
        },
        published_on=PUBLISHED_ON[data_set],
        published={names[4, 4]: PUBLISHED[data_set]},
        quantity="Gaussian blocks",
        values={names[split]: sum(split) for split in SPLITS},
        series={
            names[split]: "half of them Lorentz" if split[0] == split[1] else names[split]
            for split in SPLITS
        },
    )
