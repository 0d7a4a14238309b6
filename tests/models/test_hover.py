"""The model of HOVER: layers against NumPy, spaces against each other, padding, gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.models import hover
from hlformer_jax.models.hover import embedding, parameters
from hlformer_jax.models.hover.space import Space, angles
from hlformer_jax.nn.recurrent import LSTM
from hlformer_jax.typing import Nodes

NODES, FRAMES, WORDS, D, E = 5, 4, 6, 7, 3


def _config(**options):
    config = default("hover")
    config.data.update(visual_dim=D, text_dim=E, max_words=WORDS)
    config.trees.node_frames = FRAMES
    config.model.update(hidden_size=4, hyperbolic_dim=4, num_heads=2)
    config.update_from_flattened_dict(options)
    return config


def _nodes(junk=0.0):
    rng = np.random.default_rng(0)
    frame_mask = np.arange(FRAMES)[None] < np.array([4, 2, 1, 3, 0])[:, None]
    word_mask = np.arange(WORDS)[None] < np.array([6, 1, 3, 2, 0])[:, None]
    frames = np.where(frame_mask[..., None], rng.normal(size=(NODES, FRAMES, D)), junk)
    words = np.where(word_mask[..., None], rng.normal(size=(NODES, WORDS, E)), junk)
    number = np.zeros(NODES, np.int32)
    return Nodes(
        *(frames.astype(np.float32), frame_mask, words.astype(np.float32), word_mask),
        *(np.arange(NODES) < 4, number, number, number),
    )


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_recurrent_layer_equals_its_equations_and_stands_still_where_masked():
    nodes, layer = _nodes(junk=5.0), LSTM(3)
    params = layer.init(jax.random.key(1), nodes.frames, nodes.frame_mask)
    found = np.asarray(jax.jit(layer.apply)(params, nodes.frames, nodes.frame_mask))
    weights = {name: np.asarray(x, np.float64) for name, x in params["params"].items()}
    assert all(np.abs(x).max() <= 3**-0.5 for x in weights.values())
    for frames, mask, outputs in zip(nodes.frames, nodes.frame_mask, found, strict=True):
        hidden, cell = np.zeros(3), np.zeros(3)
        for x, real, output in zip(frames, mask, outputs, strict=True):
            if real:
                gates = x @ weights["input"] + hidden @ weights["recurrent"] + weights["bias"]
                i, f, g, o = np.split(gates, 4)
                cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
                hidden = _sigmoid(o) * np.tanh(cell)
            # A few float32 products of numbers near 1.
            np.testing.assert_allclose(output, hidden, atol=2e-6)


@functools.cache
def _program(text_encoder, lift="unit"):
    config = _config(**{"model.text_encoder": text_encoder, "model.lift": lift})
    model = hover.build(config)
    run = lambda params, nodes: model.apply({"params": params}, nodes)
    value = lambda params, nodes: sum(jnp.sum(x[:4] ** 2) for x in run(params, nodes))
    return hover.init_params(config), jax.jit(run), jax.jit(jax.grad(value))


@pytest.mark.parametrize(
    "text_encoder", ["given", "mean", pytest.param("attention", marks=pytest.mark.slow)]
)
def test_what_is_masked_changes_nothing_and_no_gradient_is_lost(text_encoder):
    params, run, gradient = _program(text_encoder)
    one, other = run(params, _nodes()), run(params, _nodes(junk=7.0))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:4], b[:4]), one, other)
    assert all(np.all(np.isfinite(x)) and np.all(np.linalg.norm(x, axis=-1) < 1) for x in one)
    for x in jax.tree.leaves(gradient(params, _nodes())):  # node 4 has no frame and no word
        assert np.all(np.isfinite(x))


def test_unit_features_start_on_one_sphere_and_learned_lengths_leave_it():
    params, run, _ = _program("given", "radius")
    nodes = _nodes()
    for points in run(params, nodes):
        np.testing.assert_allclose(np.linalg.norm(points[:4], axis=-1), np.tanh(1), rtol=1e-6)
    for lift in ("video_lift", "text_lift"):
        params[lift]["radius"] = np.linspace(-1, 1, 5, dtype=np.float32)
    norms = np.linalg.norm(run(params, nodes).video[:4], axis=-1)
    assert np.ptp(norms) > 0.01
    longest = np.exp(embedding.LONGEST)
    assert np.all((norms > np.tanh(1 / longest)) & (norms < np.tanh(longest)))


def _mobius_add(x, y, c):
    xy, xx, yy = x @ y, x @ x, y @ y
    above = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
    return above / (1 + 2 * c * xy + c * c * xx * yy)


def _exp0(v, c):
    root = np.sqrt(c) * np.linalg.norm(v)
    return np.tanh(root) * v / root


@pytest.mark.parametrize("c", [0.3, 2.5])
def test_the_lift_is_the_hyperbolic_linear_layer_in_both_models(c):
    rng = np.random.default_rng(0)
    tangent, bias = rng.normal(size=(2, 6, 3)).astype(np.float32) * 0.7
    ball = np.asarray(jax.jit(Space("poincare", curvature=c).lift)(tangent, bias))
    for v, b, found in zip(tangent.astype(float), bias.astype(float), ball, strict=True):
        np.testing.assert_allclose(found, _mobius_add(_exp0(v, c), _exp0(b, c), c), rtol=1e-5)
    space = np.asarray(jax.jit(Space("lorentz", curvature=c).lift)(tangent, bias))
    expected = 2 * ball / (1 - c * np.sum(ball**2, -1, keepdims=True))
    np.testing.assert_allclose(space, expected, rtol=1e-4, atol=1e-5)


def _pairs(name, metric="distance", c=1.0):
    space = Space(name, metric, c)
    rng = np.random.default_rng(1)
    tangent, bias = rng.normal(size=(2, 12, 3)).astype(np.float32) * 0.6
    return space, jax.jit(space.lift)(tangent, 0.3 * bias)


def test_the_ball_and_the_hyperboloid_give_the_same_distances_and_norms():
    (ball, p), (sheet, q) = _pairs("poincare", c=0.7), _pairs("lorentz", c=0.7)
    for kind in ("ball", "distance"):
        np.testing.assert_allclose(ball.norm(p, kind), sheet.norm(q, kind), rtol=1e-5)
    one, other = jax.jit(ball.similarities)(p, p), jax.jit(sheet.similarities)(q, q)
    np.testing.assert_allclose(one, other, atol=2e-5)
    np.testing.assert_allclose(angles(p, p[0]), angles(q, p[0]), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "metric"),
    [("poincare", "distance"), ("lorentz", "distance"), ("euclidean", "distance"),
     ("euclidean", "cosine")],
)  # fmt: skip
def test_products_of_search_vectors_rank_as_the_similarities_do(name, metric):
    space, points = _pairs(name, metric)
    queries, candidates = points[:5], points[5:]
    similar = np.asarray(space.similarities(queries, candidates))
    x, y = space.search_vectors(queries, candidates)
    np.testing.assert_array_equal(np.argsort(np.asarray(x @ y.T)), np.argsort(similar))


def test_the_ball_can_be_limited_as_released():
    far = np.full((1, 3), 9.0, np.float32)
    space = Space("poincare", max_radius=0.999)
    assert np.linalg.norm(space.lift(far, 0 * far)) == pytest.approx(0.999, rel=1e-6)
    sheet = Space("lorentz", max_radius=0.999)
    assert sheet.norm(sheet.lift(far, 0 * far)) == pytest.approx(0.999, rel=1e-4)


def test_the_released_factor_scales_gradients_and_no_value():
    x = np.array([[0.6, -0.8, 0.0]], np.float32)
    scaled = lambda x: embedding.as_parameter_of_the_ball(x, 1.0)
    np.testing.assert_array_equal(scaled(x), x)
    gradient = jax.grad(lambda x: jnp.sum(scaled(x)))(x)
    # ((1 - tanh²(1)) / 2)², 0.044 at the radius of unit features.
    np.testing.assert_allclose(gradient, ((1 - np.tanh(1.0) ** 2) / 2) ** 2, rtol=1e-5)


def test_layers_start_as_the_identity_or_as_released():
    params = hover.init_params(_config(**{"model.hyperbolic_dim": 3}))
    layer = params["video_lift"]["hyperbolic"]
    np.testing.assert_array_equal(layer["matrix"], np.eye(3, 4))
    assert not np.any(layer["bias"])
    params = hover.init_params(_config(**{"model.hyperbolic_init": "kaiming"}))
    layer = params["text_lift"]["hyperbolic"]
    assert all(0 < np.abs(x).max() <= 0.5 for x in layer.values())


def test_a_learned_scale_stays_within_its_limit():
    params = hover.init_params(_config())
    assert np.exp(params["log_scale"]) == pytest.approx(1 / 0.07)
    params["log_scale"] = jnp.float32(9.0)
    limited = parameters.project(params)
    assert np.exp(limited["log_scale"]) == pytest.approx(100, rel=1e-5)
    assert "log_scale" not in hover.init_params(_config(**{"model.learned_scale": False}))
