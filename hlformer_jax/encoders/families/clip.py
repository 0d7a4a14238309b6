"""CLIP: a class position before the patches, causal attention over tokens, projections."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float, Int

from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import weights
from hlformer_jax.encoders.config import Config
from hlformer_jax.encoders.families.family import ImageTextFamily
from hlformer_jax.encoders.transformer import Params, linear, norm, patches, transformer
from hlformer_jax.encoders.weights import Leaf, Place
from hlformer_jax.typing import Array

LARGEST_ID = 2
"""The `eos_token_id` in OpenAI's files, which means that a text is pooled at its largest id."""

_LAYERS = {"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_VISION = {
    **_LAYERS,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}
_TEXT = {
    **_LAYERS,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
    "eos_token_id": 49407,
    "pad_token_id": 1,
}


class Clip(ImageTextFamily):
    """CLIP, from OpenAI or in the same layout."""

    name = "clip"
    is_causal = True
    image_settings = {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }

    def read_config(self, content: Mapping[str, Any], where: str) -> Config:
        """Read the content of a `config.json`."""
        text = configs.read_text(_section(content, "text", _TEXT, where), f"{where}: text_config")
        vision = configs.read_vision(
            _section(content, "vision", _VISION, where), f"{where}: vision_config"
        )
        width = configs.check_size(content.get("projection_dim", 512), f"{where}: projection_dim")
        return Config(self.name, text, vision, width)

    def leaves(self, config: Config) -> dict[Place, Leaf]:
        """Return every parameter by its path in the tree."""
        vision, text = config.vision, config.text
        return {
            **weights.image_leaves(vision, vision.grid**2 + 1, bias=False),
            ("vision", "class"): Leaf(
                ("vision_model.embeddings.class_embedding",), (vision.width,)
            ),
            # "layrnorm" is the name in the files.
            **weights.norm_leaves(("vision", "pre_norm"), "vision_model.pre_layrnorm", vision),
            **weights.linear_leaves(
                ("vision", "projection"),
                "visual_projection",
                (vision.width, config.width),
                bias=False,
            ),
            **weights.text_leaves(text),
            **weights.linear_leaves(
                ("text", "head"), "text_projection", (text.width, config.width), bias=False
            ),
            ("scale",): Leaf(("logit_scale",), (), weights.as_scalar),
        }

    def image_states(
        self, params: Params, config: Config, pixels: Float[Array, "V S S 3"]
    ) -> Float[Array, "V L I"]:
        """Return the states of the class position and the patches, before the last norm."""
        vision = config.vision
        x = linear(params["patch"], patches(pixels, vision))
        first = jnp.broadcast_to(params["class"], (len(x), 1, vision.width))
        x = jnp.concatenate([first, x], axis=1) + params["positions"][None]
        return transformer(params["layers"], norm(params["pre_norm"], x, vision.epsilon), vision)

    def pool_images(
        self, params: Params, config: Config, states: Float[Array, "V L I"]
    ) -> Float[Array, "V d"]:
        """Project the class position."""
        normal = norm(params["post_norm"], states[:, 0], config.vision.epsilon)
        return linear(params["projection"], normal)

    def pool_texts(
        self,
        params: Params,
        config: Config,
        states: Float[Array, "Q W I"],
        ids: Int[Array, "Q W"],
    ) -> Float[Array, "Q d"]:
        """Project the first end token, or the first of the largest ids (`LARGEST_ID`)."""
        eos = config.text.eos
        ranked = ids if eos == LARGEST_ID else (ids == eos).astype(jnp.int32)
        ends = jnp.argmax(ranked, axis=1)
        return linear(
            params["head"], jnp.take_along_axis(states, ends[:, None, None], axis=1)[:, 0]
        )


def _section(
    content: Mapping[str, Any], part: str, defaults: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return the section of a part of the encoder.

    Old files have a second section; its values, with defaults for missing keys, take precedence.
    """
    section = configs.merge_section(content, f"{part}_config", defaults, where)
    if content.get(f"{part}_config_dict") is None:
        return section
    return section | configs.merge_section(content, f"{part}_config_dict", defaults, where)
