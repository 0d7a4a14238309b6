"""The Fréchet mean: where the logarithms cancel, and its derivatives against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import lorentz, means, poincare
from derivatives import check_two_derivatives

pytestmark = pytest.mark.usefixtures("float64")

C = np.array([0.3, 1.0, 2.5])


def _points(size, dtype="float64"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 6, 4))
    x[:, 4] = x[:, 3] * (1 + 1e-7)  # near
    return (x * size).astype(dtype), rng.uniform(0, 1, size=(3, 2, 6)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("float32", 1e-5), pytest.param("float64", 1e-13, marks=pytest.mark.slow)],
)
def test_the_weighted_logarithms_at_the_mean_cancel(dtype, bound):
    c = C.astype(dtype)

    @jax.jit
    def excess(x, w):
        points = lorentz.exp_map0(x, c[:, None])
        mean = means.lorentz_mean(points, w, c)
        steps = lorentz.log_map(mean[:, :, None], points[:, None], c[:, None, None])
        total = jnp.einsum("bml,bmln->bmn", w, steps) / jnp.sum(w, -1, keepdims=True)
        length = lorentz.tangent_norm(mean, total, c[:, None])
        return mean, length, lorentz.distance(mean[:, :, None], points[:, None], c[:, None, None])

    for size in (1e-6, 0.3, 3.0):
        mean, length, distances = excess(*_points(size, dtype))
        assert mean.shape == (3, 2, 5) and mean.dtype == dtype
        # Far out, log_map's space components are longer than the vector by √c x_time.
        reach = np.asarray(mean[..., 0] * np.sqrt(c)[:, None])
        assert (length <= bound * reach * np.sqrt(np.mean(distances**2, -1))).all(), size


def test_the_mean_of_two_is_the_midpoint_and_of_one_the_point():
    x, _ = _points(0.5)
    points = lorentz.exp_map0(x, C[:, None])
    two = points[:, :2]
    got = means.lorentz_mean(two, np.array([[[1.0, 1.0], [3.0, 1.0], [0.0, 2.0]]] * 3), C)
    want = [lorentz.geodesic(share, two[:, 0], two[:, 1], C) for share in (0.5, 0.25, 1.0)]
    np.testing.assert_allclose(got, np.stack(want, 1), rtol=1e-12, atol=1e-13)
    same = jnp.broadcast_to(points[:, :1], points.shape)
    np.testing.assert_allclose(means.lorentz_mean(same, None, C), points[:, :1], rtol=1e-13)


@pytest.mark.slow
def test_the_ball_has_the_same_mean_and_moves_with_its_points():
    x, w = _points(0.3)
    points = lorentz.exp_map0(x, C[:, None])
    p = poincare.from_lorentz(points, C[:, None])
    got = means.poincare_mean(p, w, C)
    want = poincare.from_lorentz(means.lorentz_mean(points, w, C), C[:, None])
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)
    a = p[:, :1] * 0.7
    moved = means.poincare_mean(poincare.mobius_add(a, p, C[:, None]), w, C)
    np.testing.assert_allclose(moved, poincare.mobius_add(a, got, C[:, None]), rtol=1e-11)


@pytest.mark.slow
def test_derivatives_of_the_mean_are_implicit_and_right():
    x, w = _points(0.6)

    def mean(x, w, c):
        points = lorentz.from_space(x, c[:, None])
        return means.lorentz_mean(points, w, c)[..., 1:]

    check_two_derivatives(mean, (x, w + 0.1, jnp.asarray(C)))


def test_a_loose_tolerance_bounds_the_distance_from_the_mean():
    x, w = _points(2.0)
    points = lorentz.exp_map0(x, C[:, None])
    mean = means.lorentz_mean(points, w, C)
    loose = means.lorentz_mean(points, w, C, tolerance=0.05)
    away = lorentz.distance(loose, mean, C[:, None])
    spread = lorentz.distance(mean[:, :, None], points[:, None], C[:, None, None])
    assert (away <= 0.06 * jnp.sqrt(jnp.max(spread**2, -1))).all()
