"""The wrapped normal distribution of both models, against SciPy and mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from compiled import lorentz, poincare, statistics
from derivatives import check_curvature, check_finite
from mpmath import mpf
from reference import log_map, parallel_transport, vector
from scipy.stats import multivariate_normal

from hlformer_jax.ops import statistics as plain
from hlformer_jax.ops.numerics import max_hyperbolic_norm

C = np.array([0.3, 1.0, 2.5, 0.7])
RNG = np.random.default_rng(0)
MEANS, POINTS = RNG.normal(size=(2, 4, 3))
"""Space components."""
FACTORS = np.tril(RNG.normal(size=(4, 3, 3)), -1) + np.eye(3) * RNG.uniform(0.4, 1.2, (4, 1, 3))
COVARIANCES = FACTORS @ np.swapaxes(FACTORS, -1, -2)


def expected_log_density(point, mean, covariance, c):
    """Return SciPy's density of the logarithm at the origin, over the stretch of volumes."""
    point, mean, c = vector(point), vector(mean), mpf(float(c))
    at_mean = log_map(mean, point, c)[1:]
    u = parallel_transport(mean, [mpf(0)] * len(mean), at_mean, c)[1:]
    a = mpmath.sqrt(c * mpmath.fsum(component**2 for component in u))
    stretch = (len(u) - 1) * mpmath.log(mpmath.sinh(a) / a)
    normal = multivariate_normal(np.zeros(len(u)), covariance)
    return normal.logpdf([float(component) for component in u]) - float(stretch)


def test_log_density_equals_scipy_and_volume_stretch(dtype):
    x, mean = (lorentz.from_space(jnp.asarray(s, dtype), C) for s in (POINTS, MEANS))
    p, ball_mean = (poincare.from_lorentz(points, C) for points in (x, mean))
    want = [
        expected_log_density(*row)
        for row in zip(x[:, 1:], mean[:, 1:], COVARIANCES, C, strict=True)
    ]
    factors = jnp.asarray(FACTORS, dtype)
    # Thirty eps of the logarithm, and the effect of rounding points of the ball.
    rtol = {"float32": 1e-5, "float64": 1e-13}[dtype]
    for got in (
        statistics.lorentz_full_log_density(x, mean, factors, C),
        statistics.poincare_full_log_density(p, ball_mean, factors, C),
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=rtol)


@pytest.mark.usefixtures("float64")
def test_density_integrates_to_one():
    c, mean, factor = 0.7, np.array([[0.4, -0.3]]), np.array([[[0.6, 0.0], [-0.5, 0.3]]])
    # On a grid of tangent vectors at the origin, with the volume sinh(√c r) / (√c r) du. The sum
    # converges exponentially, and less than 1e-9 lies outside the grid.
    side = np.linspace(-7, 7, 281)
    u = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    a = np.sqrt(c) * np.linalg.norm(u, axis=-1)
    volume = np.where(a < 1e-9, 1, np.sinh(a) / np.maximum(a, 1e-9)) * (side[1] - side[0]) ** 2
    x = lorentz.exp_map0(u, c)
    density = statistics.lorentz_full_log_density(x, lorentz.from_space(mean, c), factor, c)
    total = np.sum(np.exp(density) * volume)
    np.testing.assert_allclose(total, 1, rtol=1e-7)


@pytest.mark.slow  # its programs are large
@pytest.mark.usefixtures("float64")
def test_samples_have_the_covariance_in_both_models():
    key, count = jax.random.key(1), 20000
    mean = lorentz.from_space(MEANS, C)
    x = statistics.lorentz_full_sample(key, mean, FACTORS, C, shape=(count,))
    assert x.shape == (count, 4, 4)
    ball_mean = poincare.from_lorentz(mean, C)
    p = statistics.poincare_full_sample(key, ball_mean, FACTORS, C, shape=(count,))
    np.testing.assert_allclose(poincare.to_lorentz(p, C), x, rtol=1e-7, atol=1e-9)
    u = lorentz.log_map0(lorentz.boost(lorentz.antipode(mean, C)[None], x, C), C)
    white = np.linalg.solve(FACTORS, np.asarray(u)[..., None])[..., 0]
    covariance = np.einsum("sbi,sbj->bij", white, white) / count
    # Standard errors are 1/√count, and √2 as much on the diagonal.
    np.testing.assert_allclose(white.mean(0), 0, atol=5 / count**0.5)
    np.testing.assert_allclose(
        covariance, np.broadcast_to(np.eye(3), (4, 3, 3)), atol=7 / count**0.5
    )


