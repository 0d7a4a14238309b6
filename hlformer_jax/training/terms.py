"""The terms of the training objective, as records: what each computes, and what it needs.

The name of a term is that of its weight in `config.loss`; the order is that of the log.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Bool, Float

from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.training import distillation, losses, registers
from hlformer_jax.training.losses import NegativeRanks, Pairs
from hlformer_jax.typing import Array


class Negatives(NamedTuple):
    """Negatives of the triplet loss, drawn for each branch on its own, as released."""

    clip: NegativeRanks
    frame: NegativeRanks


@dataclasses.dataclass(frozen=True)
class FrameColumns:
    """What the columns of the frame branch are to the losses; see `TrainingScorer.frame_columns`.

    Attributes:
      pairs: captions and columns, given captions and videos.
      nce: contrastive loss of the branch.
      pools_captions: whether a column's negative, too, is drawn from the hardest pool.
    """

    pairs: Callable[[Pairs], Pairs]
    nce: Callable[[Array, Pairs], Float[Array, ""]]
    pools_captions: bool


FRAME_COLUMNS = {
    "videos": FrameColumns(lambda pairs: pairs, losses.nce, False),
    # MS-SL, as released: every caption has a vector of its own.
    "captions": FrameColumns(
        losses.each_for_itself,
        lambda scores, pairs: losses.joint_nce(scores, pairs.caption_mask),
        True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Encoded:
    """What the terms see of an encoded batch.

    Attributes:
      queries: sentence embeddings.
      videos: encoded videos.
      lift: gives videos, sentences and curvature as `losses.partial_order` takes them.
      similarities: similarities of captions and videos.
      pairs: captions and videos, with padding.
      columns: what the columns of the frame branch are.
      negatives: negatives of the triplet loss.
      values: weights and constants, by their names in `config.loss`.
      diversity_form: form of the query diversity, see config/fields.py.
      most_captions: largest number of captions of a video, see `losses.optimal_matching`.
      clip_queries: what the clips are compared with: the sentence embeddings, or a part of them.
      frame_mask: True for real frames.
      teacher: a teacher's cosines of captions and the frames of their videos; None without one.
      latent: gives what the registers of the videos are made of, where the model has some.
      predict_noise: gives the noise that is seen in registers which should become given ones.
      key: random key of what terms draw themselves; None: they draw nothing.
    """

    queries: Float[Array, "Q H"]
    videos: Any
    lift: Callable[[], Any]
    similarities: Similarities
    pairs: Pairs
    columns: FrameColumns
    negatives: Negatives
    values: Mapping[str, float | Float[Array, ""]]
    diversity_form: str
    most_captions: int | None
    clip_queries: Float[Array, "Q _"]
    frame_mask: Bool[Array, "V F"]
    teacher: Float[Array, "Q F"] | None = None
    latent: Callable[[], Any] = lambda: None
    predict_noise: Callable[[Any, Array], Any] = lambda latent, clean: None
    key: Array | None = None


@dataclasses.dataclass(frozen=True)
class Term:
    """A term of the loss.

    Attributes:
      compute: value of the term.
      branch: field of `config.model` without which there is no such term; "" for none.
    """

    compute: Callable[[Encoded], Float[Array, ""]]
    branch: str = ""


def _clip_triplet(encoded: Encoded) -> Float[Array, ""]:
    cosine: Any = encoded.similarities.clip_cosine
    return losses.triplet(cosine, encoded.pairs, encoded.negatives.clip, encoded.values["margin"])


def _frame_triplet(encoded: Encoded) -> Float[Array, ""]:
    cosine: Any = encoded.similarities.frame_cosine
    pairs = encoded.columns.pairs(encoded.pairs)
    return losses.triplet(cosine, pairs, encoded.negatives.frame, encoded.values["margin"])


def _clip_nce(encoded: Encoded) -> Float[Array, ""]:
    dots: Any = encoded.similarities.clip_dot
    return losses.nce(dots, encoded.pairs)


def _frame_nce(encoded: Encoded) -> Float[Array, ""]:
    dots: Any = encoded.similarities.frame_dot
    return encoded.columns.nce(dots, encoded.columns.pairs(encoded.pairs))


def _query_diversity(encoded: Encoded) -> Float[Array, ""]:
    margin, scale, gamma = (
        encoded.values[f"diversity_{name}"] for name in ("margin", "scale", "gamma")
    )
    if encoded.diversity_form == "captions":
        return losses.caption_diversity(encoded.queries, encoded.pairs, margin, scale)
    return losses.query_diversity(encoded.queries, encoded.pairs, margin, scale, gamma)


def _partial_order(encoded: Encoded) -> Float[Array, ""]:
    videos, captions, curvature = encoded.lift()
    min_radius = encoded.values["min_radius"]
    return losses.partial_order(videos, captions, curvature, encoded.pairs, min_radius)


def _optimal_matching(encoded: Encoded) -> Float[Array, ""]:
    clips, queries = encoded.videos.clips, encoded.clip_queries
    return losses.optimal_matching(queries, clips, encoded.pairs, encoded.most_captions)


def _distillation(encoded: Encoded) -> Float[Array, ""]:
    if encoded.teacher is None:
        raise ValueError("the batch has no teacher: its split was opened without data.teacher_dim")
    return distillation.divergence(
        encoded.clip_queries,
        encoded.videos.clips,
        encoded.teacher,
        encoded.frame_mask,
        encoded.pairs,
        encoded.values["distillation_temperature"],
    )


def _register_prior(encoded: Encoded) -> Float[Array, ""]:
    return registers.prior(encoded.latent(), encoded.pairs)


def _register_denoising(encoded: Encoded) -> Float[Array, ""]:
    latent = encoded.latent()
    count = latent.condition.shape[-2]
    clean = registers.perturbed_captions(encoded.queries, encoded.pairs, count, encoded.key)
    predicted = encoded.predict_noise(latent, clean)
    return registers.denoising(latent, predicted, encoded.pairs)


TERMS = {
    "clip_triplet": Term(_clip_triplet, "glance"),
    "frame_triplet": Term(_frame_triplet, "gaze"),
    "clip_nce": Term(_clip_nce, "glance"),
    "frame_nce": Term(_frame_nce, "gaze"),
    "query_diversity": Term(_query_diversity),
    "partial_order": Term(_partial_order),
    "optimal_matching": Term(_optimal_matching, "glance"),
    "distillation": Term(_distillation, "glance"),
    "register_prior": Term(_register_prior, "registers"),
    "register_denoising": Term(_register_denoising, "registers"),
}
