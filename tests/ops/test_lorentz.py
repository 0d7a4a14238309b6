"""The Lorentz model against 80-digit arithmetic, and its gradients where they are awkward."""

import ball_reference as ball
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz
from derivatives import check_curvature, check_finite, check_gradient
from mpmath import mpf
from reference import (
    BOUND,
    CURVATURE,
    DTYPES,
    POINTS,
    SLOW_FLOAT64,
    assert_close,
    pairs,
    slow_except,
    tangent,
)

from hlformer_jax.ops import attention, cones, poincare
from hlformer_jax.ops.numerics import max_hyperbolic_norm

pytestmark = pytest.mark.usefixtures("float64")


def of_points(function):
    """Return a function of points as a function of their space components."""
    return lambda x, y, c: function(lorentz.from_space(x, c), lorentz.from_space(y, c), c)


def of_tangent(function):
    """Return a function of a point and a tangent vector as a function of space components."""

    def run(x, u, c):
        a = lorentz.from_space(x, c)
        return function(a, tangent(a, u, c), c)

    return run


# Functions of the space components of two points (or of a point and a vector) and c.
OPS = {
    "inner": of_points(lambda a, b, c: lorentz.inner(a, b)),
    "project_tangent": lambda x, y, c: lorentz.project_tangent(
        lorentz.from_space(x, c), jnp.concatenate([y[..., :1], y], axis=-1), c
    ),
    "tangent_norm": of_tangent(lorentz.tangent_norm),
    "direction": of_points(lambda a, b, c: lorentz.direction(a, b, c)[1]),
    "squared_distance": of_points(lorentz.squared_distance),
    "distance": of_points(lorentz.distance),
    "exp_map0": lambda x, y, c: lorentz.exp_map0(y, c),
    "log_map0": lambda x, y, c: lorentz.log_map0(lorentz.from_space(x, c), c),
    "exp_map": of_tangent(lorentz.exp_map),
    "log_map": of_points(lorentz.log_map),
    "transport": of_points(
        lambda a, b, c: lorentz.parallel_transport(
            a, b, tangent(a, jnp.ones_like(a[..., 1:]), c), c
        )
    ),
    "centroid": of_points(lambda a, b, c: lorentz.centroid(jnp.stack([a, b], axis=-2), None, c)),
    "boost": of_points(lorentz.boost),
    "geodesic": of_points(lambda a, b, c: lorentz.geodesic(0.3, a, b, c)),
    "geodesic_unit": of_tangent(lambda a, v, c: lorentz.geodesic_unit(2.0, a, v, c)),
    "distance0": lambda x, y, c: lorentz.distance0(lorentz.from_space(x, c), c),
    "limit_distance0": lambda x, y, c: lorentz.limit_distance0(lorentz.from_space(x, c), 5.0, c),
}
KINK = {"distance", "direction", "tangent_norm", "geodesic_unit", "distance0"}  # where a norm is 0


def _boost(a, x, c):
    """Return the space components of the boost of x by a, by its matrix."""
    tau_a, tau_x = (mpmath.sqrt(c) * reference.time(v, c) for v in (a, x))
    factor = tau_x + c * reference.dot(a, x) / (1 + tau_a)
    return ball.plus(x, ball.times(factor, a))


@jax.jit
def _values(x, y, u, v, c):
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    return {
        "squared_distance": lorentz.squared_distance(a, b, c),
        "distance": lorentz.distance(a, b, c),
        "distance0": lorentz.distance0(a, c),
        "tangent_norm": lorentz.tangent_norm(a, v, c),
        "time": a[..., 0],
        "log_map": lorentz.log_map(a, b, c),
        "exp_map": lorentz.exp_map(a, v, c),
        "parallel_transport": lorentz.parallel_transport(a, b, v, c),
        # Space components only: near the origin the time component would hide them.
        "log_map0": lorentz.log_map0(a, c),
        "exp_map0": lorentz.exp_map0(u, c)[..., 1:],
        "transport0": lorentz.transport0(a, u, c),
        "boost": lorentz.boost(a, b, c)[..., 1:],
        "boost, back": lorentz.boost(lorentz.antipode(a, c), b, c)[..., 1:],
        "geodesic": lorentz.geodesic(0.25, a, b, c)[..., 1:],
        "limit": lorentz.limit_distance0(a, 2.0, c)[..., 1:],
    }


