"""The encoders of CLIP, SigLIP and RoBERTa as pure functions over their parameters.

Functions of images and of sentences take the tree's part "vision" or "text".
Matrix products take operands of their kernel's dtype and accumulate in float32; all else, sums,
norms and softmaxes, is float32. A stack of layers is one program for a layer, which is scanned.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt8

from hlformer_jax.encoders.config import LARGEST_ID, Config, Roberta, TextConfig, Tower, Vision
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
    mask: Bool[Array, "#Q #M L"] | None = None,
) -> Float[Array, "Q M I"]:
    """Attention of several heads of float32 inputs, before its last affine map.

    `dtype` is that of the products' operands; the mask is True where a position may be read.
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
        logits = jnp.where(mask[:, None], logits, jnp.finfo(logits.dtype).min)
    weights = jax.nn.softmax(logits, axis=-1)
    attended = product("qnml,qlnd->qmnd", weights, split(value))
    return attended.reshape(*attended.shape[:-2], -1)


def transformer(
    layers: Params,
    inputs: Float[Array, "Q L I"],
    tower: Tower,
    mask: Bool[Array, "#Q #L L"] | None = None,
    post_norm: bool = False,
) -> Float[Array, "Q L I"]:
    """A stack of layers, each of attention and a feed-forward net that add to their inputs.

    Each normalises before it attends and before it feeds forward, or (`post_norm`) the sums after
    either. Parameters have the layer as their first axis; the mask is as that of `attend`.
    """

    def layer(x: Float[Array, "Q L I"], params: Params) -> tuple[Float[Array, "Q L I"], None]:
        def attended(x: Float[Array, "Q L I"]) -> Float[Array, "Q L I"]:
            query, key, value = (linear(params[name], x) for name in ("query", "key", "value"))
            dtype = params["out"]["kernel"].dtype
            return linear(params["out"], attend(query, key, value, tower.heads, dtype, mask))

        norm1, norm2 = (
            lambda x, name=name: norm(params[name], x, tower.epsilon) for name in ("norm1", "norm2")
        )
        if post_norm:
            x = norm1(x + attended(x))
            return norm2(x + feed_forward(params, x, tower)), None
        x = x + attended(norm1(x))
        return x + feed_forward(params, norm2(x), tower), None

    return jax.lax.scan(layer, inputs, layers)[0]


