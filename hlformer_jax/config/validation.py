"""Refuses what no run could mean: every field by its own rule, then what fields say of each other.

Options of a model that contradict each other are refused where the model is built.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from hlformer_jax.config.fields import leaves
from hlformer_jax.config.published import owner_of_blocks
from hlformer_jax.config.rules import ConfigError
from hlformer_jax.errors import suggestion


def check(config: ConfigDict) -> None:
    """Refuses values that no run could mean; options of the model are checked where it is built.

    Raises:
      ConfigError: naming the field, what it is and what it may be.
    """
    _check_names(config)
    for name, field in leaves():
        value = value_of(config, name)
        if not field.rule.holds(value):
            raise ConfigError(f"config.{name} is {shown(value)}: it must be {field.rule.meaning}")
    for name, holds, meaning in BETWEEN_FIELDS:
        if not holds(config):
            raise ConfigError(
                f"config.{name} is {shown(value_of(config, name))}: it must be {meaning}"
            )
    if other := owner_of_blocks(config):
        name = config.model.name
        file = "anet" if name == "hlformer" else name
        raise ConfigError(
            f"config.model.name is {name!r}, but the blocks and their aggregation are those of"
            f" {other}: start from configs/{file}.py, in Python from config.of_model({name!r})"
        )


BETWEEN_FIELDS: Sequence[tuple[str, Callable[[ConfigDict], bool], str]] = (
    (
        "model.clip_weight",
        lambda config: config.model.clip_weight + config.model.frame_weight > 0,
        "positive where config.model.frame_weight is 0",
    ),
    (
        "loss.diversity_gamma",
        lambda config: config.loss.diversity_form == "pairs" or config.loss.diversity_gamma == 1,
        "1 where config.loss.diversity_form is 'captions', which has no focal factor",
    ),
    (
        "data.max_frames",
        lambda config: config.data.max_clips <= config.data.max_frames,
        "at least config.data.max_clips, whose positions share its table",
    ),
)
"""Rules between several fields: the field that is named, the rule, and the end of the sentence."""


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


def _check_names(config: ConfigDict) -> None:
    """Refuses fields that are missing or unknown, as a configuration made by hand may have them."""
    known = {name for name, _ in leaves()}
    given = set(_names(config))
    for name in sorted(given - known):
        raise ConfigError(f"config.{name}: there is no such field{suggestion(name, known)}")
    for name in sorted(known - given):
        raise ConfigError(f"config.{name} is missing: start from hlformer_jax.config.default()")


def _names(config: ConfigDict, section: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            yield from _names(value, f"{section}{key}.")
        else:
            yield f"{section}{key}"
