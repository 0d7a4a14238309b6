"""What the Lorentz model is computed with, near the origin, far out, and at extreme curvatures."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz
from derivatives import check_finite
from lorentz_cases import BOUND, DTYPES, assert_close, pairs, tangent
from mpmath import mpf

from hlformer_jax.ops import cones, hyperboloid, poincare
from hlformer_jax.ops.numerics import max_hyperbolic_norm

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("passed", [-1.0, -0.01, 0.0, 0.01, 1.0])
@pytest.mark.parametrize("distance", [2.0, 5.0, 10.0, 12.0, 15.0])
def test_the_exponential_map_along_an_axis_through_the_origin(distance, passed, dtype):
    """There rounding a vector does not turn it, and the place on the axis is exact."""
    x, v = np.zeros((2, 30, 3), dtype)
    distances = np.linspace(distance, 1.02 * distance, 30)
    x[:, 1], v[:, 1] = np.sinh(distances), -np.cosh(distances) * (distances + passed)
    found = lorentz.exp_map(lorentz.from_space(x), np.concatenate([0 * v[:, :1], v], axis=-1))
    assert not np.any(found[:, [1, 3]])
    exact = [
        reference.exp_map(*map(reference.vector, pair), mpf(1))[2]
        for pair in zip(x, v, strict=True)
    ]
    # The length of the way is rounded, which is all that the result depends on.
    bound = 8 * float(jnp.finfo(dtype).eps) * distance * np.cosh(passed)
    assert all(abs(float(one) - want) < bound for one, want in zip(found[:, 2], exact, strict=True))


def test_a_vector_that_is_too_long_is_shortened_by_a_constant():
    x = lorentz.from_space(jnp.array([0.3, -0.4, 0.1]))

    def end(v):
        return lorentz.exp_map(x, jnp.concatenate([v[:1], v]))[1:]

    direction = jnp.array([0.2, 0.5, -0.7])
    length = lorentz.tangent_norm(x, jnp.concatenate([direction[:1], direction]))
    limit = max_hyperbolic_norm(jnp.float64) - lorentz.distance(x, lorentz.origin(3, dtype=x.dtype))
    just_short_enough = direction * (limit / length) * (1 - 1e-13)
    whole, short = jax.jacfwd(end)(3 * just_short_enough), jax.jacfwd(end)(just_short_enough)
    np.testing.assert_allclose(3 * whole, short, rtol=1e-9, atol=1e-9 * np.abs(short).max())


@pytest.mark.parametrize("c", [1e-10, 1e-4, 1.0, 1e4])
def test_a_tangent_vector_of_any_length_is_shortened(c):
    way, least = np.array([0.6, 0.8, 0]), 100 / np.sqrt(c)
    limit = lorentz.exp_map0(jnp.asarray(least * way, jnp.float32), c)
    origin = lorentz.origin(3, jnp.float32(c))
    for size in (least, *(size for size in (1e10, 3e19, 3e37, 3e38) if size > least)):
        v = jnp.asarray(np.r_[0, size * way], jnp.float32)
        np.testing.assert_allclose(lorentz.exp_map(origin, v, c), limit, rtol=1e-5)
        gradient = jax.jit(jax.grad(lambda v: lorentz.exp_map(origin, v, c)[1]))(v)
        assert np.isfinite(gradient).all()


def test_a_direction_from_a_point_that_counts_as_the_origin():
    y = lorentz.from_space(jnp.asarray([0.3, 0.4], jnp.float32))
    for size, counts in ((2e-18, False), (5e-19, True), (1e-30, True)):
        radial, _ = lorentz.direction(lorentz.from_space(jnp.asarray([size, 0], jnp.float32)), y)
        assert (radial == 0) == counts


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_direction_is_as_exact_as_the_length_of_the_whole(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    radial, across = lorentz.direction(lorentz.from_space(x, c), lorentz.from_space(y, c), c)
    for i, kind in enumerate(kinds):
        point, other, curvature = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        r, tau = reference.norm(point), curvature**0.5 * reference.time(point, curvature)
        p = reference.dot(point, other) / r
        exact = [tau * p - curvature**0.5 * reference.time(other, curvature) * r]
        exact += [b - p * a / r for a, b in zip(point, other, strict=True)]
        assert_close(np.r_[radial[i], across[i]], exact, BOUND[dtype], (kind, i))


def test_a_pair_is_brought_to_size_1_if_it_is_smaller_and_keeps_its_geometry():
    x, y = np.float32([[[3e-15, 0], [3, 0]], [[1e-15, -4e-15], [-40, 1]]])
    c = np.float32([2, 2])
    rescale = jax.jit(hyperboloid.rescale)
    scale, *vectors, curvature = map(np.asarray, rescale(x, y, c))
    np.testing.assert_array_equal(scale[1:], 1)
    assert abs(np.asarray(vectors[:2])[:, 0]).max() == 1
    for found, whole in zip(vectors, (x, y, x - y), strict=True):
        np.testing.assert_allclose(found * scale, whole, rtol=1e-6)
    np.testing.assert_allclose(curvature[1:], 2)
    np.testing.assert_allclose(np.sqrt(curvature[:1]), np.sqrt(2) * scale[:1, 0], rtol=1e-6)
    zero = np.zeros((2, 2), np.float32)
    assert all(np.isfinite(part).all() for part in rescale(zero, zero, c))


@pytest.mark.parametrize("size", [1e-35, 1e-25, 1.0, 1e30])
def test_the_norm_of_a_vector_neither_underflows_nor_overflows(size):
    x, c = jnp.zeros((1, 2), jnp.float32), jnp.ones(1, jnp.float32)
    v = jnp.asarray([[0.6 * size, -0.8 * size]], jnp.float32)
    norm = jax.jit(hyperboloid.tangent_norm)
    np.testing.assert_allclose(norm(x, v, c), size, rtol=1e-6)
    assert norm(x, 0 * v, c) == 0


def test_distance_of_tiny_and_of_coincident_points_and_their_gradients():
    @jax.jit
    @jax.value_and_grad
    def function(x, y):
        return lorentz.distance(lorentz.from_space(x), lorentz.from_space(y))

    x = jnp.array([3e-20, 4e-20], jnp.float32)  # whose square underflows
    distance, gradient = function(x, 0 * x)
    np.testing.assert_allclose(distance, 5e-20, rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.6, 0.8], rtol=1e-6)
    for point in (x, 0 * x, jnp.array([0.3, 8.0], jnp.float32)):
        distance, gradient = function(point, point)
        assert distance == 0 and not gradient.any()


def test_gradients_far_out_in_a_nearly_flat_space_are_those_of_the_way_back():
    c, way = jnp.float32(1e-6), np.array([0.6, -0.64, 0.48], np.float32)
    functions = (
        lorentz.distance, lorentz.squared_distance, lambda *p: lorentz.log_map(*p).sum()
    )  # fmt: skip

    @jax.jit
    def gradients(vector):
        x, o = lorentz.exp_map0(vector, c), lorentz.origin(3, c)
        return [jax.grad(f, argnums=(0, 1, 2))(x, o, c) for f in functions]

    for distance in (31.0, 31.8, 31.885):
        of_distance, *others = gradients(way * np.float32(distance / 1e-3))
        assert all(np.isfinite(g).all() for g in jax.tree.leaves((of_distance, others)))
        np.testing.assert_allclose(of_distance[1], [0, *-way], rtol=2e-5)


@pytest.mark.parametrize("size", [1e-36, 1e-30, 3e-25])
def test_distances_and_norms_of_the_tiniest_points_and_vectors(size):
    x = jnp.asarray([3 * size, 0.0], jnp.float32)
    y = jnp.asarray([0.0, 4 * size], jnp.float32)
    distance = lambda x, y: lorentz.distance(lorentz.from_space(x), lorentz.from_space(y))
    np.testing.assert_allclose(distance(x, y), 5 * size, rtol=1e-6)
    gradients = jax.grad(distance, (0, 1))(x, y)
    np.testing.assert_allclose(gradients, [[0.6, -0.8], [-0.6, 0.8]], rtol=1e-6)
    near = x * jnp.float32(1 + 1e-5)
    np.testing.assert_allclose(distance(x, near), near[0] - x[0], rtol=1e-6, atol=1e-38)
    point = lorentz.from_space(jnp.asarray([0.1, 0.2], jnp.float32))
    norm = lorentz.tangent_norm(lorentz.origin(2, dtype=x.dtype), lorentz.from_space(x + y))
    np.testing.assert_allclose(norm, 5 * size, rtol=1e-6)
    assert np.isfinite(jax.grad(lorentz.tangent_norm, 1)(point, lorentz.from_space(x))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_distance_against_80_digits(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    distance = lambda x, y, c: lorentz.distance(
        lorentz.from_space(x, c), lorentz.from_space(y, c), c
    )
    gradients = jax.jit(jax.vmap(jax.grad(distance, (0, 1))))(x, y, c)
    for i, kind in enumerate(kinds):
        point, other, curvature = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        length = mpmath.sinh(curvature**0.5 * reference.distance(point, other, curvature))
        for got, start, end in zip(gradients, (point, other), (other, point), strict=True):
            lean = reference.time(end, curvature) / reference.time(start, curvature)
            exact = [
                curvature**0.5 * (lean * a - b) / length for a, b in zip(start, end, strict=True)
            ]
            # Of a radial gradient, shorter by τ: what is left across after rounding counts in full.
            tau = float(curvature**0.5 * reference.time(start, curvature))
            bound = max(BOUND[dtype], float(jnp.finfo(dtype).eps) * tau**2)
            assert_close(got[i], exact, bound, (kind, float(c[i])))


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
EVERY = [*TWO_POINTS, *(lambda x, y, c, f=f: f(x, c) for f in ONE_POINT)]
OF_THE_BALL = [
    len(TWO_POINTS) + ONE_POINT.index(f) for f in (poincare.to_lorentz, poincare.project)
]


@pytest.mark.parametrize("number", range(len(EVERY)))
def test_gradients_in_a_tiny_or_huge_curvature_are_finite_in_float32(number):
    way = np.array([[0.6, -0.64, 0.48], [-0.3, 0.5, 0.8], [0.6, -0.64, 0.4800001]], np.float32)
    rows = [
        (radius * way[0], radius * way[j], c)
        for c in np.array([1e-22, 1e-20, 1e-19, 1e-15, 1e10, 1e18], np.float32)
        for radius in np.array([0, 1e-6, 1, 0.5 / np.sqrt(c), 5 / np.sqrt(c)], np.float32)
        for j in range(3)
        # The squared distance over c would be infinite.
        if EVERY[number] is not lorentz.squared_distance or c > 1e-18 or radius < 2
    ]
    x, y, c = map(np.stack, zip(*rows, strict=True))

    def function(x, y, c):
        a = lorentz.from_space(x, c)
        b = lorentz.from_space(y, c)
        if EVERY[number] in (lorentz.exp_map, lorentz.tangent_norm):
            b = tangent(a, y, c)
        if number in OF_THE_BALL:  # at its rim to_lorentz and its slope in c leave the numbers
            a = poincare.from_lorentz(a, c)
        return EVERY[number](a, b, c)

    check_finite(function, (x, y, c), "float32", forward=False)
