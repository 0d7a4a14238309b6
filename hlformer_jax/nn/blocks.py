"""Attention blocks of both geometries, and a bank of them over one input.

Dense layers compute in `dtype`; softmax and geometry in float32 whatever it is.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.nn.layers import (
    INITIALISER,
    Dense,
    Dropout,
    FeedForward,
    InputProjection,
    LayerNorm,
)
from hlformer_jax.ops import attention, lorentz
from hlformer_jax.ops.attention import attention_windows, log_attention_windows
from hlformer_jax.ops.numerics import as_float, limit_norm
from hlformer_jax.typing import Array

LORENTZ_WINDOWS: Mapping[str, Callable[[Array], dict[str, Array]]] = {
    "released": lambda log_window: {"window": jnp.exp(log_window)},
    "corrected": lambda log_window: {"log_window": log_window},
}
"""How Lorentz attention takes a window, given its logarithm: as factor of the logits or added."""

HEAD_MERGES: Mapping[str, Callable[[Array], Array]] = {
    "released": attention.concatenate_heads_released,
    "hyperboloid": attention.merge_heads_on_hyperboloid,
}
"""How the heads' centroids become one vector: put side by side, or merged on a hyperboloid."""

MAX_TANGENT_NORM = 10.0
"""Norm to which the released exponential map of the attention limits its argument."""


@dataclasses.dataclass(frozen=True)
class BlockOptions:
    """Options that blocks of both geometries share."""

    num_heads: int
    dropout: float
    # Width of the feed-forward network over H; 0: one linear layer instead (see `_post_norm`).
    expansion: int = 4
    dtype: Any = jnp.float32


@dataclasses.dataclass(frozen=True)
class LorentzOptions:
    """Options of the Lorentz attention."""

    dim: int  # n; points have n + 1 coordinates, divisible by the number of heads
    window: str  # a key of `LORENTZ_WINDOWS`
    head_merge: str  # a key of `HEAD_MERGES`


class EuclideanAttention(nn.Module):
    """Multi-head attention without an output projection (as released)."""

    options: BlockOptions

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "*batch M H"],
        key_value: Float[Array, "*batch L H"],
        window: Float[Array, "M L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch M H"]:
        options, features = self.options, query.shape[-1]
        dropout_key = self.make_rng("dropout") if train and options.dropout > 0 else None
        project = lambda name, x: _split_heads(
            Dense(features, options.dtype, name=name)(x), options.num_heads
        )
        query, key = project("query", query), project("key", key_value)
        attended = attention.euclidean_attention(
            query, key, project("value", key_value), window, mask, dropout_key, options.dropout
        )
        attended = jnp.moveaxis(attended, -3, -2)
        return attended.reshape(*attended.shape[:-2], features)


class SingleQueryAttention(nn.Module):
    """`EuclideanAttention` of one query, which projects the query in place of keys and values.

    The parameters are the same; the results are equal up to rounding, for 1 / L of the arithmetic.
    """

    options: BlockOptions

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "*batch 1 H"],
        key_value: Float[Array, "*batch L H"],
        window: None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch 1 H"]:
        options, features = self.options, query.shape[-1]
        dropout_key = self.make_rng("dropout") if train and options.dropout > 0 else None
        heads = _split_heads(Dense(features, options.dtype, name="query")(query), options.num_heads)
        key, value = (
            HeadProjection(options.num_heads, options.dtype, name=name)(features)
            for name in ("key", "value")
        )
        attended = attention.single_query_attention(
            heads[..., 0, :], key_value, key, value, mask, dropout_key, options.dropout
        )
        return attended.reshape(*attended.shape[:-2], 1, features)


