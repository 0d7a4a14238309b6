"""The Poincaré ball: values, its edge, and that it is the same geometry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz, poincare
from derivatives import check_slopes, check_two_derivatives
from lorentz_cases import PRECISIONS
from mpmath import mpf, sqrt

pytestmark = pytest.mark.usefixtures("float64")

BOUND = {"float32": 2e-5, "float64": 1e-12}
DTYPES = tuple(BOUND)
C = np.array([0.3, 1.0, 2.5])


def from_space(x, c=1.0):
    return poincare.from_lorentz(lorentz.from_space(x, c), c)


@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_values_there_and_back(dtype, dim):
    rows = [
        (reference.pair("generic", norm, dim, dtype)[0], np.asarray(c, dtype))
        for norm in reference.NORMS
        for c in reference.CURVATURES
    ]
    x, c = map(np.stack, zip(*rows, strict=True))
    ball = np.asarray(from_space(x, c))
    back = np.asarray(poincare.to_lorentz(ball, c))
    assert ball.dtype == back.dtype == dtype
    for i in range(len(rows)):
        space, p, curvature = reference.vector(x[i]), reference.vector(ball[i]), mpf(float(c[i]))
        scale = 1 + sqrt(curvature) * reference.time(space, curvature)
        assert reference.relative_error(ball[i], [a / scale for a in space]) <= BOUND[dtype]
        scale = 2 / (1 - curvature * reference.dot(p, p))
        space = [scale * a for a in p]
        want = [reference.time(space, curvature), *space]
        assert reference.relative_error(back[i], want) <= BOUND[dtype]
    np.testing.assert_allclose(back[:, 1:], x, rtol=0, atol=50 * BOUND[dtype])


def test_distance_in_the_ball_is_that_on_the_hyperboloid():
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4))
    c = np.array([0.1, 0.5, 1.0, 2.0, 5.0, 10.0])
    p, q = from_space(x, c), from_space(y, c)
    room = (1 - c * jnp.sum(p**2, axis=-1)) * (1 - c * jnp.sum(q**2, axis=-1))
    distance = jnp.arccosh(1 + 2 * c * jnp.sum((p - q) ** 2, axis=-1) / room) / np.sqrt(c)
    want = lorentz.distance(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
    np.testing.assert_allclose(distance, want, rtol=1e-11)  # from 1 − c |p|²


@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_two_derivatives, marks=pytest.mark.slow)]
)
def test_derivatives_at_the_origin_and_far_out(check):
    x = jnp.array([[0.0, 0.0], [1e-9, 0.0], [0.3, -0.4], [3.0, -8.0]])
    c = jnp.array([1.0, 1.0, 0.5, 2.0])
    check(lambda x, p, c: (from_space(x, c), poincare.to_lorentz(p, c)), (x, x / 20, c))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_are_finite_up_to_and_beyond_the_edge(dtype):
    radii = [0, 1e-20, 1e-6, 0.5, 1, 80]
    x = np.array([r * np.array([0.6, -0.64, 0.48]) for r in radii] + [[1 / np.sqrt(0.1), 0, 0]])
    x = x.astype(dtype)
    x = np.concatenate([x, lorentz.exp_map0(x[-2:], 0.1)[:, 1:]])
    c = np.full(len(x), 0.1, dtype)

    def both(x, c):
        return from_space(x, c), poincare.to_lorentz(x, c)

    @jax.jit
    def everything(*args):
        value, pullback = jax.vjp(both, *args)
        _, forward = jax.jvp(both, args, tuple(map(jnp.ones_like, args)))
        return value, pullback(jax.tree.map(jnp.ones_like, value)), forward

    result = everything(x, c)
    assert all(jnp.isfinite(array).all() for array in jax.tree.leaves(result))
    assert (jnp.sum(result[0][0].astype(jnp.float64) ** 2, axis=-1) < 10).all()


def test_jit_vmap_and_more_batch_axes_change_nothing():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    c = np.array([0.5, 1.0, 2.0])

    def there_and_back(x, c):
        return poincare.to_lorentz(from_space(x, c), c)

    got = jax.jit(jax.vmap(there_and_back))(x, np.stack([c, c]))
    with jax.disable_jit():
        want = there_and_back(x, c)
    np.testing.assert_allclose(got, want, rtol=1e-13)
    np.testing.assert_allclose(got, lorentz.from_space(x, c), rtol=1e-13)


def test_bfloat16_is_computed_in_float32():
    p = jnp.array([0.25, 0.5], jnp.bfloat16)
    assert jax.eval_shape(poincare.to_lorentz, p).dtype == jnp.float32
    assert jax.eval_shape(poincare.from_lorentz, p).dtype == jnp.float32


def test_a_point_is_limited_to_a_distance_from_the_origin():
    way = np.random.default_rng(0).normal(size=(20, 3, 4))
    way /= np.linalg.norm(way, axis=-1, keepdims=True)
    radius = np.array([1e-9, 1e-3, 0.05, 0.3, 0.9])[np.arange(20) % 5][:, None, None]
    p = way * radius / np.sqrt(C)[:, None]
    limit = np.array([1.0, 2.0, 0.5])
    got = poincare.distance0(poincare.limit_distance0(p, limit, C), C)
    np.testing.assert_allclose(got, np.minimum(poincare.distance0(p, C), limit), rtol=1e-13)
    near = np.asarray(poincare.distance0(p, C)) < limit
    np.testing.assert_array_equal(poincare.limit_distance0(p, limit, C)[near], p[near])
    half = poincare.project(p, C, 0.5)
    assert (np.sqrt(C) * np.linalg.norm(half, axis=-1) < 0.5 + 1e-12).all()
