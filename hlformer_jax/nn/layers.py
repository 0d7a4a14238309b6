"""Linen modules that the models share; each owns parameters and calls pure functions.

Parameters are float32, or float64 with JAX_ENABLE_X64. As in the released code, weights are drawn
from a normal distribution with standard deviation 0.02, biases start at 0 and the scales of norms
at 1. Dense layers compute in `dtype`; normalisation, softmax and geometry compute in float32 at
least.

The names of parameters matter: the released optimiser does not decay the parameters named in
`UNDECAYED`, and torch_checkpoint/names.py maps the names in released checkpoints to these.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.ops import products
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.ops.dropout import dropout, relu_dropout
from hlformer_jax.typing import Array

LAYER_NORM_EPSILON = 1e-5
INITIALISER = nn.initializers.normal(0.02)

UNDECAYED = ("bias", "LayerNorm")
"""Names of parameters and of modules that do not decay."""


def identity(key: Array, shape: tuple[int, int], dtype: Any = float) -> Array:
    """Initialise a kernel as the identity."""
    del key
    return jnp.eye(*shape, dtype=dtype)


class LayerNorm(nn.Module):
    """A layer norm as released (epsilon 1e-5), with its statistics in float32 at least."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        exact = as_float(x).dtype
        normal: Array = _normalised(x, scale.astype(exact), bias.astype(exact))
        return normal.astype(self.dtype)


@jax.custom_jvp
def _normalised(
    x: Float[Array, "*batch H"], scale: Float[Array, " H"], bias: Float[Array, " H"]
) -> Float[Array, "*batch H"]:
    row = (1,) * (x.ndim - 1) + (-1,)
    normal, _ = _standardised(x, scale.dtype)
    return normal * scale.reshape(row) + bias.reshape(row)


@_normalised.defjvp
def _normalised_jvp(
    primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    (x, scale, bias), (dx, dscale, dbias) = primals, tangents
    row = (1,) * (x.ndim - 1) + (-1,)
    normal, inverse = _standardised(x, scale.dtype)
    change = dx.astype(scale.dtype) * inverse
    along = jnp.mean(change * normal, axis=-1, keepdims=True)
    change = change - jnp.mean(change, axis=-1, keepdims=True) - normal * along
    value = normal * scale.reshape(row) + bias.reshape(row)
    return value, change * scale.reshape(row) + normal * dscale.reshape(row) + dbias.reshape(row)


def _standardised(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Return rows of mean 0 and variance 1, and the inverse standard deviations."""
    exact = x.astype(dtype)
    mean = jnp.mean(exact, axis=-1, keepdims=True)
    # The fast variance, E[x^2] - E[x]^2, cancels if the mean is large.
    variance = jnp.mean(jnp.square(exact - mean), axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(variance + LAYER_NORM_EPSILON)
    # If XLA computed both again for the gradient, it could not sum the gradient in one kernel.
    mean, inverse = jax.lax.optimization_barrier((mean, inverse))
    return (exact - mean) * inverse, inverse


class Dense(nn.Module):
    """A linear layer, by default initialised as released.

    Leading axes are flattened. With several of them, XLA would copy the input to compute the
    gradient of the kernel.

    Attributes:
      features: number of outputs.
      dtype: dtype of the computation and of the outputs.
      use_bias: whether a bias is added.
      kernel_init: initialiser of the kernel.
    """

    features: int
    dtype: Any = jnp.float32
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer = INITIALISER

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch H"]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        rows = products.matmul(rows, kernel.astype(self.dtype))
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            rows = rows + bias.astype(self.dtype)[None]
        return rows.reshape(*x.shape[:-1], self.features)


class Dropout(nn.Module):
    """Dropout in training, otherwise the identity; uses the `dropout` random stream.

    Attributes:
      rate: probability that an element is set to 0.
      train: whether dropout is on.
      drop: `dropout`, or `relu_dropout`, which applies a ReLU first.
    """

    rate: float
    train: bool
    drop: Callable[[Array | None, Array, float], Array] = dropout

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        on = self.train and self.rate > 0
        return self.drop(self.make_rng("dropout") if on else None, x, self.rate)


class InputProjection(nn.Module):
    """LayerNorm, dropout, linear, ReLU."""

    features: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L D"], train: bool) -> Float[Array, "*batch L H"]:
        x = LayerNorm(self.dtype, name="LayerNorm")(x)
        x = Dropout(self.dropout, train)(x)
        return relu_dropout(None, Dense(self.features, self.dtype, name="dense")(x), 0.0)


class PositionEmbedding(nn.Module):
    """A learned embedding of the position, added to the input, then LayerNorm and dropout.

    The table has `max_length` rows; a shorter input uses the first rows.
    """

    max_length: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L H"], train: bool) -> Float[Array, "*batch L H"]:
        length, features = x.shape[-2:]
        table = self.param("embedding", INITIALISER, (self.max_length, features))
        row = table[:length].astype(self.dtype)
        x = x + row.reshape((1,) * (x.ndim - 2) + row.shape)
        x = LayerNorm(self.dtype, name="LayerNorm")(x)
        return Dropout(self.dropout, train)(x)


class FeedForward(nn.Module):
    """Linear, ReLU, dropout, linear."""

    hidden: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L H"], train: bool) -> Float[Array, "*batch L H"]:
        features = x.shape[-1]
        x = Dense(self.hidden, self.dtype, name="layer1")(x)
        x = Dropout(self.dropout, train, relu_dropout)(x)
        return Dense(features, self.dtype, name="layer2")(x)
