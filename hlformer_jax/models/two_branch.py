"""What the models share: a query encoder, and a branch of the video encoder for each granularity.

A branch is: input projection, position embedding, and layers of a bank of windowed blocks with its
fusion. Padded frames are set to zero after the encoder; clips have no padding. A branch that the
configuration leaves out is None in the encoding and owns no parameters.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.nn import blocks, fusion, layers
from hlformer_jax.nn.bank import GaussianBank, Windows
from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array, Captions, Videos


class VideoEncoding(NamedTuple):
    """Encoded videos; what a model does not have is None.

    Attributes:
      clips: [V, C, H]; [V, P, H], the proposals, of MS-SL.
      frames: [V, F, H], zero where a frame is padding; [V, 1, H] where a model pools them.
      guided: shaped as `clips`, what a model reads from the frames for each clip. Then the frame
        score of a video is that of the guided vector at its best clip (MS-SL), and there are no
        `frames`.
    """

    clips: Float[Array, "V C H"] | None
    frames: Float[Array, "V F H"] | None
    guided: Float[Array, "V C H"] | None = None


class Constants(NamedTuple):
    """Numbers of a configuration that reach a model's program, when they are its arguments.

    Programs that differ in nothing else are then one, compiled once for all variants of a sweep.

    Attributes:
      temperature: of the fusion.
      clip_windows: of the clip branch.
      frame_windows: of the frame branch.
    """

    temperature: Float[Array, ""]
    clip_windows: Windows
    frame_windows: Windows


class Branch(nn.Module):
    """One granularity of the video encoder: features to encoded positions.

    Attributes:
      bank: fields of the `bank.GaussianBank` of each layer.
      fusion: aggregation of a layer's blocks.
      num_layers: how many banks follow one another.
    """

    features: int
    max_positions: int
    input_dropout: float
    bank: dict[str, Any]
    fusion: fusion.Fusion
    num_layers: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "V L D"],
        mask: Array | None,
        train: bool,
        token: Float[Array, " H"] | None = None,
        c: ArrayLike = 1.0,
        windows: Windows | None = None,
    ) -> Float[Array, "V L H"]:
        x = layers.InputProjection(self.features, self.input_dropout, self.dtype, name="input")(
            x.astype(self.dtype), train
        )
        x = layers.PositionEmbedding(
            self.max_positions, self.input_dropout, self.dtype, name="position"
        )(x, train)
        for number in range(1, self.num_layers + 1):
            suffix = "" if number == 1 else f"_{number}"
            outputs = GaussianBank(**self.bank, name=f"bank{suffix}")(x, mask, train, c, windows)
            x = self.fusion(f"fusion{suffix}", outputs, x, mask, train, token)
        return x if mask is None else jnp.where(mask[..., None], x, jnp.zeros((), x.dtype))


class TwoBranch(nn.Module):
    """A model of the family; its attributes are the fields of `config.model`, see config.py.

    Attributes:
      bank: fields of `bank.GaussianBank` that the configuration sets.
      video_level: whether frames are pooled to one vector a video.
      shared_curvature: initial curvature that all Lorentz blocks learn together, or None.
      constants: of `models.bind`; None: those that the other attributes say.
    """

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
    video_level: bool = False
    shared_curvature: float | None = None
    dtype: Any = jnp.float32
    kernels: str = "xla"
    constants: Constants | None = None

    expansion = 4
    """Width of the blocks' feed-forward network over H; 0 for blocks without one."""

    num_layers = 1
    """Banks in a branch."""

    @property
    def is_guided(self) -> bool:
        """Whether videos are encoded with guided vectors in place of frames."""
        return False

    def setup(self) -> None:
        """Builds the query encoder and the branches that are on."""
        size, drop, dtype = self.hidden_size, self.dropout, self.dtype
        self.query_input = layers.InputProjection(size, self.input_dropout, dtype)
        self.query_position = layers.PositionEmbedding(self.max_words, self.input_dropout, dtype)
        self.query_encoder = blocks.EuclideanBlock(
            self.num_heads, drop, self.expansion, dtype=dtype, kernels=self.kernels
        )
        self.query_pooling = fusion.AttentionPooling()
        if self.glance:
            self.clip_branch = self._branch()
        if self.gaze:
            self.frame_branch = self._branch()
            if self.video_level:
                self.video_pooling = fusion.AttentionPooling()
        self.weight_token = None
        if self.fusion in fusion.WITH_TOKEN:
            self.weight_token = self.param("weight_token", nn.initializers.normal(1.0), (size,))
        self.attention_curv = None
        if self.shared_curvature is not None:
            start = nn.initializers.constant(math.log(self.shared_curvature))
            self.attention_curv = self.param("attention_curv", start, ())

    def _branch(self) -> Branch:
        shared = {
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "expansion": self.expansion,
            "dtype": self.dtype,
            "kernels": self.kernels,
        }
        temperature: Any = self.temperature
        if self.constants is not None:
            temperature = self.constants.temperature
        return Branch(
            self.hidden_size,
            self.max_frames,
            self.input_dropout,
            {**self.bank, **shared},
            fusion.Fusion(self.fusion, self.num_heads, temperature, self.dropout, self.dtype),
            self.num_layers,
            self.dtype,
        )

    def __call__(self, videos: Videos, captions: Captions, train: bool = False) -> Any:
        """Runs every part once; for initialisation."""
        return self.encode_video(videos, train), self.encode_query(captions, train)

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Encodes captions into sentence embeddings (HLFormer eq. 7), float32 at least."""
        x = self.query_input(captions.words.astype(self.dtype), train)
        x = self.query_position(x, train)
        x = self.query_encoder(x, x, None, captions.word_mask, train)
        return self.query_pooling(x, captions.word_mask)

    def encode_video(self, videos: Videos, train: bool = False) -> VideoEncoding:
        """Encodes videos at both granularities, float32 at least."""
        c = 1.0 if self.attention_curv is None else jnp.exp(self.attention_curv)
        shared = train, self.weight_token, c
        clip_windows = frame_windows = None
        if self.constants is not None:
            clip_windows, frame_windows = self.constants.clip_windows, self.constants.frame_windows
        clips = frames = None
        if self.glance:
            clips = as_float(self.clip_branch(videos.clips, None, *shared, clip_windows))
        if self.gaze:
            given = *shared, frame_windows
            frames = as_float(self.frame_branch(videos.frames, videos.frame_mask, *given))
            if self.video_level:
                frames = self.video_pooling(frames, videos.frame_mask)[:, None]
        return VideoEncoding(clips, frames)
