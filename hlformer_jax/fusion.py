"""Aggregation of a bank of blocks into one sequence, and of a sequence into one vector."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.blocks import EuclideanBlock
from hlformer_jax.layers import INITIALISER, Dropout, dense
from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array

KINDS = ("maim", "mean", "concat")


class MeanGuidedFusion(nn.Module):
    """MAIM: weights of the blocks at every position, asked for by the mean of all of them.

    The mean runs over blocks and over all positions, padding included, as released. One shared
    cross-attention block lets it look at each block in turn; a small network turns what it saw
    into one logit per position, which is why the number of positions is part of the parameters.

    Attributes:
      temperature: tau, divides the logits.
    """

    num_heads: int
    temperature: float
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        blocks: Float[Array, "K *batch L H"],
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch L H"]:
        features, length = blocks.shape[-1], blocks.shape[-2]
        token = jnp.mean(blocks, axis=(0, -2))[..., None, :]
        # One block for all, but dropout of its own for each: a mask depends on the place in the
        # batch, and must not on the number of videos that the batch has room for.
        each: Any = {
            "variable_axes": {"params": None},
            "split_rngs": {"params": False, "dropout": True},
        }
        over: Any = nn.vmap(EuclideanBlock, in_axes=(None, 0, None, None, None), **each)
        cross = over(self.num_heads, self.dropout, 1, self.dtype, name="cross")
        seen = cross(token, blocks, None, mask, train)[..., 0, :]
        seen = nn.relu(dense(features, "layer1", self.dtype)(seen))
        seen = nn.vmap(Dropout, in_axes=0, **each)(self.dropout, train)(seen)
        logits = dense(length, "layer2", self.dtype)(seen)
        logits = as_float(logits)
        self.sow("intermediates", "logits", logits)
        weights = jax.nn.softmax(logits / self.temperature, axis=0)
        self.sow("intermediates", "weights", weights)
        return jnp.einsum("k...l,k...lh->...lh", weights.astype(blocks.dtype), blocks)


class MeanFusion(nn.Module):
    """The plain mean of the blocks."""

    @nn.compact
    def __call__(
        self,
        blocks: Float[Array, "K *batch L H"],
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch L H"]:
        return jnp.mean(blocks, axis=0)


class ConcatFusion(nn.Module):
    """Concatenation of the blocks' features and one linear layer."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        blocks: Float[Array, "K *batch L H"],
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch L H"]:
        features = blocks.shape[-1]
        joined = jnp.moveaxis(blocks, 0, -2)
        return dense(features, "dense", self.dtype)(joined.reshape(*joined.shape[:-2], -1))


def build(kind: str, num_heads: int, temperature: float, dropout: float, dtype: Any) -> nn.Module:
    """Returns the fusion of that kind, one of `KINDS`, for a parent module to adopt."""
    if kind == "maim":
        return MeanGuidedFusion(num_heads, temperature, dropout, dtype, parent=None)
    return MeanFusion(parent=None) if kind == "mean" else ConcatFusion(dtype, parent=None)


class AttentionPooling(nn.Module):
    """Weighted sum over positions with weights softmax(w . x); eq. 7 of HLFormer."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch L H"], mask: Bool[Array, "*batch L"] | None
    ) -> Float[Array, "*batch H"]:
        vector = self.param("kernel", INITIALISER, (x.shape[-1], 1))
        x = as_float(x)
        logits = (x @ vector)[..., 0]
        if mask is not None:
            logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
        return jnp.einsum("...l,...lh->...h", jax.nn.softmax(logits, axis=-1), x)
