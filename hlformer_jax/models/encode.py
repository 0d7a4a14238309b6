"""The methods of a model as pure functions of parameters and arrays."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.models.hlformer import Lifted
from hlformer_jax.models.registry import Model
from hlformer_jax.models.two_branch import CaptionEncoding, VideoEncoding
from hlformer_jax.nn.uncertainty import Normal
from hlformer_jax.typing import Array, Batch, Captions, Videos


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


def encode_captions(
    model: Model, params: Any, captions: Captions, dropout_key: Array | None = None
) -> CaptionEncoding:
    """Sentence embeddings and encoded words; arguments as of `encode_query`."""
    inputs = captions, dropout_key is not None
    encoded: CaptionEncoding = model.apply(
        params, *inputs, method="encode_captions", rngs=_rngs(dropout_key)
    )
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


def distributions(
    model: Model, params: Any, batch: Batch, videos: VideoEncoding, words: Float[Array, "Q W H"]
) -> tuple[Normal, Normal]:
    """Distributions of videos and of the sets of their captions (`config.model.uncertainty`).

    Args:
      model: a model of `registry.build`.
      params: parameters of the model.
      batch: videos with all their captions.
      videos: the encoded videos.
      words: the encoded words of the captions.

    Returns:
      Of each, means and logarithms of the standard deviations [V, H]; of no meaning where a video
      is padding or has no caption.
    """
    inputs = batch.videos, videos, batch.captions, words
    both: tuple[Normal, Normal] = model.apply(params, *inputs, method="distributions")
    return both


def _rngs(dropout_key: Array | None) -> dict[str, Array] | None:
    return None if dropout_key is None else {"dropout": dropout_key}
