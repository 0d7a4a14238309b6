"""Attention blocks of both geometries, banks of blocks over one input, and the fusion of a bank.

Dense layers compute in `dtype`, softmax and geometry always in float32. `FUSIONS` maps the names in
`config.model.fusion` to the fusions. If a fusion uses a learned token as its query (`uses_token`),
the token is a parameter of the model, which both branches share.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
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
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.ops.numerics import exact_precision, limit_norm
from hlformer_jax.ops.windows import attention_windows, log_attention_windows
from hlformer_jax.typing import Array

LORENTZ_WINDOWS: Mapping[str, Callable[[Array], dict[str, Array]]] = {
    "released": lambda log_window: {"window": jnp.exp(log_window)},
    "corrected": lambda log_window: {"log_window": log_window},
}
"""Arguments of Lorentz attention for the logarithm of a window.

"released" multiplies the logits by the window; "corrected" adds the logarithm to the logits.
"""

HEAD_MERGES: Mapping[str, Callable[[Array], Array]] = {
    "released": attention.concatenate_heads_released,
    "hyperboloid": attention.merge_heads_on_hyperboloid,
}
"""Functions that make one vector of the heads' centroids, by name.

"released" concatenates the centroids; "hyperboloid" merges them into a point of a hyperboloid.
"""

MAX_TANGENT_NORM = 10.0
"""Norm to which the released exponential map of the attention limits its argument."""


@dataclasses.dataclass(frozen=True)
class BlockOptions:
    """Options that blocks of both geometries share."""

    num_heads: int
    dropout: float
    # Width of the feed-forward network divided by H; 0: one linear layer instead (`_post_norm`).
    expansion: int = 4
    dtype: Any = jnp.float32


@dataclasses.dataclass(frozen=True)
class LorentzOptions:
    """Options of the Lorentz attention."""

    dim: int  # n; points have n + 1 coordinates, divisible by the number of heads
    window: str  # a key of `LORENTZ_WINDOWS`
    head_merge: str  # a key of `HEAD_MERGES`
    # True: the divisor of the logits and a bias are learned. False: √(n + 1), without a bias.
    learned_divisor: bool = True

    def __post_init__(self) -> None:
        choices: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
            ("window", self.window, LORENTZ_WINDOWS),
            ("head_merge", self.head_merge, HEAD_MERGES),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


class EuclideanAttention(nn.Module):
    """Multi-head attention without an output projection (as released).

    Called with queries [*batch, M, H], keys and values [*batch, L, H], a window [M, L] or None, a
    mask of real positions [*batch, L] or None, and whether dropout is on; returns [*batch, M, H].
    """

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
        query, key, value = (
            _split_heads(Dense(features, options.dtype, name=name)(x), options.num_heads)
            for name, x in (("query", query), ("key", key_value), ("value", key_value))
        )
        attended = attention.euclidean_attention(
            query, key, value, window, mask, dropout_key, options.dropout
        )
        attended = jnp.moveaxis(attended, -3, -2)
        return attended.reshape(*attended.shape[:-2], features)


class SingleQueryAttention(nn.Module):
    """`EuclideanAttention` of a single query that computes no keys and values.

    It applies the projections of keys and values to the query and to the weighted sum instead of to
    all L positions (`ops.attention.single_query_attention`). The parameters are the same, and the
    results are equal up to rounding.
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
    """The parameters of a `Dense` layer, with the same names, reshaped to a linear map per head."""

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

    Attributes:
      options: options of the block.
      attention_type: the attention module; `SingleQueryAttention` is allowed only if M is 1.
    """

    options: BlockOptions
    attention_type: type[nn.Module] = EuclideanAttention

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch M H"],
        key_value: Float[Array, "*batch L H"],
        window: Float[Array, "M L"] | None,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
    ) -> Float[Array, "*batch M H"]:
        attend: Any = self.attention_type(self.options, name="attention")
        return _post_norm(self.options, x, attend(x, key_value, window, mask, train), train)


class LorentzLinear(nn.Module):
    """Linear map of a point into one point per head (HLFormer eq. 13-14, as released).

    For each head z = W x, time = sigmoid(z_0) exp(s) + 1.1 with a learned s, and space is z_1, z_2,
    … rescaled so that the result lies on the unit hyperboloid. If these are all 0 (dropout may
    remove the whole input), the result is the origin with gradient 0, instead of 0 / 0.
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
            precision=exact_precision(),
            kernel_init=INITIALISER,
            param_dtype=float,
            name="dense",
        )
        z = _split_heads(linear(point), self.num_heads)
        return lorentz.from_linear(z, scale)


