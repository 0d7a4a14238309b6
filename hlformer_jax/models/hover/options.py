"""The fields of `config.model` of HOVER as options of its model."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from hlformer_jax.models.hover.space import Space


@dataclasses.dataclass(frozen=True)
class HoverOptions:
    """Options of `embedding.Hover`; the fields of `config.model`, see config/hover.py.

    Attributes:
      hidden_size: width H of the features.
      hyperbolic_dim: coordinates n of the embeddings.
      space: the space of the embeddings.
      text_encoder: "given", "mean" or "attention".
      num_heads: heads N of the attention.
      max_words: rows W of its position embedding.
      lift: "unit", "radius" or "mean".
      hyperbolic_init: "identity" or "kaiming".
      riemannian_factor: whether the gradient of lifted features is scaled as released.
      scale: factor s of the similarities, at the start where it is learned.
      learned_scale: whether it is learned.
      order_base: "unit" or "released": how the direction of time starts.
      dtype: dtype of the encoders.
    """

    hidden_size: int
    hyperbolic_dim: int
    space: Space
    text_encoder: str
    num_heads: int
    max_words: int
    lift: str
    hyperbolic_init: str
    riemannian_factor: bool
    scale: float
    learned_scale: bool
    order_base: str
    dtype: Any


def from_config(config: ConfigDict) -> HoverOptions:
    """The options that a configuration of HOVER stands for."""
    model = config.model
    return HoverOptions(
        hidden_size=model.hidden_size,
        hyperbolic_dim=model.hyperbolic_dim,
        space=Space(model.geometry, model.metric, model.curvature, model.max_radius),
        text_encoder=model.text_encoder,
        num_heads=model.num_heads,
        max_words=config.data.max_words,
        lift=model.lift,
        hyperbolic_init=model.hyperbolic_init,
        riemannian_factor=model.riemannian_factor,
        scale=model.scale,
        learned_scale=model.learned_scale,
        order_base=config.loss.order_base,
        dtype=jnp.dtype(config.dtype),
    )
