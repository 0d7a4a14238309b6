"""A model of the family on features of one's own videos.

    python -m hlformer_jax.search features FOLDER --captions=captions.jsonl --out=DIR
    python -m hlformer_jax.main --config=configs/own.py:DIR

The folder stands behind the colon, and after a comma another model than HLFormer, or "debug":
`configs/own.py:DIR,gmmformer_v2`. With tvr, anet or charades too, all but the data is that of
`configs/clip.py`: its hyper-parameters, on features that this package's encoders made.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import DATA_SETS, DEFINITIONS, ConfigError, load, of_model, variant
from hlformer_jax.data.extracted import COLLECTION, contents


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a folder of features."""
    folder, *options = name.split(",")
    if not folder:
        raise ConfigError("say which features to train on: --config=configs/own.py:DIR")
    models = [option for option in options if option in DEFINITIONS]
    model = models[-1] if models else "hlformer"
    sets = [option for option in options if option in DATA_SETS]
    if sets:
        config = load(Path(__file__).parent / "clip.py", f"{model}-{sets[-1]}")
    else:
        config = of_model(model)
        config.update(
            {
                "loss": {"hard_negative_epoch": 5},
                "optim": {"learning_rate": 1e-3},
                "train": {"epochs": 30, "batch_size": 32},
            }
        )
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
            "eval": {"moments": "data"},
        }
    )
    for option in (one for one in options if one not in DEFINITIONS and one not in DATA_SETS):
        config = variant(config, option)
    return config
