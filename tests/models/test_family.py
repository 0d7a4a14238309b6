"""Options that plug into every model of the family, and the curvature of the Lorentz blocks."""

import dataclasses
import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import ConfigError, check, load
from hlformer_jax.models import hlformer, ms_sl
from hlformer_jax.nn import blocks, fusion
from hlformer_jax.nn.blocks import BlockOptions, LorentzAttention, LorentzOptions
from hlformer_jax.ops import windows
from hlformer_jax.training import losses, objective, terms

EUCLIDEAN = {"model.lorentz_blocks": 0, "loss.partial_order": 0.0}
MATCHING = {"loss.optimal_matching": 0.1, "loss.query_diversity": 0.003}
ONE_BRANCH = {"model.gaze": False}

# Each of the models, with the terms that plug in (GMMFormer v2 Table 6), and the aggregations.
CASES = {
    "gmmformer_v2": EUCLIDEAN | MATCHING | {"model.fusion": "consolidation"},
    "gmmformer": EUCLIDEAN | MATCHING | {"model.fusion": "mean", "model.video_level": True},
    "ms_sl": EUCLIDEAN | MATCHING | {"model.euclidean_blocks": 1, "model.fusion": "mean"},
    "dynamic": ONE_BRANCH | EUCLIDEAN | {"model.fusion": "dynamic"},
    "weighted": ONE_BRANCH | EUCLIDEAN | {"model.fusion": "weighted", "model.window": "boxcar"},
    "block curvature": ONE_BRANCH
    | {"model.euclidean_blocks": 0, "model.block_curvature": "block", "model.window": "bartlett"},
    "shared curvature": ONE_BRANCH
    | {"model.euclidean_blocks": 0, "model.block_curvature": "shared", "model.window": "none"},
}


def _config(name):
    model = name if name in models.MODELS else "hlformer"
    drop = {"model.dropout": 0.2, "model.input_dropout": 0.2}
    return tiny.config(**{"model.name": model}, **CASES[name], **drop)


def _loss(config, params, batch, key=None):
    loss = objective.build(config, models.build(config), most_captions=2)
    columns = terms.FRAME_COLUMNS[loss.scorer.frame_columns]
    negatives = objective.draw_negatives(jax.random.key(1), batch, True, 2, columns)
    return loss.evaluate(params, batch, negatives, key)


@functools.cache
def _value_and_gradient(name, parts=1, without_dropout=False):
    config = _config(name)
    config.train.encode_parts = parts
    if without_dropout:
        config.model.update(dropout=0.0, input_dropout=0.0)
    params = tiny.params(config)
    loss = lambda params: _loss(config, params, tiny.batch(), jax.random.key(3))
    return params, *tiny.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.parametrize("name", CASES)
