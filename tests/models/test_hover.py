"""HOVER: spaces, encoders and the model against NumPy, across spaces, and at the edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.models import hover
from hlformer_jax.models.hover import Space, angles, options_of
from hlformer_jax.typing import Nodes

COUNT, FRAMES, WORDS, D, E = 5, 4, 6, 7, 3


def small(**options):
    """Return the configuration of a model of width 4."""
    config = default("hover")
    config.data.update(visual_dim=D, text_dim=E, max_words=WORDS)
    config.trees.node_frames = FRAMES
    config.model.update(hidden_size=4, hyperbolic_dim=4, num_heads=2)
    config.update_from_flattened_dict(options)
    return config


def nodes_of(junk=0.0):
    """Return five nodes, the last one empty, with `junk` in masked frames and words."""
    rng = np.random.default_rng(0)
    frame_mask = np.arange(FRAMES)[None] < np.array([4, 2, 1, 3, 0])[:, None]
    word_mask = np.arange(WORDS)[None] < np.array([6, 1, 3, 2, 0])[:, None]
    frames = np.where(frame_mask[..., None], rng.normal(size=(COUNT, FRAMES, D)), junk)
    words = np.where(word_mask[..., None], rng.normal(size=(COUNT, WORDS, E)), junk)
    features = frames.astype(np.float32), frame_mask, words.astype(np.float32), word_mask
    return Nodes(*features, np.arange(COUNT) < 4)


def _mobius_add(x, y, c):
    xy, xx, yy = x @ y, x @ x, y @ y
    numerator = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
    return numerator / (1 + 2 * c * xy + c * c * xx * yy)


def _exp0(v, c):
    root = np.sqrt(c) * np.linalg.norm(v)
    return np.tanh(root) * v / root


@pytest.mark.parametrize("c", [0.3, 2.5])
def test_lift_is_the_hyperbolic_linear_layer(c):
    rng = np.random.default_rng(0)
    tangent, bias = rng.normal(size=(2, 6, 3)).astype(np.float32) * 0.7
    ball = np.asarray(jax.jit(Space("poincare", curvature=c).lift)(tangent, bias))
    for v, b, lifted in zip(tangent.astype(float), bias.astype(float), ball, strict=True):
        np.testing.assert_allclose(lifted, _mobius_add(_exp0(v, c), _exp0(b, c), c), rtol=1e-5)
    space = np.asarray(jax.jit(Space("lorentz", curvature=c).lift)(tangent, bias))
    expected = 2 * ball / (1 - c * np.sum(ball**2, -1, keepdims=True))
    np.testing.assert_allclose(space, expected, rtol=1e-4, atol=1e-5)


def _pairs(name, metric="distance", c=1.0):
    space = Space(name, metric, c)
    rng = np.random.default_rng(1)
    tangent, bias = rng.normal(size=(2, 12, 3)).astype(np.float32) * 0.6
    return space, jax.jit(space.lift)(tangent, 0.3 * bias)


@pytest.mark.slow  # it takes seconds
def test_ball_and_hyperboloid_have_equal_distances():
    (ball, p), (sheet, q) = _pairs("poincare", c=0.7), _pairs("lorentz", c=0.7)
    np.testing.assert_allclose(jax.jit(ball.norm)(p), jax.jit(sheet.norm)(q), rtol=1e-5)
    ball_similarities = jax.jit(ball.similarities)(p, p)
    sheet_similarities = jax.jit(sheet.similarities)(q, q)
    np.testing.assert_allclose(ball_similarities, sheet_similarities, atol=2e-5)
    np.testing.assert_allclose(jax.jit(angles)(p, p[0]), jax.jit(angles)(q, p[0]), atol=1e-6)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    ("name", "metric"),
    [("poincare", "distance"), ("lorentz", "distance"), ("euclidean", "distance"),
     ("euclidean", "cosine")],
)  # fmt: skip
def test_search_vectors_rank_like_similarities(name, metric):
    space, points = _pairs(name, metric)
    queries, candidates = points[:5], points[5:]
    similar = np.asarray(jax.jit(space.similarities)(queries, candidates))
    x, y = jax.jit(space.search_vectors)(queries, candidates)
    np.testing.assert_array_equal(np.argsort(np.asarray(x @ y.T)), np.argsort(similar))


def test_lift_is_limited_to_max_radius():
    tangent = np.full((1, 3), 9.0, np.float32)
    space = Space("poincare", max_radius=0.999)
    lifted = jax.jit(space.lift)(tangent, 0 * tangent)
    assert np.linalg.norm(lifted) == pytest.approx(0.999, rel=1e-6)
    sheet = Space("lorentz", max_radius=0.999)
    norm = jax.jit(lambda tangent: sheet.norm(sheet.lift(tangent, 0 * tangent)))(tangent)
    assert norm == pytest.approx(0.999, rel=1e-4)


def _angle(u, v):
    cosine = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
    return np.arccos(np.clip(cosine, -1, 1))


def _outside(name, x, y, c, k):
    """Return max(0, exterior angle − half aperture), by the direction of log_x(y)."""
    if name == "euclidean":
        return max(_angle(x, y - x) - np.arcsin(min(k / np.linalg.norm(x), 1)), 0)
    radius = np.sqrt(c) * np.linalg.norm(x)
    aperture = np.arcsin(min(k * (1 - radius**2) / radius, 1))
    return max(_angle(x, _mobius_add(-x, y, c)) - aperture, 0)


@pytest.mark.parametrize("name", ["poincare", "lorentz", "euclidean"])
def test_angles_outside_of_cones_equal_their_definition(name):
    c, k = (0.7, 0.2)
    space = Space(name, curvature=c)
    rng = np.random.default_rng(4)
    ball = rng.normal(size=(2, 40, 3))
    ball *= rng.uniform(0.05, 0.9, (2, 40, 1)) / np.linalg.norm(ball, axis=-1, keepdims=True)
    ball[1, :20] = ball[0, :20] * 1.2 + 0.05 * ball[1, :20]  # some are inside the cone
    ball = ball.astype(np.float32)
    gap = 1 - c * np.sum(ball**2, -1, keepdims=True)
    points = (2 * ball / gap).astype(np.float32) if name == "lorentz" else ball
    angles_outside = np.asarray(jax.jit(space.outside_cone)(points[0], points[1], k))
    want = [_outside(name, x, y, c, k) for x, y in zip(*ball.astype(float), strict=True)]
    assert 5 < np.sum(angles_outside == 0) < 35 and np.max(angles_outside) > 1
    # Angles in float32: the bound of `ops.cones`, and the steep arccos of this test.
    np.testing.assert_allclose(angles_outside, want, atol=5e-5)


def test_small_cones_of_the_ball_are_euclidean():
    # Both are conformal, and so small a figure is nearly flat.
    size = 1e-3
    x, y = size * np.random.default_rng(5).normal(size=(2, 30, 3)).astype(np.float32)
    flat = jax.jit(Space("euclidean").outside_cone)(x, y, 0.5 * size)
    curved = jax.jit(Space("poincare").outside_cone)(x, y, 0.5 * size)
    assert np.max(flat) > 1
    np.testing.assert_allclose(flat, curved, atol=2e-5)


FAR = 0.9999999
EDGES = {
    "y at the apex": ([0.3, 0.4, 0.0], [0.3, 0.4, 0.0], 0.0),
    "apex at the origin": ([0.0, 0.0, 0.0], [0.3, 0.4, 0.0], 0.0),
    "both at the origin": ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0.0),
    "y behind the apex": ([0.3, 0.0, 0.0], [0.6, 0.0, 0.0], 0.0),
    "y at the origin": ([0.0, 0.5, 0.0], [0.0, 0.0, 0.0], None),
    "y before the apex": ([0.0, 0.5, 0.0], [0.0, 0.2, 0.0], None),
    "y opposite": ([0.0, 0.5, 0.0], [0.0, -0.5, 0.0], None),
    "apex at the edge of a half-space": ([0.1, 0.0, 0.0], [-0.2, 0.3, 0.0], None),
    "apex and y at the rim": ([FAR, 0.0, 0.0], [0.0, FAR, 0.0], None),
    "tiny apex": ([1e-20, 0.0, 0.0], [0.0, 1e-3, 0.0], 0.0),
}


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", ["poincare", "lorentz", "euclidean"])
def test_cone_angles_and_gradients_are_finite(name):
    space = Space(name)
    x, y = (np.array([case[k] for case in EDGES.values()], np.float32) for k in (0, 1))

    def total(x, y):
        return (space.outside_cone(x, y, 0.1).sum(), space.outside_cone(x, y, 0.1))

    gradients, values = jax.jit(jax.grad(total, (0, 1), has_aux=True))(x, y)
    for k, (case, (*_, want)) in enumerate(EDGES.items()):
        assert np.isfinite(values[k]) and 0 <= values[k] <= np.float32(np.pi), case
        assert all(np.all(np.isfinite(gradient[k])) for gradient in gradients), case
        if want is not None:
            assert values[k] == want, case
            assert not any(np.any(gradient[k]) for gradient in gradients), case


# Encoders.

NODES = nodes_of(junk=4.0)


def _mean(x, mask):
    """Return the mean of the real rows, or 0 without any."""
    pairs = zip(x, mask, strict=True)
    return np.array([rows[real].sum(0) / max(real.sum(), 1) for rows, real in pairs])


def _dense(params, x):
    return np.float64(x) @ np.asarray(params["kernel"], float) + np.asarray(params["bias"], float)


def _lstm(cell, rows):
    """Return the hidden states of an LSTM by its equations."""
    hidden = memory = np.zeros(len(cell["hi"]["bias"]))
    states = []
    for row in rows:
        i, f, g, o = (
            row @ np.float64(cell[f"i{gate}"]["kernel"]) + _dense(cell[f"h{gate}"], hidden)
            for gate in "ifgo"
        )

        def sigmoid(x):
            return 1 / (1 + np.exp(-x))

        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(memory)
        states.append(hidden)
    return states


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("hidden_size", [4, D])
def test_video_is_the_mean_of_unit_frames(hidden_size):
    options = options_of(small(**{"model.hidden_size": hidden_size}))
    encoder = hover.VideoEncoder(options)
    inputs = NODES.frames, NODES.frame_mask
    params = jax.jit(encoder.init)(jax.random.key(0), *inputs)["params"]
    encoded = jax.jit(encoder.apply)({"params": params}, *inputs)
    # Features as wide as the model need no input layer.
    assert ("input" in params) == (hidden_size != D)
    x = _dense(params["input"], inputs[0]) if "input" in params else np.float64(inputs[0])
    cell = params["recurrent"]
    assert all(np.abs(x).max() <= hidden_size**-0.5 for x in jax.tree.leaves(cell))
    x = x + np.stack([_lstm(cell, row) for row in x])
    expected = _mean(x / np.linalg.norm(x, axis=-1, keepdims=True), inputs[1])
    np.testing.assert_allclose(encoded, expected, atol=2e-6)


@pytest.mark.parametrize("hidden_size", [4, E])
def test_given_sentences_are_averaged_and_resized(hidden_size):
    options = options_of(small(**{"model.hidden_size": hidden_size, "model.text_encoder": "given"}))
    encoder = hover.TextEncoder(options)
    inputs = NODES.words, NODES.word_mask
    variables = jax.jit(encoder.init)(jax.random.key(0), *inputs)
    expected = _mean(*inputs)
    if hidden_size == E:
        assert "params" not in variables
    else:
        expected = _dense(variables["params"]["input"], expected)
    np.testing.assert_allclose(encoder.apply(variables, *inputs), expected, atol=2e-6)


@pytest.mark.parametrize("text_encoder", ["mean", "attention"])
def test_repeated_word_equals_the_single_word(text_encoder):
    # The average of one word, and attention over it, is the feature of the word.
    options = options_of(small(**{"model.text_encoder": text_encoder}))
    encoder = hover.TextEncoder(options)
    words = np.array(NODES.words)
    mask = np.zeros_like(NODES.word_mask)
    mask[:, 0] = True
    words[1] = words[0]
    words[1, 1:] = 9.0
    variables = jax.jit(encoder.init)(jax.random.key(0), words, mask)
    encoded = np.asarray(jax.jit(encoder.apply)(variables, words, mask))
    np.testing.assert_array_equal(encoded[0], encoded[1])
    assert np.any(encoded[0] != encoded[2])


# The model.


@functools.cache
def _program(text_encoder, lift="unit"):
    config = small(**{"model.text_encoder": text_encoder, "model.lift": lift})
    model = hover.build(config)

    def run(params, nodes):
        return model.apply({"params": params}, nodes)

    def value(params, nodes):
        return sum(jnp.sum(x[:4] ** 2) for x in run(params, nodes))

    return hover.init_params(config), jax.jit(run), jax.jit(jax.grad(value))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("text_encoder", ["given", "mean", "attention"])
def test_masked_inputs_have_no_effect(text_encoder):
    params, run, gradient = _program(text_encoder)
    points, points_with_junk = run(params, nodes_of()), run(params, nodes_of(junk=7.0))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:4], b[:4]), points, points_with_junk)
    assert all(np.all(np.isfinite(x)) and np.all(np.linalg.norm(x, axis=-1) < 1) for x in points)
    for x in jax.tree.leaves(gradient(params, nodes_of())):  # node 4 has no frame and no word
        assert np.all(np.isfinite(x))


@pytest.mark.slow  # it takes seconds
def test_lift_by_radius_puts_unit_features_on_a_sphere():
    params, run, _ = _program("given", "radius")
    nodes = nodes_of()
    for points in run(params, nodes):
        np.testing.assert_allclose(np.linalg.norm(points[:4], axis=-1), np.tanh(1), rtol=1e-6)
    for lift in ("video_lift", "text_lift"):
        params[lift]["radius"] = np.linspace(-1, 1, 5, dtype=np.float32)
    norms = np.linalg.norm(run(params, nodes).video[:4], axis=-1)
    assert np.ptp(norms) > 0.01
    longest = np.exp(hover.MAX_LOG_LENGTH)
    assert np.all((norms > np.tanh(1 / longest)) & (norms < np.tanh(longest)))


def test_released_factor_scales_gradients_only():
    x = np.array([[0.6, -0.8, 0.0]], np.float32)

    def scaled(x):
        return hover.as_parameter_of_the_ball(x, 1.0)

    np.testing.assert_array_equal(scaled(x), x)
    gradient = jax.grad(lambda x: jnp.sum(scaled(x)))(x)
    # ((1 - tanh²(1)) / 2)², 0.044 at the radius of unit features.
    np.testing.assert_allclose(gradient, ((1 - np.tanh(1.0) ** 2) / 2) ** 2, rtol=1e-5)


@functools.cache
def _initial(**options):
    return hover.init_params(small(**options))


@pytest.mark.slow  # it takes seconds
def test_hyperbolic_layers_start_as_identity_or_kaiming():
    params = hover.init_params(small(**{"model.hyperbolic_dim": 3}))
    layer = params["video_lift"]["hyperbolic"]
    np.testing.assert_array_equal(layer["matrix"], np.eye(3, 4))
    assert not np.any(layer["bias"])
    params = hover.init_params(small(**{"model.hyperbolic_init": "kaiming"}))
    layer = params["text_lift"]["hyperbolic"]
    assert all(0 < np.abs(x).max() <= 0.5 for x in layer.values())


@pytest.mark.slow  # it takes seconds
def test_learned_scale_stays_within_its_limit():
    params = _initial()
    assert np.exp(params["log_scale"]) == pytest.approx(1 / 0.07)
    limited = hover.project(params | {"log_scale": jnp.float32(9.0)})
    assert np.exp(limited["log_scale"]) == pytest.approx(100, rel=1e-5)
    assert "log_scale" not in hover.init_params(small(**{"model.learned_scale": False}))


def test_another_seed_draws_other_parameters():
    first_params, second_params = _initial(), _initial(seed=8)

    def random_parameters(params):
        return (
            params["direction"],
            jax.tree.leaves(params["video_encoder"]["recurrent"])[0],
        )

    assert all(
        np.any(x != y)
        for x, y in zip(
            random_parameters(first_params), random_parameters(second_params), strict=True
        )
    )
