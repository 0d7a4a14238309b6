"""CLIP4Clip (Luo et al. 2021, arXiv 2104.08860) on given features: meanP and seqTransf.

The vector of a video is the normalised mean of its frames' unit vectors. The vector of a caption is
CLIP's sentence vector, the features of its last word. seqTransf first encodes the frames by a
transformer with positions and a residual connection (the paper's "sequential type"). The similarity
is the cosine times a learned scale of at most 100. The loss is the symmetric cross-entropy (eqs 7
to 9): half of `losses.retrieval.nce`, which sums over all captions of a video.

The authors train CLIP itself. Here CLIP's features stay fixed, and a linear map of each modality is
trained. The maps start as the identity, so that meanP before training is the zero-shot mean of
frames. The transformer starts with random parameters, not with CLIP's layers.

The scale multiplies the queries, so that their dot products with unit vectors of videos are logits.
Cosines and the search do not depend on the scale.
"""

import functools
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.models.two_branch import Bounds, Hyperparameters, TwoBranch, VideoEncoding
from hlformer_jax.nn import layers
from hlformer_jax.nn.blocks import BlockOptions, EuclideanAttention
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.ops.numerics import unit
from hlformer_jax.typing import Array, Captions, Videos

FIRST_SCALE, LARGEST_SCALE = 1 / 0.07, 100.0
"""Initial and largest scale of the logits, as in CLIP."""


class CLIP4ClipMeanP(TwoBranch):
    """CLIP4Clip without a temporal encoder; a video has one vector, in the frame branch."""

    temporal_layers: ClassVar[int] = 0
    undecayed: ClassVar[tuple[str, ...]] = (*layers.UNDECAYED, "norm1", "norm2", "logit_scale")

    @property
    def bounds(self) -> Bounds:
        """Bounds of the logarithm of the scale."""
        return {"logit_scale": (-math.inf, math.log(LARGEST_SCALE))}

    def setup(self) -> None:
        """Build the maps of both modalities, and the temporal encoder."""
        options, block = self.options, self.options.bank.block
        linear = functools.partial(
            layers.Dense,
            options.hidden_size,
            block.dtype,
            use_bias=False,
            kernel_init=layers.identity,
        )
        self.text_map, self.frame_map = linear(), linear()
        first = nn.initializers.constant(math.log(FIRST_SCALE))
        self.logit_scale = self.param("logit_scale", first, ())
        if self.temporal_layers:
            shape = options.max_frames, options.hidden_size
            self.position = self.param("position", layers.INITIALISER, shape)
        self.temporal = [
            TemporalBlock(block.num_heads, block.dtype) for _ in range(self.temporal_layers)
        ]

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Return the mapped unit vectors of the captions' last words, times the scale."""
        del train  # the model has no dropout
        last = jnp.maximum(jnp.sum(captions.word_mask, axis=-1, dtype=jnp.int32) - 1, 0)
        vectors = jnp.take_along_axis(captions.words, last[:, None, None], axis=1)[:, 0]
        mapped = as_float(self.text_map(vectors.astype(self.options.bank.block.dtype)))
        return unit(mapped) * jnp.exp(self.logit_scale).astype(mapped.dtype)

    def encode_video(
        self, videos: Videos, hyperparameters: Hyperparameters, train: bool = False
    ) -> VideoEncoding:
        """Return a unit vector for each video, float32 at least; zero for a padded video."""
        del hyperparameters, train
        mask = videos.frame_mask
        mapped = as_float(self.frame_map(videos.frames.astype(self.options.bank.block.dtype)))
        frames = mapped
        if self.temporal_layers:
            frames = mapped + self.position[None, : mapped.shape[1]].astype(mapped.dtype)
            for block in self.temporal:
                frames = block(frames, mask)
            frames = mapped + frames
        total = jnp.sum(jnp.where(mask[..., None], unit(frames), 0), axis=-2, keepdims=True)
        return VideoEncoding(None, unit(total))


class CLIP4ClipSeqTransf(CLIP4ClipMeanP):
    """CLIP4Clip with four layers of a transformer over time."""

    temporal_layers: ClassVar[int] = 4


class TemporalBlock(nn.Module):
    """CLIP's pre-norm transformer block: attention, and a feed-forward network of width 4 H."""

    num_heads: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "V F H"], mask: Bool[Array, "V F"]) -> Float[Array, "V F H"]:
        normal = layers.LayerNorm(self.dtype, name="norm1")(x)
        options = BlockOptions(self.num_heads, dropout=0.0, dtype=self.dtype)
        attention = EuclideanAttention(options, name="attention")
        attended = attention(normal, normal, None, mask, train=False)
        x = x + as_float(layers.Dense(x.shape[-1], self.dtype, name="output")(attended))
        normal = layers.LayerNorm(self.dtype, name="norm2")(x)
        hidden = layers.Dense(4 * x.shape[-1], self.dtype, name="layer1")(normal)
        hidden = hidden * jax.nn.sigmoid(1.702 * hidden)  # the GELU of CLIP
        return x + as_float(layers.Dense(x.shape[-1], self.dtype, name="layer2")(hidden))
