"""Distributions of videos and of their captions, their proxies and losses, against NumPy loops."""

import functools

import family
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.nn.uncertainty import Normal, Uncertainty
from hlformer_jax.training import objective, uncertainty

ON = {"model.uncertainty": True, "loss.proxy_matching": 0.004}
BOTH = {**ON, "loss.distribution_alignment": 0.00025}
FRAME_MASK = np.arange(6)[None] < np.array([[6], [2], [4]])
WORD_MASK = np.arange(5)[None] < np.array([[5], [1], [3], [4]])
VIDEO = np.array([1, 0, 1, 2], np.int32)
APPLY = jax.jit(lambda params, *inputs: Uncertainty().apply({"params": params}, *inputs))


@functools.cache
def _inputs():
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(3, 6, 8)).astype(np.float32)
    words = rng.normal(size=(4, 5, 8)).astype(np.float32)
    inputs = frames, FRAME_MASK, words, WORD_MASK, VIDEO
    shapes = jax.eval_shape(Uncertainty().init, jax.random.key(0), *inputs)["params"]
    draw = lambda x: rng.normal(size=x.shape).astype(x.dtype)
    return jax.tree.map(draw, shapes), inputs


def _unit(x):
    return x / np.linalg.norm(x)


def _expected(params, pooled, x):
    """Mean and logarithm of the standard deviation of a set of positions [L, H]."""

    def attended(name):
        logits = np.tanh(x @ params[name]["hidden"]["kernel"]) @ params[name]["logit"]["kernel"]
        weights = np.exp(logits[:, 0])
        return weights @ x / weights.sum()

    linear = lambda name, x: x @ params[name]["kernel"] + params[name]["bias"]
    z = pooled + 1 / (1 + np.exp(-linear("mean_attended", attended("mean_attention"))))
    z = (z - z.mean()) / np.sqrt(z.var() + 1e-5) * params["norm"]["scale"] + params["norm"]["bias"]
    sigma = linear("sigma_attended", attended("sigma_attention")) + linear("sigma_pooled", pooled)
    return _unit(z), sigma


def test_videos_and_the_union_of_their_captions_are_distributions():
    params, inputs = _inputs()
    frames, _, words, _, _ = inputs
    videos, captions = APPLY(params, *inputs)
    for row in range(3):
        x = frames[row, FRAME_MASK[row]].astype(np.float64)
        pooled = _unit(np.mean([_unit(frame) for frame in x], axis=0))
        own = WORD_MASK & (VIDEO == row)[:, None]
        union = words[own].astype(np.float64)
        for found, expected in (
            (videos, _expected(params["videos"], pooled, x)),
            (captions, _expected(params["captions"], union.mean(0), union)),
        ):
            np.testing.assert_allclose(found.mean[row], expected[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.log_sigma[row], expected[1], rtol=1e-4, atol=1e-4)


def test_large_logits_overflow_nothing():
    params, inputs = _inputs()
    params = jax.tree.map(lambda x: 1000 * x, params)
    videos, captions = APPLY(params, *inputs)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((videos, captions)))


def _proxies(mask=(True, True, True)):
    rng = np.random.default_rng(1)
    normal = lambda: Normal(*(rng.normal(size=(2, 3, 8)).astype(np.float32) / 2))
    return uncertainty.draw(jax.random.key(0), normal(), normal(), 5, np.array(mask))


def test_proxies_are_draws_of_their_distributions():
    mean, log_sigma = np.full((2, 3), 0.5, np.float32), np.log([[0.1] * 3, [2.0] * 3])
    normal = Normal(mean, log_sigma.astype(np.float32))
    drawn = uncertainty.draw(jax.random.key(0), normal, normal, 4000, np.ones(2, bool))
    for proxies in drawn.videos, drawn.captions:
        np.testing.assert_allclose(np.mean(proxies, axis=1), mean, atol=0.12)
        np.testing.assert_allclose(np.std(proxies, axis=1), np.exp(log_sigma), rtol=0.05)
    assert not np.any(drawn.videos == drawn.captions)
    still = uncertainty.draw(None, normal, normal, 2, np.ones(2, bool))
    np.testing.assert_array_equal(still.captions, np.repeat(mean[:, None], 2, axis=1))


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, True)])
def test_the_losses_are_those_of_loops(mask):
    proxies = _proxies(mask)
    v, t, vs, ts = (np.asarray(x, np.float64)[list(mask)] for x in proxies[:4])
    matching = []
    for one, other in ((v, t), (t, v)):
        dots = np.einsum("vrh,wsh->vrws", one, other)
        log = dots - np.log(np.exp(dots).sum((2, 3), keepdims=True))
        matching += [-log[row, r, row].mean() for row in range(len(v)) for r in range(5)]
    found = jax.jit(uncertainty.proxy_matching)(proxies)
    np.testing.assert_allclose(found, np.mean(matching), rtol=1e-5)

    vm, tm = v.mean(1), t.mean(1)
    standard = sum(-(1 + s - m**2 - np.exp(s)) / 2 for m, s in ((vm, vs), (tm, ts)))
    across = vs - ts + (np.exp(ts) ** 2 + (tm - vm) ** 2) / (2 * np.exp(vs) ** 2) - 0.5
    found = jax.jit(uncertainty.distribution_alignment)(proxies)
    np.testing.assert_allclose(found, (standard + across).sum(1).mean(), rtol=1e-5)


