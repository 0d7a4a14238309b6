"""Configurations: fields with their rules, models and data sets, checks, and files.

    rules         which values a field may have
    fields        every field of a family: default, rule, meaning
    models        the fields that define each model, and its name in the papers
    definitions   fields that are set together: models, data sets, forms of HOVER, the debug size
    checks        checks of a whole configuration: unknown fields, wrong values, contradictions
    names         names of other programs for fields, for suggestions
    loading       configuration files

The files in `configs/` state the published hyper-parameters. Nothing here loads JAX, so that a
wrong command is reported quickly.
"""

from hlformer_jax.config.checks import check, check_values, conflicts
from hlformer_jax.config.definitions import (
    DATA_SET_TITLES,
    DATA_SETS,
    FLAT,
    PRESETS,
    debug,
    describe_data,
    of_model,
    on_data_set,
    parts_of,
    preset,
    variant,
)
from hlformer_jax.config.fields import FIELDS, Field, default, family_of, flat, leaves
from hlformer_jax.config.loading import CONFIGS, config_names, fault, load, locate
from hlformer_jax.config.models import DEFINITIONS, MODEL_TITLES
from hlformer_jax.errors import ConfigError

__all__ = [
    "CONFIGS", "DATA_SETS", "DATA_SET_TITLES", "DEFINITIONS", "FIELDS", "FLAT", "MODEL_TITLES",
    "PRESETS", "ConfigError", "Field", "check", "check_values", "config_names", "conflicts",
    "debug", "default", "describe_data", "family_of", "fault", "flat", "leaves", "load", "locate",
    "of_model", "on_data_set", "parts_of", "preset", "variant",
]  # fmt: skip
