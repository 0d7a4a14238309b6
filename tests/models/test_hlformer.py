"""The model's options and invariants, on tiny sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.models import hlformer, options
from hlformer_jax.nn.blocks import BlockOptions, EuclideanBlock, LorentzBlock, LorentzOptions
from hlformer_jax.ops import lorentz_linear
from hlformer_jax.training import objective
from hlformer_jax.typing import Batch, Captions, Videos


def _loss(config, params, batch, dropout_key=None):
    negatives = objective.draw_negatives(jax.random.key(1), batch, True, 1)
    loss = objective.build(config, models.build(config))
    return loss.evaluate(params, batch, negatives, dropout_key)


# What sets the branches apart is under test elsewhere, and one of them compiles in half the time.
ONE_BRANCH = {"model.glance": False}
OPTIONS = {
    "as released": {},
    "no gaze": {"model.gaze": False},
    "no glance": ONE_BRANCH,
    "mean fusion": ONE_BRANCH | {"model.fusion": "mean"},
    "concatenation": ONE_BRANCH | {"model.fusion": "concat"},
    "all Euclidean": ONE_BRANCH | {"model.euclidean_blocks": 3, "model.lorentz_blocks": 0},
    "all Lorentz": ONE_BRANCH | {"model.euclidean_blocks": 0, "model.lorentz_blocks": 2},
    "one width for all": ONE_BRANCH | {"model.euclidean_widths": (3.0,)},
    "printed window": ONE_BRANCH | {"model.window": "printed"},
    "corrected window": ONE_BRANCH | {"model.lorentz_window": "corrected"},
    "merge on the hyperboloid": ONE_BRANCH | {"model.head_merge": "hyperboloid"},
    "one loss term": {
        "loss.clip_nce": 0.0,
        "loss.frame_nce": 0.0,
        "loss.frame_triplet": 0.0,
        "loss.query_diversity": 0.0,
        "loss.partial_order": 0.0,
    },
}


@functools.cache
def _value_and_gradient(name):
    config, batch = tiny.config(**OPTIONS[name]), tiny.batch()
    params = tiny.params(config)
    loss = lambda params: _loss(config, params, batch)
    return params, *tiny.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_finite_gradients_and_changes_the_loss(name):
    config = tiny.config(**OPTIONS[name])
    params, (value, terms), gradient = _value_and_gradient(name)
    assert set(terms) == set(objective.active_terms(config, models.build(config)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    values = {other: float(_value_and_gradient(other)[1][0]) for other in OPTIONS}
    same = [other for other in OPTIONS if values[other] == values[name]]
    assert same == [name]
    branches = {"clip_branch": config.model.glance, "frame_branch": config.model.gaze}
    for branch, on in branches.items():
        assert (branch in params) == on


def test_a_bank_equals_its_blocks_one_by_one():
    config = tiny.config()
    model = models.build(config)
    params = tiny.params(config)
    videos = tiny.batch().videos
    encode = lambda params: model.apply(
        params, videos, model.hyperparameters, method="encode_video", capture_intermediates=True
    )
    _, inside = tiny.jit(encode)(params)
    branch = inside["intermediates"]["frame_branch"]
    x = branch["position"]["__call__"][0]
    bank = branch["bank"]["__call__"][0]
    from hlformer_jax.ops import windows

    log_windows = windows.log_attention_windows((0.0, 2.0), tiny.FRAMES)
    mask, block = videos.frame_mask, BlockOptions(2, 0.0)
    one_euclidean = tiny.jit(lambda p, w: EuclideanBlock(block).apply(p, x, x, w, mask, False))
    one_lorentzian = tiny.jit(
        lambda p, w: LorentzBlock(block, LorentzOptions(7)).apply(p, x, w, mask, False)
    )
    for k in range(2):
        own = jax.tree.map(lambda p, k=k: p[k], params["frame_branch"]["bank"])
        euclidean = one_euclidean({"params": own["euclidean"]}, jnp.exp(log_windows[k]))
        lorentzian = one_lorentzian({"params": own["lorentz"]}, log_windows[k])
        np.testing.assert_allclose(bank[k], euclidean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(bank[2 + k], lorentzian, rtol=1e-5, atol=1e-5)


def test_blocks_of_a_bank_start_different():
    config = tiny.config()
    bank = models.init_params(models.build(config), config)["clip_branch"]["bank"]
    kernel = bank["euclidean"]["attention"]["query"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])
    # N(0, 0.02), as released.
    everything = bank["euclidean"]["output"]["layer1"]["kernel"]
    assert 0.015 < np.std(everything) < 0.025


def test_a_permuted_batch_permutes_its_encodings():
    config = tiny.config()
    model = models.build(config)
    params = tiny.params(config)
    videos = tiny.batch().videos
    order = np.array([2, 0, 1])
    encode = tiny.jit(lambda v: models.encode_video(model, params, v))
    straight, permuted = encode(videos), encode(jax.tree.map(lambda x: x[order], videos))
    np.testing.assert_allclose(permuted.frames, straight.frames[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(permuted.clips, straight.clips[order], rtol=1e-5, atol=1e-6)


def test_padded_frames_come_out_zero_and_padded_words_do_not_matter():
    config = tiny.config()
    model = models.build(config)
    params = tiny.params(config)
    batch = tiny.batch()
    encoded = tiny.jit(lambda v: models.encode_video(model, params, v))(batch.videos)
    assert not np.any(np.asarray(encoded.frames)[~batch.videos.frame_mask])
    words = np.array(batch.captions.words)
    words[~batch.captions.word_mask] = 9.0
    encode = tiny.jit(lambda c: models.encode_query(model, params, c))
    np.testing.assert_array_equal(
        encode(batch.captions), encode(batch.captions._replace(words=words))
    )


@pytest.mark.slow
def test_padded_videos_and_captions_change_neither_loss_nor_gradient(float64):
    config = tiny.config(dtype="float64", **ONE_BRANCH)
    config.model.update(dropout=0.2, input_dropout=0.2)  # its masks are not to move either
    with jax.numpy_dtype_promotion("standard"):
        params = tiny.params(config)
        params = jax.tree.map(lambda x: x.astype(np.float64), params)
        batch = tiny.batch(dtype=np.float64)
        pad = lambda x, n: np.concatenate([x, np.zeros((n, *x.shape[1:]), x.dtype)])
        padded = Batch(
            Videos(*(pad(x, 2) for x in batch.videos)),
            Captions(*(pad(x, 4) for x in batch.captions)),
        )
        key = jax.random.key(5)
        grad = tiny.jit(jax.value_and_grad(lambda p, b: _loss(config, p, b, key)[0]))
        value, gradient = grad(params, batch)
        value2, gradient2 = grad(params, padded)
    np.testing.assert_allclose(value2, value, rtol=1e-12)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradient2), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_gradients_stay_finite_when_dropout_removes_whole_points(rate):
    config = tiny.config(**ONE_BRANCH, **{"model.dropout": rate, "model.input_dropout": rate})
    params = tiny.params(config)
    batch = tiny.batch()
    grad = tiny.jit(jax.value_and_grad(lambda p, key: _loss(config, p, batch, key)[0]))
    values = set()
    for seed in range(12):
        value, gradient = grad(params, jax.random.key(seed))
        values.add(float(value))
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    assert len(values) == 12  # the masks differ


@pytest.mark.slow
def test_kernels_change_a_loss_and_its_gradient_by_rounding_alone():
    batch, key = tiny.batch(), jax.random.key(2)
    results = []
    for kernels in ("xla", "pallas"):
        config = tiny.config(**ONE_BRANCH, kernels=kernels)
        config.model.update(dropout=0.2, input_dropout=0.2)
        params = tiny.params(config)
        grad = tiny.jit(
            jax.value_and_grad(lambda p, config=config: _loss(config, p, batch, key)[0])
        )
        results.append(grad(params))
    (value, gradient), (other_value, other_gradient) = results
    np.testing.assert_allclose(other_value, value, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        scale = np.abs(one).max()
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4 * scale + 1e-6)


def test_a_zero_vector_becomes_the_origin_with_gradient_zero():
    z = jnp.zeros((2, 4)).at[1].set(jnp.array([0.3, 1.0, -2.0, 0.5]))
    scale = jnp.asarray(2.3)
    point = lorentz_linear.rescale(z, scale)
    np.testing.assert_array_equal(point[0], [1, 0, 0, 0])
    np.testing.assert_allclose(-(point[1, 0] ** 2) + np.sum(point[1, 1:] ** 2), -1, rtol=1e-4)
    time = 1 / (1 + np.exp(-0.3)) * np.exp(2.3) + 1.1
    np.testing.assert_allclose(point[1, 0], time, rtol=1e-6)
    gradient = jax.grad(lambda z: jnp.sum(lorentz_linear.rescale(z, scale)))(z)
    assert not np.any(gradient[0])
    assert np.all(np.isfinite(gradient))


def test_bfloat16_stays_close_to_float32_and_keeps_its_parameters():
    config, half = tiny.config(), tiny.config(dtype="bfloat16")
    batch = tiny.batch()
    # Flax's layer norm asks JAX for the promotion of bfloat16 and float32.
    with jax.numpy_dtype_promotion("standard"):
        params = tiny.params(half)
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
        encode = lambda c: tiny.jit(lambda v: models.encode_video(models.build(c), params, v))(
            batch.videos
        )
        ours, exact = encode(half), encode(config)
    assert ours.frames.dtype == jnp.float32
    # bfloat16 has 8 bits: 2^-8 an operation, on outputs of a layer norm, of size 1. Found: 0.012
    # and 0.016; one bit less in the weights alone gives 0.027.
    np.testing.assert_allclose(ours.clips, exact.clips, atol=0.02)
    np.testing.assert_allclose(ours.frames, exact.frames, atol=0.02)


@pytest.mark.slow
def test_bfloat16_changes_losses_and_gradients_by_its_rounding_alone():
    config, half, batch = tiny.config(), tiny.config(dtype="bfloat16"), tiny.batch()
    with jax.numpy_dtype_promotion("standard"):
        params = tiny.params(config)
        loss = lambda c: jax.value_and_grad(lambda p: _loss(c, p, batch), has_aux=True)
        (_, exact), gradient = tiny.jit(loss(config))(params)
        (_, terms), rounded = tiny.jit(loss(half))(params)
    for name, value in terms.items():
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, exact[name], rtol=2**-8, err_msg=name)
    one, other = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(g)]) for g in (gradient, rounded)
    )
    # Through a dozen layers there and back, each 2^-8: found 0.047 of the norm.
    assert np.linalg.norm(other - one) < 0.1 * np.linalg.norm(one)


def test_the_lift_is_limited_and_its_gradient_finite():
    c = jnp.asarray(1.0)
    far = jnp.full((1, 4), 1e3)
    point = hlformer.lift(far, c)
    space = np.linalg.norm(point[0, 1:])
    np.testing.assert_allclose(space, hlformer.MAX_SINH, rtol=1e-4)
    gradient = jax.grad(lambda u: jnp.sum(hlformer.lift(u, c)))(far)
    assert np.all(np.isfinite(gradient))


def test_projection_clamps_what_the_released_model_clamps():
    params = {"curv": jnp.asarray(9.0), "a": {"scale_alpha": jnp.array([-1.0, 0.5])}, "b": 2.0}
    config = tiny.config(**{"model.curvature": 2.0})
    projected = models.project(params, config)
    np.testing.assert_allclose(projected["curv"], np.log(20.0), rtol=1e-6)
    np.testing.assert_array_equal(projected["a"]["scale_alpha"], [-1.0, 0.0])
    assert projected["b"] == 2.0


def test_default_widths_are_the_released_ones():
    assert options.default_widths(4) == (0.0, 2.0, 4.0, 8.0)
    assert options.default_widths(1) == (0.0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model.name": "clip"}, "model.name"),
        ({"model.gaze": False, "model.glance": False}, "keep one branch"),
        ({"model.euclidean_blocks": 0, "model.lorentz_blocks": 0}, "no attention block"),
        ({"model.hidden_size": 9}, "hidden_size 9 is not divisible"),
        ({"model.lorentz_dim": 8}, "lorentz_dim"),
        ({"model.window": "hann"}, "model.window"),
        ({"model.lorentz_window": "x"}, "model.lorentz_window"),
        ({"model.head_merge": "x"}, "model.head_merge"),
        ({"model.fusion": "x"}, "model.fusion"),
        ({"model.euclidean_widths": (1.0, 2.0, 3.0)}, "3 entries for 2 blocks"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field_named(options, message):
    with pytest.raises(ConfigError, match=message):
        models.build(tiny.config(**options))
