"""Every model and aggregation of the family, as small as can be, and its loss."""

import functools

import jax
import tiny

from hlformer_jax import models
from hlformer_jax.training import prvr

EUCLIDEAN = {"model.lorentz_blocks": 0, "loss.partial_order": 0.0}
MATCHING = {"loss.optimal_matching": 0.1, "loss.query_diversity": 0.003}
ONE_BRANCH = {"model.gaze": False}

# Each of the models, with the terms that plug in (GMMFormer v2 Table 6), and the aggregations.
CASES = {
    "gmmformer_v2": EUCLIDEAN | MATCHING | {"model.fusion": "consolidation"},
    "gmmformer": EUCLIDEAN | MATCHING | {"model.fusion": "mean", "model.video_level": True},
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


def config(name):
    """The configuration of a case, with dropout."""
    model = name if name in models.MODELS else "hlformer"
    drop = {"model.dropout": 0.2, "model.input_dropout": 0.2}
    return tiny.config(**{"model.name": model}, **CASES[name], **drop)


def loss(config, params, batch, key=None):
    """Its loss of a batch, with the terms; a key switches dropout on."""
    whole = prvr.build_objective(config, models.build(config), max_captions=2)
    columns = whole.scorer.frame_columns
    negatives = prvr.draw_negatives(jax.random.key(1), batch, True, 2, columns)
    return whole.evaluate(params, batch, negatives, key)


@functools.cache
def value_and_gradient(name, parts=1, without_dropout=False):
    """Parameters of a case, its loss with the terms, and the gradient."""
    case = config(name)
    case.train.encode_parts = parts
    if without_dropout:
        case.model.update(dropout=0.0, input_dropout=0.0)
    params = tiny.params(case)
    batch = tiny.batch(taught=case.data.teacher_dim > 0)
    of = lambda params: loss(case, params, batch, jax.random.key(3))
    return params, *jax.jit(jax.value_and_grad(of, has_aux=True))(params)
