"""HLFormer on ActivityNet Captions, with the released hyper-parameters (Table 4 of the paper).

    python -m hlformer_jax.main --config=configs/anet.py --workdir=DIR --config.data.manual_dir=PATH

PATH holds `activitynet/` as released. Published: R@1 8.7, R@5 27.1, R@10 40.1, R@100 79.0,
SumR 154.9.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, on_data_set, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration, which is the default; "debug" is one that runs in seconds."""
    return variant(on_data_set(of_model("hlformer"), "anet"), name)
