"""Busemann functions against the limit that defines them, and the projection that keeps them."""

import ball_reference as ball
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import horopca, lorentz, poincare
from derivatives import check_curvature, check_slopes
from lorentz_cases import BOUND, DTYPES, pairs
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_against_80_digits(dtype):
    x, ideal, c, kinds = pairs(dtype, 3)
    got = horopca.lorentz_busemann(lorentz.from_space(x, c), ideal, c)
    p, q, k, _ = ball.pairs(dtype, 3)
    largest = np.abs(q).max(-1, keepdims=True)
    q = np.where(largest == 0, 1, q / np.where(largest == 0, 1, largest)).astype(dtype)
    of_ball = horopca.poincare_busemann(p, q, k)
    for i, kind in enumerate(kinds):
        point, way, curvature = *map(reference.vector, (x[i], ideal[i])), mpf(float(c[i]))
        root = mpmath.sqrt(curvature)
        along = reference.dot(point, way) / reference.norm(way)
        want = mpmath.log(root * (reference.time(point, curvature) - along)) / root
        reach = reference.distance([mpf(0)] * 3, point, curvature)
        assert abs(float(got[i]) - want) <= BOUND[dtype] * reach, (kind, float(c[i]))
    eps = float(jnp.finfo(dtype).eps)
    for i in range(len(p)):
        point, way, curvature = *map(reference.vector, (p[i], q[i])), mpf(float(k[i]))
        root, size = mpmath.sqrt(curvature), reference.norm(way)
        gap = ball.plus(ball.times(1 / size, way), ball.times(-root, point))
        room = 1 - curvature * reference.dot(point, point)
        want = mpmath.log(reference.dot(gap, gap) / room) / root
        reach = ball.distance([mpf(0)] * 3, point, curvature)
        bound = max(BOUND[dtype], 16 * eps / float(room))
        assert abs(float(of_ball[i]) - want) <= bound * reach + mpf(10) ** -70, (i, float(k[i]))


def test_it_is_the_difference_of_distances_to_a_point_far_away():
    c = 0.7
    x = lorentz.exp_map0(np.random.default_rng(0).normal(size=(5, 3)), c)
    ideal = np.array([[0.6, 0, 0.8]])
    far = lorentz.exp_map0(40 * jnp.asarray(ideal), c)
    want = lorentz.distance(x, far, c) - 40
    np.testing.assert_allclose(horopca.lorentz_busemann(x, 3 * ideal, c), want, atol=1e-11)


def test_the_projection_keeps_busemann_functions_and_points_of_its_own():
    rng = np.random.default_rng(0)
    c = np.array([0.3, 2.0])
    u = rng.normal(size=(6, 2, 5)) * np.array([0.01, 0.1, 0.5, 1, 2, 4])[:, None, None]
    x = lorentz.exp_map0(u, c)
    directions = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    project, busemann = horopca.lorentz_horospherical, horopca.lorentz_busemann
    in_ball = poincare.from_lorentz(x, c)
    for count in (1, 2, 5):
        chosen = directions[:count]
        y = project(x, chosen, c)
        assert y.shape == (6, 2, count + 1)
        for way, axis in zip(chosen, np.eye(count), strict=True):
            kept = busemann(y, axis[None, None], c)
            want = busemann(x, way[None, None], c)
            np.testing.assert_allclose(kept, want, rtol=1e-8, atol=1e-10)
        again = project(y, np.eye(count), c)
        np.testing.assert_allclose(again, y, rtol=1e-6, atol=1e-9)  # a root near 0 of its squares
        through_ball = horopca.poincare_horospherical(in_ball, chosen, c)
        np.testing.assert_allclose(poincare.to_lorentz(through_ball, c), y, rtol=1e-6, atol=1e-8)
    # It keeps the distance of points that differ along one direction alone.
    way = rng.normal(size=(4, 1)) * directions[:1]
    line = lorentz.exp_map0(way, 1.0)
    shadow = project(line, directions[:2])
    between = lorentz.pairwise_distance(line, line)
    got = lorentz.pairwise_distance(shadow, shadow)
    np.testing.assert_allclose(got, between, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_curvature, marks=pytest.mark.slow)]
)
def test_derivatives(check):
    rng = np.random.default_rng(1)
    x = np.concatenate([np.zeros((1, 3)), rng.normal(size=(4, 3)) * 1.5])
    ideal, directions = rng.normal(size=(5, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0][:2]

    def everything(x, ideal, c):
        a = lorentz.from_space(x, c)
        p = poincare.from_lorentz(a, c)
        return (
            horopca.lorentz_busemann(a, ideal, c),
            horopca.poincare_busemann(p, ideal, c),
            horopca.lorentz_horospherical(a, directions, c),
            horopca.poincare_horospherical(p, directions, c),
        )

    check(everything, (x, ideal, np.full(5, 0.7)))


def test_values_and_gradients_are_finite_everywhere():
    directions = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0][:2]
    way = np.array([0.6, -0.64, 0.48])
    sizes = [0, 1e-30, 1e-6, 1, 80, 1e6]
    far = jnp.asarray([s * r * way for r in sizes for s in (1, -1)], jnp.float32)
    c = jnp.float32(0.7)
    args = (far, jnp.asarray(np.tile(way, (len(far), 1)), jnp.float32))
    narrow = jnp.asarray(directions, jnp.float32)

    def again(x, ideal):
        a = lorentz.from_space(x, c)
        return horopca.lorentz_busemann(a, ideal, c), horopca.lorentz_horospherical(a, narrow, c)

    @jax.jit
    def value_and_gradient(*args):
        value, pullback = jax.vjp(again, *args)
        return value, pullback(jax.tree.map(jnp.ones_like, value))

    for array in jax.tree.leaves(value_and_gradient(*args)):
        assert array.dtype == jnp.float32 and np.isfinite(array).all()
