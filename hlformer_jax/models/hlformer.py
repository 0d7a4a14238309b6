"""HLFormer: query encoder, gaze (frame) and glance (clip) branch, and the hyperbolic lift.

A branch is: input projection, position embedding, a bank of Euclidean and Lorentz Gaussian blocks,
and their fusion. Padded frames are set to zero after the encoder; clips have no padding. A branch
that the configuration leaves out is None in the encoding and owns no parameters.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax import blocks, fusion, layers
from hlformer_jax.config import ConfigError
from hlformer_jax.ops import attention, kernels, lorentz, windows
from hlformer_jax.ops.numerics import as_float, limit_norm
from hlformer_jax.typing import Array, Captions, Videos

MAX_CURVATURE_FACTOR = 10.0
"""The curvature of the partial order loss stays within this factor of its initial value."""

MAX_SINH = 2.0**15
"""Largest sinh(sqrt(c) |u|) of the lift; longer tangent vectors are shortened, as released."""


class VideoEncoding(NamedTuple):
    """Encoded videos; a branch that is off is None.

    Attributes:
      clips: [V, C, H].
      frames: [V, F, H], zero where a frame is padding.
    """

    clips: Float[Array, "V C H"] | None
    frames: Float[Array, "V F H"] | None


class Lifted(NamedTuple):
    """Points for the partial order loss, time first, on the hyperboloid of curvature -c."""

    videos: Float[Array, "V n"]
    captions: Float[Array, "Q n"]
    curvature: Float[Array, ""]


class Branch(nn.Module):
    """One granularity of the video encoder (Figure 2a): features to encoded positions."""

    features: int
    max_positions: int
    input_dropout: float
    bank: nn.Module
    fusion: nn.Module
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "V L D"], mask: Array | None, train: bool
    ) -> Float[Array, "V L H"]:
        x = layers.InputProjection(self.features, self.input_dropout, self.dtype, name="input")(
            x.astype(self.dtype), train
        )
        x = layers.PositionEmbedding(
            self.max_positions, self.input_dropout, self.dtype, name="position"
        )(x, train)
        x = self.fusion(self.bank(x, mask, train), mask, train)
        return x if mask is None else jnp.where(mask[..., None], x, jnp.zeros((), x.dtype))


class HLFormer(nn.Module):
    """The model; its attributes are the fields of `config.model`, see config.py."""

    hidden_size: int
    num_heads: int
    max_frames: int
    max_words: int
    bank: dict[str, Any]
    fusion: str
    temperature: float
    input_dropout: float
    dropout: float
    gaze: bool
    glance: bool
    curvature: float
    dtype: Any = jnp.float32
    kernels: str = "xla"

    def setup(self) -> None:
        """Builds the branches that are on."""
        size, drop, dtype = self.hidden_size, self.dropout, self.dtype
        self.query_input = layers.InputProjection(size, self.input_dropout, dtype)
        self.query_position = layers.PositionEmbedding(self.max_words, self.input_dropout, dtype)
        self.query_encoder = blocks.EuclideanBlock(
            self.num_heads, drop, dtype=dtype, kernels=self.kernels
        )
        self.query_pooling = fusion.AttentionPooling()
        if self.glance:
            self.clip_branch = self._branch()
            self.clip_pooling = fusion.AttentionPooling()
        if self.gaze:
            self.frame_branch = self._branch()
            self.frame_pooling = fusion.AttentionPooling()
        log_scale = nn.initializers.constant(-0.5 * math.log(size))
        self.video_alpha = self.param("video_alpha", log_scale, ())
        self.textual_alpha = self.param("textual_alpha", log_scale, ())
        self.curv = self.param("curv", nn.initializers.constant(math.log(self.curvature)), ())

    def _branch(self) -> Branch:
        return Branch(
            self.hidden_size,
            self.max_frames,
            self.input_dropout,
            blocks.GaussianBank(
                **self.bank,
                num_heads=self.num_heads,
                dropout=self.dropout,
                dtype=self.dtype,
                kernels=self.kernels,
                parent=None,  # the branch adopts it, so that its parameters live there
            ),
            fusion.build(self.fusion, self.num_heads, self.temperature, self.dropout, self.dtype),
            self.dtype,
        )

    def __call__(self, videos: Videos, captions: Captions, train: bool = False) -> Lifted:
        """Runs every part once; for initialisation."""
        return self.lift(self.encode_video(videos, train), self.encode_query(captions, train))

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Encodes captions into sentence embeddings (eq. 7), float32 at least."""
        x = self.query_input(captions.words.astype(self.dtype), train)
        x = self.query_position(x, train)
        x = self.query_encoder(x, x, None, captions.word_mask, train)
        return self.query_pooling(x, captions.word_mask)

    def encode_video(self, videos: Videos, train: bool = False) -> VideoEncoding:
        """Encodes videos at both granularities, float32 at least."""
        clips = self.clip_branch(videos.clips, None, train) if self.glance else None
        frames = self.frame_branch(videos.frames, videos.frame_mask, train) if self.gaze else None
        return VideoEncoding(
            None if clips is None else as_float(clips), None if frames is None else as_float(frames)
        )

    def lift(self, videos: VideoEncoding, queries: Float[Array, "Q H"]) -> Lifted:
        """Lifts pooled videos and sentences onto the hyperboloid of the learned curvature.

        Pooling runs over all positions, frame padding not masked, as released.
        """
        pooled = []
        if videos.frames is not None:
            pooled.append(self.frame_pooling(videos.frames, None))
        if videos.clips is not None:
            pooled.append(self.clip_pooling(videos.clips, None))
        c = jnp.exp(self.curv)
        return Lifted(
            lift(sum(pooled) / len(pooled) * jnp.exp(self.video_alpha), c),
            lift(queries * jnp.exp(self.textual_alpha), c),
            c,
        )


