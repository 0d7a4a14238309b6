"""Layers that the architectures share, as pure functions over their parameters.

Matrix products take operands in the dtype of the kernel and accumulate in float32. Sums, norms and
softmaxes are computed in float32. A stack of layers is a scan, so that XLA compiles one layer.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.encoders.config import Tower, Vision
from hlformer_jax.typing import Array

Params = Any
"""A tree of arrays, nested by name."""

_EXACT = jax.lax.Precision.HIGHEST  # otherwise a GPU may round float32 operands to fewer bits


def linear(params: Params, inputs: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
    """Apply an affine map, with or without a bias."""
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
    """Normalise the last axis, then scale and shift it."""
    centred = inputs - jnp.mean(inputs, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + epsilon)
    scale, bias = (_leading(params[name], inputs.ndim) for name in ("scale", "bias"))
    return normal * scale + bias


def activation(name: str, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Apply one of `config.ACTIVATIONS`."""
    match name:
        case "quick_gelu":
            return x * jax.nn.sigmoid(1.702 * x)
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "gelu_new" | "gelu_pytorch_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "relu":
            return jnp.maximum(x, 0.0)  # OpenVINO cannot read jax.nn.relu's custom derivative
        case "silu":
            return jax.nn.silu(x)
    raise ValueError(f"unknown activation {name!r}")


def feed_forward(
    params: Params, inputs: Float[Array, "*batch I"], tower: Tower
) -> Float[Array, "*batch I"]:
    """Apply two affine maps with an activation between them."""
    return linear(params["fc2"], activation(tower.activation, linear(params["fc1"], inputs)))


def attend(
    query: Float[Array, "Q M I"],
    key: Float[Array, "Q L I"],
    value: Float[Array, "Q L I"],
    heads: int,
    dtype: Any,
    mask: Bool[Array, "#Q #M L"] | None = None,
) -> Float[Array, "Q M I"]:
    """Apply multi-head attention to float32 inputs, without the output projection.

    Args:
      query: the positions that attend.
      key: the positions that are attended to.
      value: their values.
      heads: number of heads, which share the width.
      dtype: dtype of the products' operands.
      mask: True for positions that may be attended to; None for all.
    """
    width = query.shape[-1] // heads
    product = partial(_product, dtype)
    logits = product(
        "qmnd,qlnd->qnml", _split_heads(query * width**-0.5, heads), _split_heads(key, heads)
    )
    if mask is not None:
        logits = jnp.where(mask[:, None], logits, jnp.finfo(logits.dtype).min)
    weights = jax.nn.softmax(logits, axis=-1)
    attended = product("qnml,qlnd->qmnd", weights, _split_heads(value, heads))
    return attended.reshape(*attended.shape[:-2], -1)


def _split_heads(x: Float[Array, "Q L I"], heads: int) -> Float[Array, "Q L heads X"]:
    return x.reshape(*x.shape[:-1], heads, -1)


def _product(dtype: Any, axes: str, a: Array, b: Array) -> Array:
    """Return an einsum of operands rounded to a dtype, accumulated in float32."""
    return jnp.einsum(
        axes,
        a.astype(dtype),
        b.astype(dtype),
        precision=_EXACT,
        preferred_element_type=jnp.float32,
    )


def transformer(
    layers: Params,
    inputs: Float[Array, "Q L I"],
    tower: Tower,
    mask: Bool[Array, "#Q #L L"] | None = None,
    post_norm: bool = False,
) -> Float[Array, "Q L I"]:
    """Apply a stack of layers: attention and a feed-forward net, each with a residual connection.

    Args:
      layers: parameters, stacked along their first axis.
      inputs: the positions.
      tower: the sizes of a layer.
      mask: as for `attend`.
      post_norm: True normalises the residual sums, as RoBERTa does; False normalises the inputs of
        attention and feed-forward net.
    """

    def attend_to(x: Float[Array, "Q L I"], params: Params) -> Float[Array, "Q L I"]:
        query, key, value = (linear(params[name], x) for name in ("query", "key", "value"))
        dtype = params["out"]["kernel"].dtype
        return linear(params["out"], attend(query, key, value, tower.heads, dtype, mask))

    def layer(x: Float[Array, "Q L I"], params: Params) -> tuple[Float[Array, "Q L I"], None]:
        norm1 = partial(norm, params["norm1"], epsilon=tower.epsilon)
        norm2 = partial(norm, params["norm2"], epsilon=tower.epsilon)
        if post_norm:
            x = norm1(x + attend_to(x, params))
            return norm2(x + feed_forward(params, x, tower)), None
        x = x + attend_to(norm1(x), params)
        return x + feed_forward(params, norm2(x), tower), None

    return jax.lax.scan(layer, inputs, layers)[0]


def unit(vectors: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Scale vectors to norm 1; a zero vector stays zero."""
    squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, jnp.finfo(vectors.dtype).tiny))


def _leading(vector: Float[Array, " I"], ndim: int) -> Float[Array, "*ones I"]:
    """Return a vector with leading axes of size 1, as `jax_numpy_rank_promotion` may require."""
    return vector.reshape((1,) * (ndim - 1) + vector.shape)


def patches(pixels: Float[Array, "V S S 3"], vision: Vision) -> Float[Array, "V P X"]:
    """Return the whole patches of images, row by row; a patch has row, column, channel in order."""
    grid, size = vision.grid, vision.patch_size
    cropped = pixels[:, : grid * size, : grid * size]
    cells = cropped.reshape(len(pixels), grid, size, grid, size, 3)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(len(pixels), grid * grid, size * size * 3)
