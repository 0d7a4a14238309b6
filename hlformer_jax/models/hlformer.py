"""HLFormer: Euclidean and Lorentz blocks under mean-guided fusion, and the hyperbolic lift."""

import math
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from hlformer_jax.models.two_branch import (
    Bounds,
    Hyperparameters,
    TwoBranch,
    VideoEncoding,
    curvature_bounds,
)
from hlformer_jax.nn.blocks import AttentionPooling
from hlformer_jax.ops import lorentz
from hlformer_jax.ops.numerics import limit_norm
from hlformer_jax.typing import Array, Captions, Videos

MAX_SINH = 2.0**15
"""Largest sinh(sqrt(c) |u|) of the lift; longer tangent vectors are shortened, as released."""


class Lifted(NamedTuple):
    """Points for the partial order loss, time first, on the hyperboloid of curvature -c.

    Attributes:
      videos: points of the videos.
      captions: points of the captions.
      curvature: c.
    """

    videos: Float[Array, "V n1"]
    captions: Float[Array, "Q n1"]
    curvature: Float[Array, ""]


class HLFormer(TwoBranch):
    """HLFormer, with the lift of the partial order loss."""

    has_lift: ClassVar[bool] = True

    @property
    def bounds(self) -> Bounds:
        """Bounds of parameters, applied after every step (released: before every forward pass)."""
        alphas = dict.fromkeys(("video_alpha", "textual_alpha"), (-math.inf, 0.0))
        return {**super().bounds, **alphas, "curv": curvature_bounds(self.options.curvature)}

    def setup(self) -> None:
        """Add the parameters of the lift."""
        super().setup()
        if self.options.glance:
            self.clip_pooling = AttentionPooling()
        if self.options.gaze:
            self.frame_pooling = AttentionPooling()
        log_scale = nn.initializers.constant(-0.5 * math.log(self.options.hidden_size))
        self.video_alpha = self.param("video_alpha", log_scale, ())
        self.textual_alpha = self.param("textual_alpha", log_scale, ())
        if self.options.learned_curvature:
            log_curvature = nn.initializers.constant(math.log(self.options.curvature))
            self.curv = self.param("curv", log_curvature, ())

    def __call__(
        self,
        videos: Videos,
        captions: Captions,
        hyperparameters: Hyperparameters,
        train: bool = False,
    ) -> Any:
        """Run every part once, for initialisation."""
        return self.lift(*super().__call__(videos, captions, hyperparameters, train))

    def lift(self, videos: VideoEncoding, queries: Float[Array, "Q H"]) -> Lifted:
        """Lift pooled videos and sentences onto the hyperboloid of the model's curvature.

        Videos are pooled over all positions, including padded frames, as released. The mean of the
        pooled branches is lifted.
        """
        pooled = []
        if videos.frames is not None:
            pooled.append(self.frame_pooling(videos.frames, None))
        if videos.clips is not None:
            pooled.append(self.clip_pooling(videos.clips, None))
        if self.options.learned_curvature:
            c = jnp.exp(self.curv)
        else:
            c = jnp.asarray(self.options.curvature, queries.dtype)
        return Lifted(
            lift(sum(pooled) / len(pooled) * jnp.exp(self.video_alpha), c),
            lift(queries * jnp.exp(self.textual_alpha), c),
            c,
        )


def lift(tangent: Float[Array, "*batch n"], c: Float[Array, ""]) -> Float[Array, "*batch n1"]:
    """Apply the exponential map at the origin, with the released limit on its argument.

    Args:
      tangent: tangent vectors at the origin; vectors longer than the limit are shortened.
      c: curvature; the curvature of the space is -c.

    Returns:
      Points with n + 1 coordinates, time first.
    """
    return lorentz.exp_map0(limit_norm(tangent, math.asinh(MAX_SINH) / jnp.sqrt(c)), c)
