"""The algebra of the ball and its rim; `test_poincare_maps` has it against 80 digits and geoopt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import lorentz, poincare

from hlformer_jax.ops import numerics
from hlformer_jax.ops import poincare as gyro

pytestmark = pytest.mark.usefixtures("float64")

DTYPES = ("float32", "float64")
C = np.array([0.3, 1.0, 2.5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_edge_is_where_it_says(dtype):
    edge = poincare.to_lorentz(jnp.asarray([2, 0], dtype))
    want = -np.log(2 * float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(jnp.linalg.norm(lorentz.log_map0(edge)), want, rtol=0.02)
    inside = jnp.asarray([0.6, 0.7], dtype)
    np.testing.assert_array_equal(poincare.project(inside), inside)


def _points(count, most):
    rng = np.random.default_rng(0)
    p = rng.normal(size=(count, 3, 4))
    p /= np.linalg.norm(p, axis=-1, keepdims=True)
    return p * rng.uniform(0, most, (count, 3, 1)) / np.sqrt(C)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_projection_returns_is_inside_and_its_gap_is_positive(dtype):
    eps = float(jnp.finfo(dtype).eps)
    rng = np.random.default_rng(0)
    p = jnp.asarray(rng.normal(size=(500, 3)) * 1e3, dtype)
    c = jnp.asarray(rng.uniform(0.1, 10, 500), dtype)
    inside = jax.jit(lambda p, c: (gyro.inside(p, c), gyro.gap(p, c)))
    projected = jax.jit(gyro.project)(p, c)
    kept, gap = inside(projected, c)
    np.testing.assert_array_equal(kept, projected)
    assert (gap > 4 * eps).all() and (gap < 12 * eps).all()
    beyond, _ = inside(p, c)
    gap = inside(beyond, c)[1]
    assert (gap > 0).all() and (gap < 8 * eps).all()


def test_the_square_is_held_below_1_with_the_gradient_of_the_square():
    p = jnp.asarray([[1.0, 0.0], [0.5, 0.0]])
    value, pullback = jax.vjp(lambda p: gyro._square(p, jnp.ones(2)), p)
    assert 0 < 1 - value[0] < 1e-15 and value[1] == 0.25
    np.testing.assert_array_equal(pullback(jnp.ones(2))[0], 2 * p)


def test_the_sum_of_two_points_has_the_gap_that_the_docstring_states():
    p, q = _points(2, 0.9)
    add = jax.jit(lambda p, q: gyro.mobius_add(p, q, C))
    gap = lambda points: 1 - C * np.sum(np.square(points), -1)
    below = 1 + 2 * C * np.sum(p * q, -1) + C**2 * np.sum(p * p, -1) * np.sum(q * q, -1)
    total = add(p, q)
    np.testing.assert_allclose(gap(total), gap(p) * gap(q) / below, rtol=1e-12)
    np.testing.assert_allclose(add(-p, total), q, rtol=1e-11, atol=1e-13)


def test_a_gyration_turns_and_keeps_lengths():
    p, q, v = _points(3, 0.9)
    gyration = jax.jit(lambda p, q, v: gyro.gyration(p, q, v, C))
    turned = gyration(p, q, v)
    assert np.abs(turned - v).max() > 0.01
    length = lambda w: np.linalg.norm(w, axis=-1)
    np.testing.assert_allclose(length(turned), length(v), rtol=1e-12)
    np.testing.assert_allclose(gyration(q, p, turned), v, rtol=1e-11, atol=1e-13)


def test_products_with_numbers_and_matrices_are_those_of_logarithms():
    (p,) = _points(1, 0.9)
    matrix = np.random.default_rng(0).normal(size=(2, 4)) / 2

    @jax.jit
    def logarithms(p):
        products = (
            gyro.mobius_scalar_mul(0.3, p, C),
            gyro.mobius_matvec(matrix, p, C),
            gyro.mobius_matvec(0 * matrix, p, C),
        )
        return [gyro.log_map0(point, C) for point in (p, *products)]

    log, shorter, mapped, zero = logarithms(p)
    np.testing.assert_allclose(shorter, 0.3 * log, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mapped, log @ matrix.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(zero, 0)
    # tanh(√c |v|) / √c is how far from the origin the exponential map ends.
    away = np.tanh(np.sqrt(C) * np.linalg.norm(log, axis=-1)) / np.sqrt(C)
    np.testing.assert_allclose(np.linalg.norm(p, axis=-1), away, rtol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_vectors_and_curvatures_that_do_not_go_together_are_refused():
    c, (p, q) = numerics.align(2.0, np.zeros((2, 1, 4)), np.zeros((3, 4), np.float32))
    assert p.shape == q.shape == (2, 3, 4) and jnp.broadcast_shapes(c.shape, (2, 3)) == (2, 3)
    for wrong, vectors in (
        (1.0, (np.zeros(4), np.zeros(1))),
        (1.0, (np.zeros((2, 4)), np.zeros((3, 4)))),
        (np.ones(3), (np.zeros((2, 4)), np.zeros((2, 4)))),
    ):
        with pytest.raises(ValueError, match=r"coordinates|broadcast"):
            numerics.align(wrong, *vectors)
