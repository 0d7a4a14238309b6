"""The training objective of one batch: every term by name, and their weighted sum (eq. 21, 31)."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from hlformer_jax import losses, retrieval
from hlformer_jax.losses import NegativeRanks, Pairs
from hlformer_jax.typing import Batch

Terms = dict[str, Float[Array, ""]]

TERMS = (
    "clip_triplet",
    "frame_triplet",
    "clip_nce",
    "frame_nce",
    "query_diversity",
    "partial_order",
)
"""Names of the loss terms: the fields of `config.loss` that hold their weights."""


class Negatives(NamedTuple):
    """Negatives of the triplet loss, drawn for each branch on its own, as released."""

    clip: NegativeRanks
    frame: NegativeRanks


def active_terms(config: ConfigDict) -> tuple[str, ...]:
    """Names of the terms with a weight other than 0 whose branch is on."""
    off = [
        branch
        for branch, on in (("clip", config.model.glance), ("frame", config.model.gaze))
        if not on
    ]
    return tuple(
        name
        for name in TERMS
        if config.loss[name] != 0 and not any(name.startswith(branch) for branch in off)
    )


def draw_negatives(key: Array, batch: Batch, hard: Bool[Array, ""], pool: int) -> Negatives:
    """Draws the negatives of both branches; see `losses.draw_negative_ranks`."""
    clip_key, frame_key = jax.random.split(key)
    pairs = _pairs(batch)
    return Negatives(
        losses.draw_negative_ranks(clip_key, pairs, hard, pool),
        losses.draw_negative_ranks(frame_key, pairs, hard, pool),
    )


def objective(
    model: nn.Module,
    config: ConfigDict,
    params: Any,
    batch: Batch,
    negatives: Negatives,
    dropout_key: Array | None,
) -> tuple[Float[Array, ""], Terms]:
    """The training loss of a batch.

    Args:
      model: a model of `models.build`.
      config: weights and constants are those of `config.loss`.
      params: the model's parameters.
      batch: videos with all their captions.
      negatives: places of the triplet loss's negatives.
      dropout_key: random key of the dropout; None switches dropout off.

    Returns:
      The weighted sum and the terms without their weights; terms of weight 0 are not computed.
    """
    train = dropout_key is not None
    rngs = {"dropout": dropout_key} if train else {}
    apply = lambda *args, method: model.apply({"params": params}, *args, rngs=rngs, method=method)
    queries = apply(batch.captions, train, method="encode_query")
    videos = apply(batch.videos, train, method="encode_video")
    similarities = retrieval.similarities(queries, videos.clips, videos.frames)
    pairs, loss = _pairs(batch), config.loss

    def compute(name: str) -> Float[Array, ""]:
        if name == "clip_triplet":
            scores, ranks = similarities.clip_cosine, negatives.clip
            return losses.triplet(scores, pairs, ranks, loss.margin)
        if name == "frame_triplet":
            scores, ranks = similarities.frame_cosine, negatives.frame
            return losses.triplet(scores, pairs, ranks, loss.margin)
        if name == "clip_nce":
            return losses.nce(similarities.clip_dot, pairs)
        if name == "frame_nce":
            return losses.nce(similarities.frame_dot, pairs)
        if name == "query_diversity":
            return losses.query_diversity(
                queries, pairs, loss.diversity_margin, loss.diversity_scale, loss.diversity_gamma
            )
        lifted = apply(videos, queries, method="lift")
        return losses.partial_order(
            lifted.videos, lifted.captions, lifted.curvature, pairs, loss.min_radius
        )

    terms = {name: compute(name) for name in active_terms(config)}
    total = jnp.zeros((), queries.dtype)
    for name, value in terms.items():
        total = total + loss[name] * value
    return total, terms


def _pairs(batch: Batch) -> Pairs:
    return Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)
