"""The sizes and options of an encoder, from the `config.json` of a Hugging Face folder.

Both kinds of files hold only what differs from defaults that stand nowhere in the folder, so the
defaults stand here. `text_config_dict` and `vision_config_dict`, which old CLIP files have beside
`text_config` and `vision_config`, override these, with the defaults filled in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlformer_jax.errors import UserError, suggestion


class EncoderError(UserError, ValueError):
    """A fault of an encoder's folder, name or input; its message says where and what to do."""


ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
"""Activations of the feed-forward layers that are known, by the names of `hidden_act`."""

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


@dataclass(frozen=True)
class Tower:
    """The sizes of one transformer.

    Attributes:
      width: coordinates of a position.
      hidden: coordinates of a feed-forward layer.
      layers: number of layers.
      heads: number of attention heads.
      activation: one of `ACTIVATIONS`.
      epsilon: what layer norms add to the variance.
    """

    width: int
    hidden: int
    layers: int
    heads: int
    activation: str
    epsilon: float


@dataclass(frozen=True)
class Vision(Tower):
    """The sizes of an image encoder.

    Attributes:
      image_size: height and width of an image, in pixels.
      patch_size: height and width of a patch; pixels beyond the last whole patch are not read.
    """

    image_size: int
    patch_size: int

    @property
    def grid(self) -> int:
        """Number of patches in a row."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class Text(Tower):
    """The sizes of a sentence encoder.

    Attributes:
      vocabulary: number of tokens that there are.
      positions: number of tokens of a sentence, padding included.
      eos: id of the token that CLIP pools at; `LARGEST_ID`: the largest one; of SigLIP unused.
      pad: id that pads where the tokenizer's files name none.
    """

    vocabulary: int
    positions: int
    eos: int
    pad: int


@dataclass(frozen=True)
class Config:
    """What an encoder is made of.

    Attributes:
      family: "clip" or "siglip"; SigLIP2 of fixed resolution is a "siglip" with another tokenizer.
      vision: the image encoder.
      text: the sentence encoder.
      width: coordinates of the joint space.
    """

    family: str
    vision: Vision
    text: Text
    width: int


def read_json(path: Path) -> Mapping[str, Any]:
    """The object that a file holds.

    Raises:
      EncoderError: when it holds no JSON, or no object.
      OSError: when it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{path}: no JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise EncoderError(f"{path}: no object; fetch it again")
    return content


def read(content: Mapping[str, Any], where: str) -> Config:
    """The configuration in the content of a `config.json`, with defaults filled in.

    Args:
      content: the parsed file.
      where: the file's name, for errors.

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
            f" 'siglip'{suggestion(family, _DEFAULTS)}"
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
        Vision(
            **_tower(vision, f"{where}: vision_config"),
            image_size=_whole(vision["image_size"], f"{where}: vision_config.image_size"),
            patch_size=_whole(vision["patch_size"], f"{where}: vision_config.patch_size"),
        ),
        Text(
            **_tower(text, f"{where}: text_config"),
            vocabulary=_whole(text["vocab_size"], f"{where}: text_config.vocab_size"),
            positions=_whole(
                text["max_position_embeddings"], f"{where}: text_config.max_position_embeddings"
            ),
            eos=_id(text.get("eos_token_id"), f"{where}: text_config.eos_token_id"),
            pad=_id(text.get("pad_token_id"), f"{where}: text_config.pad_token_id"),
        ),
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


def write(config: Config) -> dict[str, Any]:
    """The content of a `config.json`, every field written out.

    Args:
      config: the configuration.

    Returns:
      What `read` reads back, and transformers.
    """
    shared = lambda tower: {
        "hidden_size": tower.width,
        "intermediate_size": tower.hidden,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads,
        "hidden_act": tower.activation,
        "layer_norm_eps": tower.epsilon,
        "attention_dropout": 0.0,
    }
    clip = config.family == "clip"
    return {
        "architectures": ["CLIPModel" if clip else "SiglipModel"],
        "model_type": config.family,
        **({"projection_dim": config.width} if clip else {}),
        "text_config": shared(config.text)
        | {
            "model_type": f"{config.family}_text_model",
            "vocab_size": config.text.vocabulary,
            "max_position_embeddings": config.text.positions,
            "eos_token_id": config.text.eos,
            "pad_token_id": config.text.pad,
            **({"projection_dim": config.width} if clip else {"projection_size": config.width}),
        },
        "vision_config": shared(config.vision)
        | {
            "model_type": f"{config.family}_vision_model",
            "num_channels": 3,
            "image_size": config.vision.image_size,
            "patch_size": config.vision.patch_size,
            **({"projection_dim": config.width} if clip else {}),
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


def _tower(section: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a `Tower`, checked."""
    width = _whole(section["hidden_size"], f"{where}.hidden_size")
    heads = _whole(section["num_attention_heads"], f"{where}.num_attention_heads")
    if width % heads:
        raise EncoderError(f"{where}: hidden_size {width} is no multiple of {heads} heads")
    activation = section["hidden_act"]
    if activation not in ACTIVATIONS:
        raise EncoderError(
            f"{where}.hidden_act: {activation!r} is none of {', '.join(ACTIVATIONS)}"
            f"{suggestion(activation, ACTIVATIONS)}"
        )
    epsilon = section["layer_norm_eps"]
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise EncoderError(f"{where}.layer_norm_eps: {epsilon!r} is no number in [0, 1)")
    return {
        "width": width,
        "hidden": _whole(section["intermediate_size"], f"{where}.intermediate_size"),
        "layers": _whole(section["num_hidden_layers"], f"{where}.num_hidden_layers"),
        "heads": heads,
        "activation": activation,
        "epsilon": float(epsilon),
    }


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
