"""A model of the family on features of one's own videos.

    python -m hlformer_jax.search features FOLDER --captions=captions.jsonl --out=DIR
    python -m hlformer_jax.main --config=configs/own.py:DIR

The folder stands behind the colon, and after a comma another model than HLFormer, or "debug":
`configs/own.py:DIR,gmmformer_v2`.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import DEFINITIONS, ConfigError, of_model, variant
from hlformer_jax.data.extracted import COLLECTION, contents


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a folder of features."""
    folder, *options = name.split(",")
    if not folder:
        raise ConfigError("say which features to train on: --config=configs/own.py:DIR")
    models = [option for option in options if option in DEFINITIONS]
    config = of_model(models[-1] if models else "hlformer")
    features = contents(folder)
    config.update(
        {
            "data": {
                "collection": COLLECTION,
                "manual_dir": folder,
                "feature": features["feature"],
                "visual_dim": features["visual_dim"],
                "text_dim": features["text_dim"],
                "max_words": features["max_words"],
            },
            "loss": {"hard_negative_epoch": 5},
            "optim": {"learning_rate": 1e-3},
            "train": {"epochs": 30, "batch_size": 32},
            "eval": {"moments": "data"},
        }
    )
    for option in (option for option in options if option not in DEFINITIONS):
        config = variant(config, option)
    return config
