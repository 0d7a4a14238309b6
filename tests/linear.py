"""A model that is one matrix product, for tests of the objective without its models."""

from typing import Any

import flax.struct
import numpy as np

from hlformer_jax.models.registry import Model
from hlformer_jax.models.two_branch import VideoEncoding


class Module:
    """What the objective asks a Linen module."""

    has_lift, guides_frames, query_per_branch = False, False, False


@flax.struct.dataclass
class Linear(Model):
    """Stands for a `models.Model`: its embeddings are products of features and one matrix."""

    hyperparameters: Any = None
    module: Any = flax.struct.field(pytree_node=False, default=Module)

    def apply(self, params, inputs, *_, method, rngs):
        if method == "encode_query":
            return inputs.words[:, 0] @ params
        return VideoEncoding(inputs.clips @ params, inputs.frames @ params)


def cosine_maxima(queries, positions):
    """[Q, V] the best cosine and the best dot product of a query among a video's positions."""
    dots = np.einsum("qh,vlh->qvl", queries, positions)
    norms = np.linalg.norm(queries, axis=-1)[:, None, None] * np.linalg.norm(positions, axis=-1)
    return (dots / np.where(norms > 0, norms, 1)).max(-1), dots.max(-1)
