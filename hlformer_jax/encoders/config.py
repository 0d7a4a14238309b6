"""Sizes and options of an encoder, and the checks of the values that state them.

A Hugging Face `config.json` holds only values that differ from transformers' defaults. These are
not in the folder: each module of `families` has the defaults of its architecture.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlformer_jax.errors import UserError
from hlformer_jax.text import suggestion


class EncoderError(UserError, ValueError):
    """A fault of an encoder's folder, name or input."""


ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
"""Supported activations of the feed-forward layers, by their names in `hidden_act`."""


@dataclass(frozen=True)
class Tower:
    """The sizes of one transformer."""

    width: int
    hidden: int  # of a feed-forward layer
    layers: int
    heads: int
    activation: str
    epsilon: float  # added to the variance by layer norms


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
    positions: int  # tokens of a text, padding included
    eos: int  # where CLIP pools; `families.clip.LARGEST_ID`: at the largest id
    pad: int  # if the tokenizer's files name none


@dataclass(frozen=True)
class TextConfig:
    """The configuration of a text encoder."""

    family: str  # a name of `families.FAMILIES`
    text: Text

    @property
    def max_tokens(self) -> int:
        """Return the largest number of tokens of a text, its marks included."""
        return self.text.positions


@dataclass(frozen=True)
class Config(TextConfig):
    """The configuration of an image-text encoder."""

    vision: Vision
    width: int  # of the joint space


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
"""Fields of a tower and their keys in `config.json`: positive integers, ids, and the rest."""


def read_json(path: Path) -> Mapping[str, Any]:
    """Read a JSON object.

    Raises:
      EncoderError: if the file holds something else.
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
    """Return an object of a `config.json` over its defaults; a missing one is empty.

    Raises:
      EncoderError: naming the file (`where`), if it is not an object.
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
    if section.get("num_channels", 3) != 3:
        raise EncoderError(f"{where}.num_channels is not 3")
    vision = Vision(**_read_tower(section, VISION_SIZES, where))
    if vision.grid < 1:
        raise EncoderError(f"{where}.patch_size is larger than image_size")
    return vision


def _read_tower(section: Mapping[str, Any], keys: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the checked fields of a `Tower` and further sizes, whose `keys` are given."""
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
    """Return a positive integer; of a list of equal ones (height and width), the first.

    Raises:
      EncoderError: naming the field (`where`), for any other value.
    """
    if isinstance(value, list) and len(set(map(repr, value))) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EncoderError(f"{where}: {value!r} is not a positive integer")
    return value


def _check_id(value: Any, where: str) -> int:
    """Return a token's id, and 0 for None."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EncoderError(f"{where}: {value!r} is not a token's id")
    return value