def _exact_values(x, y, u, v, c):
    zero = [mpf(0)] * len(x)
    log = reference.log_map(x, y, c)
    radius = reference.distance(zero, x, c)
    limited = mpmath.sinh(mpmath.sqrt(c) * min(radius, mpf(2))) / mpmath.sqrt(c)
    return {
        "squared_distance": reference.squared_distance(x, y, c),
        "distance": reference.distance(x, y, c),
        "distance0": radius,
        "tangent_norm": reference.tangent_inner(x, v, v, c) ** 0.5,
        "time": reference.time(x, c),
        "log_map": log,
        "exp_map": reference.exp_map(x, v, c),
        "parallel_transport": reference.parallel_transport(x, y, v, c),
        "log_map0": reference.log_map(zero, x, c)[1:],
        "exp_map0": reference.exp_map(zero, u, c)[1:],
        "transport0": reference.parallel_transport(zero, x, u, c),
        "boost": _boost(x, y, c),
        "boost, back": _boost(ball.times(-1, x), y, c),
        "geodesic": reference.exp_map(x, ball.times(mpf(0.25), log[1:]), c)[1:],
        "limit": ball.times(limited / reference.norm(x), x),
    }


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dim", [3, pytest.param(127, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", SLOW_FLOAT64)  # test_laws.py has the formulas in float64
def test_values_of_awkward_pairs_against_80_digits(dtype, dim):
    x, y, c, kinds = pairs(dtype, dim)
    # Tangent vectors of at most norm 8.
    u = (y * np.minimum(1, 8 / np.linalg.norm(y, axis=-1, keepdims=True))).astype(dtype)
    v = np.asarray(tangent(lorentz.from_space(x, c), u, c))
    got = _values(x, y, u, v, c)
    assert all(value.dtype == dtype for value in got.values())
    eps = float(jnp.finfo(dtype).eps)
    for i, kind in enumerate(kinds):
        vectors = map(reference.vector, (x[i], y[i], u[i], v[i, 1:]))
        for name, want in _exact_values(*vectors, mpf(float(c[i]))).items():
            bound = BOUND[dtype]
            if name in ("exp_map", "boost", "geodesic") and kind == "antipodal":
                # Through or to the origin: the effect of rounding the vector or the point.
                bound = max(bound, 8 * eps * (1 + float(c[i]) * float(x[i] @ x[i])))
            if reference.norm(want if isinstance(want, list) else [want]) < 1e-60:  # of 80 digits
                assert not np.any(got[name][i]), name
                continue
            context = (name, kind, float(c[i]), np.linalg.norm(x[i]))
            assert_close(got[name][i], want, bound, context)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inner_products_are_exact_relative_to_their_terms(dtype):
    x, y, c, _ = pairs(dtype, 127)
    a, b = np.asarray(lorentz.from_space(x, c)), np.asarray(lorentz.from_space(y, c))
    pairwise, aligned = map(np.asarray, (lorentz.pairwise_inner(a, b), lorentz.inner(a, b)))
    assert pairwise.shape == (len(a), len(b))
    assert pairwise.dtype == aligned.dtype == dtype
    sign = np.r_[-1, np.ones(127)]
    want = (a * sign).astype(np.float64) @ b.astype(np.float64).T
    bound = 64 * float(jnp.finfo(dtype).eps) * a[:, :1] * b[:, 0]  # a sum of 127 terms
    assert (abs(pairwise - want) <= bound).all()
    assert (abs(aligned - np.diag(want)) <= np.diag(bound)).all()


AWKWARD = {
    "generic": ([0.3, -0.7, 0.2], [-0.4, 0.5, 0.9]),
    "far": ([3.0, -7.0, 2.0], [4.0, -5.0, 1.0]),
    "tiny": ([1e-9, 2e-9, 0.0], [0.0, -1e-9, 1e-9]),
    "origins": ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "from the origin": ([0.0, 0.0, 0.0], [0.4, 0.5, -0.9]),
    "to the origin": ([0.4, 0.5, -0.9], [0.0, 0.0, 0.0]),
    "coincident": ([0.3, -0.7, 0.2], [0.3, -0.7, 0.2]),
    "coincident, far": ([3.0, -7.0, 2.0], [3.0, -7.0, 2.0]),
    "collinear": ([3.0, -6.0, 2.0], [1.5, -3.0, 1.0]),
    "antipodal": ([0.3, -0.7, 0.2], [-0.3, 0.7, -0.2]),
}