def _padded(batch):
    """A further video and caption, all padding, with values of any size."""
    more = lambda x, fill: jnp.concatenate([x, jnp.full((1, *x.shape[1:]), fill, x.dtype)])
    videos = [more(x, fill) for x, fill in zip(batch.videos, (9, 9, False, False), strict=True)]
    captions = [
        more(x, fill) for x, fill in zip(batch.captions[:4], (9, False, 0, False), strict=True)
    ]
    return type(batch)(type(batch.videos)(*videos), type(batch.captions)(*captions))


@functools.cache
def _loss_and_gradient(padded, **options):
    config = tiny.config(**(BOTH | options))
    whole = objective.build(config, models.build(config), most_captions=2)
    batch = _padded(tiny.batch()) if padded else tiny.batch()
    negatives = objective.draw_negatives(jax.random.key(1), batch, True, 2)
    of = lambda params: whole.evaluate(params, batch, negatives, None, 0, jax.random.key(2))
    # Flax's layer norm asks JAX for the promotion of bfloat16.
    promotion = "standard" if config.dtype == "bfloat16" else "strict"
    with jax.numpy_dtype_promotion(promotion):
        return jax.jit(jax.value_and_grad(of, has_aux=True))(tiny.params(config))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padded_videos_and_captions_change_nothing(dtype):
    found, padded = (_loss_and_gradient(more, dtype=dtype) for more in (False, True))
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    terms, others = found[0][1], padded[0][1]
    assert {"proxy_matching", "distribution_alignment"} <= set(terms)
    for name, value in terms.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(others[name], value, rtol=tolerance, err_msg=name)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(found[1]))
    for one, other in zip(*(jax.tree.leaves(x[1]) for x in (found, padded)), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance * scale)
    heads = found[1]["uncertainty"]
    assert all(np.any(x != 0) for x in jax.tree.leaves(heads))


def test_without_it_a_model_has_no_parameter_more_and_the_others_are_the_same():
    init = lambda config: models.init_params(models.build(config), config)
    off, on = (init(tiny.config(**options)) for options in ({}, ON))
    assert "uncertainty" not in off
    on.pop("uncertainty")
    jax.tree.map(np.testing.assert_array_equal, off, on)


@pytest.mark.parametrize("name", ["gmmformer_v2", "dl_dkd", "ms_sl"])
def test_every_model_with_frames_takes_it(name):
    config = tiny.config(**{"model.name": name}, **(family.CASES[name] | BOTH))
    config.loss.distillation = 0.0
    config.model.glance = name != "ms_sl"
    config.loss.optimal_matching = 0.0
    batch, step = tiny.batch(), np.int32(0)
    params = jax.eval_shape(lambda: models.init_params(models.build(config), config))
    loss = objective.build(config, models.build(config))
    total, terms = jax.eval_shape(loss, params, batch, step)
    assert total.shape == () and "proxy_matching" in terms


def test_proxies_follow_seed_and_step():
    config = tiny.config(**BOTH)
    params, batch, run = tiny.params(config), tiny.batch(), jax.jit(lambda loss, *x: loss(*x)[1])
    loss = objective.build(config, models.build(config))
    found = [float(run(loss, params, batch, np.int32(k))["proxy_matching"]) for k in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loss.proxy_matching": 1.0},
            "proxy_matching is 1.0, but config.model.uncertainty is off",
        ),
        ({**ON, "model.video_level": True}, "video_level pools them"),
        ({**ON, "model.gaze": False}, "gaze is off"),
        ({**ON, "model.name": "ms_sl"}, "switch one off"),
    ],
)
def test_what_has_no_distributions_is_refused(options, message):
    config = tiny.config(**options)
    with pytest.raises(ConfigError, match=message):
        objective.active_terms(config, models.build(config))
