"""Shared parts of the models: a query encoder, and a video branch for each granularity.

A branch consists of an input projection, a position embedding, and layers, each a bank of windowed
blocks with its fusion. Padded frames are set to zero after the encoder; clips have no padding. A
branch that the configuration leaves out has no parameters and is None in the encoding.

Options are constants of a model's compiled program. Hyperparameters are its arguments: models that
differ only in hyperparameters share a program, so that a sweep over them compiles once.

GMMFormer and GMMFormer v2 are defined here too, since they add almost nothing to the shared parts.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float
from ml_collections import ConfigDict

from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.blocks import (
    FUSIONS,
    AttentionPooling,
    BankOptions,
    BlockOptions,
    FusionInputs,
    GaussianBank,
    LorentzAttention,
    LorentzOptions,
    Windows,
    make_windows,
)
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.ops.numerics import wide
from hlformer_jax.typing import Array, Captions, Videos

Bounds = Mapping[str, tuple[float, float]]
"""Smallest and largest value of parameters, by the last part of their name."""

MAX_CURVATURE_FACTOR = 10.0
"""A learned curvature stays within this factor of its initial value."""


@dataclasses.dataclass(frozen=True)
class TwoBranchOptions:
    """Options of a `TwoBranch`: fields of `config.model`, see config/fields.py.

    The table of positions of each branch has `max_frames` rows. With `shared_curvature` all Lorentz
    blocks share one learned curvature, which starts at 1; otherwise their curvature is fixed at 1.
    `curvature` is the initial curvature of the lift; it is fixed if `learned_curvature` is False.
    """

    hidden_size: int
    max_frames: int
    max_words: int
    bank: BankOptions
    fusion: str
    input_dropout: float
    gaze: bool
    glance: bool
    video_level: bool
    shared_curvature: bool
    curvature: float
    learned_curvature: bool = True


class Hyperparameters(NamedTuple):
    """Numbers that are arguments of a model's programs.

    Attributes:
      temperature: tau of the fusion weights.
      clip_windows: windows of the blocks of the clip branch.
      frame_windows: windows of the blocks of the frame branch.
    """

    temperature: Float[Array, ""]
    clip_windows: Windows
    frame_windows: Windows


def block_widths(widths: Sequence[float], blocks: int) -> tuple[float, ...]:
    """Return the width of each block's window; 0 for a block without a window.

    Args:
      widths: a width for each block; a single width for all blocks; or () for 0, 2, 4, 8, …
        (HLFormer's variances infinity and 2^1 … 2^(N-1)).
      blocks: number of blocks.
    """
    if not widths:
        return tuple(0.0 if k == 0 else 2.0**k for k in range(blocks))
    return tuple(float(width) for width in widths) * (blocks if len(widths) == 1 else 1)


def bank_widths(config: ConfigDict) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the window widths of the Euclidean and of the Lorentz blocks."""
    model = config.model
    return (
        block_widths(model.euclidean_widths, model.euclidean_blocks),
        block_widths(model.lorentz_widths, model.lorentz_blocks),
    )


def hyperparameters(config: ConfigDict) -> Hyperparameters:
    """Return the hyperparameters of a configuration's model."""
    dtype = wide(jnp.dtype(config.dtype))
    widths = bank_widths(config)
    clip_windows, frame_windows = (
        make_windows(*widths, length, config.model.window, dtype)
        for length in (config.data.max_clips, config.data.max_frames)
    )
    temperature = jnp.asarray(config.model.temperature, dtype)
    return Hyperparameters(temperature, clip_windows, frame_windows)


def curvature_bounds(start: float) -> tuple[float, float]:
    """Return the bounds of the logarithm of a learned curvature that starts at `start`."""
    distance = math.log(MAX_CURVATURE_FACTOR)
    return math.log(start) - distance, math.log(start) + distance


class VideoEncoding(NamedTuple):
    """Encoded videos; None for a branch that the model does not have.

    Attributes:
      clips: encoded clips; in MS-SL the proposals [V, P, H], in DL-DKD the frames [V, F, H] of the
        inheritance branch.
      frames: encoded frames, zero for padding (in DL-DKD the first frame again); [V, 1, H] if the
        model pools the frames.
    """

    clips: Float[Array, "V C H"] | None
    frames: Float[Array, "V F H"] | None


class Branch(nn.Module):
    """The video encoder of one granularity, clips or frames.

    Attributes:
      options: options of the model.
      num_layers: number of banks.
    """

    options: TwoBranchOptions
    num_layers: int = 1

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "V L D"],
        mask: Array | None,
        windows: Windows,
        temperature: Float[Array, ""],
        token: Float[Array, " H"] | None,
        c: ArrayLike,
        train: bool,
    ) -> Float[Array, "V L H"]:
        options, block = self.options, self.options.bank.block
        x = layers.InputProjection(
            options.hidden_size, options.input_dropout, block.dtype, name="input"
        )(x.astype(block.dtype), train)
        x = layers.PositionEmbedding(
            options.max_frames, options.input_dropout, block.dtype, name="position"
        )(x, train)
        for layer in range(1, self.num_layers + 1):
            suffix = "" if layer == 1 else f"_{layer}"
            outputs = GaussianBank(options.bank, name=f"bank{suffix}")(x, windows, mask, train, c)
            inputs = FusionInputs(outputs, x, mask, temperature, token)
            x = FUSIONS[options.fusion](block, name=f"fusion{suffix}")(inputs, train)
        return x if mask is None else jnp.where(mask[..., None], x, jnp.zeros((), x.dtype))