# Fast tests elsewhere compare gradients of `distance`, `log_map`, `transport` and `geodesic`, which
# contain the remaining functions. Their own gradients are compared with --all only.
COMPARED_ELSEWHERE = {
    *("inner", "squared_distance", "distance", "log_map", "transport", "geodesic"),
    *("geodesic_unit", "direction", "distance0"),
}


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in OPS if name not in COMPARED_ELSEWHERE], id="some"),
        pytest.param(sorted(COMPARED_ELSEWHERE), id="others", marks=pytest.mark.slow),
    ],
)
def test_first_derivatives_agree_with_differences(names):
    x, y = (jnp.array([points]) for points in AWKWARD["generic"])

    def compute(x, y, c):
        return {name: OPS[name](x, y, c) for name in names}

    check_gradient(compute, (x, y, jnp.full(1, 0.7)))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_second_derivatives_wherever_the_function_is_smooth(name):
    smooth = ("generic", "far", "collinear", "antipodal") if name in KINK else AWKWARD
    x, y = (jnp.array(points) for points in zip(*(AWKWARD[kind] for kind in smooth), strict=True))
    c = jnp.full(len(x), 0.7)
    check_curvature(OPS[name], (x, y, c))


def grid(dtype, c):
    """Return all pairs of points from 0 over 1e-35 to the limit of the exponential map."""
    direction = np.array([0.6, -0.64, 0.48])
    radii = [0, 1e-35, 1e-20, 1e-6, 0.05, 1, 80]
    rows = [r * s * direction for r in radii for s in (1, -1)] + [[1, 0, 0], [0, 80, 1e-9]]
    points = np.array(rows).astype(dtype)
    farthest = np.asarray(lorentz.exp_map0(points[-3:], c))[:, 1:]
    x = np.concatenate([points, farthest, points * np.asarray(1 + 1e-6, dtype)])
    count = len(x)
    first, second = np.repeat(x, count, axis=0), np.tile(x, (count, 1))
    vectors = np.tile(np.concatenate([points, points[-3:], points]), (count, 1))
    return first, second, vectors, np.full(len(first), c, dtype)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
@pytest.mark.parametrize("name", slow_except(("distance", "exp_map", "centroid"), OPS))
def test_functions_and_gradients_are_finite_everywhere(name, dtype):
    x, y, vectors, c = map(np.concatenate, zip(grid(dtype, 0.1), grid(dtype, 10), strict=True))
    if name in ("project_tangent", "tangent_norm", "exp_map0", "exp_map", "geodesic_unit"):
        y = vectors  # norms up to 80: the most distant points cannot be moved farther
    if name == "geodesic_unit":  # farther out gradients leave the range of float32
        x, y, c = (v[abs(x).max(-1) < 1e6] for v in (x, y, c))
    check_finite(OPS[name], (x, y, c), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(set(OPS) - KINK - {"project_tangent", "centroid"}))
def test_second_derivatives_at_tiny_points_are_finite(op):
    point = jnp.array([0.48, -0.64, 0.6], jnp.float32)
    sizes = [0, 1e-30, 1e-23, 1e-20, 1e-18, 1e-10]
    x = jnp.asarray(np.outer(sizes, [0.6, -0.64, 0.48]), jnp.float32)

    def both(v, c):
        return (OPS[op](v, point, c), OPS[op](point, v, c))

    curves = jax.jit(jax.vmap(jax.hessian(both), (0, None)))
    for c in (1.0, 1e4):
        for hessians in curves(x, jnp.float32(c)):
            assert np.isfinite(hessians).all()


@pytest.mark.slow  # it takes seconds
def test_geodesic_unit_ignores_the_length_of_its_direction():
    c = CURVATURE
    x, y = (lorentz.from_space(points / 4, c) for points in POINTS[:2])
    v, length = lorentz.log_map(x, y, c), lorentz.distance(x, y, c)
    for size in (1e-30, 1, 1e30):
        end = lorentz.geodesic_unit(length, x, v * size, c)
        np.testing.assert_allclose(end, y, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lorentz.geodesic_unit(1.0, x, 0 * v, c), x, rtol=1e-15)
    np.testing.assert_allclose(lorentz.origin(5, c, jnp.float64), lorentz.exp_map0(0 * y[:, 1:], c))


