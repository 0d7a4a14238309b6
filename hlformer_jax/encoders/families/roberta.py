"""RoBERTa, for the features of texts' tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import weights
from hlformer_jax.encoders.config import EncoderError, TextConfig
from hlformer_jax.encoders.families.family import TextFamily
from hlformer_jax.encoders.transformer import Params, norm, transformer
from hlformer_jax.encoders.weights import Leaf, Place
from hlformer_jax.typing import Array

MAX_TOKENS = 30
"""Largest number of tokens of a text, as in the released features of captions."""

_DEFAULTS = {
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "vocab_size": 50265,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}
_LAYER = {
    "norm1": "attention.output.LayerNorm",
    "norm2": "output.LayerNorm",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
}


@dataclass(frozen=True)
class RobertaConfig(TextConfig):
    """The configuration of a RoBERTa; `text.positions` does not count positions of padding."""

    segments: int  # number of segment types; all tokens are of the first type

    @property
    def max_tokens(self) -> int:
        """Return the largest number of tokens of a text, including special tokens."""
        return min(self.text.positions, MAX_TOKENS)


class Roberta(TextFamily):
    """RoBERTa with absolute positions."""

    name = "roberta"
    prefix = "roberta."
    unread = ("lm_head.", "pooler.", "roberta.pooler.")

    def read_config(self, content: Mapping[str, Any], where: str) -> RobertaConfig:
        """Read the content of a `config.json`."""
        section = {**_DEFAULTS, **content}
        is_relative = section.get("position_embedding_type", "absolute") != "absolute"
        if is_relative or section.get("is_decoder", False):
            raise EncoderError(
                f"{where}: a RoBERTa with relative positions, or a decoder, is not supported"
            )
        text = configs.read_text(section, where)
        segments = configs.check_size(section["type_vocab_size"], f"{where}: type_vocab_size")
        # The table of positions begins with padding; positions of tokens begin at pad + 1.
        positions = configs.check_size(
            text.positions - text.pad - 1, f"{where}: max_position_embeddings less pad"
        )
        return RobertaConfig(self.name, replace(text, positions=positions), segments)

    def leaves(self, config: RobertaConfig) -> dict[Place, Leaf]:
        """Return every parameter by its path in the tree."""
        text, stem = config.text, f"{self.prefix}embeddings"
        rows = {
            "tokens": ("word", text.vocabulary),
            "positions": ("position", text.pad + 1 + text.positions),
            "segments": ("token_type", config.segments),
        }
        tables: dict[Place, Leaf] = {
            ("text", table): Leaf(
                (f"{stem}.{name}_embeddings.weight",),
                (count, text.width),
                is_matrix=table == "tokens",
            )
            for table, (name, count) in rows.items()
        }
        return {
            **tables,
            **weights.norm_leaves(("text", "first_norm"), f"{stem}.LayerNorm", text),
            **weights.layer_leaves(("text", "layers"), f"{self.prefix}encoder.layer", text, _LAYER),
        }

    def token_states(
        self,
        params: Params,
        config: RobertaConfig,
        ids: Int[Array, "Q W"],
        real: Bool[Array, "Q W"] | None = None,
    ) -> Float[Array, "Q W I"]:
        """Return the last hidden states; those of padding have no meaning.

        Tokens attend to `real` tokens. The positions of ids that are not padding begin at pad + 1.
        """
        text = config.text
        is_token = ids != text.pad
        real = is_token if real is None else real
        positions = jnp.where(is_token, jnp.cumsum(is_token, axis=1), 0) + text.pad
        x = params["tokens"][ids].astype(jnp.float32)
        x = x + params["segments"][None, :1] + params["positions"][positions]
        x = norm(params["first_norm"], x, text.epsilon)
        return transformer(params["layers"], x, text, real[:, None], post_norm=True)
