"""The sizes and options of an encoder, from the `config.json` of a Hugging Face folder.

These files hold only what differs from defaults that stand nowhere in the folder, so the
defaults stand here. `text_config_dict` and `vision_config_dict`, which old CLIP files have beside
`text_config` and `vision_config`, override these, with the defaults filled in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hlformer_jax.errors import UserError
from hlformer_jax.text import suggestion


class EncoderError(UserError, ValueError):
    """A fault of an encoder's folder, name or input; its message says where and what to do."""


ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
"""Activations of the feed-forward layers that are known, by the names of `hidden_act`."""

MAX_ROBERTA_TOKENS = 30
"""Tokens of a sentence that a RoBERTa reads here, as of the released features of captions."""

LARGEST_ID = 2
"""The `eos_token_id` of OpenAI's files; it means: pool where the token's id is largest."""

_SHARED = {"num_hidden_layers": 12, "num_attention_heads": 12}
_SIGLIP = _SHARED | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_CLIP = _SHARED | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "clip": {
        "vision": _CLIP
        | {"hidden_size": 768, "intermediate_size": 3072, "image_size": 224, "patch_size": 32},
        "text": _CLIP
        | {
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "vocab_size": 49408,
            "max_position_embeddings": 77,
            "eos_token_id": 49407,
            "pad_token_id": 1,
        },
    },
    "siglip": {
        "vision": _SIGLIP | {"image_size": 224, "patch_size": 16},
        "text": _SIGLIP | {"vocab_size": 32000, "max_position_embeddings": 64, "pad_token_id": 1},
    },
}
_ROBERTA = _SHARED | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "vocab_size": 50265,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}


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
    """The sizes of an image encoder, in pixels; those beyond the last whole patch are not read."""

    image_size: int
    patch_size: int

    @property
    def grid(self) -> int:
        """Number of patches in a row."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class Text(Tower):
    """The sizes of a sentence encoder."""

    vocabulary: int
    positions: int  # tokens of a sentence, padding included
    eos: int  # where CLIP pools; `LARGEST_ID`: at the largest id
    pad: int  # where the tokenizer's files name none


@dataclass(frozen=True)
class TextConfig:
    """What an encoder of sentences is made of."""

    family: str  # "clip", "siglip" or "roberta"
    text: Text

    @property
    def max_tokens(self) -> int:
        """Tokens of a sentence at most, its marks included."""
        return self.text.positions


@dataclass(frozen=True)
class Config(TextConfig):
    """What an image-text encoder is made of; SigLIP2 is a "siglip" with another tokenizer."""

    vision: Vision
    width: int  # of the joint space


@dataclass(frozen=True)
class Roberta(TextConfig):
    """What a RoBERTa is made of; its `text.positions` are those of tokens, padding's left out."""

    segments: int  # kinds of segments; a sentence is of the first

    @property
    def max_tokens(self) -> int:
        """Tokens of a sentence at most, its marks included."""
        return min(self.text.positions, MAX_ROBERTA_TOKENS)