def lift(tangent: Float[Array, "*batch H"], c: Float[Array, ""]) -> Float[Array, "*batch n"]:
    """Exponential map at the origin with the released limit on its argument.

    Args:
      tangent: tangent coordinates.
      c: curvature is -c.

    Returns:
      Points [time, space]; beyond the limit the norm no longer depends on the tangent's.
    """
    return lorentz.exp_map0(limit_norm(tangent, math.asinh(MAX_SINH) / jnp.sqrt(c)), c)


def project(params: dict[str, Any], curvature: float) -> dict[str, Any]:
    """Clamps the stored scalars, as the released model does before each forward.

    Curvature within a factor of ten of its initial value; the logarithms of the scales before the
    exponential maps (`*_alpha`) at most 0.

    Args:
      params: the model's parameters.
      curvature: initial curvature.

    Returns:
      Parameters that satisfy the constraints.
    """
    low = math.log(curvature / MAX_CURVATURE_FACTOR)
    high = math.log(curvature * MAX_CURVATURE_FACTOR)

    def clamp(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clamp(key, child) for key, child in value.items()}
        if name == "curv":
            return jnp.clip(value, low, high)
        if name in ("video_alpha", "textual_alpha", "scale_alpha"):
            return jnp.minimum(value, 0.0)
        return value

    return clamp("", params)


def default_widths(blocks: int) -> tuple[float, ...]:
    """No window, then 2, 4, 8, … (the paper's variances 2^1 … 2^(N-1) and infinity)."""
    return tuple(0.0 if k == 0 else 2.0**k for k in range(blocks))


def from_config(config: ConfigDict) -> HLFormer:
    """Returns the model of a configuration.

    Raises:
      ConfigError: for options that are unknown or make no sense together.
    """
    model = config.model
    _choice("window", model.window, windows.KINDS)
    _choice("lorentz_window", model.lorentz_window, attention.LORENTZ_WINDOWS)
    _choice("head_merge", model.head_merge, attention.HEAD_MERGES)
    _choice("fusion", model.fusion, fusion.KINDS)
    if config.kernels not in kernels.CHOICES:
        raise ConfigError(f"config.kernels is {config.kernels!r}: it must be xla or pallas")
    if not (model.gaze or model.glance):
        raise ConfigError("config.model.gaze and config.model.glance are both off: keep one branch")
    if model.euclidean_blocks + model.lorentz_blocks < 1:
        raise ConfigError("config.model has no Gaussian block: ask for one Euclidean or Lorentz")
    if model.hidden_size % model.num_heads:
        raise ConfigError(
            f"config.model.hidden_size {model.hidden_size} is not divisible by"
            f" config.model.num_heads {model.num_heads}"
        )
    if model.lorentz_blocks and (model.lorentz_dim + 1) % model.num_heads:
        raise ConfigError(
            f"config.model.lorentz_dim + 1 = {model.lorentz_dim + 1} is not divisible by"
            f" config.model.num_heads {model.num_heads}"
        )
    if model.lorentz_blocks and (model.lorentz_dim + 1) // model.num_heads < 2:
        raise ConfigError("config.model.lorentz_dim leaves a head no space coordinate: enlarge it")
    return HLFormer(
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        max_frames=config.data.max_frames,
        max_words=config.data.max_words,
        bank={
            "euclidean_widths": _widths(
                "euclidean_widths", model.euclidean_widths, model.euclidean_blocks
            ),
            "lorentz_widths": _widths("lorentz_widths", model.lorentz_widths, model.lorentz_blocks),
            "lorentz_dim": model.lorentz_dim,
            "window": model.window,
            "lorentz_window": model.lorentz_window,
            "head_merge": model.head_merge,
        },
        fusion=model.fusion,
        temperature=model.temperature,
        input_dropout=model.input_dropout,
        dropout=model.dropout,
        gaze=model.gaze,
        glance=model.glance,
        curvature=model.curvature,
        dtype=jnp.dtype(config.dtype),
        kernels=config.kernels,
    )


def _choice(field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"config.model.{field} {value!r} is unknown: use {', '.join(known)}")


def _widths(field: str, widths: Sequence[float], blocks: int) -> tuple[float, ...]:
    if not widths:
        return default_widths(blocks)
    if len(widths) == 1:
        return tuple(float(widths[0]) for _ in range(blocks))
    if len(widths) != blocks:
        raise ConfigError(
            f"config.model.{field} has {len(widths)} entries for {blocks} blocks: give one for"
            " all, or one each"
        )
    return tuple(float(width) for width in widths)
