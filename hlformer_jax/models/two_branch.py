"""What the models share: a query encoder, and a branch of the video encoder for each granularity.

A branch is: input projection, position embedding, and layers of a bank of windowed blocks with its
fusion. Padded frames are set to zero after the encoder; clips have no padding. A branch that the
configuration leaves out is None in the encoding and owns no parameters.
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
from hlformer_jax.nn.uncertainty import Normal, Uncertainty
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


class CaptionEncoding(NamedTuple):
    """Encoded captions.

    Attributes:
      sentences: sentence embeddings, float32 at least.
      words: encoded words that the sentence embedding which meets the frames was pooled of.
    """

    sentences: Float[Array, "Q H"]
    words: Float[Array, "Q W H"]


class Branch(nn.Module):
    """One granularity of the video encoder: features to encoded positions.

    Attributes:
      options: options of the model.
      num_layers: number of banks that follow one another.
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
            fuse = FUSIONS[options.fusion](block, name=f"fusion{suffix}")
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
        if options.gaze:
            self.frame_branch = Branch(options, self.num_layers)
            if options.video_level:
                self.video_pooling = AttentionPooling()
        if options.uncertainty:
            self.uncertainty = Uncertainty()
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
        sentences, words = self.encode_captions(captions, train)
        if self.options.uncertainty:
            self.distributions(videos, encoded, captions, words)
        return encoded, sentences

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Encodes captions into sentence embeddings (HLFormer eq. 7), float32 at least."""
        return self.encode_captions(captions, train).sentences

    def encode_captions(self, captions: Captions, train: bool = False) -> CaptionEncoding:
        """Encodes captions; gives their words as well."""
        x = self.query_input(captions.words.astype(self.options.bank.block.dtype), train)
        x = self.query_position(x, train)
        x = self.query_encoder(x, x, None, captions.word_mask, train)
        return CaptionEncoding(self.query_pooling(x, captions.word_mask), x)

    def distributions(
        self,
        videos: Videos,
        encoded: VideoEncoding,
        captions: Captions,
        words: Float[Array, "Q W H"],
    ) -> tuple[Normal, Normal]:
        """Distributions [V, H] of videos and of the sets of their captions, float32 at least.

        Args:
          videos: the videos.
          encoded: their encoding.
          captions: their captions.
          words: the encoded words of these.
        """
        mask = captions.word_mask & captions.mask[:, None]
        frames: Any = encoded.frames  # `options` refuses a model without
        return self.uncertainty(frames, videos.frame_mask, words, mask, captions.video)

    def encode_video(
        self, videos: Videos, hyperparameters: Hyperparameters, train: bool = False
    ) -> Any:
        """Encodes videos at both granularities, float32 at least, as a `VideoEncoding`."""
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