class LorentzAttention(nn.Module):
    """Lorentz self-attention between two Euclidean projections (HLFormer eq. 11-16).

    The dense projections compute in `dtype`, everything between them in float32.

    The points before the Lorentz linear layers lie on the hyperboloid of curvature -c, and the
    logits are computed from squared distances at that curvature. Queries, keys, values and
    centroids are stored times sqrt(c), as points of the unit hyperboloid, so that the constants of
    `LorentzLinear` mean the same at every curvature.
    """

    options: BlockOptions
    lorentz: LorentzOptions

    BOUNDS: ClassVar[Mapping[str, tuple[float, float]]] = {"scale_alpha": (-math.inf, 0.0)}
    """Bounds of its parameters, applied after every step (released: before every forward pass)."""

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
        scale: Any = math.sqrt(dim + 1)
        bias: Any = 0.0
        if self.lorentz.learned_divisor:
            scale = self.param("scale", nn.initializers.constant(math.sqrt(dim + 1)), ())
            bias = self.param("bias", nn.initializers.zeros, ())
        project = InputProjection(dim, options.dropout, options.dtype, name="input_proj")
        tangent = project(x, train)
        beta = jnp.exp(log_beta)
        root = jnp.sqrt(c)
        tangent = limit_norm(as_float(tangent) * beta, MAX_TANGENT_NORM / root)
        point = lorentz.exp_map0(tangent, c)
        query, key, value = (
            LorentzLinear(options.num_heads, options.dropout, name=name)(point, train)
            for name in ("query", "key", "value")
        )
        merge = HEAD_MERGES[self.lorentz.head_merge]
        make_window = LORENTZ_WINDOWS[self.lorentz.window]
        centroids = attention.lorentz_attention(
            query,
            key,
            value,
            scale * c,
            bias,
            mask=mask,
            **({} if log_window is None else make_window(log_window)),
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
    """Add residual connections and norms around the attended values a, in both geometries.

    x = LN(x + drop(a)), then x = LN(x + drop(F(x))) for the feed-forward network F. Without a
    feed-forward network (GMMFormer, MS-SL, DL-DKD) x = LN(x + drop(W a)).
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
    attention.check_heads(x.shape[-1], num_heads)
    return jnp.moveaxis(x.reshape(*x.shape[:-1], num_heads, -1), -2, -3)


# The bank


class Windows(NamedTuple):
    """Windows of a bank's K blocks over L positions; None for a geometry without blocks.

    Attributes:
      euclidean: the windows of the Euclidean blocks.
      log_lorentz: the logarithms of the windows of the Lorentz blocks.
    """

    euclidean: Float[Array, "K L L"] | None
    log_lorentz: Float[Array, "K L L"] | None


@dataclasses.dataclass(frozen=True)
class BankOptions:
    """Options of a bank.

    Attributes:
      block: options of all blocks.
      lorentz: options of the Lorentz blocks.
      euclidean_blocks: number of Euclidean blocks.
      lorentz_blocks: number of Lorentz blocks.
    """

    block: BlockOptions
    lorentz: LorentzOptions
    euclidean_blocks: int
    lorentz_blocks: int


def make_windows(
    euclidean_widths: Sequence[float] | Float[Array, " K"],
    lorentz_widths: Sequence[float] | Float[Array, " J"],
    length: int,
    kind: str,
    dtype: DTypeLike,
) -> Windows:
    """Make the windows of a bank.

    Args:
      euclidean_widths: the width for each Euclidean block; 0: without a window. Windows of numbers
        are constants; widths in a JAX array may be learned.
      lorentz_widths: the width for each Lorentz block; 0: without a window.
      length: number L of positions.
      kind: a name of `ops.windows.KINDS`.
      dtype: dtype of the windows.

    Returns:
      The windows [K, L, L] of each geometry; None for a geometry without widths.

    Raises:
      ValueError: for an unknown kind, a length below 1 or a negative width.
    """
    euclidean = log_lorentz = None
    if len(euclidean_widths):
        euclidean = attention_windows(euclidean_widths, length, kind, dtype)
    if len(lorentz_widths):
        log_lorentz = log_attention_windows(lorentz_widths, length, kind, dtype)
    return Windows(euclidean, log_lorentz)


class GaussianBank(nn.Module):
    """K windowed attention blocks over the same input: one vmapped block for each geometry.

    The parameters of each geometry have a leading axis of blocks. In the output [K, *batch, L, H]
    the Euclidean blocks come first (the released order). The windows are arguments, so that banks
    that differ only in their windows share a compiled program. To add blocks of another kind,
    concatenate their outputs with the bank's: every fusion takes any number K of blocks.
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
            _check_windows("euclidean", windows.euclidean, options.euclidean_blocks)
            euclidean_blocks = _over_blocks(
                EuclideanBlock, (None, None, 0, None, None), options.euclidean_blocks
            )
            bank = euclidean_blocks(options.block, name="euclidean")
            outputs.append(bank(x, x, windows.euclidean, mask, train))
        if options.lorentz_blocks:
            _check_windows("log_lorentz", windows.log_lorentz, options.lorentz_blocks)
            lorentz_blocks = _over_blocks(
                LorentzBlock, (None, 0, None, None, None), options.lorentz_blocks
            )
            bank = lorentz_blocks(options.block, options.lorentz, name="lorentz")
            outputs.append(bank(x, windows.log_lorentz, mask, train, c))
        if not outputs:
            raise ValueError("a bank needs at least one block, got none of either geometry")
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs)


