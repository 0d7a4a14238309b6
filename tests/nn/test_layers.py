"""Layers, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from hlformer_jax.nn import layers

X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


def _norm(x):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5)


def _drawn(module, *inputs):
    """Parameters other than the initial ones, of which some are 0 and 1."""
    initial = module.init(jax.random.key(0), *inputs)
    rng = np.random.default_rng(1)
    draw = lambda p: (np.asarray(p) + rng.normal(size=p.shape)).astype(np.float32)
    return jax.tree.map(draw, initial)


def _dense(params, x):
    return x @ params["kernel"] + params["bias"]


def _scaled(params, x):
    return _norm(x) * params["scale"] + params["bias"]


def test_a_projection_is_norm_linear_and_relu():
    module = layers.InputProjection(3, 0.0)
    variables = _drawn(module, X, False)
    params = variables["params"]
    expected = np.maximum(_dense(params["dense"], _scaled(params["LayerNorm"], X)), 0)
    # Rounding of float32 sums of four products.
    np.testing.assert_allclose(module.apply(variables, X, False), expected, rtol=1e-5, atol=1e-5)


def test_a_shorter_input_uses_the_first_positions():
    module = layers.PositionEmbedding(7, 0.0)
    variables = _drawn(module, X, False)
    params = variables["params"]
    assert params["embedding"].shape == (7, 4)
    expected = _scaled(params["LayerNorm"], X + params["embedding"][:5])
    np.testing.assert_allclose(module.apply(variables, X, False), expected, rtol=1e-5, atol=1e-5)


def test_a_feed_forward_network_is_two_linear_maps_with_relu_between():
    module = layers.FeedForward(6, 0.0)
    variables = _drawn(module, X, False)
    params = variables["params"]
    expected = _dense(params["layer2"], np.maximum(_dense(params["layer1"], X), 0))
    np.testing.assert_allclose(module.apply(variables, X, False), expected, rtol=1e-5, atol=1e-5)


def test_a_norm_far_from_the_origin_keeps_its_digits():
    x = (1e3 + X).astype(np.float32)
    module = layers.LayerNorm(jnp.float32, name="norm")
    variables = module.init(jax.random.key(0), x)
    # The fast variance, of numbers whose squares are 1e6, would be wrong in the first digit. The
    # float32 input and its mean are rounded by 1e3 / 2^24 each.
    expected = _norm(x.astype(np.float64))
    np.testing.assert_allclose(module.apply(variables, x), expected, rtol=0, atol=1e-3)


def test_dropout_is_the_identity_unless_a_model_is_trained():
    ones = np.ones((100, 100), np.float32)
    apply = lambda rate, train: np.asarray(
        layers.Dropout(rate, train).apply({}, ones, rngs={"dropout": jax.random.key(0)})
    )
    np.testing.assert_array_equal(apply(0.3, False), ones)
    np.testing.assert_array_equal(apply(0.0, True), ones)
    dropped = apply(0.3, True)
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.7], rtol=1e-6)
    # Ten thousand draws: four times the standard deviation of the share.
    assert abs(np.mean(dropped == 0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 1e4)
