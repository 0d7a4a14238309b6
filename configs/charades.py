"""HLFormer on Charades-STA, with the released hyper-parameters (Table 4 of the paper).

    python -m hlformer_jax.main --config=configs/charades.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `charades/` as released. Published: R@1 2.6, R@5 8.5, R@10 13.7, R@100 54.0, SumR 78.7.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import load, on_data_set, variant


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration; "debug" is a variant that runs in seconds."""
    config = load(Path(__file__).parent / "anet.py")  # all other fields are equal
    on_data_set(config, "charades")
    config.model.input_dropout = 0.25
    config.model.dropout = 0.25
    config.optim.learning_rate = 2e-4
    return variant(config, name)
