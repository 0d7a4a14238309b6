"""Distances of all pairs of the ball, and of the tiniest points, against 80-digit arithmetic."""

import ball_reference as exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import poincare
from derivatives import check_two_derivatives
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")


def _two_sets(dtype, dim):
    """Points of which some are near, some the same, some tiny, some far out, some at the origin."""
    rng = np.random.default_rng(dim)
    p = rng.normal(size=(2, 8, dim)) / dim**0.5
    p *= np.array([1e-30, 1e-19, 1e-3, 0.3, 0.5, 0.6, 0.6, 0])[:, None]
    q = rng.normal(size=(2, 9, dim)) / dim**0.5 / 2
    q[:, :6], q[:, 7] = p[:, :6] * (1 + 1e-5), -p[:, 5]
    q[:, 3] = p[:, 3]
    return p.astype(dtype), q.astype(dtype)


@pytest.mark.parametrize("dim", [3, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pairwise_distances_state_their_error(dtype, dim):
    p, q = _two_sets(dtype, dim)
    c = np.array([0.3, 2.5 / 4], dtype)
    got = poincare.pairwise_distance(p, q, c)
    assert got.shape == (2, 8, 9) and got.dtype == dtype
    bound = {"float32": 2e-5, "float64": 1e-12}[dtype]
    for i, j, k in np.ndindex(got.shape):
        a, b = reference.vector(p[i, j]), reference.vector(q[i, k])
        want = exact.distance(a, b, mpf(float(c[i])))
        norms = max(map(float, map(reference.norm, (a, b))))
        allowed = max(bound, 16 * np.finfo(dtype).eps / (1 - float(c[i]) ** 0.5 * norms))
        if want < 1e-34 and dtype == "float32":  # may count as 0, see `length`
            assert 0 <= got[i, j, k] < 2e-34
            continue
        assert abs(float(got[i, j, k]) - want) <= allowed * want, (i, j, k)


@pytest.mark.parametrize("many", [False, True])
def test_gradients_of_pairwise_distances_are_those_of_distances(many):
    p, q = _two_sets("float64", 3)
    p, q = p[:, 2:], q[:, 2:]
    if many:  # more near pairs than there is room for
        p = np.tile(p[:, :1], (1, 6, 1)) * (1 + 1e-7 * np.arange(6))[:, None]
        q = np.tile(p[:, :1], (1, 7, 1)) * (1 + 1e-5 * np.arange(7))[:, None]
    c = np.array([0.3, 0.6])
    cotangent = np.random.default_rng(1).normal(size=(2, 6, 7))

    def total(function):
        run = lambda p, q, c: jnp.vdot(cotangent, function(p, q, c))
        return jax.jit(jax.value_and_grad(run, (0, 1, 2)))

    by_rows = lambda p, q, c: poincare.distance(p[:, :, None], q[:, None], c[:, None, None])
    ours = total(poincare.pairwise_distance)(p, q, c)
    theirs = total(by_rows)(p, q, c)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_second_derivatives_of_pairwise_distances():
    p, q = np.random.default_rng(2).uniform(-0.5, 0.5, size=(2, 3, 3))
    check_two_derivatives(poincare.pairwise_distance, (p, q[:2], jnp.asarray(0.7)))


@pytest.mark.parametrize("size", [1e-33, 1e-30, 1e-20])
def test_distances_of_the_tiniest_points_and_their_gradients(size):
    p, q = jnp.asarray([3 * size, 0], jnp.float32), jnp.asarray([0, 4 * size], jnp.float32)
    np.testing.assert_allclose(poincare.distance(p, q), 10 * size, rtol=1e-6)
    np.testing.assert_allclose(poincare.distance0(p), 6 * size, rtol=1e-6)
    gradients = jax.grad(poincare.distance, (0, 1))(p, q)
    np.testing.assert_allclose(gradients, [[1.2, -1.6], [-1.2, 1.6]], rtol=1e-6)
    assert not np.any(jax.grad(poincare.distance, (0, 1))(p, p))


def test_gradients_near_coincident_points_have_the_length_of_the_metric():
    p = jnp.asarray([0.3, -0.5, 0.6])
    for gap in (1e-12, 1e-9, 1e-6):
        q = p + gap * jnp.asarray([0.6, 0.8, 0])
        gradient = jax.grad(poincare.distance)(p, q)
        want = -poincare.conformal_factor(p) * jnp.asarray([0.6, 0.8, 0])
        # What of the gap is left after rounding the points.
        np.testing.assert_allclose(gradient, want, atol=1e-15 / gap + 20 * gap)
