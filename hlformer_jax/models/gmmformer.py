"""GMMFormer and GMMFormer v2: banks of Euclidean Gaussian blocks. Neither has a hyperbolic lift."""

from typing import ClassVar

from hlformer_jax.models.two_branch import TwoBranch


class GMMFormer(TwoBranch):
    """GMMFormer: two layers of blocks, their mean, and one vector for the frames.

    Its blocks end with one linear layer and a layer norm, without a feed-forward network; so does
    the block of the query encoder. The frame branch is pooled to one vector of the whole video.

    The released code pads frames to the longest video of a batch and stretches the windows over
    that length, so that what it computes for a video depends on its batch. Here they are padded to
    `config.data.max_frames`, as in GMMFormer v2 and HLFormer: equal where a batch has a video that
    long.
    """

    expansion: ClassVar[int] = 0
    num_layers: ClassVar[int] = 2


class GMMFormerV2(TwoBranch):
    """GMMFormer v2: one bank a branch, under temporal consolidation.

    At every position the weights of the blocks are asked for by one learned token, which the
    branches share (`nn.fusion.TemporalConsolidation`).
    """
