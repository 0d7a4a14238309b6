"""Registers against NumPy, with their losses and their padding; without them nothing is there."""

import functools
import math

import family
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.nn import registers as generator
from hlformer_jax.nn.bank import Windows, open_windows
from hlformer_jax.training import objective, registers
from hlformer_jax.training.losses import Pairs

COUNT = 3
BATCH = tiny.batch()
PAIRS = Pairs(BATCH.captions.video, BATCH.captions.mask, BATCH.videos.mask)
QUERIES = np.random.default_rng(0).normal(size=(tiny.CAPTIONS, 8)).astype(np.float32)
TERMS = ("register_prior", "register_denoising")


@functools.cache
def _config():
    return tiny.config(**{"model.registers": COUNT, "model.gaze": False})


@functools.cache
def _model():
    """A model, its parameters, and what it makes of the batch."""
    config = _config()
    model, params = models.build(config), tiny.params(config)

    def see(params, videos, clean):
        latent = models.latent(model, params, videos)
        apply = functools.partial(model.apply, params)
        made = apply(latent, method=lambda module, x: module.register_generator.sample(x))
        embed = lambda module, x: module.clip_branch.embed(x, False)
        return (
            apply(videos.clips, method=embed),
            latent,
            made,
            models.predict_noise(model, params, latent, clean),
        )

    clean = np.random.default_rng(1).normal(size=(tiny.VIDEOS, COUNT, 8)).astype(np.float32)
    return params, clean, *jax.jit(see)(params, BATCH.videos, clean)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _dense(p, x):
    return x @ p["kernel"] + p.get("bias", 0.0)


def _norm(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _attention(p, x, y, heads=2):
    split = lambda z: z.reshape(*z.shape[:-1], heads, -1).swapaxes(-3, -2)
    query, key, value = (
        split(_dense(p[k], z)) for k, z in (("query", x), ("key", y), ("value", y))
    )
    weights = _softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]))
    return (weights @ value).swapaxes(-3, -2).reshape(x.shape)


def _block(p, x, y):
    x = _norm(p["norm1"], x + _attention(p["attention"], x, y))
    hidden = np.maximum(_dense(p["output"]["layer1"], x), 0)
    return _norm(p["norm2"], x + _dense(p["output"]["layer2"], hidden))


def _pool(p, x):
    weights = _softmax(_dense(p["layer2"], np.tanh(_dense(p["layer1"], x))), axis=-2)
    return (weights * x).sum(-2)


def _denoise(p, x, level, condition):
    """Of one level of noise, by loops over nothing but the layers."""
    swish = lambda z: z * _sigmoid(z)
    rate = 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    table = np.stack([np.sin(level * rate), np.cos(level * rate)], -1).reshape(-1)
    time = _dense(p["level2"], swish(_dense(p["level1"], table)))
    condition = _dense(p["condition"], np.maximum(_norm(p["norm"], condition), 0))
    hidden = x
    for layer in ("layer1", "layer2"):
        q = p[layer]
        inner = _dense(q["input"], swish(_norm(q["norm1"], hidden)))
        inner = inner + _dense(q["level"], swish(time)) + _dense(q["condition"], swish(condition))
        inner = _dense(q["output"], swish(_norm(q["norm2"], inner)))
        hidden = inner + _dense(q["shortcut"], hidden)
    return _dense(p["output"], hidden + x)


