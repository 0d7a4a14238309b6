"""Evidential losses: how sure a caption is of its video, and of its moment (Holmes).

A similarity s gives evidence e^(tanh(s) / tau) for its class; evidence plus one are the parameters
of a Dirichlet distribution over the classes, whose concentration says how sure the decision is. The
loss is the squared error of a categorical distribution drawn from it, in expectation.

Between videos the classes are the videos of the batch, and both branches are combined by Dempster's
rule. Within a video they are its clips; what each caption should say of them comes from a transport
of the captions to the clips that leaves clips without a caption to a dustbin.

References: Revisiting Uncertainty: On Evidential Learning for Partially Relevant Video Retrieval,
arXiv 2605.06083; the expected squared error is that of Sensoy et al., NeurIPS 2018.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops.numerics import unit
from hlformer_jax.training.losses import Pairs, grouped
from hlformer_jax.typing import Array

DUSTBIN_SHARE = 0.3
"""Share of the similarities of a video that lie below the dustbin's, as released."""

ENTROPY = 0.1
"""Weight of the transport's entropy: similarities between 0 and 1 are divided by it."""

ITERATIONS = 50
"""Iterations of the transport, as released."""

DOUBT = 0.3
"""Beta: nothing is doubted for less uncertainty than 1 - beta or more similarity than beta."""

SMOOTHING = 0.2
"""Share of a doubted caption's label that the scores of the branches have."""


def between_videos(
    clip_cosine: Float[Array, "Q V"],
    frame_cosine: Float[Array, "Q V"],
    pairs: Pairs,
    temperature: ArrayLike,
    smooth: Bool[Array, ""] | bool,
) -> Float[Array, ""]:
    """Evidential loss of each branch and of both combined, with the video as the class.

    Args:
      clip_cosine: cosine maxima of the clips.
      frame_cosine: cosine maxima of the frames.
      pairs: captions and videos.
      temperature: tau of the evidence.
      smooth: whether captions that the branches doubt have smoothed labels.

    Returns:
      The sum of three means over captions.
    """
    own, real = pairs.own(), pairs.real()
    labels = own.astype(clip_cosine.dtype)
    scores = frame_cosine, clip_cosine
    alphas = [_concentration(x, real, temperature) for x in scores]
    doubted = doubts(scores[0], alphas[0], pairs) | doubts(scores[1], alphas[1], pairs)
    sure = ~(_unsure(scores[0], alphas[0], pairs) | _unsure(scores[1], alphas[1], pairs))
    filler = jnp.finfo(labels.dtype).min / 2
    guesses = [jax.nn.softmax(jnp.where(real, jax.lax.stop_gradient(x), filler)) for x in scores]
    smoothed = (1 - SMOOTHING) * labels + SMOOTHING / 2 * (guesses[0] + guesses[1])
    rows = (doubted & sure)[:, None] & jnp.asarray(smooth)[None, None]
    labels = jnp.where(rows & real, smoothed, labels)
    losses = [expected_error(labels, x, real) for x in (*alphas, combine(*alphas, real))]
    return _mean(losses[0] + losses[1] + losses[2], pairs.caption_mask)


