"""The models of the papers, one file each, and what every one can do.

    registry      a model's name -> the model that a configuration asks for
    encode        its methods as pure functions of parameters and arrays
    initialise    its initial parameters
    constraints   what holds for parameters after every step
    options       the fields of `config.model` as arguments, checked
    two_branch    what the models share
    cost          parameters and operations of a model

A model is a Linen module with the methods `encode_query` and `encode_video`, and `lift` if it has a
hyperbolic lift.
"""

from hlformer_jax.models.constraints import project
from hlformer_jax.models.encode import encode_query, encode_video, lift
from hlformer_jax.models.initialise import init_params, zero_batch
from hlformer_jax.models.registry import (
    MODELS,
    bind,
    build,
    check_devices,
    constants,
)
from hlformer_jax.models.two_branch import Constants, TwoBranch, VideoEncoding

__all__ = [
    "MODELS",
    "Constants",
    "TwoBranch",
    "VideoEncoding",
    "bind",
    "build",
    "check_devices",
    "constants",
    "encode_query",
    "encode_video",
    "init_params",
    "lift",
    "project",
    "zero_batch",
]
