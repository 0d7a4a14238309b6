"""DL-DKD: two students of the frames; one inherits from a teacher, the other explores.

Both branches read the frames, each with its own sentence embedding. The inheritance branch takes
the place of other models' clips (`config.model.glance`, `clip_weight`, the clip losses, and
`loss.distillation`, which ties it to the teacher); the exploration branch takes the place of their
frames (`config.model.gaze`). A branch is one plain block without a feed-forward network and a
linear layer; both query encoders share their input projection, as released. Clips are not read.

Padded frames have no influence on a score: an encoding repeats the video's first frame in their
place, which changes no maximum and sends the gradient of a tie to the first frame.
"""

# The authors' code is the branch `iccv` of HuiGuanLab/DL-DKD at 1cd1739, the code of the published
# figures. Its faults, and the choices here:
# - An input projection of the exploration branch's queries is never called: not a parameter here.
# - Its validation reads a metric that was never computed, so that training stops with an error:
#   here the best epoch is chosen by the weighted score, which it reports on the test split.
# - If teacher and student differ in the number of frames, it cuts frames off silently, or the run
#   ends: here the teacher's frames are pooled to that number, see `data.transforms`.
# The authors' later DL-DKD++, with soft targets, is another model and not implemented.

import functools
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool, Float

from hlformer_jax.models.two_branch import Branch, Hyperparameters, TwoBranch, VideoEncoding
from hlformer_jax.nn import blocks, layers
from hlformer_jax.nn.blocks import AttentionPooling
from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array, Captions, Videos


class DLDKD(TwoBranch):
    """The model; the sentence embeddings of both branches are concatenated, inheritance first."""

    expansion: ClassVar[int] = 0
    query_per_branch: ClassVar[bool] = True

    def setup(self) -> None:
        """Add the query encoder of the second branch, and a linear layer after each branch."""
        super().setup()
        options, block = self.options, self.options.bank.block
        linear = functools.partial(
            nn.Dense, options.hidden_size, dtype=block.dtype, kernel_init=layers.INITIALISER
        )
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
        """Return sentence embeddings, float32 at least, of twice the hidden size for both branches.

        A single branch has a single query encoder.
        """
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

        def encode(branch: Branch, mapping: nn.Dense) -> Float[Array, "V F H"]:
            encoded = branch(videos.frames, mask, hyperparameters.frame_windows, *shared)
            return repeat_first(as_float(mapping(encoded)), mask)

        clips = encode(self.clip_branch, self.clip_mapping) if options.glance else None
        frames = encode(self.frame_branch, self.frame_mapping) if options.gaze else None
        return VideoEncoding(clips, frames)


def repeat_first(encoded: Float[Array, "V F H"], mask: Bool[Array, "V F"]) -> Float[Array, "V F H"]:
    """Replace padding by the first position, which changes no maximum."""
    return jnp.where(mask[..., None], encoded, encoded[:, :1])
