"""A transformer as pure functions over its parameters.

Matrix products take operands of their kernel's dtype and accumulate in float32; all else, sums,
norms and softmaxes, is float32. A stack of layers is one program for a layer, which is scanned.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.encoders.config import Tower
from hlformer_jax.typing import Array

Params = Any
"""A tree of arrays, nested by name."""

_EXACT = jax.lax.Precision.HIGHEST  # a GPU may round float32 operands to fewer bits otherwise


def linear(params: Params, inputs: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
    """An affine map; the bias may be missing."""
    kernel = params["kernel"]
    outputs = jnp.einsum(
        "...i,io->...o",
        inputs.astype(kernel.dtype),
        kernel,
        precision=_EXACT,
        preferred_element_type=jnp.float32,
    )
    return outputs + _leading(params["bias"], outputs.ndim) if "bias" in params else outputs


def norm(
    params: Params, inputs: Float[Array, "*batch I"], epsilon: float
) -> Float[Array, "*batch I"]:
    """A layer norm."""
    centred = inputs - jnp.mean(inputs, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + epsilon)
    scale, bias = (_leading(params[name], inputs.ndim) for name in ("scale", "bias"))
    return normal * scale + bias


def activation(name: str, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """One of `config.ACTIVATIONS`, by its name."""
    match name:
        case "quick_gelu":
            return x * jax.nn.sigmoid(1.702 * x)
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "gelu_new" | "gelu_pytorch_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "relu":
            return jax.nn.relu(x)
        case "silu":
            return jax.nn.silu(x)
    raise ValueError(f"no activation {name!r}")


def feed_forward(
    params: Params, inputs: Float[Array, "*batch I"], tower: Tower
) -> Float[Array, "*batch I"]:
    """Two affine maps with an activation between."""
    return linear(params["fc2"], activation(tower.activation, linear(params["fc1"], inputs)))


def attend(
    query: Float[Array, "Q M I"],
    key: Float[Array, "Q L I"],
    value: Float[Array, "Q L I"],
    heads: int,
    dtype: Any,
    mask: Bool[Array, "M L"] | None = None,
) -> Float[Array, "Q M I"]:
    """Attention of several heads, before its last affine map.

    Args:
      query: what asks, float32.
      key: what is asked, float32.
      value: what is answered, float32.
      heads: number of heads.
      dtype: dtype of the products' operands.
      mask: True where a position may be read; None: everywhere.
    """
    split = lambda x: x.reshape(*x.shape[:-1], heads, -1)
    width = query.shape[-1] // heads
    product = lambda sum_, a, b: jnp.einsum(
        sum_,
        a.astype(dtype),
        b.astype(dtype),
        precision=_EXACT,
        preferred_element_type=jnp.float32,
    )
    logits = product("qmnd,qlnd->qnml", split(query * width**-0.5), split(key))
    if mask is not None:
        logits = jnp.where(mask[None, None], logits, jnp.finfo(logits.dtype).min)
    weights = jax.nn.softmax(logits, axis=-1)
    attended = product("qnml,qlnd->qmnd", weights, split(value))
    return attended.reshape(*attended.shape[:-2], -1)


def transformer(
    layers: Params,
    inputs: Float[Array, "Q L I"],
    tower: Tower,
    mask: Bool[Array, "L L"] | None = None,
) -> Float[Array, "Q L I"]:
    """A stack of layers, each normalising before it attends and before it feeds forward.

    Args:
      layers: parameters with the layer as their first axis.
      inputs: embedded positions.
      tower: the sizes.
      mask: True where a position (row) may read another; None: everywhere.
    """

    def layer(x: Float[Array, "Q L I"], params: Params) -> tuple[Float[Array, "Q L I"], None]:
        normal = norm(params["norm1"], x, tower.epsilon)
        query, key, value = (linear(params[name], normal) for name in ("query", "key", "value"))
        dtype = params["out"]["kernel"].dtype
        x = x + linear(params["out"], attend(query, key, value, tower.heads, dtype, mask))
        return x + feed_forward(params, norm(params["norm2"], x, tower.epsilon), tower), None

    return jax.lax.scan(layer, inputs, layers)[0]


def unit(vectors: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Vectors of norm 1; a zero vector stays zero."""
    squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, jnp.finfo(vectors.dtype).tiny))


def _leading(vector: Float[Array, " I"], ndim: int) -> Float[Array, "*ones I"]:
    """A vector with leading axes of size 1, since ranks are not promoted silently."""
    return vector.reshape((1,) * (ndim - 1) + vector.shape)