def within_videos(
    queries: Float[Array, "Q H"],
    clips: Float[Array, "V C H"],
    pairs: Pairs,
    temperature: ArrayLike,
    most_captions: int | None = None,
) -> Float[Array, ""]:
    """Evidential loss with the clip as the class, by the soft labels of `transport`.

    Similarities are brought to [0, 1] for each video first, from the smallest to the largest of its
    real captions (the released code counts the zeros with which it pads captions).

    Args:
      queries: sentence embeddings.
      clips: encoded clips.
      pairs: captions and videos.
      temperature: tau of the evidence.
      most_captions: at least the number of captions of any video; None: the batch's capacity.

    Returns:
      Mean over videos of the mean over their captions.
    """
    group = grouped(pairs, most_captions)
    queries = jnp.where(pairs.caption_mask[:, None], queries, 0)
    clips = jnp.where(pairs.video_mask[:, None, None], clips, 0)
    texts = unit(group.gather(queries))
    cosine = jnp.einsum("vmh,vch->vmc", texts, unit(clips))
    mask = jnp.broadcast_to(group.mask[..., None], cosine.shape)
    low = jnp.min(cosine, axis=(1, 2), keepdims=True, initial=jnp.inf, where=mask)
    high = jnp.max(cosine, axis=(1, 2), keepdims=True, initial=-jnp.inf, where=mask)
    some = jnp.any(mask, axis=(1, 2), keepdims=True)
    low, high = jnp.where(some, low, 0), jnp.where(some, high, 1)
    likeness = jnp.where(mask, (cosine - low) / (high - low + 1e-8), 0)
    labels = transport(jax.lax.stop_gradient(likeness), group.mask)
    alpha = _concentration(likeness, mask, temperature)
    each = jnp.where(group.mask, expected_error(labels, alpha, mask), 0)
    counts = jnp.sum(group.mask, axis=1, dtype=each.dtype)
    of_video = jnp.sum(each, axis=1) / jnp.maximum(counts, 1)
    return _mean(of_video, pairs.video_mask & group.mask[:, 0])


def transport(likeness: Float[Array, "V M C"], mask: Bool[Array, "V M"]) -> Float[Array, "V M C"]:
    """Soft assignment of the captions of a video to its clips, with a dustbin for other clips.

    Entropic transport from M captions of mass 1 / (C + M) each and a dustbin of mass C / (C + M) to
    C clips of mass 1 / C. The dustbin's likeness to every clip is the value below which
    `DUSTBIN_SHARE` of the video's likenesses lie.

    Args:
      likeness: of captions and clips, in [0, 1].
      mask: True for real captions.

    Returns:
      Shares of each caption over the clips, of sum 1; 0 for captions that are none.
    """
    dtype, clips = likeness.dtype, likeness.shape[-1]
    low = jnp.finfo(dtype).min / 4
    count = jnp.sum(mask, axis=1, dtype=jnp.int32)
    kth = jnp.maximum((DUSTBIN_SHARE * (count * clips).astype(dtype)).astype(jnp.int32), 1) - 1
    ordered = jnp.sort(jnp.where(mask[..., None], likeness, jnp.inf).reshape(len(mask), -1))
    threshold = jnp.take_along_axis(ordered, kth[:, None], axis=1)[:, 0]
    threshold = jnp.where(count > 0, threshold, 0)
    bins = jnp.broadcast_to(threshold[:, None, None], (len(mask), 1, clips))
    kernel = jnp.concatenate([likeness, bins], axis=1) / ENTROPY
    total = jnp.log((count + clips).astype(dtype))[:, None]
    rows = jnp.concatenate([jnp.where(mask, -total, low), jnp.log(clips) - total], axis=1)
    columns = -jnp.log(jnp.asarray(clips, dtype))

    def step(_: Array, v: Array) -> Array:
        u = rows - jax.nn.logsumexp(kernel + v[:, None], axis=2)
        return columns - jax.nn.logsumexp(kernel + u[..., None], axis=1)

    v = jax.lax.fori_loop(0, ITERATIONS - 1, step, jnp.zeros((len(mask), clips), dtype))
    u = rows - jax.nn.logsumexp(kernel + v[:, None], axis=2)
    v = columns - jax.nn.logsumexp(kernel + u[..., None], axis=1)
    plan = jnp.exp(kernel + u[..., None] + v[:, None] - columns)[:, :-1]
    plan = jnp.where(mask[..., None], plan, 0)
    return plan / (jnp.sum(plan, axis=2, keepdims=True) + 1e-8)


def expected_error(
    labels: Float[Array, "*batch K"], alpha: Float[Array, "*batch K"], real: Bool[Array, "*batch K"]
) -> Float[Array, "*batch"]:
    """Expected squared error of a categorical distribution drawn from a Dirichlet distribution.

    Args:
      labels: shares of the classes.
      alpha: parameters of the distribution; 0 for classes that are none.
      real: True for classes that are one.
    """
    total = jnp.sum(alpha, axis=-1, keepdims=True)
    total = jnp.where(total > 0, total, 1)
    error = (labels - alpha / total) ** 2
    variance = alpha / total * ((total - alpha) / total) / (total + 1)
    return jnp.sum(jnp.where(real, error + variance, 0), axis=-1)


