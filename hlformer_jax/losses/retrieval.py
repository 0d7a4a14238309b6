"""Losses of partially relevant retrieval on scores and on embeddings, exact under padding.

Triplet and contrastive losses rank scores [Q, V], with a row per caption and a column per video.
The diversity losses push the captions of a video apart, optimal matching pulls them to different
clips, and the partial order keeps them inside the entailment cone of the video. Distillation makes
a student learn a teacher's similarities of captions and frames.

Padded rows and columns (`Captions.mask`, `Videos.mask`) change neither a value nor a gradient, so
the results do not depend on the size to which a batch is padded. Every mean is over real captions
or real videos. A loss of a batch without anything to compare is 0.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import ArrayLike, Bool, Float, Int

from hlformer_jax.ops import cones
from hlformer_jax.ops.arguments import as_indices, check_shape
from hlformer_jax.ops.numerics import exact_precision, unit
from hlformer_jax.typing import Array, Batch


class Pairs(NamedTuple):
    """The assignment of captions to videos, with padding; an argument of the losses.

    Fields may be arrays of NumPy or JAX, or lists. If the video of a real caption does not exist, a
    loss raises ValueError; inside `jax.jit`, where values are unknown, the loss is NaN.

    Attributes:
      video: column of each caption's video, of any integer dtype.
      caption_mask: True for real captions.
      video_mask: True for real videos.
    """

    video: Int[Array, " Q"]
    caption_mask: Bool[Array, " Q"]
    video_mask: Bool[Array, " V"]

    @classmethod
    def from_batch(cls, batch: Batch) -> "Pairs":
        """Return the captions and videos of a batch."""
        return cls(batch.captions.video, batch.captions.mask, batch.videos.mask)

    def checked(self) -> "Pairs":
        """Return the pairs as JAX arrays.

        Raises:
          ValueError: for masks of a wrong shape, and for a real caption whose video does not exist
            (unless `jax.jit` hides the values).
        """
        video_mask = jnp.asarray(self.video_mask, bool)
        caption_mask = self.caption_mask
        if not isinstance(caption_mask, jax.Array):
            caption_mask = np.asarray(caption_mask, bool)
        video = as_indices("Pairs.video", self.video, len(video_mask), caption_mask)
        check_shape("Pairs.caption_mask", caption_mask, video.shape)
        return Pairs(video, jnp.asarray(caption_mask), video_mask)

    def exist(self) -> Bool[Array, ""]:
        """Return whether the videos of all real captions exist."""
        exists = (self.video >= 0) & (self.video < len(self.video_mask))
        return jnp.all(exists | ~self.caption_mask)

    def positives(self) -> Bool[Array, "Q V"]:
        """Return a matrix that is True for each real caption and its video."""
        video, caption_mask, video_mask = self.checked()
        columns = jnp.arange(len(video_mask), dtype=video.dtype)
        return (video[:, None] == columns[None]) & caption_mask[:, None]

    def check(self, scores: Float[Array, "Q V"]) -> None:
        """Raise ValueError if the shape of scores differs from the captions and videos."""
        check_shape("scores", scores, (*self.video.shape, *self.video_mask.shape))

    def real(self) -> Bool[Array, "Q V"]:
        """Return a matrix that is True where both the caption and the video are real."""
        _, caption_mask, video_mask = self.checked()
        return caption_mask[:, None] & video_mask[None]


Loss = TypeVar("Loss", bound=Callable[..., Array])


def _checks_pairs(loss: Loss) -> Loss:
    """Decorate a loss: a caption of a missing video raises ValueError or, under jit, gives NaN."""
    signature = inspect.signature(loss)

    @functools.wraps(loss)
    def checked_loss(*args: Any, **kwargs: Any) -> Array:
        call = signature.bind(*args, **kwargs)
        pairs = call.arguments["pairs"]
        is_traced = any(isinstance(x, jax.core.Tracer) for x in pairs)
        call.arguments["pairs"] = pairs = pairs.checked()
        value = loss(*call.args, **call.kwargs)
        return jnp.where(pairs.exist(), value, jnp.nan) if is_traced else value

    return cast(Loss, checked_loss)


def identity_pairs(pairs: Pairs) -> Pairs:
    """Return pairs in which every caption has a column of its own, the column of its index."""
    columns = jnp.arange(len(pairs.video), dtype=jnp.int32)
    return Pairs(columns, pairs.caption_mask, pairs.caption_mask)


class NegativeRanks(NamedTuple):
    """Ranks of the triplet loss's negatives by descending score; 0 is the hardest.

    Attributes:
      video: for each caption, the rank among the other videos.
      caption: for each video, the rank among the captions of other videos.
    """

    video: Int[Array, " Q"]
    caption: Int[Array, " V"]


def draw_negative_ranks(
    key: Array,
    pairs: Pairs,
    hard: Bool[Array, ""] | bool,
    pool: int | Int[Array, ""],
    caption_pool: int | Int[Array, ""] = 1,
) -> NegativeRanks:
    """Draw the negatives of the triplet loss, as released.

    Text to video: uniform over all other videos; in the hard phase over the `pool` hardest of them.
    Video to text: uniform over the captions of other videos; in the hard phase over the
    `caption_pool` hardest of them.

    Args:
      key: random key; row i depends only on (key, i), so that padding changes no draw.
      pairs: captions and videos.
      hard: whether the hard phase has begun.
      pool: number of hardest videos to draw from in the hard phase.
      caption_pool: number of hardest captions to draw from in the hard phase.

    Returns:
      Ranks below the number of negatives, or 0 without negatives.

    Raises:
      ValueError: for a real caption whose video does not exist.
    """
    pairs = pairs.checked()
    positives = pairs.positives()
    num_videos = _count(pairs.video_mask) - 1
    num_captions = _count(pairs.caption_mask) - _count(positives, axis=0)
    video_key, caption_key = jax.random.split(key)
    video_range = jnp.where(hard, jnp.minimum(num_videos, pool), num_videos)
    video = _draw(video_key, jnp.broadcast_to(video_range, pairs.video.shape))
    caption_range = jnp.where(hard, jnp.minimum(num_captions, caption_pool), num_captions)
    caption = _draw(caption_key, caption_range)
    return NegativeRanks(video, caption)


def _draw(key: Array, counts: Int[Array, " M"]) -> Int[Array, " M"]:
    """Draw a uniform integer in [0, count) for each row; 0 for an empty range."""
    rows = jnp.arange(counts.shape[0], dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
    return jax.vmap(
        lambda key, count: jax.random.randint(key, (), 0, jnp.maximum(count, 1), jnp.int32)
    )(keys, counts)


@_checks_pairs
def triplet(
    scores: Float[Array, "Q V"], pairs: Pairs, negatives: NegativeRanks, margin: ArrayLike
) -> Float[Array, ""]:
    """Triplet ranking loss on cosine scores, both directions.

    Text to video: max(0, margin + negative - positive), mean over captions. Video to text: the same
    with the mean score of the video's captions as the positive, mean over videos.

    Args:
      scores: largest cosine of each caption and the positions of each video, in one branch.
      pairs: captions and videos.
      negatives: ranks of the negatives in descending order of score.
      margin: m.

    Returns:
      The sum of both means; a row without a negative adds 0.

    Raises:
      ValueError: for scores or ranks of another shape than the pairs, for a real caption whose
        video does not exist and, outside of `jax.jit`, for a rank that does not exist.

    References:
      HLFormer eq. 29.
    """
    pairs.check(scores)
    video_rank = as_indices("negatives.video", negatives.video, scores.shape[1])
    caption_rank = as_indices("negatives.caption", negatives.caption, scores.shape[0])
    check_shape("negatives.video", video_rank, pairs.video.shape)
    check_shape("negatives.caption", caption_rank, pairs.video_mask.shape)
    positives, real = pairs.positives(), pairs.real()
    lowest = jnp.finfo(scores.dtype).min
    candidates = jnp.where(real & ~positives, scores, lowest)

    # A row without a negative has the lowest number as its negative, so the term is 0.
    negative = _at_rank(candidates, video_rank)
    positive: Array = jnp.take_along_axis(scores, pairs.video[:, None], axis=-1)[:, 0]
    text = jax.nn.relu(margin + negative - positive)

    negative = _at_rank(candidates.T, caption_rank)
    positive = masked_mean(scores, positives, axis=0)  # over the video's captions
    has_caption = jnp.any(positives, axis=0)
    video = jnp.where(has_caption, jax.nn.relu(margin + negative - positive), 0)
    return masked_mean(text, pairs.caption_mask) + masked_mean(video, pairs.video_mask)


def _at_rank(candidates: Float[Array, "M X"], rank: Int[Array, " M"]) -> Float[Array, " M"]:
    """Return each row's candidate at its rank in descending order."""
    order = jnp.argsort(jax.lax.stop_gradient(-candidates), axis=-1)
    index = jnp.take_along_axis(order, rank[:, None], axis=-1)
    value: Array = jnp.take_along_axis(candidates, index, axis=-1)[:, 0]
    return value


