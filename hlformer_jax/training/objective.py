"""The training objective of one batch: every term by name, and their weighted sum (eq. 21, 31)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.config import WEIGHTS, ConfigError
from hlformer_jax.retrieval import similarity
from hlformer_jax.training import losses
from hlformer_jax.training.losses import NegativeRanks, Pairs
from hlformer_jax.typing import Array, Batch

Terms = dict[str, Float[Array, ""]]


class Negatives(NamedTuple):
    """Negatives of the triplet loss, drawn for each branch on its own, as released."""

    clip: NegativeRanks
    frame: NegativeRanks


def active_terms(config: ConfigDict) -> tuple[str, ...]:
    """Names of the terms with a weight other than 0 whose branch is on.

    Raises:
      ConfigError: when there is none.
    """
    off = [
        branch
        for branch, on in (
            ("clip", config.model.glance),
            ("frame", config.model.gaze),
        )
        if not on
    ]
    active = tuple(
        name
        for name in WEIGHTS
        if config.loss[name] != 0 and not any(name.startswith(branch) for branch in off)
    )
    if not active:
        raise ConfigError("config.loss has no term with a weight other than 0: nothing to train")
    return active


def draw_negatives(
    key: Array,
    batch: Batch,
    hard: Bool[Array, ""],
    pool: int | Int[Array, ""],
    guided: bool = False,
) -> Negatives:
    """Draws the negatives of both branches; see `losses.draw_negative_ranks`.

    Where frames are guided (MS-SL) each caption has a vector of its own, and both directions of
    the frame loss draw from the hardest `pool`, as released.
    """
    clip_key, frame_key = jax.random.split(key)
    pairs = _pairs(batch)
    frame = (_each_for_itself(pairs), hard, pool, pool) if guided else (pairs, hard, pool)
    return Negatives(
        losses.draw_negative_ranks(clip_key, pairs, hard, pool),
        losses.draw_negative_ranks(frame_key, *frame),
    )


def objective(
    model: nn.Module,
    config: ConfigDict,
    params: Any,
    batch: Batch,
    negatives: Negatives,
    dropout_key: Array | None,
    most_captions: int | None = None,
    values: Mapping[str, Any] | None = None,
) -> tuple[Float[Array, ""], Terms]:
    """The training loss of a batch.

    Args:
      model: a model of `models.build`.
      config: weights and constants are those of `config.loss`.
      params: the model's parameters.
      batch: videos with all their captions.
      negatives: places of the triplet loss's negatives.
      dropout_key: random key of the dropout; None switches dropout off.
      most_captions: see `losses.optimal_matching`.
      values: weights and constants, where one program is to serve several; None: those of
        `config.loss`, which says in any case which terms there are.

    Returns:
      The weighted sum and the terms without their weights; terms of weight 0 are not computed.
    """
    keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
    queries = models.encode_query(model, params, batch.captions, keys[0])
    videos = models.encode_video(model, params, batch.videos, keys[1], config.train.encode_parts)
    pairs, loss = _pairs(batch), values or config.loss
    # Any: None where a branch is off, which has no active term.
    similarities: Any = similarity.similarities(
        queries, videos.clips, videos.frames, config.kernels, videos.guided, pairs.video
    )

    clips: Any = videos.clips
    guided = videos.guided is not None
    frame_pairs = _each_for_itself(pairs) if guided else pairs

    def frame_nce(scores: Float[Array, "Q V"]) -> Float[Array, ""]:
        return losses.joint_nce(scores, pairs.caption_mask) if guided else losses.nce(scores, pairs)

    def query_diversity() -> Float[Array, ""]:
        margin, scale = loss["diversity_margin"], loss["diversity_scale"]
        if config.loss.diversity_form == "captions":
            return losses.caption_diversity(queries, pairs, margin, scale)
        return losses.query_diversity(queries, pairs, margin, scale, loss["diversity_gamma"])

    def partial_order() -> Float[Array, ""]:
        lifted = models.lift(model, params, videos, queries)
        return losses.partial_order(*lifted, pairs, loss["min_radius"])

    triplet = partial(losses.triplet, margin=loss["margin"])
    compute: dict[str, Callable[[], Float[Array, ""]]] = {
        "clip_triplet": lambda: triplet(similarities.clip_cosine, pairs, negatives.clip),
        "clip_nce": lambda: losses.nce(similarities.clip_dot, pairs),
        "frame_triplet": lambda: triplet(similarities.frame_cosine, frame_pairs, negatives.frame),
        "frame_nce": lambda: frame_nce(similarities.frame_dot),
        "query_diversity": query_diversity,
        "partial_order": partial_order,
        "optimal_matching": lambda: losses.optimal_matching(queries, clips, pairs, most_captions),
    }
    terms = {name: compute[name]() for name in active_terms(config)}
    total = jnp.zeros((), queries.dtype)
    for name, value in terms.items():
        total = total + loss[name] * value
    return total, terms


def _each_for_itself(pairs: Pairs) -> Pairs:
    """Every caption with a column of its own."""
    columns = jnp.arange(len(pairs.video), dtype=pairs.video.dtype)
    return Pairs(columns, pairs.caption_mask, pairs.caption_mask)


def _pairs(batch: Batch) -> Pairs:
    return Pairs(batch.captions.video, batch.captions.mask, batch.videos.mask)
