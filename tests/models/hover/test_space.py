"""Spaces against NumPy and against each other: lift, distances, norms, cones, search vectors."""

import jax
import numpy as np
import pytest

from hlformer_jax.models.hover.space import Space, angles


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
        one, other = jax.jit(lambda p, q, k=kind: (ball.norm(p, k), sheet.norm(q, k)))(p, q)
        np.testing.assert_allclose(one, other, rtol=1e-5)
    one, other = jax.jit(ball.similarities)(p, p), jax.jit(sheet.similarities)(q, q)
    np.testing.assert_allclose(one, other, atol=2e-5)
    np.testing.assert_allclose(jax.jit(angles)(p, p[0]), jax.jit(angles)(q, p[0]), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "metric"),
    [("poincare", "distance"), ("lorentz", "distance"), ("euclidean", "distance"),
     ("euclidean", "cosine")],
)  # fmt: skip
def test_products_of_search_vectors_rank_as_the_similarities_do(name, metric):
    space, points = _pairs(name, metric)
    queries, candidates = points[:5], points[5:]
    similar = np.asarray(jax.jit(space.similarities)(queries, candidates))
    x, y = jax.jit(space.search_vectors)(queries, candidates)
    np.testing.assert_array_equal(np.argsort(np.asarray(x @ y.T)), np.argsort(similar))


def test_the_ball_can_be_limited_as_released():
    far = np.full((1, 3), 9.0, np.float32)
    space = Space("poincare", max_radius=0.999)
    lifted = jax.jit(space.lift)(far, 0 * far)
    assert np.linalg.norm(lifted) == pytest.approx(0.999, rel=1e-6)
    sheet = Space("lorentz", max_radius=0.999)
    norm = jax.jit(lambda far: sheet.norm(sheet.lift(far, 0 * far)))(far)
    assert norm == pytest.approx(0.999, rel=1e-4)


def _angle(u, v):
    cosine = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
    return np.arccos(np.clip(cosine, -1, 1))


def _outside(name, x, y, c, k):
    """Max(0, exterior angle − half aperture) in NumPy, by the direction of log_x(y)."""
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
    ball[1, :20] = ball[0, :20] * 1.2 + 0.05 * ball[1, :20]  # about behind: some are inside
    ball = ball.astype(np.float32)
    rest = 1 - c * np.sum(ball**2, -1, keepdims=True)
    points = (2 * ball / rest).astype(np.float32) if name == "lorentz" else ball
    found = np.asarray(jax.jit(space.outside_cone)(points[0], points[1], k))
    want = [_outside(name, x, y, c, k) for x, y in zip(*ball.astype(float), strict=True)]
    assert 5 < np.sum(found == 0) < 35 and np.max(found) > 1
    # Angles in float32: the bound of `ops.cones`, and the steep arccos of this test.
    np.testing.assert_allclose(found, want, atol=5e-5)


def test_flat_cones_are_those_of_the_ball_near_its_origin():
    # Both are conformal, and the curvature of so small a figure is not seen.
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


@pytest.mark.parametrize("name", ["poincare", "lorentz", "euclidean"])
def test_outside_of_cones_values_and_gradients_are_finite_at_every_edge(name):
    space = Space(name)
    x, y = (np.array([case[k] for case in EDGES.values()], np.float32) for k in (0, 1))
    total = lambda x, y: (space.outside_cone(x, y, 0.1).sum(), space.outside_cone(x, y, 0.1))
    gradients, values = jax.jit(jax.grad(total, (0, 1), has_aux=True))(x, y)
    for k, (case, (*_, want)) in enumerate(EDGES.items()):
        assert np.isfinite(values[k]) and 0 <= values[k] <= np.float32(np.pi), case
        assert all(np.all(np.isfinite(gradient[k])) for gradient in gradients), case
        if want is not None:
            assert values[k] == want, case
            assert not any(np.any(gradient[k]) for gradient in gradients), case
