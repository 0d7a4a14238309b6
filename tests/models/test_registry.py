"""Every model, with the options that plug into all of them."""

import itertools
import random

import family
import jax
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import check, load
from hlformer_jax.nn import fusion
from hlformer_jax.ops import windows
from hlformer_jax.training import prvr

# Every gradient of the first four is held against a recorded one besides (test_parity.py).
SLOW = ("gmmformer_v2", "gmmformer", "ms_sl", "dl_dkd", "dynamic", "weighted", "block curvature")
CASES = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in family.CASES
]
MODELS = [
    name if name == "hlformer" else pytest.param(name, marks=pytest.mark.slow)
    for name in models.MODELS
]


@pytest.mark.parametrize("name", CASES)
def test_every_model_and_aggregation_has_finite_gradients_that_reach_its_parameters(name):
    params, (value, computed), gradient = family.value_and_gradient(name)
    config = family.config(name)
    assert set(computed) == set(prvr.active_terms(config, models.build(config)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    own = {
        "gmmformer_v2": ("weight_token",),
        "gmmformer": ("video_pooling", "kernel"),
        "ms_sl": ("guided_value", "kernel"),
        "dl_dkd": ("exploration_pooling", "kernel"),
        "dynamic": ("weight_token",),
        "weighted": ("clip_branch", "fusion", "logits"),
        "block curvature": ("clip_branch", "bank", "attention_curv"),
        "shared curvature": ("attention_curv",),
    }[name]
    for key in own:
        params, gradient = params[key], gradient[key]
    assert np.any(np.asarray(gradient) != 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", fusion.FUSIONS)
def test_any_combination_of_options_can_be_traced(model, kind):
    """Shapes alone; every model with every aggregation, the rest drawn among what makes sense."""
    drawn = random.Random(f"{model} {kind}")
    either = lambda *options: drawn.choice(options)
    lorentz = either(0, 1)
    branches = either((True, True), (True, False), (False, True))
    chosen = {
        "model.name": model,
        "model.fusion": kind,
        "model.lorentz_blocks": lorentz,
        "model.euclidean_blocks": either(1, 2) if lorentz == 0 else either(0, 2),
        "model.window": either(*windows.KINDS),
        "model.gaze": branches[0],
        "model.glance": branches[1],
        "model.video_level": either(branches[0], False) and model not in ("ms_sl", "dl_dkd"),
        "model.dropout": 0.1,
        "loss.optimal_matching": either(0.0, 0.1) if branches[1] else 0.0,
        "loss.partial_order": either(0.0, 0.1) if model == "hlformer" else 0.0,
        "loss.diversity_form": either("pairs", "captions"),
    }
    if lorentz:
        chosen["model.lorentz_window"] = either("released", "corrected")
        chosen["model.head_merge"] = either("released", "hyperboloid")
        chosen["model.block_curvature"] = either("fixed", "shared", "block")
    config = tiny.config(**chosen)
    check(config)
    params = jax.eval_shape(lambda: models.init_params(models.build(config), config))
    loss = lambda p: family.loss(config, p, tiny.batch(), jax.random.key(0))[0]
    assert jax.eval_shape(loss, params).shape == ()


def test_every_configuration_file_builds_its_model():
    for path, name in itertools.product(tiny.config_files(), ("", "debug")):
        config = load(path, name)
        model = models.build(config)
        assert type(model.module) is models.MODELS[config.model.name]
        assert prvr.active_terms(config, model)
