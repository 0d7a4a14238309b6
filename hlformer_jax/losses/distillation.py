"""Distillation from a teacher that compares sentences with frames (DL-DKD).

Teacher and student each have cosines of a caption and every frame of its own video. As
distributions over the frames, softmax(cosine / temperature), the student's is drawn to the
teacher's.
"""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.losses.ranking import Pairs, zero_padding
from hlformer_jax.ops.numerics import unit
from hlformer_jax.typing import Array


def divergence(
    queries: Float[Array, "Q H"],
    frames: Float[Array, "V F H"],
    teacher: Float[Array, "Q F"],
    frame_mask: Bool[Array, "V F"],
    pairs: Pairs,
    temperature: ArrayLike,
) -> Float[Array, ""]:
    """Kullback-Leibler divergence of the student from the teacher over the frames of a video.

    Args:
      queries: sentence embeddings of the student.
      frames: its encoded frames.
      teacher: the teacher's cosines of each caption and the frames of its own video.
      frame_mask: True for real frames.
      pairs: captions and videos.
      temperature: divides the cosines of both.

    Returns:
      KL(teacher || student), summed over captions as released: it grows with the batch.

    References:
      DL-DKD's distillation loss, as in the released code.
    """
    real = frame_mask[pairs.video] & pairs.caption_mask[:, None]
    queries = zero_padding(queries, pairs.caption_mask)
    own = jnp.where(frame_mask[..., None], frames, 0)[pairs.video]
    cosine = jnp.einsum("qh,qfh->qf", unit(queries), unit(own))
    target = _log_softmax(jax.lax.stop_gradient(teacher).astype(cosine.dtype) / temperature, real)
    log_student = _log_softmax(cosine / temperature, real)
    return jnp.sum(jnp.where(real, jnp.exp(target) * (target - log_student), 0))


def _log_softmax(logits: Float[Array, "Q F"], real: Bool[Array, "Q F"]) -> Float[Array, "Q F"]:
    # A finite filler keeps the rows of padded captions finite; nothing of them is counted.
    return jax.nn.log_softmax(jnp.where(real, logits, jnp.finfo(logits.dtype).min / 2), axis=-1)
