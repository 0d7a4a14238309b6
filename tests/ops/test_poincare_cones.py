"""Cones of the ball against those of the Lorentz model and their definitions."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import cones, poincare
from derivatives import check_curvature
from lorentz_cases import SLOW_FLOAT64
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")

C = np.array([0.3, 1.0, 2.5])


def _points():
    rng = np.random.default_rng(0)
    way = rng.normal(size=(2, 20, 3, 4))
    way /= np.linalg.norm(way, axis=-1, keepdims=True)
    radius = np.array([1e-9, 1e-3, 0.05, 0.3, 0.9])[np.arange(20) % 5][:, None, None]
    p = way[0] * radius / np.sqrt(C)[:, None]
    q = way[1] * rng.uniform(0.01, 0.9, size=(20, 3, 1)) / np.sqrt(C)[:, None]
    q[10:15] = p[10:15] * 1.05 + 1e-3 * q[10:15] * radius[10:15]  # just behind
    return p, q


def test_angles_are_those_of_the_same_points_in_the_lorentz_model():
    p, q = _points()
    a, b = poincare.to_lorentz(p, C), poincare.to_lorentz(q, C)
    close = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)
    close(cones.poincare_half_aperture(p, C), cones.half_aperture(a, C))
    close(cones.poincare_exterior_angle(p, q, C), cones.exterior_angle(a, b, C))
    close(cones.poincare_energy(p, q, C, 0.2), cones.energy(a, b, C, 0.2))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-5), ("float64", 1e-12)])
def test_angles_against_80_digits(dtype, bound):
    p, q = (points.astype(dtype) for points in _points())
    c = C.astype(dtype)
    angle = cones.poincare_exterior_angle(p, q, c)
    aperture = cones.poincare_half_aperture(p, c)
    for i, j in np.ndindex(angle.shape):
        x, y, k = reference.vector(p[i, j]), reference.vector(q[i, j]), mpf(float(c[j]))
        # The angle O x y by the hyperbolic law of cosines is that between Euclidean directions.
        xx, yy, xy = reference.dot(x, x), reference.dot(y, y), reference.dot(x, y)
        above = xy * (1 + k * xx) - xx * (1 + k * yy)
        apart = mpmath.sqrt(xx + yy - 2 * xy)
        below = mpmath.sqrt(xx) * apart * mpmath.sqrt(1 + k**2 * xx * yy - 2 * k * xy)
        want = mpmath.acos(above / below)
        assert abs(float(angle[i, j]) - want) <= bound, (i, j)
        sine = mpf(float(np.asarray(0.1, dtype))) * (1 - k * xx) / mpmath.sqrt(k * xx)
        assert abs(float(aperture[i, j]) - mpmath.asin(min(sine, mpf(1)))) <= bound, (i, j)


@pytest.mark.slow
def test_second_derivatives_of_cones():
    p, q = _points()
    away = [3, 4, 8, 9]
    run = lambda p, q, c: (
        cones.poincare_half_aperture(p, c),
        cones.poincare_exterior_angle(p, q, c),
        cones.poincare_energy(p, q, c),
    )
    check_curvature(run, (p[away], q[away], C))


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_cones_and_layers_are_finite_at_the_edges(dtype):
    way = np.array([0.6, -0.64, 0.48])
    rows = np.array([r * s * way for r in (0, 1e-30, 1e-6, 0.5, 1, 1.5) for s in (1, -1)])
    p, q = np.repeat(rows, len(rows), axis=0), np.tile(rows, (len(rows), 1))
    p, q = (points.astype(dtype) for points in (p, q))
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), dtype)

    def everything(p, q, c):
        return (
            cones.poincare_energy(p, q, c),
            cones.poincare_exterior_angle(p, q, c),
            poincare.mobius_linear(matrix, p, jnp.asarray([0.1, -0.2], dtype), c),
            poincare.concatenate([p, q], c),
            poincare.split(p, (1, 2), c),
            poincare.limit_distance0(p, 3.0, c),
        )

    @jax.jit
    def value_and_gradient(*args):
        value, pullback = jax.vjp(everything, *args)
        return value, pullback(jax.tree.map(jnp.ones_like, value))

    value, gradient = value_and_gradient(p, q, jnp.asarray(1.0, dtype))
    for array in jax.tree.leaves([value, gradient]):
        assert array.dtype == dtype and np.isfinite(array).all()
    same, origin = (
        (p == q).all(-1),
        np.linalg.norm(p, axis=-1) < (1e-18 if dtype == "float32" else 1e-150),
    )
    assert not np.any(value[1][same])
    np.testing.assert_allclose(
        value[1][origin & ~same & (np.linalg.norm(q, axis=-1) > 1e-18)], np.pi / 2, rtol=1e-6
    )
