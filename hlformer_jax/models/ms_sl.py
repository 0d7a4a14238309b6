"""MS-SL: sliding windows of every length over the clips; the best window guides the frames.

The proposals of a video are the means of its encoded clips over all C (C + 1) / 2 windows of 1 to C
consecutive clips, shortest first. Each proposal is the query of an attention over the frames, with
one head and without a scale; the result is the guided vector of the proposal. The frame score of a
caption and a video is the cosine with the guided vector of the best proposal. Guided vectors depend
only on the video, so that a corpus stores them and a search computes no attention. The losses of
the clip branch use the proposals. Optimal matching assigns captions to windows of any length, which
may overlap.
"""

import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.models.two_branch import Hyperparameters, TwoBranch, VideoEncoding
from hlformer_jax.nn.layers import Dense
from hlformer_jax.ops import products
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.typing import Array, Videos


class GuidedEncoding(NamedTuple):
    """Encoded videos.

    Attributes:
      clips: the proposals.
      guided: the guided vector of each proposal, the attended frames.
    """

    clips: Float[Array, "V P H"]
    guided: Float[Array, "V P H"]


class MSSL(TwoBranch):
    """MS-SL."""

    expansion: ClassVar[int] = 0
    guides_frames: ClassVar[bool] = True

    def setup(self) -> None:
        """Add the maps of the frames to keys and values."""
        super().setup()
        options = self.options
        if options.gaze and options.glance:
            linear = functools.partial(
                Dense, options.hidden_size, options.bank.block.dtype, use_bias=False
            )
            self.guided_key, self.guided_value = linear(), linear()

    def encode_video(
        self, videos: Videos, hyperparameters: Hyperparameters, train: bool = False
    ) -> VideoEncoding | GuidedEncoding:
        """Encode videos, float32 at least: the proposals, and the guided vector of each.

        If a branch is off, there are no guided vectors: the result is a `VideoEncoding` with the
        proposals or the frames.
        """
        clips, frames = super().encode_video(videos, hyperparameters, train)
        if clips is not None:
            clips = sliding_means(clips)
        if clips is None or frames is None:
            return VideoEncoding(clips, frames)
        dtype = self.options.bank.block.dtype
        frames = frames.astype(dtype)
        keys = self.guided_key(frames)
        logits = products.einsum("vlh,vfh->vlf", clips.astype(dtype), keys, exact=True)
        logits = jnp.where(videos.frame_mask[:, None], logits, GUIDED_MASKED)
        weights = jax.nn.softmax(logits, axis=-1).astype(dtype)
        guided = products.einsum("vlf,vfh->vlh", weights, self.guided_value(frames))
        return GuidedEncoding(clips, as_float(guided))


GUIDED_MASKED = -1e9
"""Logit of a padded frame, as released."""


def sliding_means(clips: Float[Array, "V C H"]) -> Float[Array, "V P H"]:
    """Average over all windows of consecutive positions, ordered by length, then start.

    There are P = C (C + 1) / 2 windows; the first C are the positions themselves.
    """
    starts, ends = proposals(clips.shape[-2])
    positions = np.arange(clips.shape[-2])
    inside = (positions >= starts[:, None]) & (positions < ends[:, None])
    weights = jnp.asarray(inside / (ends - starts)[:, None], clips.dtype)
    return jnp.einsum("pc,vch->vph", weights, clips)


def proposals(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first clip of every proposal and the clip after its last, in their order."""
    starts = np.concatenate([np.arange(length - size + 1) for size in range(1, length + 1)])
    sizes = np.repeat(np.arange(1, length + 1), np.arange(length, 0, -1))
    return starts, starts + sizes