@_checks_pairs
def nce(scores: Float[Array, "Q V"], pairs: Pairs) -> Float[Array, ""]:
    """Contrastive loss on un-normalised dot products, both directions, no temperature.

    Text to video: logsumexp over videos minus the positive, mean over captions. Video to text:
    logsumexp over all captions minus logsumexp over the video's captions, mean over videos.

    Args:
      scores: largest dot product of each caption and the positions of each video, in one branch.
      pairs: captions and videos.

    Returns:
      The sum of both means.

    Raises:
      ValueError: for scores of another shape than the pairs, and for a real caption whose video
        does not exist.

    References:
      HLFormer eq. 30, as in the released code.
    """
    pairs.check(scores)
    positives, real = pairs.positives(), pairs.real()
    positive = jnp.take_along_axis(scores, pairs.video[:, None], axis=-1)[:, 0]
    text = masked_logsumexp(scores, real, axis=-1) - positive
    video = masked_logsumexp(scores, real, axis=0) - masked_logsumexp(scores, positives, axis=0)
    has_caption = pairs.video_mask & jnp.any(positives, axis=0)
    video = jnp.where(has_caption, video, 0)
    return masked_mean(text, pairs.caption_mask) + masked_mean(video, pairs.video_mask)


def joint_nce(scores: Float[Array, "Q Q"], mask: Bool[Array, " Q"]) -> Float[Array, ""]:
    """Contrastive loss of captions and their vectors, both directions in one logarithm.

    Args:
      scores: similarity of each caption (row) and the vector that belongs to each caption (column).
      mask: True for real captions.

    Returns:
      Mean over captions of the logsumexp of row and column q together, minus the score (q, q).

    Raises:
      ValueError: for scores of another shape than [Q, Q].

    References:
      MS-SL's frame loss, as in the released code.
    """
    check_shape("scores", scores, (*mask.shape, *mask.shape))
    both = jnp.concatenate([scores, scores.T], axis=-1)
    real = jnp.broadcast_to(jnp.concatenate([mask, mask])[None], both.shape)
    loss = masked_logsumexp(both, real, axis=-1) - jnp.diagonal(scores)
    return masked_mean(loss, mask)


