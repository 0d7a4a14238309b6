"""Attention blocks of both geometries.

Dense layers compute in `dtype`; softmax and geometry in float32 whatever it is.
"""

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.nn.layers import (
    INITIALISER,
    Dropout,
    FeedForward,
    InputProjection,
    choose,
    dense,
    layer_norm,
)
from hlformer_jax.ops import attention, fused_attention, lorentz
from hlformer_jax.ops.numerics import as_float, limit_norm
from hlformer_jax.typing import Array

KERNELS: Mapping[str, ModuleType] = {"xla": attention, "pallas": fused_attention}
"""Whose self-attention: a program that the compiler makes, or the kernel written here."""

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


class EuclideanAttention(nn.Module):
    """Multi-head attention without an output projection (as released).

    Attributes:
      kernels: of `KERNELS`; equal up to rounding.
    """

    num_heads: int
    dropout: float
    dtype: Any = jnp.float32
    kernels: str = "xla"

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "*batch M H"],
        key_value: Float[Array, "*batch L H"],
        window: Float[Array, "M L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch M H"]:
        features = query.shape[-1]
        dropout_key = self.make_rng("dropout") if train and self.dropout > 0 else None
        drop = dropout_key, self.dropout
        heads = _split_heads(dense(features, "query", self.dtype)(query), self.num_heads)
        if query.shape[-2] == 1 and window is None:
            key, value = (
                HeadProjection(self.num_heads, self.dtype, name=name)(features)
                for name in ("key", "value")
            )
            attended = attention.single_query_attention(
                heads[..., 0, :], key_value, key, value, mask, *drop
            )
            return attended.reshape(*attended.shape[:-2], 1, features)
        split = lambda name: _split_heads(
            dense(features, name, self.dtype)(key_value), self.num_heads
        )
        inputs = heads, split("key"), split("value"), window, mask
        attend = choose("kernels", self.kernels, KERNELS).euclidean_attention
        attended = attend(*inputs, *drop)
        attended = jnp.moveaxis(attended, -3, -2)
        return attended.reshape(*attended.shape[:-2], features)


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
    """Post-norm transformer block; cross-attention when `key_value` differs from `x`.

    Attributes:
      expansion: width of the feed-forward network over H; 0 is none, but one linear layer after the
        attention (see `_post_norm`).
    """

    num_heads: int
    dropout: float
    expansion: int = 4
    dtype: Any = jnp.float32
    kernels: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch M H"],
        key_value: Float[Array, "*batch L H"],
        window: Float[Array, "M L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch M H"]:
        attend = EuclideanAttention(
            self.num_heads, self.dropout, self.dtype, self.kernels, name="attention"
        )
        return _post_norm(self, x, attend(x, key_value, window, mask, train), train)


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
        return lorentz_rescale(z, scale)


def lorentz_rescale(
    z: Float[Array, "*batch d"], scale: Float[Array, ""]
) -> Float[Array, "*batch d"]:
    """Moves z onto the hyperboloid of curvature -1 at the time that its first coordinate asks for.

    Args:
      z: coordinates, the first for the time.
      scale: logarithm of the range of the time.

    Returns:
      [time, space] with time = sigmoid(z_0) exp(scale) + 1.1 and space along z_1.., |space|^2 =
      time^2 - 1; the origin where z_1.. is zero.

    References:
      HLFormer eq. 13, 14, as in the released code.
    """
    time = jax.nn.sigmoid(z[..., :1]) * jnp.exp(scale).astype(z.dtype) + 1.1
    squared_norm = jnp.sum(jnp.square(z[..., 1:]), axis=-1, keepdims=True)
    directed = squared_norm > jnp.finfo(z.dtype).tiny
    radius = jnp.sqrt((time - 1) * (time + 1))
    space = z[..., 1:] * (radius * jax.lax.rsqrt(jnp.where(directed, squared_norm, 1.0)))
    space = jnp.where(directed, space, 0.0)
    return jnp.concatenate([jnp.where(directed, time, 1.0), space], axis=-1)


