"""Sizes, data and parameters on which models are tested: as small as their options allow."""

from pathlib import Path
from typing import Any

import flax.struct
import jax
import numpy as np

from hlformer_jax import models
from hlformer_jax.config import default
from hlformer_jax.models.registry import Model
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.typing import Batch, Captions, Videos

VIDEOS, CAPTIONS, FRAMES, CLIPS, WORDS, WIDTH = 3, 5, 8, 4, 6, 7


def config(**options):
    config = default()
    config.data.update(
        visual_dim=WIDTH, text_dim=WIDTH, max_frames=FRAMES, max_clips=CLIPS, max_words=WORDS
    )
    config.model.update(
        hidden_size=8, lorentz_dim=7, num_heads=2, euclidean_blocks=2, lorentz_blocks=2
    )
    config.model.update(dropout=0.0, input_dropout=0.0)
    config.update_from_flattened_dict(options)
    return config


def batch(seed=0, dtype=np.float32, taught=False):
    """A batch; where it is taught, with what a teacher says."""
    rng = np.random.default_rng(seed)
    frame_mask = np.arange(FRAMES)[None] < np.array([8, 5, 1])[:, None]
    frames = rng.normal(size=(VIDEOS, FRAMES, WIDTH)) * frame_mask[..., None]
    word_mask = np.arange(WORDS)[None] < np.array([6, 1, 3, 4, 2])[:, None]
    words = rng.normal(size=(CAPTIONS, WORDS, WIDTH)) * word_mask[..., None]
    clips = rng.normal(size=(VIDEOS, CLIPS, WIDTH))
    video = np.array([0, 0, 1, 2, 2], np.int32)
    teacher = rng.uniform(-1, 1, size=(CAPTIONS, FRAMES)) * frame_mask[video]
    return Batch(
        Videos(clips.astype(dtype), frames.astype(dtype), frame_mask, np.ones(VIDEOS, bool)),
        Captions(
            words.astype(dtype),
            word_mask,
            video,
            np.ones(CAPTIONS, bool),
            teacher.astype(dtype) if taught else None,
        ),
    )


def params(config):
    """Parameters near their initial values, but cheaper than those to have."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: models.init_params(models.build(config), config))
    ones = lambda path: path[-1].key == "scale"

    def draw(path, like):
        values = ones(path) + 0.2 * rng.normal(size=like.shape)
        return values.astype(like.dtype)

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    return models.project(models.build(config), params)


def config_files():
    """The configurations of the family that need nothing behind their colon."""
    paths = (Path(__file__).parents[1] / "configs").glob("*.py")
    return sorted(path for path in paths if path.stem not in ("own", "hover", "hover_own"))


class LinearModule:
    """What the objective asks a Linen module."""

    has_lift, guides_frames, query_per_branch = False, False, False


@flax.struct.dataclass
class Linear(Model):
    """Stands for a `models.Model`: its embeddings are products of features and one matrix."""

    hyperparameters: Any = None
    module: Any = flax.struct.field(pytree_node=False, default=LinearModule)

    def apply(self, params, inputs, *_, method, rngs):
        if method == "encode_query":
            return inputs.words[:, 0] @ params
        return VideoEncoding(inputs.clips @ params, inputs.frames @ params)


def cosine_maxima(queries, positions):
    """[Q, V] the best cosine and the best dot product of a query among a video's positions."""
    dots = np.einsum("qh,vlh->qvl", queries, positions)
    norms = np.linalg.norm(queries, axis=-1)[:, None, None] * np.linalg.norm(positions, axis=-1)
    return (dots / np.where(norms > 0, norms, 1)).max(-1), dots.max(-1)
