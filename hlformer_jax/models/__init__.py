"""The models of the papers, one file each, and what every one can do.

    registry      the models by name, and the one that a configuration asks for
    options       the fields of `config.model` as options of a model, checked
    two_branch    what the models share
    hlformer, gmmformer_v2, gmmformer, ms_sl    the models
    encode        the methods of a model as pure functions of parameters and arrays
    initialise    initial parameters
    constraints   what holds for parameters after every step
    description   what a checkpoint says of its model
    cost          parameters and operations of a model

A model is a Linen module with the methods `encode_query` and `encode_video`, and `lift` if it has a
hyperbolic lift.
"""

from hlformer_jax.models.constraints import project
from hlformer_jax.models.description import describe
from hlformer_jax.models.encode import encode_query, encode_video, lift
from hlformer_jax.models.initialise import init_params, zero_batch
from hlformer_jax.models.registry import MODELS, Model, build, check_devices
from hlformer_jax.models.two_branch import TwoBranch, VideoEncoding

__all__ = [
    "MODELS",
    "Model",
    "TwoBranch",
    "VideoEncoding",
    "build",
    "check_devices",
    "describe",
    "encode_query",
    "encode_video",
    "init_params",
    "lift",
    "project",
    "zero_batch",
]