class LorentzAttention(nn.Module):
    """Lorentz self-attention between two Euclidean projections (HLFormer eq. 11-16).

    The dense projections compute in `dtype`, everything between them in float32.

    Attributes:
      dim: Lorentz dimension n; points have n + 1 coordinates, divisible by `num_heads`.
      window: of `LORENTZ_WINDOWS`.
      head_merge: of `HEAD_MERGES`.
      kernels: of `KERNELS`.

    With a curvature -c the points before the Lorentz linear layers lie on the hyperboloid of that
    curvature and the logits are its squared distances. Queries, keys, values and centroids are kept
    times sqrt(c), on the unit hyperboloid, on which time and radius of every curvature look alike.
    """

    dim: int
    num_heads: int
    dropout: float
    window: str = "released"
    head_merge: str = "released"
    dtype: Any = jnp.float32
    kernels: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        log_window: Float[Array, "L L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
    ) -> Float[Array, "*batch L H"]:
        log_beta = self.param(
            "scale_alpha", nn.initializers.constant(-0.5 * math.log(self.dim)), ()
        )
        scale = self.param("scale", nn.initializers.constant(math.sqrt(self.dim + 1)), ())
        bias = self.param("bias", nn.initializers.zeros, ())
        tangent = InputProjection(self.dim, self.dropout, self.dtype, name="input_proj")(x, train)
        beta = jnp.exp(log_beta)
        root = jnp.sqrt(c)
        tangent = limit_norm(as_float(tangent) * beta, MAX_TANGENT_NORM / root)
        point = lorentz.exp_map0(tangent, c)
        linear = lambda name: LorentzLinear(self.num_heads, self.dropout, name=name)(point, train)
        attend = choose("kernels", self.kernels, KERNELS).lorentz_attention
        merge = choose("head_merge", self.head_merge, HEAD_MERGES)
        use = choose("window", self.window, LORENTZ_WINDOWS)
        centroids = attend(
            linear("query"),
            linear("key"),
            linear("value"),
            scale * c,
            bias,
            mask=mask,
            **({} if log_window is None else use(log_window)),
        )
        output = InputProjection(x.shape[-1], self.dropout, self.dtype, name="output_proj")
        return output((merge(centroids) / (beta * root)).astype(self.dtype), train)


class LorentzBlock(nn.Module):
    """Post-norm transformer block around Lorentz attention; attributes as those of its parts."""

    dim: int
    num_heads: int
    dropout: float
    window: str = "released"
    head_merge: str = "released"
    expansion: int = 4
    dtype: Any = jnp.float32
    kernels: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        log_window: Float[Array, "L L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
    ) -> Float[Array, "*batch L H"]:
        attend = LorentzAttention(
            self.dim,
            self.num_heads,
            self.dropout,
            self.window,
            self.head_merge,
            self.dtype,
            self.kernels,
            name="attention",
        )
        return _post_norm(self, x, attend(x, log_window, mask, train, c), train)


def _post_norm(
    block: EuclideanBlock | LorentzBlock, x: Array, attended: Array, train: bool
) -> Array:
    """What both blocks do with what was attended.

    x = LN(x + drop(.)), then the same of a feed-forward network; without one (GMMFormer, MS-SL)
    x = LN(x + drop(W .)).
    """
    drop = Dropout(block.dropout, train)
    if block.expansion == 0:
        attended = dense(x.shape[-1], "dense", block.dtype)(attended)
        return layer_norm("LayerNorm", block.dtype)(x + drop(attended))
    x = layer_norm("norm1", block.dtype)(x + drop(attended))
    forward = FeedForward(block.expansion * x.shape[-1], block.dropout, block.dtype, name="output")
    return layer_norm("norm2", block.dtype)(x + drop(forward(x, train)))


def _split_heads(x: Float[Array, "*batch L H"], num_heads: int) -> Float[Array, "*batch N L d"]:
    return jnp.moveaxis(x.reshape(*x.shape[:-1], num_heads, -1), -2, -3)
