"""HLFormer on TVR, with the released hyper-parameters (Table 4 of the paper).

    python -m hlformer_jax.main --config=configs/tvr.py --workdir=DIR --config.data.manual_dir=PATH

PATH holds `tvr/` as released. Published: R@1 15.7, R@5 37.1, R@10 48.5, R@100 86.4, SumR 187.7.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import load, on_data_set, variant


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration; "debug" is a variant that runs in seconds."""
    config = load(Path(__file__).parent / "anet.py")  # all other fields are equal
    on_data_set(config, "tvr")
    config.model.temperature = 0.09  # τ
    config.model.input_dropout = 0.2
    config.model.dropout = 0.2
    config.loss.clip_nce = 0.05  # λ_c
    config.loss.margin = 0.1  # m
    config.loss.query_diversity = 8e-5  # λ_1
    config.loss.diversity_margin = 0.15  # δ
    config.optim.learning_rate = 3e-4
    return variant(config, name)
