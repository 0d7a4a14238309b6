"""DL-DKD: an inheritance branch, which a teacher guides, and an exploration branch without one.

Both branches read the frames, each with its own sentence embedding; clips are not read. The
inheritance branch takes the place of the clip branch of other models: its options are
`config.model.glance`, `clip_weight` and the losses of the clips, and `loss.distillation` ties it to
the teacher. The exploration branch takes the place of the frame branch (`config.model.gaze`). A
branch is a plain block without a feed-forward network, and a linear layer. Both query encoders
share their input projection, as released.

Padded frames have no influence on a score: the encoding repeats the video's first frame in their
place. This changes no maximum, and the gradient of equal maxima goes to the first frame.
"""

# The authors' code, which produced the published figures, is the branch `iccv` of
# HuiGuanLab/DL-DKD at 1cd1739. Its faults, and the choices here:
# - The input projection of the exploration branch's queries is never called: it is not a parameter
#   here.
# - The validation reads a metric that was never computed, so that training stops with an error.
#   Here the best epoch is selected by the weighted score, which their code reports on the test
#   split.
# - If teacher and student have different numbers of frames, frames are cut off silently, or the run
#   fails. Here the teacher's frames are pooled to the student's number, see `data.transforms`.
# DL-DKD++, the authors' later model with soft targets, is not implemented.

import functools
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.models.two_branch import Branch, Hyperparameters, TwoBranch, VideoEncoding
from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.blocks import AttentionPooling
from hlformer_jax.ops.arguments import as_float
from hlformer_jax.typing import Array, Captions, Videos


class DLDKD(TwoBranch):
    """DL-DKD. A query concatenates the sentence embeddings of both branches, inheritance first."""

    expansion: ClassVar[int] = 0
    query_per_branch: ClassVar[bool] = True

    def setup(self) -> None:
        """Add the query encoder of the second branch, and a linear layer after each branch."""
        super().setup()
        options, block = self.options, self.options.bank.block
        linear = functools.partial(layers.Dense, options.hidden_size, block.dtype)
        if options.glance:
            self.clip_mapping = linear()
        if options.gaze:
            self.frame_mapping = linear()
        if options.gaze and options.glance:
            self.exploration_position = layers.PositionEmbedding(
                options.max_words, options.input_dropout, block.dtype
            )
            self.exploration_encoder = blocks.EuclideanBlock(block)
            self.exploration_pooling = AttentionPooling()

    def encode_query(self, captions: Captions, train: bool = False) -> Float[Array, "Q H"]:
        """Return sentence embeddings, float32 at least: [Q, 2 H], or [Q, H] for a single branch."""
        inheritance = super().encode_query(captions, train)
        if not (self.options.gaze and self.options.glance):
            return inheritance
        x = self.query_input(captions.words.astype(self.options.bank.block.dtype), train)
        x = self.exploration_position(x, train)
        x = self.exploration_encoder(x, x, None, captions.word_mask, train)
        exploration = self.exploration_pooling(x, captions.word_mask)
        return jnp.concatenate([inheritance, exploration], axis=-1)

    def encode_video(
        self, videos: Videos, hyperparameters: Hyperparameters, train: bool = False
    ) -> VideoEncoding:
        """Encode the frames in both branches, float32 at least; padding repeats the first frame."""
        options, mask = self.options, videos.frame_mask
        c = 1.0 if self.attention_curv is None else jnp.exp(self.attention_curv)
        shared = hyperparameters.temperature, self.weight_token, c, train

        def encode(branch: Branch, mapping: layers.Dense) -> Float[Array, "V F H"]:
            encoded = branch(videos.frames, mask, hyperparameters.frame_windows, *shared)
            return repeat_first(as_float(mapping(encoded)), mask)

        clips = encode(self.clip_branch, self.clip_mapping) if options.glance else None
        frames = encode(self.frame_branch, self.frame_mapping) if options.gaze else None
        return VideoEncoding(clips, frames)


def repeat_first(encoded: Float[Array, "V F H"], mask: Bool[Array, "V F"]) -> Float[Array, "V F H"]:
    """Replace padded positions by the first position, which changes no maximum."""
    return jnp.where(mask[..., None], encoded, encoded[:, :1])
