"""GMMFormer v2: Euclidean Gaussian blocks under temporal consolidation.

Each branch is one bank of blocks; at every position their weights are asked for by one learned
token, shared by the branches (`fusion.PositionWeights`). There is no hyperbolic lift.
"""

from hlformer_jax.models.two_branch import TwoBranch


class GMMFormerV2(TwoBranch):
    """The model."""
