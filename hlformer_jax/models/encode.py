"""The methods of a model as pure functions of parameters and arrays."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.models.hlformer import Lifted
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.ops.dropout import part_of
from hlformer_jax.typing import Array, Captions, Videos


def encode_query(
    model: nn.Module, params: Any, captions: Captions, dropout_key: Array | None = None
) -> Float[Array, "Q H"]:
    """Sentence embeddings, float32 at least; with dropout where a key is given."""
    return _apply(model, params, dropout_key, "encode_query", captions)


def encode_video(
    model: nn.Module,
    params: Any,
    videos: Videos,
    dropout_key: Array | None = None,
    parts: int = 1,
) -> VideoEncoding:
    """Videos encoded at both granularities; with dropout where a key is given.

    Args:
      model: a model of `build`.
      params: its parameters.
      videos: a batch.
      dropout_key: random key of the dropout; None switches it off.
      parts: how many parts of the batch, of equal size, are encoded one after another, and once
        more when a gradient is asked for: memory for arithmetic. Changes results by rounding alone.

    Returns:
      The encoded videos, float32 at least.

    Raises:
      ValueError: when there are no parts of equal size.
    """
    if parts == 1:
        return _apply(model, params, dropout_key, "encode_video", videos)
    if len(videos.mask) % parts:
        raise ValueError(f"{len(videos.mask)} videos do not make {parts} parts of equal size")

    # In a loop XLA need not be kept from taking the second computation for the first.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def encode(number: Array, part: Videos) -> VideoEncoding:
        with part_of(number, parts):
            return _apply(model, params, dropout_key, "encode_video", part)

    # Part p has videos p, p + parts, …, so that each device has its share of every part.
    split = lambda x: jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1)
    join = lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])
    numbered = jnp.arange(parts, dtype=jnp.uint32), jax.tree.map(split, videos)
    return jax.tree.map(join, jax.lax.map(lambda part: encode(*part), numbered))


def lift(
    model: nn.Module, params: Any, videos: VideoEncoding, queries: Float[Array, "Q H"]
) -> Lifted:
    """Videos and sentences as points of the hyperboloid of the partial order loss."""
    lifted: Any = model.apply({"params": params}, videos, queries, method="lift")
    return lifted


def _apply(
    model: nn.Module, params: Any, dropout_key: Array | None, method: str, inputs: Any
) -> Any:
    train = dropout_key is not None
    rngs: Any = None if dropout_key is None else {"dropout": dropout_key}
    return model.apply({"params": params}, inputs, train, rngs=rngs, method=method)
