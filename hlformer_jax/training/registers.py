"""Losses of the registers: a prior of what they begin from, and the denoising they are made by.

References:
  DreamPRVR (arXiv 2604.03653), as in the released code.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.models import Latent
from hlformer_jax.training.losses import Pairs
from hlformer_jax.typing import Array

PERTURBATION = 0.1
"""Standard deviation of a perturbation, over that of the features of the caption."""

NORM_EPSILON = 1e-5
"""Added to the variance of the features of a caption, as PyTorch does."""


def prior(latent: Latent, pairs: Pairs) -> Float[Array, ""]:
    """Divergence of the Gaussians of the videos from the standard one.

    Args:
      latent: of the videos.
      pairs: captions and videos.

    Returns:
      KL(N(mean, variance) || N(0, 1)), summed over features, mean over videos.
    """
    real = pairs.video_mask
    mean, log_variance = (
        jnp.where(real[:, None], x, 0) for x in (latent.mean, latent.log_variance)
    )
    terms = jnp.square(mean) + jnp.expm1(log_variance) - log_variance
    return jnp.sum(terms) / 2 / _count(real, mean)


def perturbed_captions(
    queries: Float[Array, "Q H"], pairs: Pairs, count: int, key: Array | None
) -> Float[Array, "V R H"]:
    """What registers should become: perturbed copies of the mean caption of each video.

    Of the mean caption of a video, whose features have mean m and standard deviation s, every
    feature of every copy is α x + β of its normalised value x, with α from N(1, s / 10) and β from
    N(m, s / 10). Gradients reach x alone.

    Args:
      queries: sentence embeddings.
      pairs: captions and videos.
      count: number of copies R.
      key: random key; row v depends on (key, v) alone, so that padding changes no draw. None: α is
        1 and β is m.

    Returns:
      The copies; those of a video without captions are 0.
    """
    own = pairs.own()
    queries = jnp.where(pairs.caption_mask[:, None], queries, 0)
    captions = jnp.maximum(jnp.sum(own, axis=0, dtype=jnp.int32), 1).astype(queries.dtype)
    mean = jnp.einsum("qv,qh->vh", own.astype(queries.dtype), queries) / captions[:, None]
    shift = jnp.mean(mean, axis=-1, keepdims=True)
    centred = mean - shift
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normalised = (centred / jnp.sqrt(variance + NORM_EPSILON))[:, None]
    shift = jax.lax.stop_gradient(shift)[:, None]
    if key is None:
        return jnp.repeat(normalised + shift, count, axis=1)
    spread = jnp.std(jax.lax.stop_gradient(mean), axis=-1, ddof=1)[:, None, None] * PERTURBATION
    rows = jnp.arange(len(mean), dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
    shape = (2, count, mean.shape[-1])
    drawn = jax.vmap(lambda key: jax.random.normal(key, shape, mean.dtype))(keys)
    return (1 + spread * drawn[:, 0]) * normalised + shift + spread * drawn[:, 1]


def denoising(latent: Latent, predicted: Float[Array, "T V R H"], pairs: Pairs) -> Float[Array, ""]:
    """How well noise is found: mean squared error over levels, videos, registers and features.

    The noise is the mean of the video's Gaussian, as released, and learns from the error too.

    Args:
      latent: of the videos.
      predicted: noise found at every level.
      pairs: captions and videos; a video without captions is not counted.
    """
    real = pairs.video_mask & jnp.any(pairs.own(), axis=0)
    error = jnp.square(predicted - latent.mean[None, :, None])
    per_video = jnp.mean(error, axis=(0, 2, 3))
    return jnp.sum(jnp.where(real, per_video, 0)) / _count(real, per_video)


def _count(mask: Bool[Array, " V"], like: Array) -> Float[Array, ""]:
    return jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1).astype(like.dtype)