def test_exp_map0_starts_as_the_identity():
    jacobian = jax.jacrev(lorentz.exp_map0)(jnp.zeros(3, jnp.float32))
    np.testing.assert_array_equal(jacobian, np.eye(4, 3, k=-1))
    tiny = jnp.full(3, 1e-20, jnp.float32)
    np.testing.assert_array_equal(lorentz.exp_map0(tiny)[1:], tiny)
    np.testing.assert_array_equal(lorentz.log_map0(lorentz.exp_map0(tiny)), tiny)


def test_exp_map0_stops_at_its_documented_limit():
    u = jnp.full((2, 3), 50, jnp.float32) * jnp.array([[1], [2]], jnp.float32)
    stopped = lorentz.exp_map0(u)
    np.testing.assert_allclose(stopped[0], stopped[1], rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(lorentz.log_map0(stopped[0])), 31.885, rtol=1e-4)
    # Only turning the vector still moves the point.
    _, outward = jax.jvp(lorentz.exp_map0, (u,), (u,))
    assert (abs(outward) < 1e-4 * abs(stopped)).all()


@pytest.mark.parametrize("radius", [20, 25, 31.8])
def test_boosts_stop_where_exponential_maps_stop(radius):
    u = jnp.array([[0.6, -0.64, 0.48], [0.48, 0.6, 0.64]], jnp.float32) * radius
    x, y = lorentz.exp_map0(u), lorentz.exp_map0(u[::-1])
    for end in (x, y):
        moved = lorentz.boost(x, end)
        assert (lorentz.time_error(moved) == 0).all()
        np.testing.assert_allclose(lorentz.distance0(moved), 31.885, rtol=1e-4)
        slopes = jax.jacrev(lorentz.boost, (0, 1))(x[0], end[0])
        assert np.isfinite(slopes).all()


def test_project_tangent_is_a_projection():
    x, u, _ = POINTS
    a = lorentz.from_space(x)
    v = lorentz.project_tangent(a, jnp.concatenate([u[:, :1], u], axis=-1))
    assert (abs(lorentz.inner(a, v)) <= 1e-14 * a[:, 0] * jnp.linalg.norm(v, axis=-1)).all()
    np.testing.assert_allclose(lorentz.project_tangent(a, v), v, rtol=1e-10, atol=1e-10)


@jax.jit
def _slopes_at_the_origin(v):
    """Return the derivatives of the distance from the origin, and of the map there and back."""

    def distance(v):
        return lorentz.distance0(lorentz.exp_map0(v))

    return jax.grad(distance)(v), jax.jacrev(lambda v: lorentz.log_map0(lorentz.exp_map0(v)))(v)


@pytest.mark.parametrize("radius", [25.0, 30.5, 31.0, 31.8])
def test_exp_map0_has_exact_gradients_up_to_its_limit(radius):
    # From 30.6 on the slope of asinh √z / √z is below the normal numbers of float32.
    direction = jnp.asarray([0.6, -0.8], jnp.float32)
    gradient, jacobian = _slopes_at_the_origin(radius * direction)
    np.testing.assert_allclose(gradient, direction, rtol=2e-5)
    np.testing.assert_allclose(jacobian @ direction, direction, rtol=2e-5)


def test_overflow_of_project_tangent_is_infinite_with_its_sign():
    x = lorentz.exp_map0(jnp.asarray([31.0, 0, -31.0 / 3], jnp.float32))
    v = jnp.asarray([0, 1e30, 1, -1e30], jnp.float32)
    got = lorentz.project_tangent(x, v)
    np.testing.assert_array_equal(np.sign(got), [1, 1, 1, -1])
    assert np.isposinf(got[0]) and np.isposinf(got[1]) and np.isneginf(got[3]) and got[2] == 1
    small = lorentz.project_tangent(x, v / 1e30)
    assert np.isfinite(small).all()


@pytest.mark.slow  # it takes seconds
def test_stale_time_affects_inner_products_and_time_error_only():
    x, y = lorentz.from_space(POINTS[:2])
    stale = x.at[..., 0].multiply(1.5)
    np.testing.assert_allclose(lorentz.time_error(stale), 0.5)
    assert (lorentz.time_error(x) < 1e-15).all()
    np.testing.assert_array_equal(lorentz.distance(stale, y), lorentz.distance(x, y))
    np.testing.assert_array_equal(lorentz.centroid(stale), lorentz.centroid(x))
    for function in (lorentz.inner, lambda x, _: lorentz.centroid(x, exact=False)):
        assert (function(stale, y) != function(x, y)).any()
    attend = jax.jit(lambda x: attention.lorentz_attention(x[None], x[None], x[None], 1.0))
    assert (attend(stale) != attend(x)).any()
    np.testing.assert_array_equal(lorentz.project(stale), x)


