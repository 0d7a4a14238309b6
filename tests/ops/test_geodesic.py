"""The geodesic distance where its value or its gradient is awkward, against 80-digit arithmetic."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz
from lorentz_cases import BOUND, DTYPES, assert_close, pairs
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")


def test_distance_of_tiny_and_of_coincident_points_and_their_gradients():
    @jax.jit
    @jax.value_and_grad
    def function(x, y):
        return lorentz.distance(lorentz.from_space(x), lorentz.from_space(y))

    x = jnp.array([3e-20, 4e-20], jnp.float32)  # whose square underflows
    distance, gradient = function(x, 0 * x)
    np.testing.assert_allclose(distance, 5e-20, rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.6, 0.8], rtol=1e-6)
    for point in (x, 0 * x, jnp.array([0.3, 8.0], jnp.float32)):
        distance, gradient = function(point, point)
        assert distance == 0 and not gradient.any()


def test_gradients_far_out_in_a_nearly_flat_space_are_those_of_the_way_back():
    c, way = jnp.float32(1e-6), np.array([0.6, -0.64, 0.48], np.float32)
    functions = (
        lorentz.distance, lorentz.squared_distance, lambda *p: lorentz.log_map(*p).sum()
    )  # fmt: skip

    @jax.jit
    def gradients(vector):
        x, o = lorentz.exp_map0(vector, c), lorentz.origin(3, c)
        return [jax.grad(f, argnums=(0, 1, 2))(x, o, c) for f in functions]

    for distance in (31.0, 31.8, 31.885):
        of_distance, *others = gradients(way * np.float32(distance / 1e-3))
        assert all(np.isfinite(g).all() for g in jax.tree.leaves((of_distance, others)))
        np.testing.assert_allclose(of_distance[1], [0, *-way], rtol=2e-5)


@pytest.mark.parametrize("size", [1e-36, 1e-30, 3e-25])
def test_distances_and_norms_of_the_tiniest_points_and_vectors(size):
    x = jnp.asarray([3 * size, 0.0], jnp.float32)
    y = jnp.asarray([0.0, 4 * size], jnp.float32)
    distance = lambda x, y: lorentz.distance(lorentz.from_space(x), lorentz.from_space(y))
    np.testing.assert_allclose(distance(x, y), 5 * size, rtol=1e-6)
    gradients = jax.grad(distance, (0, 1))(x, y)
    np.testing.assert_allclose(gradients, [[0.6, -0.8], [-0.6, 0.8]], rtol=1e-6)
    near = x * jnp.float32(1 + 1e-5)
    np.testing.assert_allclose(distance(x, near), near[0] - x[0], rtol=1e-6, atol=1e-38)
    point = lorentz.from_space(jnp.asarray([0.1, 0.2], jnp.float32))
    norm = lorentz.tangent_norm(lorentz.origin(2, dtype=x.dtype), lorentz.from_space(x + y))
    np.testing.assert_allclose(norm, 5 * size, rtol=1e-6)
    assert np.isfinite(jax.grad(lorentz.tangent_norm, 1)(point, lorentz.from_space(x))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_distance_against_80_digits(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    distance = lambda x, y, c: lorentz.distance(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    )
    gradients = jax.jit(jax.vmap(jax.grad(distance, (0, 1))))(x, y, c)
    for i, kind in enumerate(kinds):
        point, other, curvature = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        length = mpmath.sinh(curvature**0.5 * reference.distance(point, other, curvature))
        for got, start, end in zip(gradients, (point, other), (other, point), strict=True):
            lean = reference.time(end, curvature) / reference.time(start, curvature)
            exact = [
                curvature**0.5 * (lean * a - b) / length for a, b in zip(start, end, strict=True)
            ]
            # Of a radial gradient, shorter by τ: what is left across after rounding counts in full.
            tau = float(curvature**0.5 * reference.time(start, curvature))
            bound = max(BOUND[dtype], float(jnp.finfo(dtype).eps) * tau**2)
            assert_close(got[i], exact, bound, (kind, float(c[i])))
