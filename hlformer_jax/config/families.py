"""The families of models: the fields of each, and which family a configuration is of.

A family is known by the names of its models, the choices of its field `model.name`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.config import hover, published
from hlformer_jax.config.fields import FIELDS, Field
from hlformer_jax.config.fields import default as default_of
from hlformer_jax.config.fields import leaves as leaves_of
from hlformer_jax.config.rules import ConfigError
from hlformer_jax.errors import suggestion

Between = Sequence[tuple[str, Callable[[ConfigDict], bool], str]]


class Family(NamedTuple):
    """What a configuration of a family is.

    Attributes:
      fields: its fields.
      between: rules between several fields; see `validation`.
      debug: shrinks a configuration until it runs in seconds.
      check: what else it refuses, by a ConfigError.
    """

    fields: Mapping[str, Field | Mapping[str, Field]]
    between: Between
    debug: Callable[[ConfigDict], ConfigDict]
    check: Callable[[ConfigDict], None] = lambda config: None

    @property
    def models(self) -> tuple[str, ...]:
        """Names of its models."""
        return dict(leaves_of(self.fields))["model.name"].rule.choices


FAMILIES: Mapping[str, Family] = {
    "prvr": Family(FIELDS, published.BETWEEN_FIELDS, published.debug, published.check_blocks),
    "hover": Family(hover.HOVER, hover.BETWEEN_FIELDS, hover.debug),
}
"""The families; the first has the models of partially relevant video retrieval."""


def family_of(config: ConfigDict) -> str:
    """The name of the family that a configuration is of; the first where its model is unknown."""
    section = config.get("model")
    name = section.get("name") if isinstance(section, ConfigDict) else None
    known = (key for key, family in FAMILIES.items() if name in family.models)
    return next(known, next(iter(FAMILIES)))


def default(family: str = "prvr") -> ConfigDict:
    """Returns the complete configuration of a family, locked: an unknown field is an error.

    Raises:
      ConfigError: when there is no such family.
    """
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        near = suggestion(family, FAMILIES)
        raise ConfigError(f"there is no family of models {family!r}: use {known}{near}")
    return default_of(FAMILIES[family].fields)


def leaves(family: str = "prvr") -> Iterator[tuple[str, Field]]:
    """Yields every field of a family by its full name, such as "model.dropout", in order."""
    yield from leaves_of(FAMILIES[family].fields)


def debug(config: ConfigDict) -> ConfigDict:
    """Shrinks a configuration until it runs in seconds, as its family does."""
    return FAMILIES[family_of(config)].debug(config)


def variant(config: ConfigDict, name: str) -> ConfigDict:
    """The variant of a configuration that stands behind the colon of `configs/x.py:NAME`.

    Raises:
      ConfigError: when there is none of that name.
    """
    if name not in ("", "debug"):
        raise ConfigError(f"there is no variant {name!r} of the configuration: only 'debug'")
    return debug(config) if name else config
