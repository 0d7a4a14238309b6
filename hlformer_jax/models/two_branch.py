"""What the models share: a query encoder, and a branch of the video encoder for each granularity.

A branch is: input projection, position embedding, and layers of a bank of windowed blocks with its
fusion. Padded frames are set to zero after the encoder; clips have no padding. A branch that the
configuration leaves out is None in the encoding and owns no parameters. Where there are registers
(`nn.registers`), they are made from the projected clips, and the blocks of both branches see them.
"""

import math
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float
from ml_collections import ConfigDict

from hlformer_jax.models import options
from hlformer_jax.models.options import Hyperparameters, TwoBranchOptions
from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.bank import GaussianBank, Windows
from hlformer_jax.nn.fusion import FUSIONS, AttentionPooling
from hlformer_jax.nn.registers import Latent, RegisterGenerator
from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array, Captions, Videos


class VideoEncoding(NamedTuple):
    """Encoded videos; a branch that the model does not have is None.

    Attributes:
      clips: encoded clips; the proposals in their place with MS-SL, [V, P, H], and frames with
        DL-DKD, [V, F, H].
      frames: encoded frames, zero where a frame is padding (with DL-DKD, the first frame once
        more); [V, 1, H] where a model pools them.
    """

    clips: Float[Array, "V C H"] | None
    frames: Float[Array, "V F H"] | None


class Branch(nn.Module):
    """One granularity of the video encoder: features to encoded positions.

    Attributes:
      options: options of the model.
      num_layers: number of banks that follow one another.
    """

    options: TwoBranchOptions
    num_layers: int = 1

    def setup(self) -> None:
        """Builds the input layers, and a bank and a fusion for each layer."""
        options, block = self.options, self.options.bank.block
        self.input = layers.InputProjection(options.hidden_size, options.input_dropout, block.dtype)
        self.position = layers.PositionEmbedding(
            options.max_frames, options.input_dropout, block.dtype
        )
        if options.registers:
            self.register_input = layers.InputProjection(
                options.hidden_size, block.dropout, block.dtype
            )
        for suffix in self._suffixes():
            setattr(self, f"bank{suffix}", GaussianBank(options.bank))
            setattr(self, f"fusion{suffix}", FUSIONS[options.fusion](block))

    def _suffixes(self) -> list[str]:
        return ["" if layer == 1 else f"_{layer}" for layer in range(1, self.num_layers + 1)]

    def __call__(
        self,
        x: Float[Array, "V L D"],
        mask: Array | None,
        windows: Windows,
        temperature: Float[Array, ""],
        token: Float[Array, " H"] | None,
        c: ArrayLike,
        train: bool,
        registers: Float[Array, "V R H"] | None = None,
    ) -> Float[Array, "V L H"]:
        x = self.embed(x, train)
        return self.attend(x, mask, windows, temperature, token, c, train, registers)

    def embed(self, x: Float[Array, "V L D"], train: bool) -> Float[Array, "V L H"]:
        """Features as the banks take them."""
        return self.position(self.input(x.astype(self.options.bank.block.dtype), train), train)

    def attend(
        self,
        x: Float[Array, "V L H"],
        mask: Array | None,
        windows: Windows,
        temperature: Float[Array, ""],
        token: Float[Array, " H"] | None,
        c: ArrayLike,
        train: bool,
        registers: Float[Array, "V R H"] | None,
    ) -> Float[Array, "V L H"]:
        """What the banks make of embedded positions, beside registers where there are some."""
        if registers is not None:
            registers = self.register_input(registers.astype(x.dtype), train)
        for suffix in self._suffixes():
            bank, fuse = getattr(self, f"bank{suffix}"), getattr(self, f"fusion{suffix}")
            outputs = bank(x, windows, mask, train, c, registers)
            x = fuse(outputs, x, mask, temperature, token, train)
        return x if mask is None else jnp.where(mask[..., None], x, jnp.zeros((), x.dtype))


