"""Sizes and options of an encoder, read from `config.json` and checked.

A Hugging Face `config.json` contains only values that differ from the defaults of transformers.
Each module of `families` therefore has the defaults of its architecture.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlformer_jax.errors import UserError
from hlformer_jax.text import suggestion


class EncoderError(UserError, ValueError):
    """Raised for a wrong folder, name or input of an encoder."""


ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
"""Supported activations of the feed-forward layers, by their names in `hidden_act`."""


IMAGE_PRECISIONS = ("float32", "bfloat16", "int8")
"""Precisions of the matrix products of image encoders; int8 needs a CPU and OpenVINO."""


@dataclass(frozen=True)
class Tower:
    """The sizes of one transformer."""

    width: int
    hidden: int  # width of the feed-forward layer's hidden units
    layers: int
    heads: int
    activation: str
    epsilon: float  # number that layer norms add to the variance


@dataclass(frozen=True)
class Vision(Tower):
    """The sizes of an image encoder, in pixels; pixels beyond the last whole patch are ignored."""

    image_size: int
    patch_size: int

    @property
    def grid(self) -> int:
        """Return the number of patches in a row."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class Text(Tower):
    """The sizes of a text encoder."""

    vocabulary: int
    positions: int  # number of tokens of a text, including padding
    eos: int  # id at which CLIP pools; `families.clip.LARGEST_ID`: CLIP pools at the largest id
    pad: int  # id of padding, if the tokenizer's files have none


@dataclass(frozen=True)
class TextConfig:
    """The configuration of a text encoder."""

    family: str  # a name of `families.FAMILIES`
    text: Text

    @property
    def max_tokens(self) -> int:
        """Return the largest number of tokens of a text, including special tokens."""
        return self.text.positions


@dataclass(frozen=True)
class Config(TextConfig):
    """The configuration of an image-text encoder."""

    vision: Vision
    width: int  # number of coordinates of the joint space


SIZES = {
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
VISION_SIZES = SIZES | {name: name for name in ("image_size", "patch_size")}
TEXT_SIZES = SIZES | {"vocabulary": "vocab_size", "positions": "max_position_embeddings"}
TEXT_IDS = {"eos": "eos_token_id", "pad": "pad_token_id"}
ACTIVATION_AND_EPSILON = {"activation": "hidden_act", "epsilon": "layer_norm_eps"}
"""These tables map fields of a tower to their keys in `config.json`: positive integers (SIZES,
VISION_SIZES, TEXT_SIZES), ids of tokens (TEXT_IDS), and the others."""


def read_json(path: Path) -> Mapping[str, Any]:
    """Read a JSON object.

    Raises:
      EncoderError: if the file is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{path}: not JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise EncoderError(f"{path}: not a JSON object; fetch it again")
    return content


def merge_section(
    content: Mapping[str, Any], key: str, defaults: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return a section of a `config.json`, with defaults for missing keys.

    Args:
      content: the content of the file.
      key: the key of the section; without the key all values are the defaults.
      defaults: the default values.
      where: the file's name, for errors.

    Raises:
      EncoderError: if the section is not an object.
    """
    section = content.get(key)
    if section is None:
        return dict(defaults)
    if not isinstance(section, Mapping):
        raise EncoderError(f"{where}: {key} is not an object")
    return {**defaults, **section}


def read_text(section: Mapping[str, Any], where: str) -> Text:
    """Return the checked sizes and ids of a text encoder."""
    ids: dict[str, Any] = {
        name: _check_id(section.get(key), f"{where}.{key}") for name, key in TEXT_IDS.items()
    }
    return Text(**_read_tower(section, TEXT_SIZES, where), **ids)


def read_vision(section: Mapping[str, Any], where: str) -> Vision:
    """Return the checked sizes of an image encoder."""
    if (channels := section.get("num_channels", 3)) != 3:
        raise EncoderError(f"{where}.num_channels: {channels!r} is not 3")
    vision = Vision(**_read_tower(section, VISION_SIZES, where))
    if vision.grid < 1:
        raise EncoderError(f"{where}.patch_size is larger than image_size")
    return vision


def _read_tower(section: Mapping[str, Any], keys: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the checked fields of a `Tower`, and sizes whose keys in the file are in `keys`."""
    sizes = {name: check_size(section[key], f"{where}.{key}") for name, key in keys.items()}
    if sizes["width"] % sizes["heads"]:
        raise EncoderError(
            f"{where}: hidden_size {sizes['width']} is not a multiple of {sizes['heads']} heads"
        )
    activation = section["hidden_act"]
    if activation not in ACTIVATIONS:
        raise EncoderError(
            f"{where}.hidden_act: {activation!r} is not one of {', '.join(ACTIVATIONS)}"
            f"{suggestion(activation, ACTIVATIONS)}"
        )
    epsilon = section["layer_norm_eps"]
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise EncoderError(f"{where}.layer_norm_eps: {epsilon!r} is not a number in [0, 1)")
    return sizes | {"activation": activation, "epsilon": float(epsilon)}


def check_size(value: Any, where: str) -> int:
    """Return a positive integer, given as such or as a list of equal ones (height and width).

    Raises:
      EncoderError: for any other value; the message begins with the field's place (`where`).
    """
    if isinstance(value, list) and len(set(map(repr, value))) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EncoderError(f"{where}: {value!r} is not a positive integer")
    return value


def _check_id(value: Any, where: str) -> int:
    """Return a token's id; 0 for None."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EncoderError(f"{where}: {value!r} is not a token's id")
    return value