def test_every_model_and_aggregation_has_finite_gradients_that_reach_its_parameters(name):
    params, (value, computed), gradient = _value_and_gradient(name)
    config = _config(name)
    assert set(computed) == set(objective.active_terms(config, models.build(config)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    own = {
        "gmmformer_v2": ("weight_token",),
        "gmmformer": ("video_pooling", "kernel"),
        "ms_sl": ("guided_value", "kernel"),
        "dynamic": ("weight_token",),
        "weighted": ("clip_branch", "fusion", "logits"),
        "block curvature": ("clip_branch", "bank", "attention_curv"),
        "shared curvature": ("attention_curv",),
    }[name]
    for key in own:
        params, gradient = params[key], gradient[key]
    assert np.any(np.asarray(gradient) != 0)


@pytest.mark.parametrize("name", ["gmmformer_v2", "ms_sl", "dynamic", "shared curvature"])
def test_videos_encoded_in_parts_have_the_same_loss_and_gradient(name):
    _, (value, _), gradient = _value_and_gradient(name, without_dropout=True)
    _, (other, _), in_parts = _value_and_gradient(name, tiny.VIDEOS, without_dropout=True)
    # Sums are taken in another order: rounding of float32 through a network.
    np.testing.assert_allclose(other, value, rtol=1e-5)
    for one, several in zip(*map(jax.tree.leaves, (gradient, in_parts)), strict=True):
        np.testing.assert_allclose(several, one, rtol=0, atol=1e-4 * np.abs(one).max() + 1e-6)


@pytest.mark.parametrize("model", models.MODELS)
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
        "model.video_level": either(branches[0], False) and model != "ms_sl",
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
    loss = lambda p: _loss(config, p, tiny.batch(), jax.random.key(0))[0]
    assert jax.eval_shape(loss, params).shape == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.video_level": True, "model.gaze": False}, "video_level pools the frames"),
        ({"model.block_curvature": "shared", "model.lorentz_blocks": 0}, "no Lorentz block"),
        ({"model.block_curvature": "x"}, "model.block_curvature"),
        ({"model.block_curvature_start": 5.0}, "the curvature is fixed at 1"),
        ({"model.lorentz_window": "corrected", "model.lorentz_blocks": 0}, "no Lorentz block"),
        (EUCLIDEAN | {"model.name": "ms_sl", "model.video_level": True}, "video_level pools"),
        ({"model.name": "ms_sl", "loss.partial_order": 0.0, "kernels": "pallas"}, "no kernel"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(options, message):
    with pytest.raises(ConfigError, match=message):
        models.build(tiny.config(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.name": "gmmformer_v2"}, "loss.partial_order is 0.001, but gmmformer_v2 has no"),
        ({"loss.optimal_matching": 0.1, "model.glance": False}, "assigns captions to clips"),
    ],
)
def test_losses_that_a_model_lacks_the_parts_for_are_refused_where_it_is_trained(options, message):
    config = tiny.config(**options)
    model = models.build(config)  # to evaluate it is fine
    with pytest.raises(ConfigError, match=message):
        objective.build(config, model)


def test_learned_weights_of_equal_logits_are_the_mean():
    blocks = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4, 8)), jnp.float32)
    weights = fusion.BlockWeights(BlockOptions(2, 0.0))
    inputs = blocks, blocks[0], None, jnp.float32(0.5), None, False
    params = weights.init(jax.random.key(0), *inputs)
    np.testing.assert_allclose(weights.apply(params, *inputs), blocks.mean(0), rtol=1e-5, atol=1e-6)
    params["params"]["logits"] = jnp.asarray([0.0, 0.0, 50.0])
    np.testing.assert_allclose(weights.apply(params, *inputs), blocks[2], rtol=1e-5, atol=1e-6)


def test_proposals_are_the_means_of_all_windows():
    clips = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    ours = np.asarray(ms_sl.sliding_means(clips))
    expected = [
        clips[:, start : start + size].mean(axis=1)
        for size in range(1, 6)
        for start in range(5 - size + 1)
    ]
    np.testing.assert_allclose(ours, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


def _numpy_attention(params, x, c, merge):
    """Lorentz attention on the hyperboloid of curvature -c, by the equations."""
    heads, dim = 2, 7
    norm = lambda v: np.linalg.norm(v, axis=-1, keepdims=True)

    def project(p, x):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        x = (x - mean) / np.sqrt(var + 1e-5) * p["LayerNorm"]["scale"] + p["LayerNorm"]["bias"]
        return np.maximum(x @ p["dense"]["kernel"] + p["dense"]["bias"], 0)

    beta = np.exp(params["scale_alpha"])
    u = project(params["input_proj"], x) * beta
    r = np.sqrt(c) * norm(u)
    point = np.concatenate([np.cosh(r), np.sinh(r) * u / norm(u)], -1) / np.sqrt(c)

    def linear(p):
        z = (point @ p["dense"]["kernel"]).reshape(*x.shape[:-1], heads, (dim + 1) // heads)
        time = np.exp(p["scale"]) / (1 + np.exp(-z[..., :1])) + 1.1
        space = z[..., 1:] / norm(z[..., 1:]) * np.sqrt(time**2 - 1)
        return np.concatenate([time, space], -1) / np.sqrt(c)  # <p, p>_L = -1 / c

    inner = lambda a, b: (a[..., 1:] * b[..., 1:]).sum(-1) - a[..., 0] * b[..., 0]
    q, k, v = (np.moveaxis(linear(params[n]), -2, -3) for n in ("query", "key", "value"))
    squared_distance = -2 / c - 2 * inner(q[..., :, None, :], k[..., None, :, :])
    logits = -squared_distance / params["scale"] + params["bias"]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    m = np.einsum("...ml,...ld->...md", weights / weights.sum(-1, keepdims=True), v)
    centroid = m / np.sqrt(c * np.abs(inner(m, m)))[..., None]
    side_by_side = lambda heads: np.moveaxis(heads, -3, -2).reshape(*x.shape[:-1], -1)
    if merge == "hyperboloid":
        space = side_by_side(centroid[..., 1:])
        s = np.sqrt(c) * norm(space)
        tangent = np.arcsinh(s) / s * space
    else:  # head 0's time for that of the whole, the others' times among the space coordinates
        s = np.sqrt(c) * norm(centroid[..., 0, :, 1:])
        tangent = np.arcsinh(s) / s * side_by_side(centroid)[..., 1:]
    return project(params["output_proj"], tangent / beta)


@pytest.mark.parametrize("c", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("merge", blocks.HEAD_MERGES)
def test_attention_on_a_hyperboloid_of_any_curvature(float64, c, merge):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 8))
    attend = LorentzAttention(
        BlockOptions(2, 0.0, dtype=jnp.float64), LorentzOptions(7, head_merge=merge)
    )
    with jax.numpy_dtype_promotion("standard"):
        shapes = attend.init(jax.random.key(0), x, None, None, False)["params"]
        params = jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape), shapes)
        apply = jax.jit(lambda p, c: attend.apply({"params": p}, x, None, None, False, c))
        ours = apply(params, jnp.asarray(c))
    expected = _numpy_attention(jax.tree.map(np.asarray, params), x, c, merge)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.05, 0.3, 5.0, 20.0])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