_SIZES = {
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
_VISION_SIZES = _SIZES | {name: name for name in ("image_size", "patch_size")}
_TEXT_SIZES = _SIZES | {"vocabulary": "vocab_size", "positions": "max_position_embeddings"}
_TEXT_IDS = {"eos": "eos_token_id", "pad": "pad_token_id"}
_OTHERS = {"activation": "hidden_act", "epsilon": "layer_norm_eps"}
"""Fields here and in the file: positive whole numbers, ids, and two that are neither."""


def read_json(path: Path) -> Mapping[str, Any]:
    """The object that a file holds; `EncoderError` when it holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{path}: no JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise EncoderError(f"{path}: no object; fetch it again")
    return content


def read(content: Mapping[str, Any], where: str) -> Config:
    """The configuration in a `config.json`, with defaults filled in; `where` is for errors.

    Raises:
      EncoderError: when it is not that of an image-text encoder, or a value makes no sense.
    """
    family = content.get("model_type")
    if family == "siglip2":
        raise EncoderError(
            f"{where}: a SigLIP2 of variable resolution (NaFlex), which is not read; use one of"
            " fixed resolution, such as google/siglip2-base-patch16-224"
        )
    if family not in _DEFAULTS:
        raise EncoderError(
            f"{where}: model_type is {family!r}, not that of an image-text encoder: 'clip' or"
            f" 'siglip' (or, of sentences alone, 'roberta'){suggestion(family, _DEFAULTS)}"
        )
    vision = _section(content, str(family), "vision", where)
    text = _section(content, str(family), "text", where)
    if vision.get("num_channels", 3) != 3:
        raise EncoderError(f"{where}: vision_config.num_channels is not 3")
    if vision.get("vision_use_head", True) is not True:
        raise EncoderError(f"{where}: vision_config.vision_use_head is false: no image embedding")
    width = (
        _whole(content.get("projection_dim", 512), f"{where}: projection_dim")
        if family == "clip"
        else _whole(text.get("projection_size") or text["hidden_size"], f"{where}: projection_size")
    )
    config = Config(
        str(family),
        _text(text, f"{where}: text_config"),
        Vision(**_tower(vision, _VISION_SIZES, f"{where}: vision_config")),
        width,
    )
    if config.vision.grid < 1:
        raise EncoderError(f"{where}: vision_config.patch_size is larger than image_size")
    if family == "siglip" and config.vision.width != width:
        raise EncoderError(
            f"{where}: images have {config.vision.width} coordinates and sentences {width}; a"
            " SigLIP's are the same"
        )
    return config


def read_text(content: Mapping[str, Any], where: str) -> TextConfig:
    """As `read`, also of a RoBERTa, which has no images."""
    if content.get("model_type") != "roberta":
        return read(content, where)
    section = _ROBERTA | dict(content)
    if section.get("position_embedding_type", "absolute") != "absolute" or section.get(
        "is_decoder", False
    ):
        raise EncoderError(f"{where}: a RoBERTa of relative positions, or a decoder, is not read")
    text = _text(section, where)
    segments = _whole(section["type_vocab_size"], f"{where}: type_vocab_size")
    # The table begins with padding: tokens are numbered from pad + 1.
    positions = _whole(text.positions - text.pad - 1, f"{where}: max_position_embeddings less pad")
    return Roberta("roberta", replace(text, positions=positions), segments)


def write(config: Config) -> dict[str, Any]:
    """The content of a SigLIP's `config.json`, for `read` and transformers, every field written."""
    text, vision = (
        {theirs: getattr(tower, name) for name, theirs in (names | _OTHERS).items()}
        for tower, names in (
            (config.text, _TEXT_SIZES | _TEXT_IDS),
            (config.vision, _VISION_SIZES),
        )
    )
    return {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        "text_config": {
            **text,
            "model_type": "siglip_text_model",
            "attention_dropout": 0.0,
            "projection_size": config.width,
        },
        "vision_config": {
            **vision,
            "model_type": "siglip_vision_model",
            "attention_dropout": 0.0,
            "num_channels": 3,
        },
    }


def _section(content: Mapping[str, Any], family: str, part: str, where: str) -> dict[str, Any]:
    """One encoder's section with the defaults filled in."""
    defaults = _DEFAULTS[family][part]
    section = dict(defaults)
    for name in (f"{part}_config", f"{part}_config_dict"):
        given = content.get(name)
        if given is None or (name.endswith("_dict") and family != "clip"):
            continue
        if not isinstance(given, Mapping):
            raise EncoderError(f"{where}: {name} is not an object")
        section |= (defaults if name.endswith("_dict") else {}) | dict(given)
    return section


def _text(section: Mapping[str, Any], where: str) -> Text:
    """The sizes and ids of a sentence encoder."""
    ids: dict[str, Any] = {
        name: _id(section.get(theirs), f"{where}.{theirs}") for name, theirs in _TEXT_IDS.items()
    }
    return Text(**_tower(section, _TEXT_SIZES, where), **ids)


def _tower(section: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    """The fields of a `Tower`, checked: whole numbers by their names, and the others."""
    sizes = {name: _whole(section[theirs], f"{where}.{theirs}") for name, theirs in names.items()}
    if sizes["width"] % sizes["heads"]:
        raise EncoderError(
            f"{where}: hidden_size {sizes['width']} is no multiple of {sizes['heads']} heads"
        )
    activation = section["hidden_act"]
    if activation not in ACTIVATIONS:
        raise EncoderError(
            f"{where}.hidden_act: {activation!r} is none of {', '.join(ACTIVATIONS)}"
            f"{suggestion(activation, ACTIVATIONS)}"
        )
    epsilon = section["layer_norm_eps"]
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise EncoderError(f"{where}.layer_norm_eps: {epsilon!r} is no number in [0, 1)")
    return sizes | {"activation": activation, "epsilon": float(epsilon)}


def _whole(value: Any, where: str) -> int:
    """A positive whole number, checked; of a list of equal ones, as of height and width, one."""
    if isinstance(value, list) and len(set(map(repr, value))) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EncoderError(f"{where}: {value!r} is no positive whole number")
    return value


def _id(value: Any, where: str) -> int:
    """The id of a token, checked; 0 where there is none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EncoderError(f"{where}: {value!r} is no token's id")
    return value
