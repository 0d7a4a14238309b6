"""The wrapped normal: a density that integrates to 1, and samples that follow it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import distributions, lorentz, poincare
from derivatives import check_curvature

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.slow
def test_the_density_integrates_to_one_in_both_models():
    c, scale = 0.7, jnp.asarray([0.8, 0.5])
    # Polar coordinates about the origin, whose volume element is sinh(√c r) / √c dr dφ; far out
    # the rest is less than 1e-9, and both rules converge exponentially.
    r = np.linspace(0, 12, 2001)
    angle = np.arange(200) * 2 * np.pi / 200
    u = r[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    volume = np.sinh(np.sqrt(c) * r) / np.sqrt(c) * (r[1] - r[0]) * (angle[1] - angle[0])
    mean = lorentz.exp_map0(jnp.asarray([[[0.6, -0.9]]]), c)
    x = lorentz.exp_map0(jnp.asarray(u), c)
    for density in (
        distributions.lorentz_log_density(x, mean, scale, c),
        distributions.poincare_log_density(
            poincare.from_lorentz(x, c), poincare.from_lorentz(mean, c), scale, c
        ),
    ):
        total = jnp.sum(jnp.exp(density) * volume[:, None])
        np.testing.assert_allclose(total, 1, rtol=1e-6)


@pytest.mark.slow
def test_samples_have_the_moments_of_the_normal_and_are_the_same_in_both_models():
    c, scale = np.array([0.5, 2.0]), np.array([[0.3, 0.6, 0.9], [0.2, 0.2, 0.4]])
    mean = lorentz.exp_map0(np.random.default_rng(0).normal(size=(2, 3)), c)
    key = jax.random.key(1)
    x = distributions.lorentz_sample(key, mean, scale, c, (20000,))
    assert x.shape == (20000, 2, 4)
    ball_mean = poincare.from_lorentz(mean, c)
    p = distributions.poincare_sample(key, ball_mean, scale, c, (20000,))
    np.testing.assert_allclose(poincare.to_lorentz(p, c), x, rtol=1e-8, atol=1e-10)
    u = np.asarray(lorentz.log_map0(lorentz.boost(lorentz.antipode(mean, c)[None], x, c), c))
    deviation = np.std(u, axis=0)
    # The standard errors are scale / √20000 and scale / √40000.
    np.testing.assert_allclose(np.mean(u, axis=0) / scale, 0, atol=5 / 20000**0.5)
    np.testing.assert_allclose(deviation / scale, 1, atol=5 / 40000**0.5)
    one = distributions.lorentz_log_density(x, mean[None], scale, c)
    other = distributions.poincare_log_density(p, ball_mean[None], scale, c)
    np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    flat = -np.sum((u / scale) ** 2 / 2 + np.log(scale * np.sqrt(2 * np.pi)), -1)
    a = np.sqrt(c) * np.linalg.norm(u, axis=-1)
    np.testing.assert_allclose(one, flat - 2 * np.log(np.sinh(a) / a), rtol=1e-9)


@pytest.mark.slow
def test_samples_and_densities_have_two_derivatives_in_everything():
    key = jax.random.key(0)

    def everything(u, scale, v, c):
        mean, x = lorentz.exp_map0(u, c), lorentz.exp_map0(v, c)
        p, q = poincare.exp_map0(u / 3, c), poincare.exp_map0(v / 3, c)
        return (
            distributions.lorentz_sample(key, mean, scale, c),
            distributions.poincare_sample(key, p, scale, c),
            distributions.lorentz_log_density(x, mean, scale, c),
            distributions.poincare_log_density(q, p, scale, c),
        )

    u, v = np.random.default_rng(0).normal(size=(2, 3, 2))
    u[0], v[1] = 0, u[1]  # at the origin, and at the mean
    check_curvature(everything, (u, np.full((3, 2), 0.6), v, np.array([0.3, 1, 2])))


def test_half_precision_is_computed_in_float32():
    mean = jnp.zeros((2, 3), jnp.bfloat16)
    x = distributions.poincare_sample(jax.random.key(0), mean, jnp.bfloat16(0.5))
    assert x.dtype == jnp.float32 and x.shape == (2, 3)
    assert distributions.poincare_log_density(x, mean, 0.5).dtype == jnp.float32