class TwoBranch(nn.Module):
    """A model of the family.

    Attributes:
      options: options of the model.
    """

    options: TwoBranchOptions

    expansion: ClassVar[int] = 4
    """Width of the blocks' feed-forward network over H; 0 for blocks without one."""

    num_layers: ClassVar[int] = 1
    """Number of banks in a branch."""

    has_lift: ClassVar[bool] = False
    """Whether the model lifts videos and sentences into hyperbolic space, by a method `lift`."""

    guides_frames: ClassVar[bool] = False
    """Whether, with both branches on, a clip guides what is read from the frames (MS-SL)."""

    query_per_branch: ClassVar[bool] = False
    """Whether both branches read the frames, each with a sentence embedding of its own (DL-DKD)."""

    @classmethod
    def from_config(cls, config: ConfigDict) -> "TwoBranch":
        """The model that a configuration asks for.

        Raises:
          ConfigError: for options that are unknown or make no sense together.
        """
        return cls(options.from_config(config, cls.expansion))

    def setup(self) -> None:
        """Builds the query encoder and the branches that are on."""
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
        if options.registers:
            self.register_generator = RegisterGenerator(
                options.registers, options.hidden_size, block
            )
        if options.gaze:
            self.frame_branch = Branch(options, self.num_layers)
            if options.video_level:
                self.video_pooling = AttentionPooling()
        self.weight_token = FUSIONS[options.fusion].make_token(self, options.hidden_size)
        self.attention_curv = None
        if options.shared_curvature is not None:
            start = nn.initializers.constant(math.log(options.shared_curvature))
            self.attention_curv = self.param("attention_curv", start, ())

    def __call__(
        self,
        videos: Videos,
        captions: Captions,
        hyperparameters: Hyperparameters,
        train: bool = False,
    ) -> Any:
        """Runs every part once; for initialisation."""
        encoded = self.encode_video(videos, hyperparameters, train)
        return encoded, self.encode_query(captions, train)

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Encodes captions into sentence embeddings (HLFormer eq. 7), float32 at least."""
        x = self.query_input(captions.words.astype(self.options.bank.block.dtype), train)
        x = self.query_position(x, train)
        x = self.query_encoder(x, x, None, captions.word_mask, train)
        return self.query_pooling(x, captions.word_mask)

    def encode_video(
        self, videos: Videos, hyperparameters: Hyperparameters, train: bool = False
    ) -> Any:
        """Encodes videos at both granularities, float32 at least, as a `VideoEncoding`."""
        options = self.options
        c = 1.0 if self.attention_curv is None else jnp.exp(self.attention_curv)
        shared = hyperparameters.temperature, self.weight_token, c, train
        clips = frames = registers = None
        if options.glance:
            windows = hyperparameters.clip_windows
            embedded = self.clip_branch.embed(videos.clips, train)
            if options.registers:
                latent = self.register_generator.latent(embedded, train)
                registers = self.register_generator.sample(latent)
            attended = self.clip_branch.attend(embedded, None, windows, *shared, registers)
            clips = as_float(attended)
        if options.gaze:
            windows, mask = hyperparameters.frame_windows, videos.frame_mask
            frames = as_float(self.frame_branch(videos.frames, mask, windows, *shared, registers))
            if options.video_level:
                frames = self.video_pooling(frames, mask)[:, None]
        return VideoEncoding(clips, frames)

    def latent(self, videos: Videos, train: bool = False) -> Latent:
        """What the registers of videos are made of, as `encode_video` has it."""
        return self.register_generator.latent(self.clip_branch.embed(videos.clips, train), train)

    def predict_noise(
        self, latent: Latent, clean: Float[Array, "V R H"]
    ) -> Float[Array, "T V R H"]:
        """The noise seen in registers of every level; see `RegisterGenerator.predict_noise`."""
        return self.register_generator.predict_noise(latent, clean)
