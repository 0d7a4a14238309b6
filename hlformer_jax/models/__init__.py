"""The models of the papers, one file each; docs/training.md says how one is added.

    registry      the models by name; parameters, encoding, description and cost of every one
    two_branch    what the models share: query encoder, branches, options; GMMFormer and its v2
    hlformer, ms_sl, dl_dkd, clip4clip    the others
    hover         the model of another family: nodes of action trees in hyperbolic space

A model is a Linen module with the methods `encode_query` and `encode_video`, and `lift` if it has a
hyperbolic lift; `build` gives it with its hyperparameters, as a pytree.
"""

from hlformer_jax.models.registry import (
    MODELS,
    TITLES,
    Model,
    build,
    describe,
    encode_query,
    encode_video,
    init_params,
    lift,
    project,
    zero_batch,
)
from hlformer_jax.models.two_branch import TwoBranch, VideoEncoding

__all__ = [
    "MODELS", "TITLES", "Model", "TwoBranch", "VideoEncoding", "build", "describe", "encode_query",
    "encode_video", "init_params", "lift", "project", "zero_batch",
]  # fmt: skip