def combine(
    first: Float[Array, "Q V"], second: Float[Array, "Q V"], real: Bool[Array, "Q V"]
) -> Float[Array, "Q V"]:
    """Parameters of two Dirichlet distributions combined by Dempster's rule."""
    classes = jnp.sum(real, axis=-1, keepdims=True, dtype=first.dtype)
    beliefs, doubt = [], []
    for alpha in (first, second):
        total = jnp.maximum(jnp.sum(alpha, axis=-1, keepdims=True), 1)
        beliefs.append(jnp.where(real, alpha - 1, 0) / total)
        doubt.append(classes / total)
    # Beliefs and doubt of each sum to 1; what both claim for different classes is the conflict.
    joint = beliefs[0] * beliefs[1] + beliefs[0] * doubt[1] + beliefs[1] * doubt[0]
    both = doubt[0] * doubt[1]
    both = jnp.where(both > 0, both, 1)
    return jnp.where(real, joint / both * classes + 1, 0)


def _concentration(scores: Array, real: Array, temperature: ArrayLike) -> Array:
    return jnp.where(real, jnp.exp(jnp.tanh(scores) / temperature) + 1, 0)


class _Limits(NamedTuple):
    uncertainty: Float[Array, ""]
    consensus: Float[Array, ""]


def _judge(scores: Array, alpha: Array, pairs: Pairs) -> tuple[Array, Array, _Limits]:
    """Uncertainty and own score of each caption, and the limits that correct ones set."""
    real, own = pairs.real(), pairs.own()
    classes = jnp.sum(pairs.video_mask, dtype=scores.dtype)
    uncertainty = classes / jnp.maximum(jnp.sum(alpha, axis=-1), 1)
    consensus = jnp.sum(jnp.where(own, scores, 0), axis=-1)
    best = jnp.argmax(jnp.where(real, scores, -jnp.inf), axis=-1)
    correct = (best == pairs.video) & pairs.caption_mask
    most = jnp.max(uncertainty, initial=-jnp.inf, where=correct)
    least = jnp.min(consensus, initial=jnp.inf, where=correct)
    some = jnp.any(correct)
    return (
        uncertainty,
        consensus,
        _Limits(
            jnp.where(some, jnp.minimum(most, 1 - DOUBT), 1 - DOUBT),
            jnp.where(some, jnp.maximum(least, DOUBT), DOUBT),
        ),
    )


def _unsure(scores: Array, alpha: Array, pairs: Pairs) -> Array:
    uncertainty, _, limits = _judge(scores, alpha, pairs)
    return uncertainty > limits.uncertainty


def doubts(
    scores: Float[Array, "Q V"], alpha: Float[Array, "Q V"], pairs: Pairs
) -> Bool[Array, " Q"]:
    """Captions of which a branch is certain, but not rightly so: they may fit several videos.

    Either their own score is below that of every caption that finds its video, or the entropy of
    the distribution is above the median of the batch.
    """
    uncertainty, consensus, limits = _judge(scores, alpha, pairs)
    total = jnp.maximum(jnp.sum(alpha, axis=-1, keepdims=True), 1)
    entropy = jnp.sum(alpha / total * (digamma(total + 1) - digamma(alpha + 1)), axis=-1)
    count = jnp.sum(pairs.caption_mask, dtype=jnp.int32)
    ordered = jnp.sort(jnp.where(pairs.caption_mask, entropy, jnp.inf))
    median = ordered[jnp.maximum(count - 1, 0) // 2]  # the lower of two, as released
    certain = uncertainty <= limits.uncertainty
    poor = (consensus < limits.consensus) | (entropy > median)
    return certain & poor & pairs.caption_mask


def _mean(values: Array, mask: Array) -> Array:
    count = jnp.sum(mask, dtype=values.dtype)
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(count, 1)