def masked_logsumexp(scores: Array, mask: Array, axis: int) -> Array:
    """Return the logsumexp of the scores where the mask is True; finite if it is True nowhere."""
    filler = jnp.finfo(scores.dtype).min / 2
    return jax.nn.logsumexp(jnp.where(mask, scores, filler), axis=axis)


def zero_padding(x: Float[Array, "M ..."], mask: Bool[Array, " M"]) -> Float[Array, "M ..."]:
    """Set padded rows to 0. A NaN in such a row, times a weight of 0, would make gradients NaN."""
    return jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)


def masked_mean(values: Array, mask: Array, axis: int | None = None) -> Array:
    """Return the mean of the values where the mask is True; 0 if it is True nowhere.

    Args:
      values: the values.
      mask: True for the values that count, in the shape of the values.
      axis: the axis to average over; None for all axes.
    """
    count = jnp.maximum(_count(mask, axis), 1)
    return jnp.sum(jnp.where(mask, values, 0), axis=axis) / count.astype(values.dtype)


def _count(mask: Array, axis: int | None = None) -> Array:
    return jnp.sum(mask, axis=axis, dtype=jnp.int32)


# Embeddings


@_checks_pairs
def query_diversity(
    queries: Float[Array, "Q H"],
    pairs: Pairs,
    margin: ArrayLike,
    scale: ArrayLike,
    gamma: ArrayLike,
    per_video: bool = False,
) -> Float[Array, ""]:
    """Push apart the captions of one video, with a focal factor.

    An ordered pair i != j of captions of one video has the term (1 + cos)^gamma log(1 + e^(scale
    (cos + margin))). The released form is the sum of the terms, divided by the number of captions
    in the batch. The printed form multiplies the sum of each video by 2 / (M (M - 1)), where M is
    the number of its captions, and averages over the videos with at least two captions.

    Args:
      queries: sentence embeddings.
      pairs: captions and videos.
      margin: delta.
      scale: alpha.
      gamma: exponent of the focal factor; 0 is HLFormer's printed form.
      per_video: True for the form that GMMFormer v2 prints, False for the released form.

    Returns:
      The loss; 0 if no video has two captions.

    Raises:
      ValueError: for queries of another number than the captions, and for a real caption whose
        video does not exist.

    References:
      HLFormer eq. 32, GMMFormer v2 eqs. 4, 5; the focal factor is GMMFormer v2's and in HLFormer's
      released code.
    """
    cosine, are_pairs = _same_video(queries, pairs)
    # Rounding may put 1 + cos at or below 0, where a power has no gradient; 0 to the power 0 is 1.
    focal = 1 + cosine
    positive = focal > 0
    at_zero = jnp.asarray(gamma == 0, focal.dtype)
    focal = jnp.where(positive, jnp.where(positive, focal, 1.0) ** gamma, at_zero)
    terms = jnp.where(are_pairs, focal * jax.nn.softplus(scale * (cosine + margin)), 0)
    if per_video:
        positives = pairs.positives()
        count = _count(positives, axis=0)
        sums = jnp.sum(jnp.where(positives, jnp.sum(terms, axis=-1)[:, None], 0), axis=0)
        factor = 2 / jnp.maximum(count * (count - 1), 1).astype(terms.dtype)
        return masked_mean(factor * sums, count > 1)
    return jnp.sum(terms) / jnp.maximum(jnp.sum(pairs.caption_mask, dtype=terms.dtype), 1)