def _check_windows(name: str, windows: Array | None, blocks: int) -> None:
    """Raise ValueError for windows [K, L, L] of another number than the blocks."""
    if windows is not None and len(windows) != blocks:
        raise ValueError(
            f"windows.{name} must have shape [{blocks}, L, L], one window for each block of its"
            f" geometry, got {windows.shape}"
        )


def _over_blocks(block: type[nn.Module], in_axes: tuple[int | None, ...], count: int) -> Any:
    return nn.vmap(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
        axis_size=count,
    )


# Fusion


class FusionInputs(NamedTuple):
    """Inputs of a fusion.

    Attributes:
      blocks: outputs of the blocks.
      inputs: the input that the blocks share.
      mask: True for real positions; None if all are real.
      temperature: tau, which divides the logits of the weights.
      token: the learned token; None for a fusion without `uses_token`.
    """

    blocks: Float[Array, "K *batch L H"]
    inputs: Float[Array, "*batch L H"]
    mask: Bool[Array, "*batch L"] | None
    temperature: Float[Array, ""]
    token: Float[Array, " H"] | None


class Fusion(nn.Module):
    """Base class of the fusions, which make one sequence of the outputs of a bank's blocks.

    A subclass defines ``__call__(bank, train)``, which takes `FusionInputs` and whether dropout is
    on, and returns [*batch, L, H]. The cross-attention of a fusion has the number of heads, the
    dropout and the dtype of ``options``.
    """

    options: BlockOptions

    uses_token: ClassVar[bool] = False

    @property
    def cross_options(self) -> BlockOptions:
        """Options of the cross-attention block, whose feed-forward network has width H."""
        return dataclasses.replace(self.options, expansion=1)


