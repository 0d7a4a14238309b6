"""SigLIP and SigLIP2: attention pooling of patches, texts padded to a fixed length."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import weights
from hlformer_jax.encoders.config import Config, EncoderError
from hlformer_jax.encoders.families.family import ImageTextFamily
from hlformer_jax.encoders.tokenizer import Tokenizer
from hlformer_jax.encoders.transformer import (
    Params,
    attend,
    feed_forward,
    linear,
    norm,
    patches,
    transformer,
)
from hlformer_jax.encoders.weights import Leaf, Place
from hlformer_jax.typing import Array

_TOWER = {
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_VISION = {**_TOWER, "image_size": 224, "patch_size": 16}
_TEXT = {**_TOWER, "vocab_size": 32000, "max_position_embeddings": 64, "pad_token_id": 1}


class Siglip(ImageTextFamily):
    """SigLIP, and SigLIP2 of fixed resolution, which differs only in its tokenizer."""

    name = "siglip"
    needs_tokenizer_settings = True  # without them, texts would keep their capitals
    image_settings = {
        "size": {"height": 224, "width": 224},
        "do_center_crop": False,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }

    def kind(self, tokenizer: Tokenizer) -> str:
        """Return "siglip2" for a Gemma tokenizer, else "siglip"."""
        return "siglip2" if tokenizer.is_gemma else self.name

    def read_config(self, content: Mapping[str, Any], where: str) -> Config:
        """Read the content of a `config.json`."""
        section = configs.merge_section(content, "text_config", _TEXT, where)
        images_section = configs.merge_section(content, "vision_config", _VISION, where)
        if images_section.get("vision_use_head", True) is not True:
            raise EncoderError(
                f"{where}: vision_config.vision_use_head is false: no image embedding"
            )
        text = configs.read_text(section, f"{where}: text_config")
        vision = configs.read_vision(images_section, f"{where}: vision_config")
        width = configs.check_size(
            section.get("projection_size") or section["hidden_size"], f"{where}: projection_size"
        )
        if vision.width != width:
            raise EncoderError(
                f"{where}: images have {vision.width} coordinates and texts {width}; a SigLIP has"
                " the same number for both"
            )
        return Config(self.name, text, vision, width)

    def leaves(self, config: Config) -> dict[Place, Leaf]:
        """Return every parameter by its path in the tree."""
        vision, text = config.vision, config.text
        return {
            **weights.image_leaves(vision, vision.grid**2, bias=True),
            **weights.pooling_leaves(("vision", "pool"), "vision_model.head", vision),
            **weights.text_leaves(text),
            **weights.linear_leaves(
                ("text", "head"), "text_model.head", (text.width, config.width)
            ),
            ("scale",): Leaf(("logit_scale",), (1,), weights.as_scalar),
            ("bias",): Leaf(("logit_bias",), (1,), weights.as_scalar),
        }

    def image_states(
        self, params: Params, config: Config, pixels: Float[Array, "V S S 3"]
    ) -> Float[Array, "V L I"]:
        """Return the states of the patches, after the last norm."""
        vision = config.vision
        x = linear(params["patch"], patches(pixels, vision))
        x = transformer(params["layers"], x + params["positions"][None], vision)
        return norm(params["post_norm"], x, vision.epsilon)

    def pool_images(
        self, params: Params, config: Config, states: Float[Array, "V L I"]
    ) -> Float[Array, "V d"]:
        """Let a learned query attend to all patches."""
        vision, head = config.vision, params["pool"]

        def split(index: int) -> Params:
            # One kernel holds query, key and value, as in PyTorch's attention layer.
            columns = slice(index * vision.width, (index + 1) * vision.width)
            return {name: value[..., columns] for name, value in head["in"].items()}

        query = jnp.broadcast_to(head["probe"], (len(states), 1, vision.width))
        attended = attend(
            linear(split(0), query),
            linear(split(1), states),
            linear(split(2), states),
            vision.heads,
            head["in"]["kernel"].dtype,
        )
        x = linear(head["out"], attended)[:, 0]
        return x + feed_forward(head, norm(head["norm"], x, vision.epsilon), vision)

    def pool_texts(
        self,
        params: Params,
        config: Config,
        states: Float[Array, "Q W I"],
        ids: Int[Array, "Q W"],
    ) -> Float[Array, "Q d"]:
        """Project the last position, which is padding except in the longest texts."""
        return linear(params["head"], states[:, -1])

    def probability(self, cosines: Any, scale: float, bias: float) -> Any:
        """Return the sigmoid of scale · cosine + bias, as in the trained loss."""
        # Computed by tanh, which does not overflow.
        return 0.5 * (1 + np.tanh((scale * np.asarray(cosines) + bias) / 2))

    def write_config(self, config: Config) -> dict[str, Any]:
        """Return the content of a `config.json` with every field, which transformers can read."""
        text_keys = configs.TEXT_SIZES | configs.TEXT_IDS
        return {
            "architectures": ["SiglipModel"],
            "model_type": self.name,
            "text_config": {
                **_write_tower(config.text, text_keys),
                "model_type": "siglip_text_model",
                "attention_dropout": 0.0,
                "projection_size": config.width,
            },
            "vision_config": {
                **_write_tower(config.vision, configs.VISION_SIZES),
                "model_type": "siglip_vision_model",
                "attention_dropout": 0.0,
                "num_channels": 3,
            },
        }


def _write_tower(tower: configs.Tower, keys: Mapping[str, str]) -> dict[str, Any]:
    keys = {**keys, **configs.ACTIVATION_AND_EPSILON}
    return {key: getattr(tower, name) for name, key in keys.items()}
