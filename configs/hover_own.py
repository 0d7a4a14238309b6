"""HOVER on features of one's own videos, whose captions have times.

    python -m hlformer_jax.search features FOLDER --captions=captions.jsonl --out=DIR
    python -m hlformer_jax.main --config=configs/hover_own.py:DIR

The encoder is CLIP or SigLIP, its frames and sentences taken as they are; the text of a parent is
encoded as a whole. The folder stands behind the colon, and after a comma "released", "printed" or
"debug": `configs/hover_own.py:DIR,released`.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import PRESETS, ConfigError, default, preset, variant
from hlformer_jax.data.extracted import COLLECTION, contents


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a folder of features."""
    folder, *options = name.split(",")
    if not folder:
        raise ConfigError("say which features to train on: --config=configs/hover_own.py:DIR")
    config = default("hover")
    features = contents(folder)
    one_vector = features["max_words"] == 1
    config.update(
        {
            "data": {
                "collection": COLLECTION,
                "manual_dir": folder,
                "feature": features["feature"],
                "visual_dim": features["visual_dim"],
                "text_dim": features["text_dim"],
            },
            # Sentence vectors are what the encoder was trained for; of words, all are read.
            "model": {"text_encoder": "given" if one_vector else "attention"},
            "optim": {"learning_rate": 1e-3, "hyperbolic_rate": 1e-3, "scale_rate": 1e-3},
            "train": {"epochs": 30, "batch_size": 32},
        }
    )
    for option in options:
        config = preset(config, option) if option in PRESETS else variant(config, option)
    return config