class MeanGuided(Fusion):
    """Weights of the blocks at every position, guided by their mean: MAIM (HLFormer eq. 17).

    A cross-attention block attends from one query, the `question`, to the output of each block; all
    blocks share its parameters. A small network maps the result to one logit per position, so that
    the shapes of its parameters depend on the number of positions. The question is the mean over
    the blocks and over all positions, padding included, as released.
    """

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        options, blocks = self.options, bank.blocks
        question = self.question(bank)
        # The blocks share parameters but not dropout. A dropout mask depends on the row of the
        # batch, and must not depend on the number of rows.
        shared: Any = {
            "variable_axes": {"params": None},
            "split_rngs": {"params": False, "dropout": True},
        }
        over_blocks: Any = nn.vmap(EuclideanBlock, in_axes=(None, 0, None, None, None), **shared)
        cross = over_blocks(self.cross_options, SingleQueryAttention, name="cross")
        attended = cross(question, blocks, None, bank.mask, train)[..., 0, :]
        hidden: Array = nn.relu(Dense(blocks.shape[-1], options.dtype, name="layer1")(attended))
        hidden = nn.vmap(Dropout, in_axes=0, **shared)(options.dropout, train)(hidden)
        logits = as_float(Dense(blocks.shape[-2], options.dtype, name="layer2")(hidden))
        weights = jax.nn.softmax(logits / bank.temperature, axis=0)
        self.sow("intermediates", "weights", weights)
        # A matrix product would need another order of axes, and so a copy of the blocks.
        weighted = weights.astype(blocks.dtype)[..., None] * blocks
        return jnp.sum(weighted, axis=0)

    @nn.nowrap
    def question(self, bank: FusionInputs) -> Float[Array, "*batch 1 H"]:
        """Return the query of the cross-attention."""
        return jnp.mean(bank.blocks, axis=(0, -2))[..., None, :]


class TemporalConsolidation(MeanGuided):
    """`MeanGuided` with a learned token as the query (GMMFormer v2 eqs. 1-3)."""

    uses_token: ClassVar[bool] = True

    @nn.nowrap
    def question(self, bank: FusionInputs) -> Float[Array, "*batch 1 H"]:
        """Return the token as the query of the cross-attention."""
        return _repeat_token(bank)


class DynamicWeights(Fusion):
    """One weight per block and video: a learned token attends to the input of the blocks.

    GMMFormer v2 eq. 18. Its network has the form of the network of `TemporalConsolidation`.
    """

    uses_token: ClassVar[bool] = True

    @nn.compact
    def __call__(self, bank: FusionInputs, train: bool) -> Float[Array, "*batch L H"]:
        options, inputs = self.options, bank.inputs
        cross = EuclideanBlock(self.cross_options, SingleQueryAttention, name="cross")
        attended = cross(_repeat_token(bank), inputs, None, bank.mask, train)[..., 0, :]
        hidden: Array = nn.relu(Dense(inputs.shape[-1], options.dtype, name="layer1")(attended))
        hidden = Dropout(options.dropout, train)(hidden)
        logits = as_float(Dense(len(bank.blocks), options.dtype, name="layer2")(hidden))
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
        features = jnp.moveaxis(bank.blocks, 0, -2)
        features = features.reshape(*features.shape[:-2], -1)
        return Dense(bank.blocks.shape[-1], self.options.dtype, name="dense")(features)


FUSIONS: Mapping[str, type[Fusion]] = {
    "maim": MeanGuided,
    "consolidation": TemporalConsolidation,
    "dynamic": DynamicWeights,
    "weighted": BlockWeights,
    "mean": Mean,
    "concat": Concatenation,
}


def _repeat_token(bank: FusionInputs) -> Float[Array, "*batch 1 H"]:
    """Return the token as a sequence of one position for every sequence of the batch."""
    if bank.token is None:
        raise ValueError("token is None: a fusion with uses_token needs the model's learned token")
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
            attention.check_mask(mask, logits.shape, "[*batch, L, H]", x.shape)
            logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
        return jnp.einsum("...l,...lh->...h", jax.nn.softmax(logits, axis=-1), x)