def test_the_generator_is_that_of_the_equations():
    params, clean, clips, latent, made, predicted = jax.tree.map(
        lambda x: np.asarray(x, np.float64), _model()
    )
    p = params["register_generator"]
    x = _block(p["block"], clips, clips)
    tokens = np.broadcast_to(p["tokens"], (tiny.VIDEOS, COUNT, 8))
    condition = _block(p["cross"], tokens, x)
    gaussian = p["gaussian"]
    ranks = _softmax(gaussian["ranks"]["logits"] / 0.1)
    pooled = (ranks[:, None] * -np.sort(-x, axis=1)).sum(1)
    attended = _dense(gaussian["mean_dense"], _pool(gaussian["mean_pooling"], x))
    mean = _norm(gaussian["norm"], pooled + _sigmoid(attended))
    mean = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    variance = _dense(gaussian["variance_dense"], _pool(gaussian["variance_pooling"], x))
    variance = variance + _dense(gaussian["variance_pooled"], pooled)
    for found, expected in zip(latent, (mean, variance, condition), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    # The textbook's schedule, step by step.
    curve = [math.cos((t / 10 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(11)]
    beta = [min(1 - curve[t + 1] / curve[t], 0.999) for t in range(10)]
    alpha = np.cumprod([1.0, *(1 - b for b in beta)])
    start = np.broadcast_to(mean[:, None], made.shape)
    state = start
    for t in reversed(range(10)):
        after, before = alpha[t + 1], alpha[t]
        noisy = math.sqrt(after) * clean + math.sqrt(1 - after) * start
        noise = _denoise(p["denoiser"], noisy, t, condition)
        np.testing.assert_allclose(predicted[t], noise, rtol=1e-4, atol=1e-4)
        noise = _denoise(p["denoiser"], state, t, condition)
        guess = np.clip(state / math.sqrt(after) - math.sqrt(1 / after - 1) * noise, -1, 1)
        state = (
            beta[t] * math.sqrt(before) / (1 - after) * guess
            + (1 - before) * math.sqrt(1 - beta[t]) / (1 - after) * state
        )
        if t > 0:
            state = state + math.sqrt(beta[t] * (1 - before) / (1 - after)) * start
    # Clipped guesses are amplified 200 times at the first step, and differ by rounding.
    np.testing.assert_allclose(made, state, rtol=1e-3, atol=1e-3)


def test_every_block_sees_registers_under_an_open_window_and_a_mask():
    inner = jnp.full((2, 4, 4), 0.5)
    opened = open_windows(Windows(inner, None), 3)
    assert opened.log_lorentz is None and opened.euclidean.shape == (2, 7, 7)
    assert np.all(np.asarray(opened.euclidean[:, :4, 4:]) == 1)
    logarithms = open_windows(Windows(None, inner), 3).log_lorentz
    np.testing.assert_array_equal(logarithms[:, :4, :4], inner)
    assert not np.any(np.asarray(logarithms[:, :4, 4:]))


def test_the_losses_are_those_of_loops():
    rng = np.random.default_rng(2)
    mean, log_variance = rng.normal(size=(2, tiny.VIDEOS, 8))
    predicted = rng.normal(size=(10, tiny.VIDEOS, COUNT, 8))
    condition = np.zeros((tiny.VIDEOS, COUNT, 8))
    cast = functools.partial(jax.tree.map, lambda x: np.asarray(x, np.float32))
    latent = cast(generator.Latent(mean, log_variance, condition))
    divergence = -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)).sum(-1).mean()
    np.testing.assert_allclose(registers.prior(latent, PAIRS), divergence, rtol=1e-5)
    error = ((predicted - mean[None, :, None]) ** 2).mean()
    found = registers.denoising(latent, cast(predicted), PAIRS)
    np.testing.assert_allclose(found, error, rtol=1e-5)


def test_captions_are_normalised_and_perturbed_feature_by_feature():
    key = jax.random.key(4)
    many = 2000
    plain = np.asarray(registers.perturbed_captions(QUERIES, PAIRS, COUNT, None))
    drawn = np.asarray(registers.perturbed_captions(QUERIES, PAIRS, many, key), np.float64)
    for video in range(tiny.VIDEOS):
        caption = QUERIES[PAIRS.video == video].mean(axis=0).astype(np.float64)
        x = (caption - caption.mean()) / math.sqrt(caption.var() + 1e-5)
        spread = 0.1 * caption.std(ddof=1)
        np.testing.assert_allclose(plain[video], np.tile(x + caption.mean(), (COUNT, 1)), rtol=1e-4)
        np.testing.assert_allclose(drawn[video].mean(0), x + caption.mean(), atol=0.02)
        np.testing.assert_allclose(drawn[video].std(0), spread * np.hypot(x, 1), rtol=0.1)


def test_padding_changes_neither_losses_nor_gradients():
    """More room for videos and captions, filled with what must not matter."""
    config = _config()
    params = _model()[0]
    pad = lambda x, fill: np.concatenate([x, np.full((2, *x.shape[1:]), fill, x.dtype)])
    videos, captions = BATCH.videos, BATCH.captions
    padded = BATCH._replace(
        videos=videos._replace(
            clips=pad(videos.clips, 7.0),
            frames=pad(videos.frames, 7.0),
            frame_mask=pad(videos.frame_mask, False),
            mask=pad(videos.mask, False),
        ),
        captions=captions._replace(
            words=pad(captions.words, 7.0),
            word_mask=pad(captions.word_mask, True),
            video=pad(captions.video, 0),
            mask=pad(captions.mask, False),
        ),
    )
    of = lambda params, batch: family.loss(config, params, batch, jax.random.key(3))
    both = jax.jit(jax.value_and_grad(of, has_aux=True))
    ((value, terms), gradient), ((other, others), changed) = (
        both(params, BATCH),
        both(params, padded),
    )
    assert set(TERMS) <= set(terms)
    for name in terms:
        np.testing.assert_allclose(others[name], terms[name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(other, value, rtol=1e-5)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient["register_generator"]):
        name = jax.tree_util.keystr(path)
        found = changed["register_generator"]
        for entry in path:
            found = found[entry.key]
        assert np.all(np.isfinite(leaf)), name
        np.testing.assert_allclose(found, leaf, rtol=1e-3, atol=1e-5, err_msg=name)
        if not name.endswith("['key']['bias']"):  # which no softmax sees
            assert np.any(np.asarray(leaf)), name


def test_without_registers_there_is_no_parameter_and_no_term():
    config = tiny.config()
    off, on = (
        jax.eval_shape(functools.partial(models.init_params, models.build(c), c))
        for c in (config, tiny.config(**{"model.registers": COUNT}))
    )
    names = lambda tree: {
        jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_leaves_with_path(tree)
    }
    added = names(on) - names(off)
    assert names(off) < names(on) and all("register" in name for name in added)
    assert not any("register" in name for name in names(off))
    assert not set(TERMS) & set(objective.build(config, models.build(config)).terms)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model.glance": False}, "made from the clips"),
        (family.CASES["dl_dkd"] | {"model.name": "dl_dkd"}, "dl_dkd does not read"),
    ],
)
def test_a_model_without_clips_has_none(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        models.build(tiny.config(**{"model.registers": COUNT}, **options))
