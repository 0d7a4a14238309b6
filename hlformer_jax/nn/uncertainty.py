"""Videos and their sets of captions as normal distributions of the hidden space (RAL).

A set of positions x, the frames of a video or the words of all its captions, becomes a normal
distribution with a diagonal covariance, with z the set pooled and a, b two attention poolings of x:

    mean = unit(LayerNorm(z + sigmoid(A a))),    log sigma = B b + C z.

Of a video, z is the direction of the mean of its frames' directions; of captions, the mean of their
words.

References:
  Robust Alignment Learning (RAL), EMNLP Findings 2025, multimodal semantic robust alignment, as in
  the released code. There, padding takes part in the attention poolings: padded frames, zeros up
  to 26 captions of 30 words, whatever the data, and the encoder's outputs at padded words. Here it
  does not.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from hlformer_jax.nn.layers import INITIALISER, dense, layer_norm
from hlformer_jax.ops.numerics import as_float, unit
from hlformer_jax.typing import Array


class Normal(NamedTuple):
    """Normal distributions with a diagonal covariance.

    Attributes:
      mean: means, of length 1.
      log_sigma: logarithms of the standard deviations.
    """

    mean: Float[Array, "V H"]
    log_sigma: Float[Array, "V H"]


class Sets(NamedTuple):
    """Sequences of which each belongs to a set: captions to their video, a video to itself.

    Attributes:
      row: row of a sequence's set.
      mask: True for real positions; a padded sequence has none.
      number: number V of sets.
    """

    row: Int[Array, " M"]
    mask: Bool[Array, "M L"]
    number: int


class Uncertainty(nn.Module):
    """Distributions of videos and of the sets of their captions; float32 at least."""

    @nn.compact
    def __call__(
        self,
        frames: Float[Array, "V F H"],
        frame_mask: Bool[Array, "V F"],
        words: Float[Array, "Q W H"],
        word_mask: Bool[Array, "Q W"],
        video: Int[Array, " Q"],
    ) -> tuple[Normal, Normal]:
        """Distributions of videos, and of their captions.

        Args:
          frames: encoded frames.
          frame_mask: True for real frames.
          words: encoded words.
          word_mask: True for real words of real captions.
          video: row of each caption's video.
        """
        number = len(frames)
        of_videos = Sets(jnp.arange(number, dtype=video.dtype), frame_mask, number)
        of_captions = Sets(video, word_mask, number)
        # What stands at padding must be finite: its weight is 0.
        frames = jnp.where(frame_mask[..., None], as_float(frames), 0)
        words = jnp.where(word_mask[..., None], as_float(words), 0)
        pooled_frames = unit(mean_of_sets(unit(frames), of_videos))
        pooled_words = mean_of_sets(words, of_captions)
        return (
            NormalHead(name="videos")(pooled_frames, frames, of_videos),
            NormalHead(name="captions")(pooled_words, words, of_captions),
        )


class NormalHead(nn.Module):
    """A set and its pooled vector to a normal distribution."""

    @nn.compact
    def __call__(self, pooled: Float[Array, "V H"], x: Float[Array, "M L H"], sets: Sets) -> Normal:
        features, dtype = x.shape[-1], x.dtype
        attended = SetAttention(name="mean_attention")(x, sets)
        residual = nn.sigmoid(dense(features, "mean_attended", dtype)(attended))
        attended = SetAttention(name="sigma_attention")(x, sets)
        return Normal(
            unit(layer_norm("norm", dtype)(pooled + residual)),
            dense(features, "sigma_attended", dtype)(attended)
            + dense(features, "sigma_pooled", dtype)(pooled),
        )


class SetAttention(nn.Module):
    """Weighted sum over the positions of a set with weights softmax(w . tanh(W x))."""

    @nn.compact
    def __call__(self, x: Float[Array, "M L H"], sets: Sets) -> Float[Array, "V H"]:
        linear = lambda features, name: nn.Dense(
            features, use_bias=False, dtype=x.dtype, kernel_init=INITIALISER, name=name
        )
        hidden = nn.tanh(linear(x.shape[-1] // 2, "hidden")(x))
        return softmax_of_sets(linear(1, "logit")(hidden)[..., 0], x, sets)


def mean_of_sets(x: Float[Array, "M L H"], sets: Sets) -> Float[Array, "V H"]:
    """Mean over the real positions of each set; 0 of an empty one."""
    return softmax_of_sets(jnp.zeros(x.shape[:2], x.dtype), x, sets)


def softmax_of_sets(
    logits: Float[Array, "M L"], x: Float[Array, "M L H"], sets: Sets
) -> Float[Array, "V H"]:
    """Sum over the real positions of each set, weighted by the softmax over the set.

    Args:
      logits: logits of the weights.
      x: sequences, finite at padded positions.
      sets: the set of each sequence.

    Returns:
      A vector for each set; 0 of an empty one.
    """
    belongs = sets.row[:, None] == jnp.arange(sets.number, dtype=sets.row.dtype)[None]
    lowest = jnp.finfo(logits.dtype).min
    # A softmax is the same whatever its logits are shifted by; less their largest none overflows.
    largest = jnp.max(jnp.where(sets.mask, logits, lowest), axis=-1)
    largest = jnp.max(jnp.where(belongs, largest[:, None], lowest), axis=0)
    shift = jax.lax.stop_gradient(largest)[sets.row][:, None]
    weights = jnp.exp(jnp.where(sets.mask, logits - shift, lowest))
    # Products, not a scatter: sums in the same order each time, on any device.
    of_set = belongs.astype(x.dtype)
    total = jnp.einsum("mv,m->v", of_set, jnp.sum(weights, axis=-1))
    summed = jnp.einsum("mv,mh->vh", of_set, jnp.einsum("ml,mlh->mh", weights, x))
    return summed / jnp.where(total > 0, total, 1)[:, None]