@_checks_pairs
def caption_diversity(
    queries: Float[Array, "Q H"], pairs: Pairs, margin: ArrayLike, scale: ArrayLike
) -> Float[Array, ""]:
    """Push apart the captions of one video, in GMMFormer's form: one logarithm per caption.

    The loss is the mean over captions i of log(1 + Σ_j e^(scale (cos_ij + margin))), where j runs
    over the other captions of the video of i.

    Args:
      queries: sentence embeddings.
      pairs: captions and videos.
      margin: delta.
      scale: alpha.

    Returns:
      The loss; 0 if no video has two captions.

    Raises:
      ValueError: for queries of another number than the captions, and for a real caption whose
        video does not exist.

    References:
      GMMFormer's query diverse loss, as in the released code.
    """
    cosine, are_pairs = _same_video(queries, pairs)
    exponents = jnp.where(are_pairs, scale * (cosine + margin), jnp.finfo(cosine.dtype).min / 2)
    terms = jnp.logaddexp(jnp.zeros((), cosine.dtype), jax.nn.logsumexp(exponents, axis=-1))
    return masked_mean(terms, pairs.caption_mask)


def _same_video(
    queries: Float[Array, "Q H"], pairs: Pairs
) -> tuple[Float[Array, "Q Q"], Bool[Array, "Q Q"]]:
    """Return the cosines of all pairs of captions, and True for the pairs of one video."""
    check_shape("queries", queries, (*pairs.video.shape, queries.shape[-1]))
    units = unit(zero_padding(queries, pairs.caption_mask))
    both = pairs.caption_mask[:, None] & pairs.caption_mask[None]
    are_pairs = both & (pairs.video[:, None] == pairs.video[None])
    are_pairs = are_pairs & ~jnp.eye(are_pairs.shape[0], dtype=bool)
    return jnp.einsum("ih,jh->ij", units, units, precision=exact_precision()), are_pairs


