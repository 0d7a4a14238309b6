"""Figure 3 of HLFormer: the number of Gaussian blocks, and the share of Lorentz blocks among 8.

    python -m hlformer_jax.sweep --config=configs/sweeps/hlformer_blocks.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The figure's numbers are not printed. Its text: SumR grows with the number of blocks until about 8,
and of 8 blocks the hybrid is better than either geometry alone. Default: 4 and 4, SumR 154.9.
Windows are the default ones of each number of blocks: none, 2, 4, 8, … for each geometry.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep.definition import define, metrics

SPLITS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (8, 0), (6, 2), (2, 6), (0, 8))  # Euclidean first


def get_config(name: str = "") -> ConfigDict:
    """Returns the sweep; "debug" is one that takes minutes."""
    names = {split: f"{split[0]} Euclidean, {split[1]} Lorentz" for split in SPLITS}
    return define(
        __file__,
        name,
        title="HLFormer, Figure 3: Gaussian blocks, ActivityNet Captions",
        base="../anet.py",
        variants={
            names[split]: {"model": {"euclidean_blocks": split[0], "lorentz_blocks": split[1]}}
            for split in SPLITS
        },
        published={names[4, 4]: metrics(8.7, 27.1, 40.1, 79.0, 154.9)},
        quantity="Gaussian blocks",
        values={names[split]: sum(split) for split in SPLITS},
        series={
            names[split]: "half of them Lorentz" if split[0] == split[1] else names[split]
            for split in SPLITS
        },
    )
