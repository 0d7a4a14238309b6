"""HLFormer on TVR, with the released hyper-parameters (Table 4 of the paper).

    python -m hlformer_jax.main --config=configs/tvr.py --workdir=DIR --config.data.manual_dir=PATH

PATH holds `tvr/` as released. Published: R@1 15.7, R@5 37.1, R@10 48.5, R@100 86.4, SumR 187.7.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, on_data_set, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = on_data_set(of_model("hlformer"), "tvr")
    config.update(
        {
            "model": {"input_dropout": 0.2, "dropout": 0.2, "temperature": 0.09},
            "loss": {
                "margin": 0.1,
                "diversity_margin": 0.15,
                "clip_nce": 0.05,
                "query_diversity": 8e-5,
            },
            "optim": {"learning_rate": 3e-4},
        }
    )
    return variant(config, name)
