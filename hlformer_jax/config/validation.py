"""Refuses what no run could mean: every field by its own rule, then what fields say of each other.

Options of a model that contradict each other are refused where the model is built.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.families import FAMILIES, family_of, leaves
from hlformer_jax.config.rules import ConfigError
from hlformer_jax.errors import suggestion


def check(config: ConfigDict) -> None:
    """Refuses values that no run could mean; options of the model are checked where it is built.

    Raises:
      ConfigError: naming the field, what it is and what it may be.
    """
    kind = family_of(config)
    family = FAMILIES[kind]
    _check_names(config, kind)
    for name, field in leaves(kind):
        value = value_of(config, name)
        if not field.rule.holds(value):
            raise ConfigError(f"config.{name} is {shown(value)}: it must be {field.rule.meaning}")
    for name, holds, meaning in family.between:
        if not holds(config):
            raise ConfigError(
                f"config.{name} is {shown(value_of(config, name))}: it must be {meaning}"
            )
    family.check(config)


def value_of(config: ConfigDict, name: str) -> Any:
    """The value of a field by its full name, such as "model.dropout"."""
    for part in name.split("."):
        config = config[part]
    return config


def shown(value: Any) -> str:
    """A value as a message has it: on one line, and not longer than one."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _check_names(config: ConfigDict, family: str) -> None:
    """Refuses fields that are missing or unknown, as a configuration made by hand may have them."""
    known = {name for name, _ in leaves(family)}
    given = set(_names(config))
    for name in sorted(given - known):
        raise ConfigError(f"config.{name}: there is no such field{suggestion(name, known)}")
    for name in sorted(known - given):
        start = "" if family == "prvr" else repr(family)
        raise ConfigError(
            f"config.{name} is missing: start from hlformer_jax.config.default({start})"
        )


def _names(config: ConfigDict, section: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            yield from _names(value, f"{section}{key}.")
        else:
            yield f"{section}{key}"