@_checks_pairs
def optimal_matching(
    queries: Float[Array, "Q H"],
    clips: Float[Array, "V C H"],
    pairs: Pairs,
    max_captions: int | None = None,
    per_video: bool = False,
) -> Float[Array, ""]:
    """Pull captions to different clips of their video, by the best assignment.

    In every video with at least two captions, the captions are assigned to different clips such
    that the sum of cosines is largest. With more captions than clips, as many captions as clips are
    assigned. The loss is the mean of 1 - cosine over assigned pairs.

    Args:
      queries: sentence embeddings.
      clips: encoded clips.
      pairs: captions and videos.
      max_captions: upper bound of the number of captions of a video; time and memory grow with it.
        None: the number of rows of ``queries``. If a video has more, the loss raises ValueError or,
        inside `jax.jit`, is NaN.
      per_video: True for the printed mean, over a video's captions and then over videos; False for
        the released mean, over all assigned pairs of the batch.

    Returns:
      The loss; 0 if no video has two captions (the released code fails in that case).

    Raises:
      ValueError: for clips of another number than the videos, queries of another number than the
        captions, a video with more than `max_captions` captions, and a real caption whose video
        does not exist.

    References:
      GMMFormer v2 eqs. 6, 7.
    """
    check_shape("queries", queries, (*pairs.video.shape, queries.shape[-1]))
    check_shape("clips", clips, (*pairs.video_mask.shape, *clips.shape[1:]))
    queries = zero_padding(queries, pairs.caption_mask)
    clips = zero_padding(clips, pairs.video_mask)
    cosine = jnp.einsum(
        "qh,qch->qc", unit(queries), unit(clips)[pairs.video], precision=exact_precision()
    )
    positives = pairs.positives()
    capacity = len(positives) if max_captions is None else min(max_captions, len(positives))
    counts = jnp.sum(positives, axis=0, dtype=jnp.int32)
    fits = jnp.all(counts <= capacity)
    if not isinstance(fits, jax.core.Tracer) and not fits:
        raise ValueError(f"a video has {counts.max()} captions, but max_captions is {max_captions}")
    several = pairs.caption_mask & (counts[pairs.video] > 1)
    # `index` is the index of a caption within its video. Empty rows of `costs` cost more than any
    # caption (whose cost is at most 1), so that they never take a caption's clip.
    ordinals = jnp.cumsum(positives, axis=0)
    index = jnp.take_along_axis(ordinals, pairs.video[:, None], axis=-1)[:, 0] - 1
    index = jnp.where(several, index, capacity)  # beyond the last: dropped
    cost = jax.lax.stop_gradient(-cosine)
    cost = jnp.where(jnp.isfinite(cost), cost, 1)  # so that the search ends; the loss may be NaN
    costs = jnp.full((len(clips), capacity, clips.shape[1]), 3, cost.dtype)
    costs = costs.at[pairs.video, index].set(cost, mode="drop")
    rows, columns = jax.vmap(optax.assignment.hungarian_algorithm)(costs)
    videos = jnp.arange(len(clips), dtype=jnp.int32)[:, None]
    clip = jnp.full(costs.shape[:2], -1, jnp.int32).at[videos, rows].set(columns.astype(jnp.int32))
    clip = clip.at[pairs.video, index].get(mode="fill", fill_value=-1)
    matched = several & (clip >= 0)
    distance = 1 - jnp.take_along_axis(cosine, jnp.maximum(clip, 0)[:, None], axis=-1)[:, 0]
    distance = jnp.where(fits, distance, jnp.nan)
    if per_video:
        matched_captions = positives & matched[:, None]
        means = masked_mean(distance[:, None], matched_captions, axis=0)
        return masked_mean(means, jnp.any(matched_captions, axis=0))
    return masked_mean(distance, matched)


