"""What the Lorentz model is computed with: ways and vectors far out, near the origin, too long."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz
from lorentz_cases import BOUND, CURVATURE, DTYPES, POINTS, assert_close, pairs
from mpmath import mpf

from hlformer_jax.ops import hyperboloid
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


def test_inner_products_and_chords_are_those_of_the_definition():
    x, y, u = POINTS
    beside = 1.2 * x + 0.1 * y  # in much the same direction

    @jax.jit
    def values(x, y, v, w):
        return (
            hyperboloid.tangent_inner(x, v, w, CURVATURE),
            hyperboloid.squared_chord(x, y, x - y, CURVATURE),
            hyperboloid.inner_from(x, y, x - y, v, CURVATURE),
        )

    dot = lambda v, w: np.sum(v * w, axis=-1)
    x_time = np.sqrt(1 / CURVATURE + dot(x, x))
    for other in (y, beside):
        y_time = np.sqrt(1 / CURVATURE + dot(other, other))
        # Any space components are those of a vector tangent at x, with the time x · v / x_time.
        u_time, v_time = dot(x, u) / x_time, dot(x, other) / x_time
        inner, chord, across = values(x, other, u, other)
        gap = x - other
        np.testing.assert_allclose(inner, dot(u, other) - u_time * v_time, rtol=1e-10)
        np.testing.assert_allclose(chord, dot(gap, gap) - (x_time - y_time) ** 2, rtol=1e-10)
        np.testing.assert_allclose(across, dot(other, u) - y_time * u_time, rtol=1e-9)
    np.testing.assert_array_equal(values(x, x, u, u)[1], 0)


@pytest.mark.parametrize("size", [1e-35, 1e-25, 1.0, 1e30])
def test_the_norm_of_a_vector_neither_underflows_nor_overflows(size):
    x, c = jnp.zeros((1, 2), jnp.float32), jnp.ones(1, jnp.float32)
    v = jnp.asarray([[0.6 * size, -0.8 * size]], jnp.float32)
    norm = jax.jit(hyperboloid.tangent_norm)
    np.testing.assert_allclose(norm(x, v, c), size, rtol=1e-6)
    assert norm(x, 0 * v, c) == 0


def test_the_way_towards_a_point_ends_there_and_takes_itself_along():
    x, y, _ = POINTS / 2

    @jax.jit
    def there_and_back(x, y):
        way = hyperboloid.towards(x, y, x - y, CURVATURE)
        back = hyperboloid.towards(y, x, y - x, CURVATURE)
        moved = hyperboloid.transport(x, y, x - y, way, CURVATURE)
        return hyperboloid.displace(x, way, CURVATURE), moved, back

    end, moved, back = there_and_back(x, y)
    np.testing.assert_allclose(end, y, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved, -back, rtol=1e-9, atol=1e-9)
