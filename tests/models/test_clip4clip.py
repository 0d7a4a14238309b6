"""CLIP4Clip on stored features against the equations of the paper in NumPy, with padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import ROOT

from hlformer_jax import models
from hlformer_jax.config import ConfigError, check, load, of_model
from hlformer_jax.training import prvr
from hlformer_jax.typing import Batch, Captions, Videos

NAMES = ["clip4clip_meanp", "clip4clip_seqtransf"]
FRAMES, WORDS = (5, 1, 3), (2, 4, 1, 3)
OWNER = np.array([0, 1, 1, 2], np.int32)
H = 8


def _config(name):
    config = of_model(name)
    config.data.update(visual_dim=H, text_dim=H, max_frames=6, max_clips=1, max_words=4)
    config.model.update(hidden_size=H, num_heads=2)
    return config


def _batch(fill=0.0):
    """Return three videos and four captions, plus one padded row of each filled with `fill`."""
    rng = np.random.default_rng(0)
    frames, words = (np.full((n, length, H), fill, "f4") for n, length in ((4, 6), (5, 4)))
    for k, count in enumerate(FRAMES):
        frames[k, :count] = rng.normal(size=(count, H))
    for k, count in enumerate(WORDS):
        words[k, :count] = rng.normal(size=(count, H))

    def mask(counts, length):
        return jnp.asarray(np.arange(length) < np.array([*counts, 0])[:, None])

    return Batch(
        Videos(
            jnp.zeros((4, 1, H)), jnp.asarray(frames), mask(FRAMES, 6), jnp.arange(4) < len(FRAMES)
        ),
        Captions(jnp.asarray(words), mask(WORDS, 4), jnp.asarray([*OWNER, 0]), jnp.arange(5) < 4),
    )


def _params(config):
    """Return random parameters, so that none is 0 or the identity."""
    params = models.init_params(models.build(config), config)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), params)


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _layer_norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _video(frames, params, layers):
    """Encode a video by the equations of the paper, in float64."""
    x = mapped = frames @ params["frame_map"]["kernel"]
    if layers:
        x = x + params["position"][: len(x)]
    for k in range(layers):
        p = params[f"temporal_{k}"]
        normal, heads = _layer_norm(x, p["norm1"]), p["attention"]
        attended = []
        for h in (slice(0, H // 2), slice(H // 2, H)):
            query, key, value = (
                normal @ heads[part]["kernel"][:, h] + heads[part]["bias"][h]
                for part in ("query", "key", "value")
            )
            logits = query @ key.T / np.sqrt(H / 2)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            attended.append(weights / weights.sum(-1, keepdims=True) @ value)
        x = x + np.concatenate(attended, -1) @ p["output"]["kernel"] + p["output"]["bias"]
        hidden = _layer_norm(x, p["norm2"]) @ p["layer1"]["kernel"] + p["layer1"]["bias"]
        hidden = hidden / (1 + np.exp(-1.702 * hidden))
        x = x + hidden @ p["layer2"]["kernel"] + p["layer2"]["bias"]
    return _unit(_unit(x + mapped if layers else x).mean(0))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", NAMES)
def test_encodings_and_loss_follow_the_paper(name):
    config = _config(name)
    model, params, batch = models.build(config), _params(config), _batch()
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    layers = 4 if "seq" in name else 0
    frames, words = np.float64(batch.videos.frames), np.float64(batch.captions.words)
    videos = np.stack([_video(frames[k, :n], exact, layers) for k, n in enumerate(FRAMES)])
    texts = _unit(
        np.stack([words[k, n - 1] for k, n in enumerate(WORDS)]) @ exact["text_map"]["kernel"]
    )
    logits = np.exp(exact["logit_scale"]) * texts @ videos.T
    # Cross-entropy in both directions; the captions of a video add up.
    is_pair = OWNER[:, None] == np.arange(3)
    likelihoods = np.exp(logits)
    to_video = -np.log(likelihoods[is_pair] / likelihoods.sum(1)).mean()
    to_text = -np.log((likelihoods * is_pair).sum(0) / likelihoods.sum(0)).mean()
    objective = prvr.build_objective(config, model)

    @jax.jit
    def run(params, batch):
        negatives = prvr.draw_negatives(jax.random.key(0), batch, False, 1)

        def loss(params):
            return objective.evaluate(params, batch, negatives)[0]

        videos = models.encode_video(model, params, batch.videos)
        queries = models.encode_query(model, params, batch.captions)
        return videos, queries, *jax.value_and_grad(loss)(params)

    for fill in (0.0, 7.0):
        encoded, queries, value, gradient = run(params, _batch(fill))
        assert encoded.clips is None
        np.testing.assert_allclose(encoded.frames[:3, 0], videos, atol=3e-6)
        np.testing.assert_allclose(_unit(np.asarray(queries)[:4]), texts, atol=3e-6)
        assert objective.terms == ("frame_nce",)
        np.testing.assert_allclose(value, (to_video + to_text) / 2, rtol=2e-5)
        for leaf in jax.tree.leaves(gradient):
            assert np.all(np.isfinite(leaf))
        assert all(np.any(np.asarray(gradient[key]["kernel"])) for key in ("text_map", "frame_map"))
        assert gradient["logit_scale"] != 0


@pytest.mark.slow  # it takes seconds
def test_untrained_meanp_is_the_zero_shot_mean():
    config = _config("clip4clip_meanp")
    model, batch = models.build(config), _batch()
    params = models.init_params(model, config)

    frames, words = np.asarray(batch.videos.frames), np.asarray(batch.captions.words)
    means = np.stack([_unit(_unit(frames[k, :n]).mean(0)) for k, n in enumerate(FRAMES)])
    sentences = _unit(np.stack([words[k, n - 1] for k, n in enumerate(WORDS)]))
    queries = models.encode_query(model, params, batch.captions)[:4]
    videos = models.encode_video(model, params, batch.videos).frames[:3, 0]
    np.testing.assert_allclose(queries @ videos.T * 0.07, sentences @ means.T, atol=1e-6)


@pytest.mark.slow  # it takes seconds
def test_bfloat16_keeps_parameters_and_results_float32():
    config = _config("clip4clip_seqtransf")
    params, batch = _params(config), _batch()
    results = []
    for dtype in ("float32", "bfloat16"):
        config.dtype = dtype
        model = models.build(config)
        videos = models.encode_video(model, params, batch.videos).frames
        queries = models.encode_query(model, params, batch.captions)
        assert videos.dtype == queries.dtype == jnp.float32
        results.append(np.asarray(videos))
    np.testing.assert_allclose(*results, atol=0.05)  # 8 bits, over four layers


def test_scale_is_limited_and_clips_are_refused():
    config = _config("clip4clip_meanp")
    model = models.build(config)
    params = models.init_params(model, config) | {"logit_scale": jnp.asarray(9.0)}
    np.testing.assert_allclose(models.project(model, params)["logit_scale"], np.log(100), rtol=1e-6)
    config.model.glance = True
    with pytest.raises(ConfigError, match="glance"):
        check(config)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", NAMES)
def test_clip4clip_counts_parameters_and_operations(name):
    from hlformer_jax.models import cost

    config = load(ROOT / "configs" / "clip.py", f"{name}-tvr")
    check(config)
    width = config.model.hidden_size
    assert width == config.data.text_dim == 768
    block = 4 * (width**2 + width) + 8 * width**2 + 5 * width + 4 * width
    temporal = 4 * block + 128 * width if "seq" in name else 0
    counted = cost(config)
    assert counted.parameters == 2 * width**2 + 1 + temporal
    assert counted.flops_video >= 2 * 128 * (width**2 + temporal // 2 * ("seq" in name))
    assert counted.flops_caption >= 2 * width**2
