"""Losses of the embeddings of captions, clips and videos, exact under padding.

Captions of one video are pushed apart (diversity) or to clips of their own (optimal matching), and
kept inside the entailment cone of their video (partial order); a student of a teacher learns which
frames they are near (distillation). Masks and means are as in `ranking`.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.losses.ranking import Pairs, masked_mean, zero_padding
from hlformer_jax.ops import cones
from hlformer_jax.ops.numerics import check_shape, exact_precision, unit
from hlformer_jax.typing import Array


def query_diversity(
    queries: Float[Array, "Q H"],
    pairs: Pairs,
    margin: ArrayLike,
    scale: ArrayLike,
    gamma: ArrayLike,
) -> Float[Array, ""]:
    """Pushes apart the captions of one video, with a focal factor.

    Over ordered pairs i != j of captions of one video: (1 + cos)^gamma log(1 + e^(scale (cos +
    margin))), summed and divided by the number of captions.

    Args:
      queries: sentence embeddings.
      pairs: captions and videos.
      margin: delta.
      scale: alpha.
      gamma: exponent of the focal factor; 0 is HLFormer's printed form.

    References:
      HLFormer eq. 32; the focal factor is GMMFormer v2's and in HLFormer's released code.
    """
    cosine, same = _same_video(queries, pairs)
    # Rounding may put 1 + cos at or below 0, where a power has no gradient.
    focal = 1 + cosine
    positive = focal > 0
    focal = jnp.where(positive, jnp.where(positive, focal, 1.0) ** gamma, 0.0)
    terms = jnp.where(same, focal * jax.nn.softplus(scale * (cosine + margin)), 0)
    return jnp.sum(terms) / jnp.maximum(jnp.sum(pairs.caption_mask, dtype=terms.dtype), 1)


def caption_diversity(
    queries: Float[Array, "Q H"], pairs: Pairs, margin: ArrayLike, scale: ArrayLike
) -> Float[Array, ""]:
    """GMMFormer's first form of `query_diversity`: one logarithm for each caption.

    Mean over captions i of log(1 + the sum over other captions j of the video of e^(scale (cos +
    margin))).

    Args:
      queries: sentence embeddings.
      pairs: captions and videos.
      margin: delta.
      scale: alpha.

    References:
      GMMFormer's query diverse loss, as in the released code.
    """
    cosine, same = _same_video(queries, pairs)
    exponents = jnp.where(same, scale * (cosine + margin), jnp.finfo(cosine.dtype).min / 2)
    terms = jnp.logaddexp(jnp.zeros((), cosine.dtype), jax.nn.logsumexp(exponents, axis=-1))
    return masked_mean(terms, pairs.caption_mask)


def _same_video(
    queries: Float[Array, "Q H"], pairs: Pairs
) -> tuple[Float[Array, "Q Q"], Bool[Array, "Q Q"]]:
    """Cosines of all captions, and which are two different ones of one video."""
    check_shape("queries", queries, (*pairs.video.shape, queries.shape[-1]))
    units = unit(zero_padding(queries, pairs.caption_mask))
    both = pairs.caption_mask[:, None] & pairs.caption_mask[None]
    same = both & (pairs.video[:, None] == pairs.video[None])
    same = same & ~jnp.eye(same.shape[0], dtype=bool)
    return jnp.einsum("ih,jh->ij", units, units, precision=exact_precision()), same


def optimal_matching(
    queries: Float[Array, "Q H"],
    clips: Float[Array, "V C H"],
    pairs: Pairs,
    max_captions: int | None = None,
) -> Float[Array, ""]:
    """Pulls captions to different clips of their video: to those of the best assignment.

    For every video with at least two captions, the assignment of its captions to its clips with
    the largest sum of cosines (no clip twice; where there are more captions than clips, the best
    that many are assigned); 1 - cosine, mean over all assigned pairs of the batch.

    Args:
      queries: sentence embeddings.
      clips: encoded clips.
      pairs: captions and videos.
      max_captions: at least the number of captions of any video, by which time and memory grow;
        None: the capacity of the batch.

    Returns:
      The loss; 0 where no video has two captions (the released code fails there).

    References:
      GMMFormer v2 eq. 6, 7, as in the released code: the mean is over the batch's pairs.
    """
    check_shape("clips", clips, (*pairs.video_mask.shape, *clips.shape[1:]))
    queries = zero_padding(queries, pairs.caption_mask)
    clips = zero_padding(clips, pairs.video_mask)
    cosine = jnp.einsum(
        "qh,qch->qc", unit(queries), unit(clips)[pairs.video], precision=exact_precision()
    )
    own = pairs.own()
    capacity = min(max_captions or len(own), len(own))
    counts = jnp.sum(own, axis=0, dtype=jnp.int32)
    several = pairs.caption_mask & (counts[pairs.video] > 1)
    # The index of a caption among those of its video; rows that stay empty cost more than any
    # real one (a cosine is at most 1), so they never take its clip.
    index = jnp.take_along_axis(jnp.cumsum(own, axis=0), pairs.video[:, None], axis=-1)[:, 0] - 1
    index = jnp.where(several, index, capacity)  # beyond the last: dropped
    cost = jax.lax.stop_gradient(-cosine)
    cost = jnp.where(jnp.isfinite(cost), cost, 1)  # the search must end, the loss may be NaN
    costs = jnp.full((len(clips), capacity, clips.shape[1]), 3, cost.dtype)
    costs = costs.at[pairs.video, index].set(cost, mode="drop")
    rows, columns = jax.vmap(optax.assignment.hungarian_algorithm)(costs)
    videos = jnp.arange(len(clips), dtype=jnp.int32)[:, None]
    clip = jnp.full(costs.shape[:2], -1, jnp.int32).at[videos, rows].set(columns.astype(jnp.int32))
    clip = clip.at[pairs.video, index].get(mode="fill", fill_value=-1)
    matched = several & (clip >= 0)
    chosen = jnp.take_along_axis(cosine, jnp.maximum(clip, 0)[:, None], axis=-1)[:, 0]
    return masked_mean(1 - chosen, matched)


def partial_order(
    videos: Float[Array, "V n1"],
    captions: Float[Array, "Q n1"],
    curvature: Float[Array, ""],
    pairs: Pairs,
    min_radius: ArrayLike,
) -> Float[Array, ""]:
    """Keeps a caption inside the entailment cone of its video.

    Args:
      videos: lifted videos, points with n + 1 coordinates, time first.
      captions: lifted captions.
      curvature: c; the curvature of the space is -c.
      pairs: captions and videos.
      min_radius: sets the aperture near the origin.

    Returns:
      Mean over captions of `cones.energy`, apex at the video.

    References:
      HLFormer eq. 18-20.
    """
    captions = zero_padding(captions, pairs.caption_mask)
    videos = zero_padding(videos, pairs.video_mask)
    outside = cones.energy(videos[pairs.video], captions, curvature, min_radius)
    return masked_mean(outside, pairs.caption_mask)


def distillation(
    queries: Float[Array, "Q H"],
    frames: Float[Array, "V F H"],
    teacher: Float[Array, "Q F"],
    frame_mask: Bool[Array, "V F"],
    pairs: Pairs,
    temperature: ArrayLike,
) -> Float[Array, ""]:
    """Kullback-Leibler divergence of a student from a teacher over the frames of a video.

    Each has cosines of a caption and every frame of its own video, and as distributions over the
    frames, softmax(cosine / temperature), the student's is drawn to the teacher's.

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
    cosine = jnp.einsum("qh,qfh->qf", unit(queries), unit(own), precision=exact_precision())
    target = _log_softmax(jax.lax.stop_gradient(teacher).astype(cosine.dtype) / temperature, real)
    log_student = _log_softmax(cosine / temperature, real)
    return jnp.sum(jnp.where(real, jnp.exp(target) * (target - log_student), 0))


def _log_softmax(logits: Float[Array, "Q F"], real: Bool[Array, "Q F"]) -> Float[Array, "Q F"]:
    # A finite filler keeps the rows of padded captions finite; nothing of them is counted.
    return jax.nn.log_softmax(jnp.where(real, logits, jnp.finfo(logits.dtype).min / 2), axis=-1)
