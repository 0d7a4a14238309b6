"""A recurrent layer over masked sequences."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array


class LSTM(nn.Module):
    """A long short-term memory of one layer, from the first position to the last.

    With the gates [i, f, g, o] = x_t W + h_{t-1} U + b,

        c_t = σ(f) c_{t-1} + σ(i) tanh(g),    h_t = σ(o) tanh(c_t).

    A position that is masked leaves h and c as they are. All parameters are drawn uniformly from
    ±1/√H, as in PyTorch; b stands for the sum of its two.

    Attributes:
      features: width H of the state and of the output.
    """

    features: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch L D"], mask: Bool[Array, "*batch L"]
    ) -> Float[Array, "*batch L H"]:
        initialiser = _uniform(1 / math.sqrt(self.features))
        width = 4 * self.features
        inputs = self.param("input", initialiser, (x.shape[-1], width))
        recurrent = self.param("recurrent", initialiser, (self.features, width))
        bias = self.param("bias", initialiser, (width,))
        x = as_float(x)
        driven = x @ inputs + bias.reshape((1,) * (x.ndim - 1) + bias.shape)

        def advance(
            state: tuple[jax.Array, jax.Array], step: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            hidden, cell = state
            gates, real = step
            i, f, g, o = jnp.split(gates + hidden @ recurrent, 4, axis=-1)
            new_cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * jnp.tanh(g)
            new_hidden = nn.sigmoid(o) * jnp.tanh(new_cell)
            hidden = jnp.where(real[..., None], new_hidden, hidden)
            return (hidden, jnp.where(real[..., None], new_cell, cell)), hidden

        start = jnp.zeros((*x.shape[:-2], self.features), x.dtype)
        steps = jnp.moveaxis(driven, -2, 0), jnp.moveaxis(mask, -1, 0)
        _, outputs = jax.lax.scan(advance, (start, start), steps)
        return jnp.moveaxis(outputs, 0, -2)


def _uniform(bound: float) -> nn.initializers.Initializer:
    """Uniform over [-bound, bound)."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, -bound, bound
    )
