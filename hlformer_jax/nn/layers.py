"""Linen modules that the models share; each owns parameters and calls pure functions.

Parameters are float32 and drawn from N(0, 0.02), biases 0, norms 1, as in the released code. Dense
layers compute in `dtype`; normalisation, softmax and geometry in float32 whatever it is.

Names matter: `UNDECAYED` has those of parameters that the released optimiser does not decay, and
torch_checkpoint.py maps released names to these.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.ops.dropout import dropout
from hlformer_jax.typing import Array

LAYER_NORM_EPSILON = 1e-5
INITIALISER = nn.initializers.normal(0.02)

UNDECAYED = ("bias", "LayerNorm")
"""Names of parameters that do not decay, and of norms whose scale does not."""


def layer_norm(name: str, dtype: Any) -> nn.LayerNorm:
    """A layer norm as released (epsilon 1e-5); Flax computes its statistics in float32."""
    # The fast variance, E[x^2] - E[x]^2, cancels where the mean is large.
    return nn.LayerNorm(LAYER_NORM_EPSILON, dtype=dtype, use_fast_variance=False, name=name)


def dense(features: int, name: str, dtype: Any) -> nn.Dense:
    """A linear layer initialised as released."""
    return nn.Dense(features, dtype=dtype, kernel_init=INITIALISER, name=name)


class Dropout(nn.Module):
    """Dropout in training, the identity else; takes the `dropout` random stream."""

    rate: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        if not self.train or self.rate == 0:
            return x
        return dropout(self.make_rng("dropout"), x, self.rate)


class InputProjection(nn.Module):
    """LayerNorm, dropout, linear, ReLU."""

    features: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L D"], train: bool) -> Float[Array, "*batch L H"]:
        x = layer_norm("LayerNorm", self.dtype)(x)
        x = Dropout(self.dropout, train)(x)
        return nn.relu(dense(self.features, "dense", self.dtype)(x))


class PositionEmbedding(nn.Module):
    """Adds a learned embedding of the position, then LayerNorm and dropout.

    The table has `max_length` rows, of which a shorter input uses the first.
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
        x = layer_norm("LayerNorm", self.dtype)(x)
        return Dropout(self.dropout, train)(x)


class FeedForward(nn.Module):
    """Linear, ReLU, dropout, linear."""

    hidden: int
    dropout: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch L H"], train: bool) -> Float[Array, "*batch L H"]:
        features = x.shape[-1]
        x = nn.relu(dense(self.hidden, "layer1", self.dtype)(x))
        x = Dropout(self.dropout, train)(x)
        return dense(features, "layer2", self.dtype)(x)
