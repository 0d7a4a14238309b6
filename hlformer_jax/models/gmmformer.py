"""GMMFormer (v1): two layers of Gaussian blocks, their mean, and one vector for the frames.

Its blocks end with one linear layer and a layer norm, without a feed-forward network; so does the
block of the query encoder. The frame branch is pooled to one vector of the whole video.
"""

from hlformer_jax.models.two_branch import TwoBranch


class GMMFormer(TwoBranch):
    """The model; its attributes are the fields of `config.model`, see config.py."""

    expansion = 0
    num_layers = 2
