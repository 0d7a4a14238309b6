"""Frames and words of nodes to one feature each, not yet normalised.

The feature of a node's frames is their mean after a recurrent layer with a residual, each frame a
unit vector (CLIP4Clip's "seqLSTM"); that of its text is its sentence vector, or that of its words.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.models.hover.options import HoverOptions
from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.blocks import BlockOptions
from hlformer_jax.nn.fusion import AttentionPooling
from hlformer_jax.nn.recurrent import LSTM
from hlformer_jax.ops.numerics import as_float, unit
from hlformer_jax.typing import Array


def masked_mean(
    x: Float[Array, "*batch L H"], mask: Bool[Array, "*batch L"]
) -> Float[Array, "*batch H"]:
    """Mean over real positions; 0 where there is none."""
    count = jnp.maximum(jnp.sum(mask, axis=-1, dtype=x.dtype), 1)
    kept = jnp.where(mask[..., None], x, jnp.zeros((), x.dtype))
    return jnp.sum(kept, axis=-2) / count[..., None]


def _dense(options: HoverOptions, name: str) -> nn.Dense:
    """A linear layer that keeps lengths, about, so that they outweigh the LSTM's at the start."""
    return nn.Dense(options.hidden_size, dtype=options.dtype, name=name)


class VideoEncoder(nn.Module):
    """Linear where D is not H, LSTM with a residual, unit frames, their mean.

    Attributes:
      options: options of the model.
    """

    options: HoverOptions

    @nn.compact
    def __call__(
        self, frames: Float[Array, "U F D"], mask: Bool[Array, "U F"]
    ) -> Float[Array, "U H"]:
        options = self.options
        x = frames.astype(options.dtype)
        if x.shape[-1] != options.hidden_size:
            x = _dense(options, "input")(x)
        x = as_float(x)
        x = x + LSTM(options.hidden_size, name="recurrent")(x, mask)
        return masked_mean(unit(x), mask)


class TextEncoder(nn.Module):
    """Sentence vectors as they are, or words by their mean or by attention.

    Attributes:
      options: options of the model.
    """

    options: HoverOptions

    @nn.compact
    def __call__(
        self, words: Float[Array, "U W E"], mask: Bool[Array, "U W"]
    ) -> Float[Array, "U H"]:
        options = self.options
        x, size = words.astype(options.dtype), options.hidden_size
        if options.text_encoder == "given":
            x = masked_mean(as_float(x), mask)
            if x.shape[-1] == size:
                return x
            return as_float(_dense(options, "input")(x.astype(options.dtype)))
        x = layers.InputProjection(size, 0.0, options.dtype, name="input")(x, False)
        if options.text_encoder == "mean":
            return masked_mean(as_float(x), mask)
        x = layers.PositionEmbedding(options.max_words, 0.0, options.dtype, name="position")(
            x, False
        )
        block = BlockOptions(num_heads=options.num_heads, dropout=0.0, dtype=options.dtype)
        x = blocks.EuclideanBlock(block, name="block")(x, x, None, mask, False)
        return AttentionPooling(name="pooling")(x, mask)