def test_parts_of_a_point_are_points_and_join_again():
    c = CURVATURE
    x = lorentz.from_space(POINTS[0], c)
    parts = lorentz.split(x, (1, 3, 1), c)
    assert [part.shape[-1] for part in parts] == [2, 4, 2]
    np.testing.assert_array_equal(lorentz.concatenate(parts, c), x)
    for part in parts:
        assert (lorentz.time_error(part, c) < 1e-15).all()
    for wrong in ((1, 3), (0, 5), (-1, 6)):
        with pytest.raises(ValueError, match="dims must be positive and sum up to 5, got"):
            lorentz.split(x, wrong, c)


def test_rotate_with_any_matrix_updates_the_time():
    x = lorentz.from_space(POINTS[0], CURVATURE)
    matrix = np.random.default_rng(0).normal(size=(5, 5))
    moved = lorentz.rotate(matrix, x, CURVATURE)
    np.testing.assert_allclose(moved[:, 1:], x[:, 1:] @ matrix.T, rtol=1e-13, atol=1e-14)
    assert (lorentz.time_error(moved, CURVATURE) < 1e-14).all()


def test_from_linear_maps_zero_to_the_origin():
    z = jnp.zeros((2, 4)).at[1].set(jnp.array([0.3, 1.0, -2.0, 0.5]))

    @jax.jit
    def rescaled(z):
        def total(z):
            return jnp.sum(lorentz.from_linear(z, jnp.float32(2.3)))

        return lorentz.from_linear(z, jnp.float32(2.3)), jax.grad(total)(z)

    point, gradient = rescaled(z)
    np.testing.assert_array_equal(point[0], [1, 0, 0, 0])
    np.testing.assert_allclose(-(point[1, 0] ** 2) + np.sum(point[1, 1:] ** 2), -1, rtol=1e-4)
    time = 1 / (1 + np.exp(-0.3)) * np.exp(2.3) + 1.1
    np.testing.assert_allclose(point[1, 0], time, rtol=1e-6)
    assert not np.any(gradient[0])
    assert np.all(np.isfinite(gradient))


def test_from_linear_reads_the_time_from_the_first_coordinate():
    z = jnp.asarray([[-200.0, 3, 4], [0, 30, 40], [200, -3e-9, 4e-9]])
    point = jax.jit(lorentz.from_linear)(z, np.log(np.float32(8)))
    time = np.array([1.1, 5.1, 9.1])
    np.testing.assert_allclose(point[:, 0], time, rtol=1e-6)
    directions = np.array([[0.6, 0.8], [0.6, 0.8], [-0.6, 0.8]])
    np.testing.assert_allclose(point[:, 1:], directions * np.sqrt(time**2 - 1)[:, None], rtol=1e-6)


def test_from_linear_keeps_the_dtype():
    z = jnp.ones((2, 4), jnp.bfloat16)
    assert jax.eval_shape(lorentz.from_linear, z, jnp.float32(1)).dtype == jnp.bfloat16


def test_from_linear_does_not_overflow_in_float16():
    z = jnp.asarray([[20.0, 300, -400]], jnp.float16)
    point = lorentz.from_linear(z, jnp.log(jnp.float32(1000)))
    assert point.dtype == jnp.float16
    np.testing.assert_allclose(point, [[1001.1, 600.66, -800.88]], rtol=1e-3)


