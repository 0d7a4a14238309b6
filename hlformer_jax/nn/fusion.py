"""Fusion of a bank of blocks into one sequence, and pooling of a sequence into one vector.

`FUSIONS` holds the fusions by their names in `config.model.fusion`. Where one asks with a learned
token (`uses_token`), `make_token` adds it to the model, whose branches share it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.nn.blocks import BlockOptions, EuclideanBlock, SingleQueryAttention
from hlformer_jax.nn.layers import INITIALISER, Dense, Dropout
from hlformer_jax.ops.numerics import as_float, exact_precision
from hlformer_jax.typing import Array


class FusionInputs(NamedTuple):
    """What a fusion may ask of a bank: outputs and common input of its blocks, and more."""

    blocks: Float[Array, "K *batch L H"]
    inputs: Float[Array, "*batch L H"]
    mask: Bool[Array, "*batch L"] | None
    temperature: Float[Array, ""]  # tau, which divides the logits of the weights
    token: Float[Array, " H"] | None  # of a fusion with `uses_token`


class Fusion(nn.Module):
    """A module called with `FusionInputs` and whether dropout is on.

    The cross-attention of a fusion has the number of heads, dropout and dtype of ``options``.
    """

    options: BlockOptions

    uses_token: ClassVar[bool] = False

    @classmethod
    def make_token(cls, model: nn.Module, features: int) -> Float[Array, " H"] | None:
        """Adds the learned token to a model's parameters, where the fusion asks with one."""
        if not cls.uses_token:
            return None
        token: Array = model.param("weight_token", nn.initializers.normal(1.0), (features,))
        return token

    @property
    def cross_options(self) -> BlockOptions:
        return dataclasses.replace(self.options, expansion=1)


class MeanGuided(Fusion):
    """Weights of the blocks at every position, asked for by their mean: MAIM (HLFormer eq. 17).

    A shared cross-attention block lets the question look at each block in turn; a small network
    turns what it saw into one logit per position, which is why the number of positions is part of
    the parameters. The mean is over blocks and over all positions, padding included, as released.
    """

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        options, blocks = self.options, bank.blocks
        question = self.question(bank)
        # One block for all, but dropout of its own for each: a mask depends on the row of the
        # batch, and must not on the number of videos that the batch has room for.
        each: Any = {
            "variable_axes": {"params": None},
            "split_rngs": {"params": False, "dropout": True},
        }
        over: Any = nn.vmap(EuclideanBlock, in_axes=(None, 0, None, None, None), **each)
        cross = over(self.cross_options, SingleQueryAttention, name="cross")
        seen = cross(question, blocks, None, bank.mask, train)[..., 0, :]
        seen = nn.relu(Dense(blocks.shape[-1], options.dtype, name="layer1")(seen))
        seen = nn.vmap(Dropout, in_axes=0, **each)(options.dropout, train)(seen)
        logits = as_float(Dense(blocks.shape[-2], options.dtype, name="layer2")(seen))
        self.sow("intermediates", "logits", logits)
        weights = jax.nn.softmax(logits / bank.temperature, axis=0)
        self.sow("intermediates", "weights", weights)
        # A matrix product would have the blocks in another order, and copy them for it.
        weighted = weights.astype(blocks.dtype)[..., None] * blocks
        return jnp.sum(weighted, axis=0)

    @nn.nowrap
    def question(self, bank: FusionInputs) -> Float[Array, "*batch 1 H"]:
        return jnp.mean(bank.blocks, axis=(0, -2))[..., None, :]


class TemporalConsolidation(MeanGuided):
    """`MeanGuided` whose question is a learned token (GMMFormer v2 eqs. 1-3)."""

    uses_token: ClassVar[bool] = True

    @nn.nowrap
    def question(self, bank: FusionInputs) -> Float[Array, "*batch 1 H"]:
        return _token_of_each(bank)


class DynamicWeights(Fusion):
    """One weight per block and video: a learned token looks at the input of the blocks.

    GMMFormer v2 eq. 18; its network has the form of the temporal consolidation's.
    """

    uses_token: ClassVar[bool] = True

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        options, inputs = self.options, bank.inputs
        cross = EuclideanBlock(self.cross_options, SingleQueryAttention, name="cross")
        seen = cross(_token_of_each(bank), inputs, None, bank.mask, train)[..., 0, :]
        seen = nn.relu(Dense(inputs.shape[-1], options.dtype, name="layer1")(seen))
        seen = Dropout(options.dropout, train)(seen)
        logits = as_float(Dense(len(bank.blocks), options.dtype, name="layer2")(seen))
        weights = jax.nn.softmax(logits / bank.temperature, axis=-1)
        return jnp.einsum("...k,k...lh->...lh", weights.astype(bank.blocks.dtype), bank.blocks)


class BlockWeights(Fusion):
    """One learned weight per block, the same for all videos (GMMFormer v2 eq. 17)."""

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        logits = self.param("logits", nn.initializers.zeros, (len(bank.blocks),))
        weights = jax.nn.softmax(logits / bank.temperature)
        return jnp.einsum("k,k...lh->...lh", weights.astype(bank.blocks.dtype), bank.blocks)


class Mean(Fusion):
    """The mean of the blocks (GMMFormer)."""

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        return jnp.mean(bank.blocks, axis=0)


class Concatenation(Fusion):
    """Concatenation of the blocks' features and one linear layer."""

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        joined = jnp.moveaxis(bank.blocks, 0, -2)
        joined = joined.reshape(*joined.shape[:-2], -1)
        return Dense(bank.blocks.shape[-1], self.options.dtype, name="dense")(joined)


FUSIONS: Mapping[str, type[Fusion]] = {
    "maim": MeanGuided,
    "consolidation": TemporalConsolidation,
    "dynamic": DynamicWeights,
    "weighted": BlockWeights,
    "mean": Mean,
    "concat": Concatenation,
}


def _token_of_each(bank: FusionInputs) -> Float[Array, "*batch 1 H"]:
    """The token as a sequence of one position for every sequence."""
    if bank.token is None:
        raise ValueError("this fusion asks with a token, see Fusion.make_token: it got None")
    shape = (*bank.inputs.shape[:-2], 1, bank.inputs.shape[-1])
    return jnp.broadcast_to(bank.token.astype(bank.inputs.dtype), shape)


class AttentionPooling(nn.Module):
    """Weighted sum over positions with weights softmax(w . x); eq. 7 of HLFormer."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch L H"], mask: Bool[Array, "*batch L"] | None
    ) -> Float[Array, "*batch H"]:
        vector = self.param("kernel", INITIALISER, (x.shape[-1], 1))
        x = as_float(x)
        logits = jnp.matmul(x, vector, precision=exact_precision())[..., 0]
        if mask is not None:
            logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
        return jnp.einsum("...l,...lh->...h", jax.nn.softmax(logits, axis=-1), x)
