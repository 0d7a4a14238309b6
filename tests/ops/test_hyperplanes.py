"""Distances to hyperplanes and logits, against 80-digit arithmetic and each other."""

import pathlib

import ball_reference as ball
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz, poincare
from derivatives import check_curvature
from lorentz_cases import BOUND, DTYPES, SLOW_FLOAT64, pairs, tangent
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")

GOLDEN = np.load(pathlib.Path(__file__).parent.parent / "golden" / "poincare.npz")


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_to_hyperplanes_of_the_lorentz_model(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    u = np.random.default_rng(0).normal(size=x.shape).astype(dtype)
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    v = np.asarray(tangent(a, u, c))
    got = lorentz.hyperplane_distance(b, a, v, c)
    for i, kind in enumerate(kinds):
        point, other, normal = map(reference.vector, (x[i], y[i], v[i, 1:]))
        k = mpf(float(c[i]))
        length = mpmath.sqrt(reference.tangent_inner(point, normal, normal, k))
        time = reference.tangent_time(point, normal, k)
        rise = reference.dot(other, normal) - time * reference.time(other, k)
        want = mpmath.asinh(mpmath.sqrt(k) * rise / length) / mpmath.sqrt(k)
        # It may vanish though the points are apart.
        size = reference.distance(point, other, k)
        assert abs(float(got[i]) - want) <= BOUND[dtype] * size, (kind, float(c[i]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_to_hyperplanes_of_the_ball(dtype):
    p, q, c, kinds = ball.pairs(dtype, 3)
    normal = np.random.default_rng(0).normal(size=p.shape).astype(dtype)
    got = poincare.hyperplane_distance(q, p, normal, c)
    eps = float(jnp.finfo(dtype).eps)
    for i, kind in enumerate(kinds):
        point, other, a = map(reference.vector, (p[i], q[i], normal[i]))
        k = mpf(float(c[i]))
        w = ball.mobius_add(ball.times(-1, point), other, k)
        sine = 2 * mpmath.sqrt(k) * reference.dot(w, a) / (1 - k * reference.dot(w, w))
        want = mpmath.asinh(sine / reference.norm(a)) / mpmath.sqrt(k)
        size = ball.distance(point, other, k)
        room = 1 - float(mpmath.sqrt(k)) * float(max(map(reference.norm, (point, other))))
        bound = max(BOUND[dtype], 16 * eps / room)
        assert abs(float(got[i]) - want) <= bound * size, (kind, float(c[i]))


@pytest.mark.parametrize("c", [0.3, 1.0, 2.5])
def test_distances_equal_those_that_geoopt_recorded(c):
    x, z, normal, want = (GOLDEN[f"{c}/{name}"] for name in ("x", "z", "normal", "hyperplane"))
    got = poincare.hyperplane_distance(x, z, normal, c)
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def _classes():
    rng = np.random.default_rng(1)
    p = rng.uniform(-0.3, 0.3, size=(5, 2, 4))
    return p, rng.normal(size=(3, 4)), rng.normal(size=3), np.array([0.3, 2.5])


def test_a_logit_is_the_length_of_the_normal_times_the_distance_to_the_hyperplane():
    p, normals, offsets, c = _classes()
    got = poincare.mlr(p, normals, offsets, c)
    assert got.shape == (5, 2, 3)
    unit = normals / np.linalg.norm(normals, axis=-1, keepdims=True)
    for i, k in np.ndindex(2, 3):
        foot = poincare.exp_map0(unit[k] * offsets[k] / 2, c[i])
        away = poincare.hyperplane_distance(p[:, i], foot[None], unit[None, k], c[i])
        want = 2 * np.linalg.norm(normals[k]) * away
        np.testing.assert_allclose(got[:, i, k], want, rtol=1e-12, atol=1e-13)
    x = poincare.to_lorentz(p, c)
    other = lorentz.mlr(x, 2 * normals, offsets, c)
    np.testing.assert_allclose(other, got, rtol=1e-12, atol=1e-13)
    flat = poincare.mlr(p, normals, offsets, 1e-12)
    linear = np.linalg.norm(normals, axis=-1) * (2 * p @ unit.T - offsets) * 2
    np.testing.assert_allclose(flat, linear, rtol=1e-9)


@pytest.mark.slow
def test_second_derivatives_of_distances_and_logits():
    p, normals, offsets, c = _classes()

    def everything(p, normals, offsets, c):
        x = poincare.to_lorentz(p, c)
        v = lorentz.transport0(x, p[..., ::-1] + 0.2, c)
        return (
            poincare.mlr(p, normals, offsets, c),
            lorentz.mlr(x, normals, offsets, c),
            poincare.hyperplane_distance(p, p[::-1], p[..., ::-1] + 0.2, c),
            lorentz.hyperplane_distance(x[::-1], x, v, c),
        )

    check_curvature(everything, (p, normals, offsets, c))


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_values_and_gradients_are_finite_for_zero_normals_and_far_points(dtype):
    sizes = np.array([0, 1e-30, 1e-6, 1, 30.0])
    x = np.concatenate([sizes[:, None] * way for way in np.array([[0.6, 0.8], [-0.6, 0.8]])])
    normals = np.array([[0, 0], [1e-30, 0], [3, 1], [0.6, 0.8]])
    offsets = np.array([0, 1, 1000, -30.0])
    x, normals, offsets = (np.asarray(a, dtype) for a in (x, normals, offsets))

    def everything(u, normals, offsets, c):
        x, p = lorentz.exp_map0(u, c), poincare.exp_map0(u, c)
        return (
            lorentz.mlr(x, normals, offsets, c),
            poincare.mlr(p, normals, offsets, c),
            lorentz.hyperplane_distance(x, x[::-1], tangent(x[::-1], normals[:1], c), c),
            poincare.hyperplane_distance(p, p[::-1], normals[:1], c),
        )

    @jax.jit
    def value_and_gradient(*args):
        value, pullback = jax.vjp(everything, *args)
        return value, pullback(jax.tree.map(jnp.ones_like, value))

    value, gradient = value_and_gradient(x, normals, offsets, jnp.asarray(0.7, dtype))
    for array in jax.tree.leaves([value, gradient]):
        assert array.dtype == dtype and np.isfinite(array).all()
    assert not np.any(value[0][:, 0]) and not np.any(value[2])