def unit(vectors: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Vectors of norm 1; a zero vector stays zero."""
    squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, jnp.finfo(vectors.dtype).tiny))


def _leading(vector: Float[Array, " I"], ndim: int) -> Float[Array, "*ones I"]:
    """A vector with leading axes of size 1, since ranks are not promoted silently."""
    return vector.reshape((1,) * (ndim - 1) + vector.shape)


def patches(pixels: Float[Array, "V S S 3"], vision: Vision) -> Float[Array, "V P X"]:
    """The whole patches of images, row by row, each as one vector: row, column, channel."""
    grid, size = vision.grid, vision.patch_size
    whole = pixels[:, : grid * size, : grid * size]
    cells = whole.reshape(len(pixels), grid, size, grid, size, 3)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(len(pixels), grid * grid, size * size * 3)


def image_states(
    params: Params, config: Config, pixels: Float[Array, "V S S 3"]
) -> Float[Array, "V L I"]:
    """The last hidden states of normalised images: of patches, behind CLIP's class position.

    CLIP's are before its last norm, SigLIP's after it, as transformers has them.
    """
    vision = config.vision
    x = linear(params["patch"], patches(pixels, vision))
    if config.family == "clip":
        first = jnp.broadcast_to(params["class"], (len(x), 1, vision.width))
        x = jnp.concatenate([first, x], axis=1) + params["positions"][None]
        return transformer(params["layers"], norm(params["pre_norm"], x, vision.epsilon), vision)
    x = transformer(params["layers"], x + params["positions"][None], vision)
    return norm(params["post_norm"], x, vision.epsilon)


def pool_image(
    params: Params, config: Config, hidden: Float[Array, "V L I"]
) -> Float[Array, "V d"]:
    """The embedding of images in the joint space, of any norm.

    CLIP projects its class position; SigLIP lets a learned query attend to all patches.
    """
    vision = config.vision
    if config.family == "clip":
        return linear(params["projection"], norm(params["post_norm"], hidden[:, 0], vision.epsilon))
    head = params["pool"]
    # One kernel holds query, key and value, as in PyTorch's attention layer.
    part = lambda index: {
        name: value[..., index * vision.width : (index + 1) * vision.width]
        for name, value in head["in"].items()
    }
    asked = jnp.broadcast_to(head["probe"], (len(hidden), 1, vision.width))
    attended = attend(
        linear(part(0), asked),
        linear(part(1), hidden),
        linear(part(2), hidden),
        vision.heads,
        head["in"]["kernel"].dtype,
    )
    x = linear(head["out"], attended)[:, 0]
    return x + feed_forward(head, norm(head["norm"], x, vision.epsilon), vision)


def encode_images(
    params: Params,
    config: Config,
    pixels: UInt8[Array, "V S S 3"],
    shift: Any,
    scale: Any,
) -> Float[Array, "V d"]:
    """Unit vectors of images, resized and cropped, normalised to (pixels − shift) · scale."""
    channels = lambda values: jnp.asarray(values, jnp.float32).reshape(1, 1, 1, 3)
    normal = (pixels.astype(jnp.float32) - channels(shift)) * channels(scale)
    return unit(pool_image(params, config, image_states(params, config, normal)))


def token_states(
    params: Params,
    config: TextConfig,
    ids: Int[Array, "Q W"],
    real: Bool[Array, "Q W"] | None = None,
) -> Float[Array, "Q W I"]:
    """The last hidden states of every token, padding included.

    CLIP's tokens read those before them. SigLIP's read all, padding too: it was trained so.
    RoBERTa's read the `real` ones (by default those that have not the id of padding), which have
    positions of their own, from pad + 1 on; those of its padding mean nothing.
    """
    text = config.text
    x = params["tokens"][ids].astype(jnp.float32)
    if isinstance(config, Roberta):
        counted = ids != text.pad
        real = counted if real is None else real
        places = jnp.where(counted, jnp.cumsum(counted, axis=1), 0) + text.pad
        x = x + params["segments"][None, :1] + params["positions"][places]
        x = norm(params["first_norm"], x, text.epsilon)
        return transformer(params["layers"], x, text, real[:, None], post_norm=True)
    x = x + params["positions"][None, : ids.shape[1]]
    before = jnp.tril(jnp.ones((1, *ids.shape[1:] * 2), bool)) if config.family == "clip" else None
    x = transformer(params["layers"], x, text, before)
    return norm(params["final_norm"], x, text.epsilon)


def pool_sentence(
    params: Params, config: Config, hidden: Float[Array, "Q W I"], ids: Int[Array, "Q W"]
) -> Float[Array, "Q d"]:
    """The embedding of sentences in the joint space, of any norm.

    CLIP pools at the first end of a sentence, or (eos 2, OpenAI's) at the largest id; SigLIP at the
    last position, which is padding for all but the longest sentences.
    """
    if config.family == "clip":
        eos = config.text.eos
        ranked = ids if eos == LARGEST_ID else (ids == eos).astype(jnp.int32)
        at = jnp.argmax(ranked, axis=1)
        return linear(params["head"], jnp.take_along_axis(hidden, at[:, None, None], axis=1)[:, 0])
    return linear(params["head"], hidden[:, -1])


def encode_sentences(
    params: Params, config: Config, ids: Int[Array, "Q W"]
) -> tuple[Float[Array, "Q d"], Float[Array, "Q W I"]]:
    """Unit vectors of sentences, and the last hidden states of their tokens."""
    hidden = token_states(params, config, ids)
    return unit(pool_sentence(params, config, hidden, ids)), hidden
