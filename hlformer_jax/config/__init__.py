"""The configuration: its fields, what they may be, the published values, and the files of them.

    fields        every field: its default, its rule and its meaning
    rules         what a rule is: a meaning in words and a function
    validation    `check`: every rule, and the few between several fields
    published     the fields that define each model and data set; variants such as "debug"
    loading       files such as configs/anet.py

A file in ``configs/`` starts from `default` or `of_model` and sets what its result needs; nothing
else has defaults. Nothing here loads JAX, so that a wrong command is answered at once.
"""

from hlformer_jax.config.fields import WEIGHTS, default
from hlformer_jax.config.loading import load
from hlformer_jax.config.published import debug, of_model, on_data_set, parts_of, variant
from hlformer_jax.config.rules import ConfigError
from hlformer_jax.config.validation import check

__all__ = [
    "WEIGHTS",
    "ConfigError",
    "check",
    "debug",
    "default",
    "load",
    "of_model",
    "on_data_set",
    "parts_of",
    "variant",
]
