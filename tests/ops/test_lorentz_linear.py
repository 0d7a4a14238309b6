"""The last step of a Lorentzian linear map: any vector becomes a point of the hyperboloid."""

import jax
import jax.numpy as jnp
import numpy as np

from hlformer_jax.ops import lorentz


def test_a_zero_vector_becomes_the_origin_with_gradient_zero():
    z = jnp.zeros((2, 4)).at[1].set(jnp.array([0.3, 1.0, -2.0, 0.5]))

    @jax.jit
    def rescaled(z):
        total = lambda z: jnp.sum(lorentz.from_linear(z, jnp.float32(2.3)))
        return lorentz.from_linear(z, jnp.float32(2.3)), jax.grad(total)(z)

    point, gradient = rescaled(z)
    np.testing.assert_array_equal(point[0], [1, 0, 0, 0])
    np.testing.assert_allclose(-(point[1, 0] ** 2) + np.sum(point[1, 1:] ** 2), -1, rtol=1e-4)
    time = 1 / (1 + np.exp(-0.3)) * np.exp(2.3) + 1.1
    np.testing.assert_allclose(point[1, 0], time, rtol=1e-6)
    assert not np.any(gradient[0])
    assert np.all(np.isfinite(gradient))


def test_the_first_coordinate_asks_for_the_time_and_the_others_for_the_direction():
    z = jnp.asarray([[-200.0, 3, 4], [0, 30, 40], [200, -3e-9, 4e-9]])
    point = jax.jit(lorentz.from_linear)(z, np.log(np.float32(8)))
    time = np.array([1.1, 5.1, 9.1])
    np.testing.assert_allclose(point[:, 0], time, rtol=1e-6)
    way = np.array([[0.6, 0.8], [0.6, 0.8], [-0.6, 0.8]])
    np.testing.assert_allclose(point[:, 1:], way * np.sqrt(time**2 - 1)[:, None], rtol=1e-6)


def test_the_dtype_is_that_of_the_vector():
    z = jnp.ones((2, 4), jnp.bfloat16)
    assert jax.eval_shape(lorentz.from_linear, z, jnp.float32(1)).dtype == jnp.bfloat16
