"""The image encoders of CLIP and SigLIP as pure functions."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Float, UInt8

from hlformer_jax.encoders.config import Config, Vision
from hlformer_jax.encoders.layers import (
    Params,
    attend,
    feed_forward,
    linear,
    norm,
    transformer,
    unit,
)
from hlformer_jax.typing import Array


def patches(pixels: Float[Array, "V S S 3"], vision: Vision) -> Float[Array, "V P X"]:
    """The whole patches of images, row by row, each as one vector: row, column, channel."""
    grid, size = vision.grid, vision.patch_size
    whole = pixels[:, : grid * size, : grid * size]
    cells = whole.reshape(len(pixels), grid, size, grid, size, 3)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(len(pixels), grid * grid, size * size * 3)


def states(
    params: Params, config: Config, pixels: Float[Array, "V S S 3"]
) -> Float[Array, "V L I"]:
    """The last hidden states of images: of patches, behind CLIP's class position.

    Args:
      params: the tree's part "vision".
      config: sizes and options.
      pixels: normalised images.

    Returns:
      CLIP's before its last norm, SigLIP's after it, as transformers has them.
    """
    vision = config.vision
    x = linear(params["patch"], patches(pixels, vision))
    if config.family == "clip":
        first = jnp.broadcast_to(params["class"], (len(x), 1, vision.width))
        x = jnp.concatenate([first, x], axis=1) + params["positions"][None]
        return transformer(params["layers"], norm(params["pre_norm"], x, vision.epsilon), vision)
    x = transformer(params["layers"], x + params["positions"][None], vision)
    return norm(params["post_norm"], x, vision.epsilon)


def pool(params: Params, config: Config, hidden: Float[Array, "V L I"]) -> Float[Array, "V d"]:
    """The embedding of images in the joint space, of any norm.

    CLIP projects its class position; SigLIP lets a learned query attend to all patches.

    Args:
      params: the tree's part "vision".
      config: sizes and options.
      hidden: the last hidden states.
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


def encode(
    params: Params,
    config: Config,
    pixels: UInt8[Array, "V S S 3"],
    shift: Any,
    scale: Any,
) -> Float[Array, "V d"]:
    """Unit vectors of images.

    Args:
      params: the tree's part "vision".
      config: sizes and options.
      pixels: images of 0 to 255, resized and cropped.
      shift: what is subtracted from pixels, of each channel.
      scale: what the difference is multiplied by, of each channel.
    """
    channels = lambda values: jnp.asarray(values, jnp.float32).reshape(1, 1, 1, 3)
    normal = (pixels.astype(jnp.float32) - channels(shift)) * channels(scale)
    return unit(pool(params, config, states(params, config, normal)))