# How far the vector leads beyond the origin, or ends before it.
OVERSHOOTS = (-1.0, -0.01, 0.0, 0.01, 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distance", [2.0, 5.0, 10.0, 12.0, 15.0])
def test_exp_map_along_an_axis_through_the_origin(distance, dtype):
    """On an axis, rounding a vector does not turn it, so the end is exact."""
    x, v = np.zeros((2, 30 * len(OVERSHOOTS), 3), dtype)
    distances = np.tile(np.linspace(distance, 1.02 * distance, 30), len(OVERSHOOTS))
    overshoots = np.repeat(OVERSHOOTS, 30)
    x[:, 1], v[:, 1] = np.sinh(distances), -np.cosh(distances) * (distances + overshoots)
    ends = lorentz.exp_map(lorentz.from_space(x), np.concatenate([0 * v[:, :1], v], axis=-1))
    assert not np.any(ends[:, [1, 3]])
    exact = [
        reference.exp_map(*map(reference.vector, pair), mpf(1))[2]
        for pair in zip(x, v, strict=True)
    ]
    # The result depends on the rounded length only.
    bounds = 8 * float(jnp.finfo(dtype).eps) * distance * np.cosh(overshoots)
    for i, want in enumerate(exact):
        assert abs(float(ends[i, 2]) - want) < bounds[i], (distances[i], overshoots[i])


def test_vector_that_is_too_long_is_shortened_by_a_constant():
    x = lorentz.from_space(jnp.array([0.3, -0.4, 0.1]))

    def end(v):
        return lorentz.exp_map(x, jnp.concatenate([v[:1], v]))[1:]

    direction = jnp.array([0.2, 0.5, -0.7])
    length = lorentz.tangent_norm(x, jnp.concatenate([direction[:1], direction]))
    limit = max_hyperbolic_norm(jnp.float64) - lorentz.distance(x, lorentz.origin(3, dtype=x.dtype))
    just_short_enough = direction * (limit / length) * (1 - 1e-13)
    slopes = jax.jit(jax.jacfwd(end))
    long_slopes, short_slopes = slopes(3 * just_short_enough), slopes(just_short_enough)
    np.testing.assert_allclose(
        3 * long_slopes, short_slopes, rtol=1e-9, atol=1e-9 * np.abs(short_slopes).max()
    )


def test_tangent_vector_of_any_length_is_shortened():
    direction = np.array([0.6, 0.8, 0])
    gradient = jax.jit(jax.grad(lambda *x: lorentz.exp_map(*x)[1], 1))
    for c in (1e-10, 1e-4, 1.0, 1e4):
        least = 100 / np.sqrt(c)
        limit = lorentz.exp_map0(jnp.asarray(least * direction, jnp.float32), c)
        origin = lorentz.origin(3, jnp.float32(c))
        for size in (least, *(size for size in (1e10, 3e19, 3e37, 3e38) if size > least)):
            v = jnp.asarray(np.r_[0, size * direction], jnp.float32)
            np.testing.assert_allclose(lorentz.exp_map(origin, v, c), limit, rtol=1e-5)
            assert np.isfinite(gradient(origin, v, c)).all()


def test_direction_from_a_tiny_point_counts_as_from_the_origin():
    y = lorentz.from_space(jnp.asarray([0.3, 0.4], jnp.float32))
    for size, counts in ((2e-18, False), (5e-19, True), (1e-30, True)):
        radial, _ = lorentz.direction(lorentz.from_space(jnp.asarray([size, 0], jnp.float32)), y)
        assert (radial == 0) == counts


@pytest.mark.parametrize("dtype", DTYPES)
def test_direction_against_80_digits(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    radial, across = lorentz.direction(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
    for i, kind in enumerate(kinds):
        point, end, curvature = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        r, tau = reference.norm(point), curvature**0.5 * reference.time(point, curvature)
        p = reference.dot(point, end) / r
        exact = [tau * p - curvature**0.5 * reference.time(end, curvature) * r]
        exact += [b - p * a / r for a, b in zip(point, end, strict=True)]
        assert_close(np.r_[radial[i], across[i]], exact, BOUND[dtype], (kind, i))


@pytest.mark.parametrize("size", [1e-35, 1e-25, 1.0, 1e30])
def test_norm_of_a_vector_neither_underflows_nor_overflows(size):
    x, v = lorentz.origin(2, jnp.float32(1)), jnp.asarray([0, 0.6 * size, -0.8 * size], jnp.float32)
    np.testing.assert_allclose(lorentz.tangent_norm(x, v), size, rtol=1e-6)
    assert lorentz.tangent_norm(x, 0 * v) == 0


@pytest.mark.slow  # it takes seconds
def test_gradients_of_distant_points_in_a_nearly_flat_space():
    c, direction = jnp.float32(1e-6), np.array([0.6, -0.64, 0.48], np.float32)
    functions = (
        lorentz.distance, lorentz.squared_distance, lambda *p: lorentz.log_map(*p).sum()
    )  # fmt: skip

    @jax.jit
    def gradients(vector):
        x, o = lorentz.exp_map0(vector, c), lorentz.origin(3, c)
        return [jax.grad(f, argnums=(0, 1, 2))(x, o, c) for f in functions]

    for distance in (31.0, 31.8, 31.885):
        of_distance, *more_gradients = gradients(direction * np.float32(distance / 1e-3))
        assert all(np.isfinite(g).all() for g in jax.tree.leaves((of_distance, more_gradients)))
        np.testing.assert_allclose(of_distance[1], [0, *-direction], rtol=2e-5)


_slope_of_norm = jax.jit(jax.grad(lorentz.tangent_norm, 1))


@jax.jit
def _distance_and_slopes(x, y):
    def distance(x, y):
        return lorentz.distance(lorentz.from_space(x), lorentz.from_space(y))

    return jax.value_and_grad(distance, (0, 1))(x, y)


def test_coincident_points_have_distance_and_gradient_zero():
    for point in ([3e-20, 4e-20], [0, 0], [0.3, 8.0]):
        point = jnp.asarray(point, jnp.float32)
        distance, gradients = _distance_and_slopes(point, point)
        assert distance == 0 and not np.any(gradients)


@pytest.mark.parametrize("size", [1e-36, 1e-30, 3e-25, 1e-20])
def test_distances_and_norms_of_tiny_points(size):
    x = jnp.asarray([3 * size, 0.0], jnp.float32)
    y = jnp.asarray([0.0, 4 * size], jnp.float32)
    distance, gradients = _distance_and_slopes(x, y)
    np.testing.assert_allclose(distance, 5 * size, rtol=1e-6)
    np.testing.assert_allclose(gradients, [[0.6, -0.8], [-0.6, 0.8]], rtol=1e-6)
    neighbour = x * jnp.float32(1 + 1e-5)
    distance, _ = _distance_and_slopes(x, neighbour)
    np.testing.assert_allclose(distance, neighbour[0] - x[0], rtol=1e-6, atol=1e-38)
    point = lorentz.from_space(jnp.asarray([0.1, 0.2], jnp.float32))
    norm = lorentz.tangent_norm(lorentz.origin(2, dtype=x.dtype), lorentz.from_space(x + y))
    np.testing.assert_allclose(norm, 5 * size, rtol=1e-6)
    assert np.isfinite(_slope_of_norm(point, lorentz.from_space(x))).all()


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_distance_against_80_digits(dtype):
    x, y, c, kinds = pairs(dtype, 3)

    def distance(x, y, c):
        return lorentz.distance(lorentz.from_space(x, c), lorentz.from_space(y, c), c)

    gradients = jax.jit(jax.vmap(jax.grad(distance, (0, 1))))(x, y, c)
    for i, kind in enumerate(kinds):
        first, second, curvature = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        length = mpmath.sinh(curvature**0.5 * reference.distance(first, second, curvature))
        for got, start, end in zip(gradients, (first, second), (second, first), strict=True):
            ratio = reference.time(end, curvature) / reference.time(start, curvature)
            exact = [
                curvature**0.5 * (ratio * a - b) / length for a, b in zip(start, end, strict=True)
            ]
            # A radial gradient is shorter by τ, but the transverse rounding error is not.
            tau = float(curvature**0.5 * reference.time(start, curvature))
            bound = max(BOUND[dtype], float(jnp.finfo(dtype).eps) * tau**2)
            assert_close(got[i], exact, bound, (kind, float(c[i])))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("radius", [26.0, 31.0])
def test_gradients_at_the_end_of_float32(radius):
    x, y = np.float32(np.sinh(radius) * np.array([[0.6, -0.64, 0.48], [-0.3, 0.5, 0.8]]))

    def distance(x, y):
        return lorentz.distance(lorentz.from_space(x), lorentz.from_space(y))

    point, end = map(reference.vector, (x, y))
    length = mpmath.sinh(reference.distance(point, end, mpf(1)))
    ratio = reference.time(end, mpf(1)) / reference.time(point, mpf(1))
    exact = [(ratio * a - b) / length for a, b in zip(point, end, strict=True)]
    assert_close(jax.jit(jax.grad(distance))(x, y), exact, 1e-6, "distance")

    aperture = jax.jit(jax.grad(lambda x: cones.half_aperture(lorentz.from_space(x))))(x)
    size, sine = reference.norm(point), mpf(0.1) * 2
    exact = [-sine * a / size**2 / mpmath.sqrt(size**2 - sine**2) for a in point]
    assert_close(aperture, exact, 1e-6, "half aperture")


TWO_POINTS = (
    lorentz.squared_distance,
    lorentz.distance,
    lorentz.direction,
    lorentz.log_map,
    lorentz.exp_map,
    lorentz.tangent_norm,
    lorentz.project_tangent,
    lambda x, y, c: lorentz.parallel_transport(x, y, y, c),
    lambda x, y, c: lorentz.transport0(x, y[..., 1:], c),
    cones.exterior_angle,
    cones.energy,
)
ONE_POINT = (
    lorentz.project,
    lorentz.from_space,
    lorentz.time,
    lorentz.exp_map0,
    lorentz.log_map0,
    lorentz.time_error,
    cones.half_aperture,
    poincare.from_lorentz,
    poincare.to_lorentz,
    poincare.project,
)
FUNCTIONS = [*TWO_POINTS, *(lambda x, y, c, f=f: f(x, c) for f in ONE_POINT)]
BALL_FUNCTIONS = [
    len(TWO_POINTS) + ONE_POINT.index(f) for f in (poincare.to_lorentz, poincare.project)
]


FAST_FUNCTIONS = [TWO_POINTS.index(f) for f in (lorentz.exp_map, cones.energy)]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    "number", slow_except(FAST_FUNCTIONS + BALL_FUNCTIONS[:1], range(len(FUNCTIONS)))
)
def test_gradients_at_extreme_curvatures_are_finite(number):
    directions = np.array(
        [[0.6, -0.64, 0.48], [-0.3, 0.5, 0.8], [0.6, -0.64, 0.4800001]], np.float32
    )
    rows = [
        (radius * directions[0], radius * directions[j], c)
        for c in np.array([1e-22, 1e-20, 1e-19, 1e-15, 1e10, 1e18], np.float32)
        for radius in np.array([0, 1e-6, 1, 0.5 / np.sqrt(c), 5 / np.sqrt(c)], np.float32)
        for j in range(3)
        # Otherwise the squared distance over c would be infinite.
        if FUNCTIONS[number] is not lorentz.squared_distance or c > 1e-18 or radius < 2
    ]
    x, y, c = map(np.stack, zip(*rows, strict=True))

    def function(x, y, c):
        a = lorentz.from_space(x, c)
        b = lorentz.from_space(y, c)
        if FUNCTIONS[number] in (lorentz.exp_map, lorentz.tangent_norm):
            b = tangent(a, y, c)
        if number in BALL_FUNCTIONS:  # at the rim to_lorentz and its slope in c overflow
            a = poincare.from_lorentz(a, c)
        return FUNCTIONS[number](a, b, c)

    check_finite(function, (x, y, c), "float32", forward=False)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("radius", [6.0, 12.0, 15.0])
def test_distance_and_exp_map_along_a_ray_keep_their_digits(radius, compiled):
    """Rounding a product with x, or x − y, would leave eps |x| across x, a hundredth of the length.

    A compiler may hide this by fusing a product with a difference, so both modes are tested.
    """
    rng = np.random.default_rng(2)
    e, f = rng.normal(size=(2, 12, 16))
    e /= np.linalg.norm(e, axis=-1, keepdims=True)
    f -= e * np.sum(e * f, axis=-1, keepdims=True)
    nearer = radius - np.resize([0.1, 0.5, 1.5], (12, 1))
    x, y = (np.float32(z) for z in (np.sinh(radius) * e, np.sinh(nearer) * e + f))
    v = np.float32(f + np.sinh(radius) * 0.3 * e)
    functions = lorentz.distance, lorentz.exp_map
    distance, exp_map = (jax.jit(g) if compiled else g for g in functions)
    points = lorentz.from_space(x)
    lengths = distance(points, lorentz.from_space(y))
    ends = exp_map(points, np.concatenate([0 * v[:, :1], v], axis=-1))[:, 1:]
    for i in range(len(x)):
        a, b, u = (reference.vector(z[i]) for z in (x, y, v))
        length = reference.distance(a, b, mpf(1))
        assert abs(float(lengths[i]) - length) < 4 * 2**-23 * length
        end = reference.exp_map(a, u, mpf(1))
        # Rounding a length of a few units by eps moves the end by as much.
        gap = mpmath.norm([mpf(float(z)) - w for z, w in zip(ends[i], end[1:], strict=True)])
        assert gap < 32 * 2**-23 * mpmath.norm(end[1:])