class TwoBranch(nn.Module):
    """Base class of the models of partially relevant video retrieval."""

    options: TwoBranchOptions

    expansion: ClassVar[int] = 4
    """Width of the blocks' feed-forward network divided by H; 0 for blocks without a network."""

    num_layers: ClassVar[int] = 1
    """Number of banks in a branch."""

    has_lift: ClassVar[bool] = False
    """Whether the model lifts videos and sentences into hyperbolic space, by a method `lift`."""

    guides_frames: ClassVar[bool] = False
    """Whether clips are the queries of an attention over frames, with both branches on (MS-SL)."""

    query_per_branch: ClassVar[bool] = False
    """Whether both branches read the frames, each with its own sentence embedding (DL-DKD)."""

    stacked: ClassVar[tuple[str, ...]] = ("bank", "bank_2")
    """Names of modules whose parameters have a leading axis of blocks, see `training.optim`."""

    undecayed: ClassVar[tuple[str, ...]] = layers.UNDECAYED
    """Names of parameters and of modules that do not decay."""

    rates: ClassVar[Mapping[str, str]] = {}
    """Fields of `config.optim` with a separate learning rate, by the names of the parameters."""

    @classmethod
    def from_config(cls, config: ConfigDict) -> "TwoBranch":
        """Build the model of a checked configuration."""
        model = config.model
        options = TwoBranchOptions(
            hidden_size=model.hidden_size,
            max_frames=config.data.max_frames,
            max_words=config.data.max_words,
            bank=BankOptions(
                block=BlockOptions(
                    num_heads=model.num_heads,
                    dropout=model.dropout,
                    expansion=cls.expansion,
                    dtype=jnp.dtype(config.dtype),
                ),
                lorentz=LorentzOptions(
                    model.lorentz_dim,
                    model.lorentz_window,
                    model.head_merge,
                    model.lorentz_divisor == "learned",
                ),
                euclidean_blocks=model.euclidean_blocks,
                lorentz_blocks=model.lorentz_blocks,
            ),
            fusion=model.fusion,
            input_dropout=model.input_dropout,
            gaze=model.gaze,
            glance=model.glance,
            video_level=model.video_level,
            shared_curvature=model.block_curvature == "shared",
            curvature=model.curvature,
            learned_curvature=model.learned_curvature,
        )
        return cls(options)

    @property
    def bounds(self) -> Bounds:
        """Bounds of parameters, applied after every step."""
        bounds = dict(LorentzAttention.BOUNDS)
        if self.options.shared_curvature:
            bounds["attention_curv"] = curvature_bounds(1.0)
        return bounds

    def setup(self) -> None:
        """Build the query encoder, and the branches that the options include."""
        options, block = self.options, self.options.bank.block
        self.query_input = layers.InputProjection(
            options.hidden_size, options.input_dropout, block.dtype
        )
        self.query_position = layers.PositionEmbedding(
            options.max_words, options.input_dropout, block.dtype
        )
        self.query_encoder = blocks.EuclideanBlock(block)
        self.query_pooling = AttentionPooling()
        if options.glance:
            self.clip_branch = Branch(options, self.num_layers)
        if options.gaze:
            self.frame_branch = Branch(options, self.num_layers)
            if options.video_level:
                self.video_pooling = AttentionPooling()
        self.weight_token = None
        if FUSIONS[options.fusion].uses_token:
            normal = nn.initializers.normal(1.0)
            self.weight_token = self.param("weight_token", normal, (options.hidden_size,))
        self.attention_curv = None
        if options.shared_curvature:
            self.attention_curv = self.param("attention_curv", nn.initializers.zeros, ())

    def __call__(
        self,
        videos: Videos,
        captions: Captions,
        hyperparameters: Hyperparameters,
        train: bool = False,
    ) -> Any:
        """Run every part once, for initialisation."""
        encoded = self.encode_video(videos, hyperparameters, train)
        return encoded, self.encode_query(captions, train)

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Encode captions into sentence embeddings (HLFormer eq. 7), float32 at least.

        Args:
          captions: a batch of captions.
          train: whether dropout is on.
        """
        x = self.query_input(captions.words.astype(self.options.bank.block.dtype), train)
        x = self.query_position(x, train)
        x = self.query_encoder(x, x, None, captions.word_mask, train)
        return self.query_pooling(x, captions.word_mask)

    def encode_video(
        self, videos: Videos, hyperparameters: Hyperparameters, train: bool = False
    ) -> Any:
        """Encode videos at both granularities, float32 at least, as a `VideoEncoding`.

        Args:
          videos: a batch of videos.
          hyperparameters: temperature and windows of the blocks.
          train: whether dropout is on.
        """
        options = self.options
        c = 1.0 if self.attention_curv is None else jnp.exp(self.attention_curv)
        shared = hyperparameters.temperature, self.weight_token, c, train
        clips = frames = None
        if options.glance:
            windows = hyperparameters.clip_windows
            clips = as_float(self.clip_branch(videos.clips, None, windows, *shared))
        if options.gaze:
            windows, mask = hyperparameters.frame_windows, videos.frame_mask
            frames = as_float(self.frame_branch(videos.frames, mask, windows, *shared))
            if options.video_level:
                frames = self.video_pooling(frames, mask)[:, None]
        return VideoEncoding(clips, frames)


class GMMFormer(TwoBranch):
    """GMMFormer: two layers of blocks, their mean, and one vector for the frames.

    All blocks, including the block of the query encoder, end with one linear layer and a layer norm
    in place of a feed-forward network. The frame branch is pooled to one vector per video
    (`config.model.video_level`).

    The released code pads frames to the longest video of a batch and stretches the windows over
    that length, so that the result for a video depends on the batch. Here frames are padded to
    `config.data.max_frames`, as in GMMFormer v2 and HLFormer. The results are equal if a batch of
    the released code contains a video of that length.
    """

    expansion: ClassVar[int] = 0
    num_layers: ClassVar[int] = 2


class GMMFormerV2(TwoBranch):
    """GMMFormer v2: one bank per branch, fused by temporal consolidation.

    A learned token, which the branches share, is the query that determines the weights of the
    blocks at every position (`nn.blocks.TemporalConsolidation`).
    """
