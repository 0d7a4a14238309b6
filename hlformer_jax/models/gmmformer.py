"""GMMFormer (v1): two layers of Gaussian blocks, their mean, and one vector for the frames.

Its blocks end with one linear layer and a layer norm, without a feed-forward network; so does the
block of the query encoder. The frame branch is pooled to one vector of the whole video.

The released code pads frames to the longest video of a batch and stretches the windows over that
length, so that what it computes for a video depends on its batch. Here they are padded to
`config.data.max_frames`, as in GMMFormer v2 and HLFormer: equal where a batch has a video that
long.
"""

from typing import ClassVar

from hlformer_jax.models.two_branch import TwoBranch


class GMMFormer(TwoBranch):
    """The model."""

    expansion: ClassVar[int] = 0
    num_layers: ClassVar[int] = 2
