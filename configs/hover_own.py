"""HOVER on features of your own videos, whose captions have times.

    python -m hlformer_jax.search features FOLDER --captions=captions.jsonl --out=DIR
    python -m hlformer_jax.main --config=configs/hover_own.py:DIR

The encoder is CLIP or SigLIP; its frame and sentence features are used unchanged, and the joined
text of a parent is encoded as one text. The colon is followed by the folder, and after a comma by
"released", "printed" or "debug": `configs/hover_own.py:DIR,released`.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import PRESETS, ConfigError, default, preset, variant
from hlformer_jax.config.fields import look_up
from hlformer_jax.data.sources.extracted import COLLECTION, contents


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of a folder of features."""
    folder, *options = name.split(",")
    if not folder:
        raise ConfigError("name the folder of features: --config=configs/hover_own.py:DIR")
    config = default("hover")
    features = contents(folder)

    config.data.collection = COLLECTION
    config.data.manual_dir = folder
    config.data.feature = features["feature"]
    config.data.visual_dim = features["visual_dim"]
    config.data.text_dim = features["text_dim"]

    # With one row per caption, the features are sentence vectors; otherwise read all word features.
    has_sentence_vectors = features["max_words"] == 1
    config.model.text_encoder = "given" if has_sentence_vectors else "attention"

    config.optim.learning_rate = 1e-3
    config.optim.hyperbolic_rate = 1e-3
    config.optim.scale_rate = 1e-3
    config.train.epochs = 30
    config.train.batch_size = 32
    for option in options:
        look_up("form or size", option, {**PRESETS, "debug": {}})
        config = preset(config, option) if option in PRESETS else variant(config, option)
    return config
