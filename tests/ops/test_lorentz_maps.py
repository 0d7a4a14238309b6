"""Geodesics, isometries and parts of points in the Lorentz model, against 80-digit arithmetic."""

import ball_reference as ball
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz
from derivatives import check_curvature
from lorentz_cases import (
    BOUND,
    CURVATURE,
    DTYPES,
    POINTS,
    SLOW_FLOAT64,
    assert_close,
    pairs,
    tangent,
)
from mpmath import mpf

pytestmark = pytest.mark.usefixtures("float64")


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
            lorentz.split(v, (2, 4), c),
        )

    check_curvature(everything, (x, y, jnp.full(len(x), 0.7)))
    apart = jnp.array([0, 3])

    def kinked(x, y, c):
        a = lorentz.from_space(x, c)
        unit = lorentz.geodesic_unit(0.8, a, tangent(a, y, c), c)
        return unit, lorentz.distance0(lorentz.from_space(y, c), c)

    check_curvature(kinked, (x[apart], y[apart], jnp.full(2, 0.7)))


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
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


def test_the_exponential_map_at_the_origin_starts_as_the_identity_exactly():
    jacobian = jax.jacrev(lorentz.exp_map0)(jnp.zeros(3, jnp.float32))
    np.testing.assert_array_equal(jacobian, np.eye(4, 3, k=-1))
    tiny = jnp.full(3, 1e-20, jnp.float32)
    np.testing.assert_array_equal(lorentz.exp_map0(tiny)[1:], tiny)
    np.testing.assert_array_equal(lorentz.log_map0(lorentz.exp_map0(tiny)), tiny)


def test_the_exponential_maps_stop_where_they_say():
    u = jnp.full((2, 3), 50, jnp.float32) * jnp.array([[1], [2]], jnp.float32)
    stopped = lorentz.exp_map0(u)
    np.testing.assert_allclose(stopped[0], stopped[1], rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(lorentz.log_map0(stopped[0])), 31.885, rtol=1e-4)
    # Only turning the vector still moves the point.
    _, outward = jax.jvp(lorentz.exp_map0, (u,), (u,))
    assert (abs(outward) < 1e-4 * abs(stopped)).all()


def test_maps_invert_each_other_and_stay_on_the_hyperboloid():
    c = CURVATURE
    x, y, u = POINTS
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    v = tangent(a, u / 4, c)
    loose = dict(rtol=1e-9, atol=1e-9)  # eps · c x_time², and points at 8
    np.testing.assert_allclose(lorentz.log_map0(lorentz.exp_map0(u / 4, c), c), u / 4, rtol=1e-13)
    np.testing.assert_allclose(lorentz.exp_map(a, lorentz.log_map(a, b, c), c), b, **loose)
    np.testing.assert_allclose(lorentz.log_map(a, lorentz.exp_map(a, v, c), c), v, **loose)
    for point in (a, lorentz.exp_map0(u / 4, c), lorentz.exp_map(a, v, c), lorentz.project(a, c)):
        error = lorentz.inner(point, point) + 1 / c
        assert (abs(error) <= 1e-15 * 8 * point[:, 0] ** 2).all()
    np.testing.assert_allclose(lorentz.origin(5, c, jnp.float64), lorentz.exp_map0(0 * x, c))


def test_transport_is_an_isometry_that_takes_the_geodesic_along_itself():
    c = CURVATURE
    x, y, u = POINTS
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    v, w = tangent(a, u, c), tangent(a, y, c)
    moved_v = lorentz.parallel_transport(a, b, v, c)
    moved_w = lorentz.parallel_transport(a, b, w, c)
    size = np.asarray(b[:, 0]) ** 2 * np.linalg.norm(moved_v, axis=-1)
    assert (abs(lorentz.inner(b, moved_v)) <= 1e-14 * size).all()
    np.testing.assert_allclose(lorentz.tangent_norm(b, moved_v, c), jnp.linalg.norm(u, axis=-1))
    np.testing.assert_allclose(lorentz.inner(moved_v, moved_w), jnp.sum(u * y, axis=-1), 1e-9)
    forward, back = lorentz.log_map(a, b, c), lorentz.log_map(b, a, c)
    np.testing.assert_allclose(lorentz.parallel_transport(a, b, forward, c), -back, 1e-9, 1e-9)
    start = lorentz.project(jnp.zeros_like(a), c)
    flat = jnp.concatenate([0 * u[:, :1], u], axis=-1)
    np.testing.assert_allclose(lorentz.parallel_transport(start, a, flat, c), v, rtol=1e-12)