@_checks_pairs
def partial_order(
    videos: Float[Array, "V n1"],
    captions: Float[Array, "Q n1"],
    curvature: Float[Array, ""],
    pairs: Pairs,
    min_radius: ArrayLike,
) -> Float[Array, ""]:
    """Keep a caption inside the entailment cone of its video.

    Args:
      videos: lifted videos, points of the hyperboloid with n + 1 coordinates, time first.
      captions: lifted captions, points of the same hyperboloid.
      curvature: c; the curvature of the space is -c.
      pairs: captions and videos.
      min_radius: K, which determines the aperture of the cones, see `cones.energy`.

    Returns:
      Mean over captions of the angle in radians by which a caption lies outside the cone.

    Raises:
      ValueError: for arrays of another number than the videos or captions, and for a real caption
        whose video does not exist.

    References:
      HLFormer eq. 18-20.
    """
    check_shape("videos", videos, (*pairs.video_mask.shape, videos.shape[-1]))
    check_shape("captions", captions, (*pairs.video.shape, captions.shape[-1]))
    captions = zero_padding(captions, pairs.caption_mask)
    videos = zero_padding(videos, pairs.video_mask)
    outside = cones.energy(videos[pairs.video], captions, curvature, min_radius)
    return masked_mean(outside, pairs.caption_mask)


@_checks_pairs
def distillation(
    queries: Float[Array, "Q H"],
    frames: Float[Array, "V F H"],
    teacher: Float[Array, "Q F"],
    frame_mask: Bool[Array, "V F"],
    pairs: Pairs,
    temperature: ArrayLike,
) -> Float[Array, ""]:
    """Kullback-Leibler divergence of a student from a teacher over the frames of a video.

    Student and teacher each have the cosines of a caption and the frames of its video. The loss
    compares the two distributions softmax(cosine / temperature) over the frames.

    Args:
      queries: sentence embeddings of the student.
      frames: encoded frames of the student.
      teacher: the teacher's cosines of each caption and the frames of its video.
      frame_mask: True for real frames.
      pairs: captions and videos.
      temperature: divides the cosines of student and teacher.

    Returns:
      KL(teacher || student), summed over captions as released, so it grows with the batch size. No
      gradient flows to ``teacher``.

    Raises:
      ValueError: for arrays of other shapes, and for a real caption whose video does not exist.

    References:
      DL-DKD's distillation loss, as in the released code.
    """
    (num_queries,), (num_videos,) = pairs.video.shape, pairs.video_mask.shape
    check_shape("queries", queries, (num_queries, queries.shape[-1]))
    check_shape("frames", frames, (num_videos, *frames.shape[1:]))
    check_shape("teacher", teacher, (num_queries, frames.shape[1]))
    check_shape("frame_mask", frame_mask, frames.shape[:2])
    real = jnp.asarray(frame_mask)[pairs.video] & pairs.caption_mask[:, None]
    queries = zero_padding(queries, pairs.caption_mask)
    frames = jnp.where(frame_mask[..., None], frames, 0)[pairs.video]  # each caption's video
    cosine = jnp.einsum("qh,qfh->qf", unit(queries), unit(frames), precision=exact_precision())
    target = _log_softmax(jax.lax.stop_gradient(teacher).astype(cosine.dtype) / temperature, real)
    log_student = _log_softmax(cosine / temperature, real)
    return jnp.sum(jnp.where(real, jnp.exp(target) * (target - log_student), 0))


def _log_softmax(logits: Float[Array, "Q F"], real: Bool[Array, "Q F"]) -> Float[Array, "Q F"]:
    # A finite filler keeps the rows of padded captions, which do not count, finite.
    return jax.nn.log_softmax(jnp.where(real, logits, jnp.finfo(logits.dtype).min / 2), axis=-1)
