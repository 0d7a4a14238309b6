"""Aggregation of a bank of blocks into one sequence, and of a sequence into one vector."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.nn.blocks import EuclideanBlock
from hlformer_jax.nn.layers import INITIALISER, Dropout, dense
from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array

KINDS = ("maim", "consolidation", "dynamic", "weighted", "mean", "concat")

WITH_TOKEN = ("consolidation", "dynamic")
"""Those that ask with a learned token, one for the whole model."""


class PositionWeights(nn.Module):
    """Weights of the blocks at every position, asked for by a token: MAIM, temporal consolidation.

    A shared cross-attention block lets the token look at each block in turn; a small network
    turns what it saw into one logit per position, which is why the number of positions is part of
    the parameters. Without a token (HLFormer's MAIM) it is the mean over blocks and over all
    positions, padding included, as released; GMMFormer v2's is learned.

    Attributes:
      temperature: tau, divides the logits.

    References:
      HLFormer eq. 17; GMMFormer v2 eq. 1-3.
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
        token: Float[Array, " H"] | None = None,
    ) -> Float[Array, "*batch L H"]:
        length = blocks.shape[-2]
        mean = jnp.mean(blocks, axis=(0, -2))[..., None, :]
        asking = mean if token is None else _everywhere(token, blocks[0])
        # One block for all, but dropout of its own for each: a mask depends on the place in the
        # batch, and must not on the number of videos that the batch has room for.
        each: Any = {
            "variable_axes": {"params": None},
            "split_rngs": {"params": False, "dropout": True},
        }
        over: Any = nn.vmap(EuclideanBlock, in_axes=(None, 0, None, None, None), **each)
        cross = over(self.num_heads, self.dropout, 1, self.dtype, name="cross")
        seen = cross(asking, blocks, None, mask, train)[..., 0, :]
        seen = nn.relu(dense(blocks.shape[-1], "layer1", self.dtype)(seen))
        seen = nn.vmap(Dropout, in_axes=0, **each)(self.dropout, train)(seen)
        logits = as_float(dense(length, "layer2", self.dtype)(seen))
        self.sow("intermediates", "logits", logits)
        weights = jax.nn.softmax(logits / self.temperature, axis=0)
        self.sow("intermediates", "weights", weights)
        return jnp.einsum("k...l,k...lh->...lh", weights.astype(blocks.dtype), blocks)


class DynamicWeights(nn.Module):
    """One weight per block and video: a learned token looks at the input of the blocks.

    Attributes:
      temperature: tau, divides the logits.

    References:
      GMMFormer v2 eq. 18; its network has the form of the temporal consolidation's.
    """

    num_heads: int
    temperature: float
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        blocks: Float[Array, "K *batch L H"],
        inputs: Float[Array, "*batch L H"],
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        token: Float[Array, " H"],
    ) -> Float[Array, "*batch L H"]:
        cross = EuclideanBlock(self.num_heads, self.dropout, 1, self.dtype, name="cross")
        seen = cross(_everywhere(token, inputs), inputs, None, mask, train)[..., 0, :]
        seen = nn.relu(dense(inputs.shape[-1], "layer1", self.dtype)(seen))
        seen = Dropout(self.dropout, train)(seen)
        logits = as_float(dense(len(blocks), "layer2", self.dtype)(seen))
        weights = jax.nn.softmax(logits / self.temperature, axis=-1)
        return jnp.einsum("...k,k...lh->...lh", weights.astype(blocks.dtype), blocks)


class BlockWeights(nn.Module):
    """One learned weight per block, the same for all videos.

    Attributes:
      temperature: tau, divides the logits.

    References:
      GMMFormer v2 eq. 17.
    """

    temperature: float

    @nn.compact
    def __call__(self, blocks: Float[Array, "K *batch L H"]) -> Float[Array, "*batch L H"]:
        logits = self.param("logits", nn.initializers.zeros, (len(blocks),))
        weights = jax.nn.softmax(logits / self.temperature)
        return jnp.einsum("k,k...lh->...lh", weights.astype(blocks.dtype), blocks)


class Concatenation(nn.Module):
    """Concatenation of the blocks' features and one linear layer."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, blocks: Float[Array, "K *batch L H"]) -> Float[Array, "*batch L H"]:
        joined = jnp.moveaxis(blocks, 0, -2)
        joined = joined.reshape(*joined.shape[:-2], -1)
        return dense(blocks.shape[-1], "dense", self.dtype)(joined)


class Fusion(NamedTuple):
    """How a bank's blocks become one sequence.

    Attributes:
      kind: one of `KINDS`; "mean" is GMMFormer's plain mean of the blocks.
      num_heads: of the cross-attention, where there is one.
      temperature: tau of the weights, where there are weights.
      dropout: rate.
      dtype: compute dtype.
    """

    kind: str
    num_heads: int
    temperature: float
    dropout: float
    dtype: Any = jnp.float32

    def __call__(
        self,
        name: str,
        blocks: Float[Array, "K *batch L H"],
        inputs: Float[Array, "*batch L H"],
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        token: Float[Array, " H"] | None,
    ) -> Float[Array, "*batch L H"]:
        """Aggregates, inside of a module that adopts the parameters.

        Args:
          name: of the module that holds the parameters.
          blocks: outputs of the blocks.
          inputs: their common input.
          mask: True for real positions.
          train: whether dropout is on.
          token: the learned token, for kinds in `WITH_TOKEN`.

        Returns:
          One sequence.

        Raises:
          ValueError: for an unknown kind, or one in `WITH_TOKEN` without the token.
        """
        asking = self.num_heads, self.temperature, self.dropout, self.dtype
        match self.kind:
            case "mean":
                return jnp.mean(blocks, axis=0)
            case "concat":
                return Concatenation(self.dtype, name=name)(blocks)
            case "weighted":
                return BlockWeights(self.temperature, name=name)(blocks)
            case "dynamic" if token is not None:
                return DynamicWeights(*asking, name=name)(blocks, inputs, mask, train, token)
            case "consolidation" if token is not None:
                return PositionWeights(*asking, name=name)(blocks, mask, train, token)
            case "maim":
                return PositionWeights(*asking, name=name)(blocks, mask, train)
        lacks = "needs a token" if self.kind in WITH_TOKEN else "is unknown"
        raise ValueError(f"fusion {self.kind!r} {lacks}: use {', '.join(KINDS)}")


def _everywhere(token: Float[Array, " H"], like: Float[Array, "*batch L H"]) -> Array:
    """The token as a sequence of one position in every row of the batch."""
    return jnp.broadcast_to(token.astype(like.dtype), (*like.shape[:-2], 1, like.shape[-1]))


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
