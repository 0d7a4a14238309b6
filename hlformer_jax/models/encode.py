"""The methods of a model as pure functions of parameters and arrays."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.models.hlformer import Lifted
from hlformer_jax.models.registry import Model
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.nn.registers import Latent
from hlformer_jax.typing import Array, Captions, Videos


def encode_query(
    model: Model, params: Any, captions: Captions, dropout_key: Array | None = None
) -> Float[Array, "Q H"]:
    """Sentence embeddings, float32 at least.

    Args:
      model: a model of `registry.build`.
      params: parameters of the model.
      captions: a batch of captions.
      dropout_key: random key of the dropout; None switches it off.
    """
    inputs = captions, dropout_key is not None
    encoded: Array = model.apply(params, *inputs, method="encode_query", rngs=_rngs(dropout_key))
    return encoded


def encode_video(
    model: Model,
    params: Any,
    videos: Videos,
    dropout_key: Array | None = None,
    parts: int = 1,
) -> Any:
    """Videos encoded at both granularities.

    Args:
      model: a model of `registry.build`.
      params: parameters of the model.
      videos: a batch of videos.
      dropout_key: random key of the dropout; None switches it off.
      parts: number of parts of the batch, of equal size, that are encoded one after another, and
        once more when a gradient is asked for: memory for arithmetic. Without dropout, changes
        results by rounding alone; the masks of dropout are each part's own.

    Returns:
      The encoded videos, float32 at least: a `VideoEncoding`, or what the model has in its place.

    Raises:
      ValueError: when there are no parts of equal size.
    """

    def encode(videos: Videos, dropout_key: Array | None) -> Any:
        inputs = videos, model.hyperparameters, dropout_key is not None
        return model.apply(params, *inputs, method="encode_video", rngs=_rngs(dropout_key))

    return _in_parts(encode, videos, dropout_key, parts)


def latent(
    model: Model,
    params: Any,
    videos: Videos,
    dropout_key: Array | None = None,
    parts: int = 1,
) -> Latent:
    """What the registers of videos are made of, of a model that has some.

    Arguments and errors of `encode_video`: given the same, dropout has the masks that it has there,
    and these are the latents of the registers that the blocks see.
    """

    def encode(videos: Videos, dropout_key: Array | None) -> Any:
        inputs = videos, dropout_key is not None
        return model.apply(params, *inputs, method="latent", rngs=_rngs(dropout_key))

    encoded: Latent = _in_parts(encode, videos, dropout_key, parts)
    return encoded


def predict_noise(
    model: Model, params: Any, latent: Latent, clean: Float[Array, "V R H"]
) -> Float[Array, "T V R H"]:
    """The noise that a model's denoiser sees in registers, at every level of noise."""
    predicted: Array = model.apply(params, latent, clean, method="predict_noise")
    return predicted


def _in_parts(
    encode: Callable[[Videos, Array | None], Any],
    videos: Videos,
    dropout_key: Array | None,
    parts: int,
) -> Any:
    """Encodes videos, in as many parts as `encode_video` says."""
    if parts == 1:
        return encode(videos, dropout_key)
    if len(videos.mask) % parts:
        raise ValueError(f"{len(videos.mask)} videos do not make {parts} parts of equal size")

    # In a loop XLA need not be kept from taking the second computation for the first.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def encode_part(index: Array, part: Videos) -> Any:
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
        return encode(part, key)

    # Part p has videos p, p + parts, …, so that each device has its share of every part.
    split = lambda x: jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1)
    join = lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])
    indexed = jnp.arange(parts, dtype=jnp.uint32), jax.tree.map(split, videos)
    return jax.tree.map(join, jax.lax.map(lambda part: encode_part(*part), indexed))


def lift(model: Model, params: Any, videos: VideoEncoding, queries: Float[Array, "Q H"]) -> Lifted:
    """Videos and sentences as points of the hyperboloid of the partial order loss."""
    lifted: Lifted = model.apply(params, videos, queries, method="lift")
    return lifted


def _rngs(dropout_key: Array | None) -> dict[str, Array] | None:
    return None if dropout_key is None else {"dropout": dropout_key}