class HeadProjection(nn.Module):
    """The parameters of `dense`, by the same names, as the linear map of a head."""

    num_heads: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: int) -> attention.Projection:
        kernel = self.param("kernel", INITIALISER, (features, features))
        bias = self.param("bias", nn.initializers.zeros, (features,))
        shape = (self.num_heads, features // self.num_heads)
        return attention.Projection(
            kernel.reshape(features, *shape).astype(self.dtype),
            bias.reshape(shape).astype(self.dtype),
        )


class EuclideanBlock(nn.Module):
    """Post-norm transformer block; cross-attention when ``key_value`` differs from ``x``.

    Where M is 1, ``attention`` is `SingleQueryAttention`.
    """

    options: BlockOptions
    attention: type[nn.Module] = EuclideanAttention

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch M H"],
        key_value: Float[Array, "*batch L H"],
        window: Float[Array, "M L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch M H"]:
        attend: Any = self.attention(self.options, name="attention")
        return _post_norm(self.options, x, attend(x, key_value, window, mask, train), train)


class LorentzLinear(nn.Module):
    """Linear map of a point into one point per head.

    z = W x per head, then time = sigmoid(z_0) exp(s) + 1.1 and space = z_1.. rescaled so that the
    result lies on the hyperboloid. Where no space is left to rescale (dropout may remove the whole
    input) the result is the origin, with gradient zero, and not 0 / 0.
    """

    num_heads: int
    dropout: float

    @nn.compact
    def __call__(
        self, point: Float[Array, "*batch L n"], train: bool
    ) -> Float[Array, "*batch N L d"]:
        scale = self.param("scale", nn.initializers.constant(2.3), ())
        point = Dropout(self.dropout, train)(point)
        linear = nn.Dense(
            point.shape[-1],
            use_bias=False,
            precision=jax.lax.Precision.HIGHEST,
            kernel_init=INITIALISER,
            name="dense",
        )
        z = _split_heads(linear(point), self.num_heads)
        return lorentz.from_linear(z, scale)


class LorentzAttention(nn.Module):
    """Lorentz self-attention between two Euclidean projections (HLFormer eq. 11-16).

    The dense projections compute in `dtype`, everything between them in float32.

    With a curvature -c the points before the Lorentz linear layers lie on the hyperboloid of that
    curvature and the logits are its squared distances. Queries, keys, values and centroids are kept
    times sqrt(c), on the unit hyperboloid, on which time and radius of every curvature look alike.
    """

    options: BlockOptions
    lorentz: LorentzOptions

    BOUNDS: ClassVar[Mapping[str, tuple[float, float]]] = {"scale_alpha": (-math.inf, 0.0)}
    """What its parameters are clamped to after every step, as released before each forward."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        log_window: Float[Array, "L L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
    ) -> Float[Array, "*batch L H"]:
        options, dim = self.options, self.lorentz.dim
        log_beta = self.param("scale_alpha", nn.initializers.constant(-0.5 * math.log(dim)), ())
        scale = self.param("scale", nn.initializers.constant(math.sqrt(dim + 1)), ())
        bias = self.param("bias", nn.initializers.zeros, ())
        project = InputProjection(dim, options.dropout, options.dtype, name="input_proj")
        tangent = project(x, train)
        beta = jnp.exp(log_beta)
        root = jnp.sqrt(c)
        tangent = limit_norm(as_float(tangent) * beta, MAX_TANGENT_NORM / root)
        point = lorentz.exp_map0(tangent, c)
        linear = lambda name: LorentzLinear(options.num_heads, options.dropout, name=name)(
            point, train
        )
        merge = HEAD_MERGES[self.lorentz.head_merge]
        use = LORENTZ_WINDOWS[self.lorentz.window]
        centroids = attention.lorentz_attention(
            linear("query"),
            linear("key"),
            linear("value"),
            scale * c,
            bias,
            mask=mask,
            **({} if log_window is None else use(log_window)),
        )
        output = InputProjection(x.shape[-1], options.dropout, options.dtype, name="output_proj")
        return output((merge(centroids) / (beta * root)).astype(options.dtype), train)


class LorentzBlock(nn.Module):
    """Post-norm transformer block around Lorentz attention."""

    options: BlockOptions
    lorentz: LorentzOptions

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        log_window: Float[Array, "L L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
    ) -> Float[Array, "*batch L H"]:
        attend = LorentzAttention(self.options, self.lorentz, name="attention")
        return _post_norm(self.options, x, attend(x, log_window, mask, train, c), train)


def _post_norm(options: BlockOptions, x: Array, attended: Array, train: bool) -> Array:
    """Residual connections and norms around the attended values, the same in both geometries.

    x = LN(x + drop(.)), then the same of a feed-forward network; without one (GMMFormer, MS-SL)
    x = LN(x + drop(W .)).
    """
    drop = Dropout(options.dropout, train)
    if options.expansion == 0:
        attended = Dense(x.shape[-1], options.dtype, name="dense")(attended)
        return LayerNorm(options.dtype, name="LayerNorm")(x + drop(attended))
    x = LayerNorm(options.dtype, name="norm1")(x + drop(attended))
    forward = FeedForward(
        options.expansion * x.shape[-1], options.dropout, options.dtype, name="output"
    )
    return LayerNorm(options.dtype, name="norm2")(x + drop(forward(x, train)))


def _split_heads(x: Float[Array, "*batch L H"], num_heads: int) -> Float[Array, "*batch N L d"]:
    return jnp.moveaxis(x.reshape(*x.shape[:-1], num_heads, -1), -2, -3)


# The bank


class Windows(NamedTuple):
    """Windows of a bank, logarithms for the Lorentz blocks; None for a geometry without blocks."""

    euclidean: Float[Array, "K L L"] | None
    log_lorentz: Float[Array, "K L L"] | None


@dataclasses.dataclass(frozen=True)
class BankOptions:
    """Options of a bank: of all blocks, of the Lorentz blocks, and the numbers of either."""

    block: BlockOptions
    lorentz: LorentzOptions
    euclidean_blocks: int
    lorentz_blocks: int


def make_windows(
    euclidean_widths: tuple[float, ...],
    lorentz_widths: tuple[float, ...],
    length: int,
    kind: str,
    dtype: DTypeLike,
) -> Windows:
    """The windows of a bank over L positions, of a kind of `attention.WINDOWS`, as constants.

    Each block has a width; 0 is no window.
    """
    euclidean = log_lorentz = None
    if euclidean_widths:
        euclidean = attention_windows(euclidean_widths, length, kind, dtype)
    if lorentz_widths:
        log_lorentz = log_attention_windows(lorentz_widths, length, kind, dtype)
    return Windows(euclidean, log_lorentz)


class GaussianBank(nn.Module):
    """K windowed attention blocks over the same input: one vmapped block for each geometry.

    Parameters carry a leading axis of blocks, Euclidean blocks first in the output (the released
    order). The windows are arguments, so that banks which differ in them alone share a program.
    """

    options: BankOptions

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        windows: Windows,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
    ) -> Float[Array, "K *batch L H"]:
        options, outputs = self.options, []
        if options.euclidean_blocks:
            bank = _over_blocks(EuclideanBlock, (None, None, 0, None, None))(
                options.block, name="euclidean"
            )
            outputs.append(bank(x, x, windows.euclidean, mask, train))
        if options.lorentz_blocks:
            bank = _over_blocks(LorentzBlock, (None, 0, None, None, None))(
                options.block, options.lorentz, name="lorentz"
            )
            outputs.append(bank(x, windows.log_lorentz, mask, train, c))
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs)


def _over_blocks(block: type[nn.Module], in_axes: tuple[int | None, ...]) -> Any:
    return nn.vmap(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
    )