def test_attention_is_finite_from_nearly_flat_to_strongly_curved(c, size):
    attend = LorentzAttention(BlockOptions(2, 0.0), LorentzOptions(7))
    x = size * jnp.asarray(np.random.default_rng(1).normal(size=(1, 4, 8)), jnp.float32)
    params = attend.init(jax.random.key(0), x, None, None, False)
    loss = lambda p, c: jnp.sum(jnp.sin(attend.apply(p, x, None, None, False, c)))
    value, gradient = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, jnp.float32(c))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))


@pytest.mark.parametrize("c", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 50.0])
def test_the_lift_and_its_loss_are_finite_at_any_curvature(c, size):
    rng = np.random.default_rng(2)
    tangents = [jnp.asarray(size * rng.normal(size=(n, 8)), jnp.float32) for n in (3, 5)]
    pairs = losses.Pairs(np.array([0, 0, 1, 2, 2], np.int32), np.ones(5, bool), np.ones(3, bool))

    def loss(videos, captions, c):
        lifted = hlformer.lift(videos, c), hlformer.lift(captions, c)
        return losses.partial_order(*lifted, c, pairs, 0.1)

    value, gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*tangents, jnp.float32(c))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))


def test_curvatures_stay_within_ten_times_their_start():
    config = tiny.config(**{"model.block_curvature": "block", "model.block_curvature_start": 2.0})
    params = {"clip_branch": {"bank": {"attention_curv": jnp.asarray([-9.0, 0.1, 9.0])}}}
    found = models.project(params, config)["clip_branch"]["bank"]["attention_curv"]
    np.testing.assert_allclose(np.exp(found), [0.2, np.exp(0.1), 20.0], rtol=1e-5)


@pytest.mark.parametrize("field", ["window", "head_merge", "implementation"])
def test_a_layer_refuses_an_option_that_it_does_not_know(field):
    block, lorentz = BlockOptions(2, 0.0), LorentzOptions(7)
    if field == "implementation":
        block = dataclasses.replace(block, implementation="corected")
    else:
        lorentz = dataclasses.replace(lorentz, **{field: "corected"})
    attend = LorentzAttention(block, lorentz)
    with pytest.raises(ValueError, match=f"{field} 'corected' is unknown: use "):
        attend.init(jax.random.key(0), jnp.ones((1, 4, 8)), None, None, False)


@pytest.mark.parametrize("name", [n for n, f in fusion.FUSIONS.items() if f.uses_token])
def test_a_fusion_that_asks_with_a_token_refuses_to_do_without(name):
    fuse, blocks = fusion.FUSIONS[name](BlockOptions(2, 0.0)), jnp.ones((3, 1, 4, 8))
    with pytest.raises(ValueError, match="asks with a token"):
        fuse.init(jax.random.key(0), blocks, blocks[0], None, jnp.float32(1), None, False)


def test_every_configuration_file_builds_its_model():
    for path, name in itertools.product(tiny.config_files(), ("", "debug")):
        config = load(path, name)
        model = models.build(config)
        assert type(model.module) is models.MODELS[config.model.name]
        assert objective.active_terms(config, model)
