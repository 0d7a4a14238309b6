"""Distances and inner products of all pairs against those of one pair and 80-digit arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz, poincare
from derivatives import check_curvature, check_slopes
from lorentz_cases import BOUND, POINTS, PRECISIONS, assert_close
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")


def _two_sets(dtype, dim, rng):
    """Points of which some are near, some the same, and some far out, and some at the origin."""
    x = rng.normal(size=(2, 7, dim)) * np.array([1e-3, 0.1, 1, 1, 3, 8, 0])[:, None] / dim**0.5
    y = rng.normal(size=(2, 9, dim)) / dim**0.5
    y[:, :5], y[:, 7] = x[:, :5] * (1 + 1e-6), -x[:, 5]
    y[:, 3] = x[:, 3]
    return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_pairwise_distances_are_as_exact_as_distances(dtype, dim):
    x, y = _two_sets(dtype, dim, np.random.default_rng(dim))
    c = np.array([0.3, 5.0], dtype)
    a, b = lorentz.from_space(x, c[:, None]), lorentz.from_space(y, c[:, None])
    got = lorentz.pairwise_distance(a, b, c)
    assert got.shape == (2, 7, 9) and got.dtype == dtype
    for i, j, k in np.ndindex(got.shape):
        if np.array_equal(x[i, j], y[i, k]):
            assert got[i, j, k] == 0
            continue
        point, other = reference.vector(x[i, j]), reference.vector(y[i, k])
        exact = reference.distance(point, other, mpf(float(c[i])))
        assert_close(got[i, j, k], exact, BOUND[dtype], (i, j, k))


def test_pairwise_distances_by_product_state_their_error():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, 1000)).astype(np.float32) / 100 for _ in range(2))
    y = y + x * rng.uniform(0.5, 1.2, (8, 1)).astype(np.float32)  # some nearer, some farther
    for size in (0.1, 1, 8):
        a, b = np.float32(size) * x, np.float32(size) * y
        got = lorentz.pairwise_distance(lorentz.from_space(a), lorentz.from_space(b))
        for j, k in np.ndindex(got.shape):
            exact = reference.distance(reference.vector(a[j]), reference.vector(b[k]), mpf(1))
            assert_close(got[j, k], exact, BOUND["float32"], (size, j, k))


@pytest.mark.parametrize("many", [False, True])
def test_gradients_of_pairwise_distances_are_those_of_distances(many):
    x, y = _two_sets("float64", 3, np.random.default_rng(0))
    if many:  # more near pairs than there is room for
        x = np.tile(x[:, :1], (1, 7, 1)) * (1 + 1e-7 * np.arange(7))[:, None]
        y = np.tile(x[:, :1], (1, 9, 1)) * (1 + 1e-5 * np.arange(9))[:, None]
    c = np.array([0.3, 5.0])
    cotangent = np.random.default_rng(1).normal(size=(2, 7, 9))

    def total(function):
        def run(x, y, c):
            a, b = lorentz.from_space(x, c[:, None]), lorentz.from_space(y, c[:, None])
            return jnp.vdot(cotangent, function(a, b, c))

        return jax.jit(jax.value_and_grad(run, (0, 1, 2)))

    by_rows = lambda a, b, c: lorentz.distance(a[:, :, None], b[:, None], c[:, None, None])
    ours = total(lorentz.pairwise_distance)(x, y, c)
    theirs = total(by_rows)(x, y, c)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_second_derivatives_of_pairwise_distances():
    x, y = np.random.default_rng(2).normal(size=(2, 3, 4))
    function = lambda x, y, c: lorentz.pairwise_distance(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    )
    check_curvature(function, (x, y[:2], jnp.asarray(0.7)))


@pytest.mark.usefixtures("unchecked")
def test_pairwise_distances_take_time_and_memory_of_a_product():
    a = jax.ShapeDtypeStruct((256, 129), jnp.float32)
    gradient = jax.grad(lambda x, y: lorentz.pairwise_distance(x, y).sum(), (0, 1))
    used = jax.jit(gradient).lower(a, a).compile().memory_analysis().temp_size_in_bytes
    assert used < 20 * 256 * 256 * 4 + 30 * 1024 * 129 * 4  # by broadcasting it is 348 MB
    with pytest.raises(ValueError, match="vectors of 4 and of 3 coordinates"):
        lorentz.pairwise_distance(jnp.ones((2, 5)), jnp.ones((2, 4)))


@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_curvature, marks=pytest.mark.slow)]
)
def test_squared_distances_of_all_pairs_are_those_of_one(check):
    x, y = POINTS[:2].reshape(2, 2, 3, 5)
    y = np.concatenate([y, x[:, :1] * (1 + 1e-9), x[:, :1]], axis=1)
    c = np.array([0.5, 2.0])
    a, b = lorentz.from_space(x, c[:, None]), lorentz.from_space(y, c[:, None])
    each = lambda model, x, y: model.squared_distance(x[:, :, None], y[:, None], c[:, None, None])
    want = each(lorentz, a, b)
    got = lorentz.pairwise_squared_distance(a, b, c)
    np.testing.assert_allclose(got, want, rtol=1e-11)
    assert got[0, 0, -1] == 0
    p, q = (poincare.from_lorentz(points, c[:, None]) for points in (a, b))
    got = poincare.pairwise_squared_distance(p, q, c)
    np.testing.assert_allclose(got, each(poincare, p, q), rtol=1e-11)
    check(poincare.pairwise_squared_distance, (p, q, c))
