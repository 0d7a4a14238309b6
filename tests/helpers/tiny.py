"""The smallest possible models: configurations, batches, parameters, losses and saved runs."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hlformer_jax import models
from hlformer_jax.config import DEFINITIONS, default, flat
from hlformer_jax.data.sources import extracted
from hlformer_jax.models import Model
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.training import checkpoints, prvr
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


def batch(seed=0, dtype=np.float32, with_teacher=False):
    """Return a batch, with the similarities of a teacher if asked for."""
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
            teacher.astype(dtype) if with_teacher else None,
        ),
    )


def params(config):
    """Draw parameters near their initial values, faster than the initialisers."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: models.init_params(models.build(config), config))

    def is_scale(path):
        return path[-1].key == "scale"

    def draw(path, like):
        values = is_scale(path) + 0.2 * rng.normal(size=like.shape)
        return values.astype(like.dtype)

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    return models.project(models.build(config), params)


def config_files():
    """Return the configuration files of the family that need no argument after a colon."""
    paths = (Path(__file__).parents[2] / "configs").glob("*.py")
    return sorted(path for path in paths if path.stem not in ("own", "run", "hover", "hover_own"))


class LinearModule:
    """Stand-in for a Linen module, with the attributes that the objective reads."""

    has_lift, guides_frames, query_per_branch = False, False, False


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Linear(Model):
    """Stand-in for a `models.Model` whose embeddings are products of features and one matrix."""

    hyperparameters: Any = None
    module: Any = dataclasses.field(metadata=STATIC, default=LinearModule)

    def apply(self, params, inputs, *_, method, rngs):
        if method == "encode_query":
            return inputs.words[:, 0] @ params
        return VideoEncoding(inputs.clips @ params, inputs.frames @ params)


def cosine_maxima(queries, positions):
    """Return the best cosine and dot product of each query and video, [Q, V] each."""
    dots = np.einsum("qh,vlh->qvl", queries, positions)
    norms = np.linalg.norm(queries, axis=-1)[:, None, None] * np.linalg.norm(positions, axis=-1)
    return (dots / np.where(norms > 0, norms, 1)).max(-1), dots.max(-1)


EUCLIDEAN = {"model.lorentz_blocks": 0, "loss.partial_order": 0.0}
MATCHING = {"loss.optimal_matching": 0.1, "loss.query_diversity": 0.003}
ONE_BRANCH = {"model.gaze": False}

# Models with the optional loss terms (GMMFormer v2 Table 6), and the aggregations.
CASES = {
    "gmmformer_v2": EUCLIDEAN | MATCHING | {"model.fusion": "consolidation"},
    "hlformer": {"model.glance": False},
    "ms_sl": EUCLIDEAN | MATCHING | {"model.euclidean_blocks": 1, "model.fusion": "mean"},
    "dl_dkd": EUCLIDEAN
    | MATCHING
    | {"model.euclidean_blocks": 1, "model.fusion": "mean", "loss.distillation": 0.1}
    | {"data.teacher_dim": 2},
    "dynamic": ONE_BRANCH | EUCLIDEAN | {"model.fusion": "dynamic"},
    "weighted": ONE_BRANCH | EUCLIDEAN | {"model.fusion": "weighted", "model.window": "boxcar"},
    "shared curvature": ONE_BRANCH
    | {"model.euclidean_blocks": 0, "model.block_curvature": "shared", "model.window": "bartlett"},
}


def case(name):
    """Return the configuration of a case, or of another model, with dropout."""
    model = name if name in models.MODELS else "hlformer"
    drop = {"model.dropout": 0.2, "model.input_dropout": 0.2}
    options = CASES[name] if name in CASES else flat(DEFINITIONS[name])
    return config(**{"model.name": model}, **options, **drop)


def loss(config, params, batch, key=None):
    """Return the loss of a batch and its terms; a key switches dropout on."""
    objective = prvr.build_objective(config, models.build(config), max_captions=2)
    columns = objective.scorer.frame_columns
    negatives = prvr.draw_negatives(jax.random.key(1), batch, True, 2, columns)
    return objective.evaluate(params, batch, negatives, key)


@functools.cache
def value_and_gradient(name, parts=1):
    """Return the parameters of a case, its loss with the terms, and the gradient."""
    fields = case(name)
    fields.train.encode_parts = parts
    initial = params(fields)
    data = batch(with_teacher=fields.data.teacher_dim > 0)

    def evaluate(params):
        return loss(fields, params, data, jax.random.key(3))

    return initial, *jax.jit(jax.value_and_grad(evaluate, has_aux=True))(initial)


FILM_WIDTH = 12
"""Width of the features of the films' encoder (archive.py)."""


def save_run(path, config, params):
    """Write the directory of a run that ended with these parameters, and return its path."""
    checkpoints.save_params(path / "checkpoints" / "best", params, {"epoch": 1})
    content = {"config": json.loads(config.to_json()), "data_fingerprint": None}
    (path / "config.json").write_text(json.dumps(content))
    return path


def write_run(path, config, fingerprint="f" * 64):
    config.data.manual_dir = str(path / "features")
    save_run(path, config, params(config))
    (path / "features").mkdir()
    facts = {"name": "colours", "fingerprint": fingerprint}
    (path / "features" / extracted.ENCODER).write_text(json.dumps(facts))
    return path


def configuration(name, **options):
    small = config(**{"model.name": name, **options})
    small.model.euclidean_blocks = 1
    small.data.update(visual_dim=FILM_WIDTH, text_dim=FILM_WIDTH, dtype="float32")
    small.eval.video_batch = 2
    if name != "hlformer":
        small.model.update(lorentz_blocks=0, fusion="mean")
    return small