@pytest.mark.usefixtures("float64")
def test_diagonal_factor_is_the_distribution_of_its_scale():
    scale, key = np.array([0.4, 0.7, 1.1]), jax.random.key(0)
    factor = np.diag(scale)[None] + np.triu(np.full((3, 3), 9.0), 1)  # ignored above the diagonal
    x, mean = (lorentz.from_space(s, C) for s in (POINTS, MEANS))
    p, ball_mean = (poincare.from_lorentz(points, C) for points in (x, mean))
    for got, want in (
        (
            statistics.lorentz_full_log_density(x, mean, factor, C),
            statistics.lorentz_log_density(x, mean, scale, C),
        ),
        (
            statistics.poincare_full_log_density(p, ball_mean, factor, C),
            statistics.poincare_log_density(p, ball_mean, scale, C),
        ),
        (
            statistics.lorentz_full_sample(key, mean, factor, C, shape=(2,)),
            statistics.lorentz_sample(key, mean, scale, C, shape=(2,)),
        ),
        (
            statistics.poincare_full_sample(key, ball_mean, factor, C, shape=(2,)),
            statistics.poincare_sample(key, ball_mean, scale, C, shape=(2,)),
        ),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.slow  # its programs are large
@pytest.mark.usefixtures("float64")
def test_samples_and_densities_have_two_derivatives():
    key = jax.random.key(0)
    means, points = MEANS.copy(), POINTS.copy()
    means[0], points[1] = 0, means[1]  # at the origin, and at the mean

    def full(s, factor, t, c):
        mean, x = (lorentz.from_space(space, c) for space in (s, t))
        return (
            plain.lorentz_full_sample(key, mean, factor, c),
            plain.lorentz_full_log_density(x, mean, factor, c),
        )

    def diagonal(s, scale, t, c):
        mean, x = (lorentz.from_space(space, c) for space in (s, t))
        p, ball_mean = (poincare.from_lorentz(points, c) for points in (x, mean))
        return (
            plain.lorentz_sample(key, mean, scale, c),
            plain.poincare_sample(key, ball_mean, scale, c),
            plain.lorentz_log_density(x, mean, scale, c),
            plain.poincare_log_density(p, ball_mean, scale, c),
        )

    check_curvature(full, (means, FACTORS, points, C))
    check_curvature(diagonal, (means, np.full((4, 3), 0.6), points, C))


def test_densities_are_finite_at_the_mean_and_far_out():
    mean = lorentz.exp_map0(jnp.asarray([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]]))
    x = lorentz.exp_map0(jnp.asarray([[0.0, 0.0], [20.0, 3.0], [9.0, 0.0]]))
    factor = jnp.asarray([[[0.5, 0.0], [-3.0, 1e-3]]])
    check_finite(plain.lorentz_full_log_density, (x, mean, factor), jnp.float32)


def test_density_of_opposite_points_as_far_out_as_exponential_maps_reach(dtype):
    reach = max_hyperbolic_norm(jnp.dtype(dtype)) - 1
    mean = lorentz.exp_map0(jnp.asarray([[reach, 0.0], [reach, 0.0]], dtype))
    x = lorentz.exp_map0(jnp.asarray([[-reach, 0.0], [0.0, reach]], dtype))
    factor = jnp.eye(2, dtype=dtype)
    density = plain.lorentz_full_log_density(x, mean, factor)
    d = lorentz.distance(x, mean)
    want = -d * d / 2 - jnp.log(2 * jnp.pi) - (d - jnp.log(2 * d))
    np.testing.assert_allclose(density, want, rtol={"float32": 2e-5, "float64": 1e-12}[dtype])
    check_finite(plain.lorentz_full_log_density, (x, mean, factor), dtype)


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (np.eye(3), r"factor must have shape \[..., 2, 2\] .* got \(3, 3\)"),
        (np.diag([1.0, -1.0]), "the diagonal of factor .* positive"),
    ],
)
def test_invalid_covariance_factor_is_refused(factor, message):
    mean = jnp.asarray([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=message):
        plain.lorentz_full_sample(jax.random.key(0), mean, jnp.asarray(factor, "float32"))
    with pytest.raises(ValueError, match=message):
        plain.lorentz_full_log_density(mean, mean, jnp.asarray(factor, "float32"))


@pytest.mark.usefixtures("float64")
def test_double_precision_of_a_factor_is_kept():
    space, factor = jnp.asarray(POINTS[0] / 8, "float32"), FACTORS[0] / 10
    origin, ball_origin = lorentz.origin(3, dtype="float32"), jnp.zeros(3, "float32")
    density = plain.lorentz_full_log_density(lorentz.from_space(space), origin, factor)
    radius = np.linalg.norm(np.asarray(space, float))
    u = np.asarray(space, float) * np.arcsinh(radius) / radius
    normal = multivariate_normal(np.zeros(3), COVARIANCES[0] / 100)
    want = normal.logpdf(u) - 2 * np.log(radius / np.arcsinh(radius))
    # The float32 point is exact in both; SciPy's error grows with the condition of the covariance.
    np.testing.assert_allclose(density, want, rtol=1e-10)
    key = jax.random.key(0)
    for result in (
        density,
        plain.poincare_full_log_density(ball_origin, ball_origin, factor),
        plain.lorentz_full_sample(key, origin, factor),
        plain.poincare_full_sample(key, ball_origin, factor),
    ):
        assert result.dtype == jnp.float64
