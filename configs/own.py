"""A model of partially relevant video retrieval on features of your own videos.

    python -m hlformer_jax.search features FOLDER --captions=captions.jsonl --out=DIR
    python -m hlformer_jax.main --config=configs/own.py:DIR

The colon is followed by the folder and, after commas, by a model (default: hlformer), "debug" or
both: `configs/own.py:DIR,gmmformer_v2`. With tvr, anet or charades as well, the hyper-parameters
are those of `configs/clip.py` on that data set; only the data differs.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import DATA_SETS, DEFINITIONS, ConfigError, load, of_model, variant
from hlformer_jax.config.fields import look_up
from hlformer_jax.data.sources.extracted import COLLECTION, contents


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of a folder of features."""
    folder, *options = name.split(",")
    if not folder:
        raise ConfigError("name the folder of features: --config=configs/own.py:DIR")
    for option in options:
        look_up("model, data set or size", option, {**DEFINITIONS, **DATA_SETS, "debug": {}})
    models = [option for option in options if option in DEFINITIONS]
    data_sets = [option for option in options if option in DATA_SETS]
    model = models[-1] if models else "hlformer"
    if data_sets:
        config = load(Path(__file__).parent / "clip.py", f"{model}-{data_sets[-1]}")
    else:
        config = of_model(model)
        config.loss.hard_negative_epoch = 5
        config.optim.learning_rate = 1e-3
        config.train.epochs = 30
        config.train.batch_size = 32

    features = contents(folder)
    config.data.collection = COLLECTION
    config.data.manual_dir = folder
    config.data.feature = features["feature"]
    config.data.visual_dim = features["visual_dim"]
    config.data.text_dim = features["text_dim"]
    config.data.max_words = features["max_words"]
    config.eval.moments = "data"
    return variant(config, "debug" if "debug" in options else "")
