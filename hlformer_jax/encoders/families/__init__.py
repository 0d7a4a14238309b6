"""Architectures of encoders: one file for each, and the registry of their names.

    family    the interface of an architecture
    clip      CLIP
    siglip    SigLIP, and SigLIP2 of fixed resolution
    roberta   RoBERTa, for texts alone

`FAMILIES` maps the `model_type` of a `config.json` to its architecture. To add an architecture,
write a file with a subclass of `TextFamily` or `ImageTextFamily`, and add an entry here.
"""

from collections.abc import Mapping
from typing import Any

from hlformer_jax.encoders.config import Config, EncoderError, TextConfig
from hlformer_jax.encoders.families.clip import Clip
from hlformer_jax.encoders.families.family import ImageTextFamily, TextFamily
from hlformer_jax.encoders.families.roberta import Roberta
from hlformer_jax.encoders.families.siglip import Siglip
from hlformer_jax.text import suggestion

FAMILIES: dict[str, TextFamily] = {family.name: family for family in (Clip(), Siglip(), Roberta())}
"""Architectures by the `model_type` of a `config.json`."""


def text_family(config: TextConfig) -> TextFamily:
    """Return the architecture of a text encoder or an image-text encoder."""
    return FAMILIES[config.family]


def image_text_family(config: Config) -> ImageTextFamily:
    """Return the architecture of an image-text encoder."""
    family = FAMILIES[config.family]
    assert isinstance(family, ImageTextFamily)
    return family


def has_images(model_type: object) -> bool:
    """Return whether an encoder reads images; True if its architecture is unknown."""
    family = FAMILIES.get(str(model_type))
    return family is None or isinstance(family, ImageTextFamily)


def read_config(content: Mapping[str, Any], where: str, *, text_only: bool = False) -> TextConfig:
    """Read the content of a `config.json`, with defaults filled in.

    Args:
      content: the JSON object.
      where: the file's name, for errors.
      text_only: also accept an architecture without images.

    Raises:
      EncoderError: if the architecture is unknown or a value is invalid.
    """
    model_type = content.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None and model_type == "siglip2":
        raise EncoderError(
            f"{where}: a SigLIP2 of variable resolution (NaFlex), which is not supported; use one"
            " of fixed resolution, such as google/siglip2-base-patch16-224"
        )
    if family is None or not (text_only or isinstance(family, ImageTextFamily)):
        with_images = [name for name in FAMILIES if has_images(name)]
        text_only_names = [name for name in FAMILIES if not has_images(name)]
        raise EncoderError(
            f"{where}: model_type is {model_type!r}, not an image-text encoder:"
            f" {', '.join(map(repr, with_images))} (or, for texts alone,"
            f" {', '.join(map(repr, text_only_names))}){suggestion(model_type, with_images)}"
        )
    return family.read_config(content, where)
