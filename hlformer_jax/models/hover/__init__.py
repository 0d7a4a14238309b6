"""HOVER: nodes of action trees as points, of a Poincaré ball or another space.

options     the fields of `config.model` as options of the model
space       the space of the embeddings: lift, similarities, norms, and vectors to search with
encoders    frames and words of nodes to one feature each
embedding   the model: features to points, the scale of similarities, the direction of time
parameters  initial parameters, and what holds for them after every step
"""

from hlformer_jax.models.hover.embedding import Hover, Points
from hlformer_jax.models.hover.options import HoverOptions
from hlformer_jax.models.hover.parameters import build, init_params, project, zero_nodes
from hlformer_jax.models.hover.space import Space

__all__ = [
    "Hover",
    "build",
    "HoverOptions",
    "Points",
    "Space",
    "init_params",
    "project",
    "zero_nodes",
]
