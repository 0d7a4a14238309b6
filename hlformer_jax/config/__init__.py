"""The configuration: its fields, what they may be, the published values, and the files of them.

    fields        every field of partially relevant retrieval: its default, rule and meaning
    hover         the fields of HOVER, and its presets
    families      the families of models: the fields of each, and which a configuration is of
    rules         what a rule is: a meaning in words and a function
    validation    `check`: every rule, and the few between several fields
    published     the fields that define each model and data set
    loading       files such as configs/anet.py

A file in ``configs/`` starts from `default` or `of_model` and sets what its result needs; nothing
else has defaults. Nothing here loads JAX, so that a wrong command is answered at once.
"""

from hlformer_jax.config.families import debug, default, family_of, variant
from hlformer_jax.config.fields import WEIGHTS
from hlformer_jax.config.hover import preset
from hlformer_jax.config.loading import load
from hlformer_jax.config.published import of_model, on_data_set, parts_of
from hlformer_jax.config.rules import ConfigError
from hlformer_jax.config.validation import check

__all__ = [
    "WEIGHTS",
    "ConfigError",
    "check",
    "debug",
    "default",
    "family_of",
    "load",
    "of_model",
    "on_data_set",
    "parts_of",
    "preset",
    "variant",
]
