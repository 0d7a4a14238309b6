"""Geodesics, isometries and parts of points in the Lorentz model, against 80-digit arithmetic."""

import ball_reference as ball
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from derivatives import check_curvature
from lorentz_cases import BOUND, DTYPES, POINTS, assert_close, pairs, tangent
from mpmath import mpf

from hlformer_jax.ops import lorentz, poincare

pytestmark = pytest.mark.usefixtures("float64")
CURVATURE = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 0.5])


def _boost(a, x, c):
    """Space components of the boost of x by a, by its matrix."""
    tau_a, tau_x = (mpmath.sqrt(c) * reference.time(v, c) for v in (a, x))
    factor = tau_x + c * reference.dot(a, x) / (1 + tau_a)
    return ball.plus(x, ball.times(factor, a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_on_near_collinear_antipodal_and_perpendicular_pairs(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    eps = float(jnp.finfo(dtype).eps)

    @jax.jit
    def everything(x, y, c):
        a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
        return {
            "distance0": lorentz.distance0(a, c),
            "boost": lorentz.boost(a, b, c),
            "boost, back": lorentz.boost(lorentz.antipode(a, c), b, c),
            "geodesic": lorentz.geodesic(0.25, a, b, c),
            "limit": lorentz.limit_distance0(a, 2.0, c),
        }

    got = everything(x, y, c)
    for i, kind in enumerate(kinds):
        point, other, curvature = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        zero = [mpf(0)] * 3
        log = reference.log_map(point, other, curvature)[1:]
        reach = reference.distance(zero, point, curvature)
        share = min(mpf(1), 2 / reach) * reach
        limited = mpmath.sinh(mpmath.sqrt(curvature) * share) / mpmath.sqrt(curvature)
        limited = ball.times(limited / reference.norm(point), point)
        want = {
            "distance0": reach,
            "boost": _boost(point, other, curvature),
            "boost, back": _boost(ball.times(-1, point), other, curvature),
            "geodesic": reference.exp_map(point, ball.times(mpf(0.25), log), curvature)[1:],
            "limit": limited,
        }
        for name, exact in want.items():
            bound = BOUND[dtype]
            if name in ("geodesic", "boost") and kind == "antipodal":
                # Through the origin, or to it: what rounding the vector or the point is worth.
                bound = max(bound, 8 * eps * (1 + float(c[i]) * float(reference.dot(point, point))))
            value = got[name][i] if name == "distance0" else got[name][i, 1:]
            if (
                reference.norm(exact if isinstance(exact, list) else [exact]) < 1e-60
            ):  # of 80 digits
                assert not np.any(value), name
                continue
            assert_close(value, exact, bound, (name, kind, float(c[i]), np.linalg.norm(x[i])))


@pytest.mark.slow
def test_second_derivatives_and_boosts_near_the_origin():
    x = jnp.array([[0.3, -0.7, 0.2], [0, 0, 0], [1e-9, 0, 0], [3, -6, 2], [0.3, -0.7, 0.2]])
    y = jnp.array([[-0.4, 0.5, 0.9], [0.1, 0.3, 0], [0.4, 0.5, 0], [1.5, -3, 1], [0.3, -0.7, 0.2]])

    def everything(x, y, c):
        a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
        v = lorentz.concatenate([a, b], c)
        return (
            lorentz.boost(a, b, c),
            lorentz.geodesic(0.3, a, b, c),
            lorentz.antipode(a, c),
            lorentz.limit_distance0(a, 1.5, c),
            lorentz.split(v, [2, 4], c),
        )

    check_curvature(everything, (x, y, jnp.full(len(x), 0.7)))
    apart = jnp.array([0, 3])

    def kinked(x, y, c):
        a = lorentz.from_space(x, c)
        unit = lorentz.geodesic_unit(0.8, a, tangent(a, y, c), c)
        return unit, lorentz.distance0(lorentz.from_space(y, c), c)

    check_curvature(kinked, (x[apart], y[apart], jnp.full(2, 0.7)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_are_finite_everywhere(dtype):
    way = np.array([0.6, -0.64, 0.48])
    sizes = [0, 1e-35, 1e-20, 1e-6, 0.05, 1, 80, 1e6]
    rows = np.array([s * r * way for r in sizes for s in (1, -1)] + [[1, 0, 0], [0, 80, 1e-9]])
    x, y = np.repeat(rows, len(rows), axis=0), np.tile(rows, (len(rows), 1))
    x, y = (v.astype(dtype) for v in (x, y))

    def function(x, y, c):
        a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
        return (
            lorentz.boost(a, b, c),
            lorentz.geodesic(0.3, a, b, c),
            lorentz.geodesic_unit(2.0, a, tangent(a, y, c), c),
            lorentz.distance0(a, c),
            lorentz.limit_distance0(a, 5.0, c),
        )

    @jax.jit
    def everything(*args):
        value, pullback = jax.vjp(function, *args)
        return value, pullback(jax.tree.map(jnp.ones_like, value))

    for array in jax.tree.leaves(everything(x, y, np.full(len(x), 0.7, dtype))):
        assert array.dtype == dtype
        assert np.isfinite(array).all()


def test_isometries_keep_distances_and_take_the_origin_where_they_say():
    c = CURVATURE
    a, x, y = (lorentz.from_space(points, c) for points in POINTS)
    close = lambda one, other, **more: np.testing.assert_allclose(one, other, rtol=1e-9, **more)
    close(
        lorentz.distance(lorentz.boost(a, x, c), lorentz.boost(a, y, c), c),
        lorentz.distance(x, y, c),
    )
    close(lorentz.boost(a, lorentz.origin(5, c), c), a)
    close(lorentz.boost(lorentz.antipode(a, c), a, c)[:, 1:], 0, atol=1e-12)
    back = lorentz.boost(a, lorentz.boost(lorentz.antipode(a, c), x, c), c)
    close(back, x, atol=1e-9)
    p, q = poincare.from_lorentz(a, c), poincare.from_lorentz(x, c)
    sum_ = poincare.to_lorentz(poincare.mobius_add(p, q, c), c)
    close(lorentz.boost(a, x, c)[2:4], sum_[2:4], atol=1e-5)  # as far as the ball tells
    matrix, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    turned = lorentz.rotate(matrix, x, c)
    close(lorentz.distance(turned, lorentz.rotate(matrix, y, c), c), lorentz.distance(x, y, c))
    close(turned[:, 0], x[:, 0])
    close(turned[:, 1:], x[:, 1:] @ matrix.T)


def test_geodesics_are_followed_at_unit_speed():
    c = CURVATURE
    x, y = (lorentz.from_space(points / 4, c) for points in POINTS[:2])
    share = np.linspace(-0.5, 1.5, 6)
    whole = lorentz.distance(x, y, c)
    at = lorentz.geodesic(share, x, y, c)
    np.testing.assert_allclose(lorentz.distance(x, at, c), abs(share) * whole, rtol=1e-9)
    np.testing.assert_allclose(lorentz.distance(at, y, c), abs(1 - share) * whole, rtol=1e-9)
    v = lorentz.log_map(x, y, c)
    for size in (1e-30, 1, 1e30):
        unit = lorentz.geodesic_unit(share * whole, x, v * size, c)
        np.testing.assert_allclose(unit, at, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lorentz.geodesic_unit(1.0, x, 0 * v, c), x, rtol=1e-15)
    np.testing.assert_allclose(
        lorentz.distance0(x, c), lorentz.distance(lorentz.origin(5, c), x, c)
    )
    limited = lorentz.distance0(lorentz.limit_distance0(x, whole / 2, c), c)
    np.testing.assert_allclose(limited, np.minimum(lorentz.distance0(x, c), whole / 2))


def test_parts_of_a_point_are_points_and_join_again():
    c = CURVATURE
    x = lorentz.from_space(POINTS[0], c)
    parts = lorentz.split(x, (1, 3, 1), c)
    assert [part.shape[-1] for part in parts] == [2, 4, 2]
    np.testing.assert_array_equal(lorentz.concatenate(parts, c), x)
    for part in parts:
        assert (lorentz.time_error(part, c) < 1e-15).all()
    with pytest.raises(ValueError, match=r"dimensions \(1, 3\) of a point of dimension 5"):
        lorentz.split(x, (1, 3), c)


def test_squared_distances_of_all_pairs_are_those_of_one():
    x, y = POINTS[:2].reshape(2, 2, 3, 5)
    y = np.concatenate([y, x[:, :1] * (1 + 1e-9), x[:, :1]], axis=1)
    c = np.array([0.5, 2.0])
    a, b = lorentz.from_space(x, c[:, None]), lorentz.from_space(y, c[:, None])
    want = lorentz.squared_distance(a[:, :, None], b[:, None], c[:, None, None])
    got = lorentz.pairwise_squared_distance(a, b, c)
    np.testing.assert_allclose(got, want, rtol=1e-11)
    assert got[0, 0, -1] == 0
    p, q = poincare.from_lorentz(a, c[:, None]), poincare.from_lorentz(b, c[:, None])
    of_the_ball = poincare.squared_distance(p[:, :, None], q[:, None], c[:, None, None])
    got = poincare.pairwise_squared_distance(p, q, c)
    np.testing.assert_allclose(got, of_the_ball, rtol=1e-11)
    check_curvature(poincare.pairwise_squared_distance, (p, q, c))
