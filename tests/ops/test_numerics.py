"""Safe primitives: values, and derivatives at the edge of every domain."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from compiled import numerics
from jax.test_util import check_grads
from mpmath import mpf
from reference import relative_error, vector

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_norm_and_its_gradient_survive_squares_beyond_the_range(dtype, size):
    v = jnp.asarray(np.array([3, 0, -4]) * size, dtype)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(numerics.safe_norm(v), 5 * size, rtol=4 * eps)
    np.testing.assert_allclose(jax.grad(numerics.safe_norm)(v), [0.6, 0, -0.8], rtol=4 * eps)
    unit, _ = numerics.safe_normalize(v)
    np.testing.assert_allclose(unit, [0.6, 0, -0.8], rtol=4 * eps)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_gives_zero_and_gradient_zero(dtype):
    zero = jnp.zeros(3, dtype)
    assert numerics.safe_norm(zero) == 0
    assert not jax.grad(numerics.safe_norm)(zero).any()
    assert not jax.jacrev(lambda v: numerics.safe_normalize(v)[0])(zero).any()
    assert numerics.safe_sqrt(zero[0]) == 0
    assert jax.grad(numerics.safe_sqrt)(zero[0]) == 0
    assert numerics.safe_atan2(zero[0], zero[0]) == 0
    assert jax.grad(numerics.safe_atan2, argnums=(0, 1))(zero[0], zero[0]) == (0, 0)


@pytest.mark.slow
def test_primitives_are_twice_differentiable_away_from_zero():
    v = jnp.array([0.3, -1.2, 2.0])

    def evaluate(v):
        v = jnp.asarray(v)
        unit, norm = numerics.safe_normalize(v)
        return unit, norm, numerics.safe_atan2(v[1], v[2]), numerics.safe_sqrt(v[0])

    check_grads(evaluate, (v,), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e18])
def test_atan2_gradient_survives_squares_beyond_float32(size):
    y, x = jnp.float32(3 * size), jnp.float32(-4 * size)
    np.testing.assert_allclose(numerics.safe_atan2(y, x), np.arctan2(3, -4), rtol=1e-6)
    gradient = jax.grad(numerics.safe_atan2, argnums=(0, 1))(y, x)
    np.testing.assert_allclose(np.array(gradient) * size, [-4 / 25, -3 / 25], rtol=1e-6)


@pytest.mark.slow  # it takes seconds
def test_limit_norm_shortens_long_vectors_only():
    short, long = jnp.array([0.3, 0.4]), jnp.array([30.0, 40.0])
    limit = jnp.asarray(5.0)
    np.testing.assert_array_equal(numerics.limit_norm(short, limit), short)
    np.testing.assert_allclose(numerics.limit_norm(long, limit), [3, 4], rtol=1e-15)
    jacobian = jax.jacrev(numerics.limit_norm)(long, limit)
    np.testing.assert_allclose(jacobian @ long, 0, atol=1e-14)
    np.testing.assert_allclose(jacobian @ jnp.array([-4.0, 3.0]), [-0.4, 0.3], rtol=1e-14)
    check_grads(numerics.limit_norm, (long, limit), order=2, modes=("fwd", "rev"))


def test_nan_is_not_taken_for_a_small_number():
    nan = jnp.full(3, jnp.nan)
    smooth = (function for function, _ in SMOOTH.values())
    for function in (numerics.safe_norm, numerics.safe_sqrt, *smooth):
        assert jnp.isnan(function(nan)).all()
    assert jnp.isnan(numerics.safe_atan2(nan, nan)).all()
    assert jnp.isnan(numerics.limit_norm(nan, jnp.asarray(1.0))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_the_most_distant_points_are_finite(dtype):
    largest = mpmath.sinh(mpf(numerics.max_hyperbolic_norm(dtype)))
    assert 100 * largest**2 < mpf(float(jnp.finfo(dtype).max))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_up_to_the_largest_number(dtype):
    largest = float(jnp.finfo(dtype).max)
    for size in (0.2, 0.3, 0.6):
        v = jnp.asarray([0.6 * size * largest, 0.8 * size * largest], dtype)
        np.testing.assert_allclose(numerics.safe_norm(v), size * largest, rtol=1e-6)
        np.testing.assert_allclose(numerics.unit(v), [0.6, 0.8], rtol=1e-6)


def test_half_precision_norms_are_computed_in_float32():
    v = jnp.array([3e-3, 4e-3], jnp.float16)
    assert numerics.safe_norm(v).dtype == jnp.float32
    np.testing.assert_allclose(numerics.safe_norm(v), 5e-3, rtol=1e-3)


def test_inverse_of_a_tiny_norm_has_a_finite_gradient():
    for size in (0.0, 1e-30, 1e-23, 1e-20, 1e-18, 1.0):
        v = jnp.asarray([size, 0.0], jnp.float32)
        assert np.isfinite(jax.grad(numerics.inverse_norm)(v)).all(), size


def test_angle_of_zero_follows_its_sign():
    for dtype in ("float32", "float64"):
        pi, zero, unit = (jnp.asarray(x, dtype) for x in (np.pi, 0.0, 1.0))
        assert numerics.safe_atan2(zero, -unit) == pi
        assert numerics.safe_atan2(-zero, -unit) == -pi
        assert jax.grad(numerics.safe_atan2)(-zero, -unit) == -1


def test_sum_of_many_products_is_rounded_like_few():
    rng = np.random.default_rng(0)
    for count in (1, 7, 8, 9, 1000, 100_000):
        weights, values = rng.uniform(size=(2, count)), np.full((count, 3), 0.1)
        got = numerics.sum_products(*(jnp.asarray(x, jnp.float32) for x in (weights, values)))
        wide = weights.astype(np.float32).astype(float) @ values.astype(np.float32).astype(float)
        bound = (8 + np.log2(max(count / 8, 1))) / 2 * np.finfo(np.float32).eps
        np.testing.assert_allclose(got, wide, rtol=bound)


def test_inverse_of_a_tiny_number_has_a_finite_slope():
    for c in (1e-24, 1e-19, 1.2e-19, 1.0, 1e30):
        c = jnp.float32(c)
        np.testing.assert_allclose(numerics.inverse(c), 1 / c, rtol=1e-6)
        slope = jax.grad(lambda c: jnp.sqrt(numerics.inverse(c)))(c)
        tiny = np.finfo(np.float32).tiny  # smaller slopes are flushed to zero
        np.testing.assert_allclose(slope, -0.5 / float(c) ** 1.5, rtol=1e-6, atol=tiny)
    assert numerics.inverse(jnp.float32(3)) == 1 / jnp.float32(3)


SMOOTH = {
    "cosh_sqrt": (numerics.cosh_sqrt, mpmath.cosh),
    "sinhc_sqrt": (numerics.sinhc_sqrt, lambda r: mpmath.sinh(r) / r),
    "asinhc_sqrt": (numerics.asinhc_sqrt, lambda r: mpmath.asinh(r) / r),
    "tanhc_sqrt": (numerics.tanhc_sqrt, lambda r: mpmath.tanh(r) / r),
    "artanhc_sqrt": (numerics.artanhc_sqrt, lambda r: mpmath.atanh(r) / r),
}
THRESHOLDS = [0.062, 0.063, 0.124, 0.126, 0.24, 0.26, 0.3, 0.5, 0.999]  # both sides of each


def arguments(name, *more):
    """Return squares on both sides of all thresholds, and larger ones in the domain."""
    return [*more, *THRESHOLDS, *([] if name == "artanhc_sqrt" else [1, 2, 40, 640])]


@pytest.mark.parametrize("name", SMOOTH)
# sinh of 25 has 25 times the relative error of its argument.
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-6), ("float64", 1e-14)])
def test_smooth_functions_on_both_sides_of_their_thresholds(name, dtype, bound):
    function, exact = SMOOTH[name]
    z = np.array(arguments(name, 1e-30, 1e-12, 1e-3), dtype)
    want = [exact(mpmath.sqrt(a)) for a in vector(z)]
    for got, value in zip(function(z), want, strict=True):
        assert got.dtype == dtype
        assert relative_error(got, value) < bound


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_have_second_derivatives(name):
    z = jnp.array([0.0, 1e-30, 1e-9, 0.0625, 0.3, 0.9 if name == "artanhc_sqrt" else 30.0])
    check_grads(SMOOTH[name][0], (z,), order=2, modes=("fwd", "rev"))


# Just above the thresholds slopes cancel by z, and second derivatives by z².
@pytest.mark.parametrize(("order", "bound"), [(1, 64), (2, 2000)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_on_both_sides_of_the_thresholds(name, dtype, order, bound):
    function, exact = SMOOTH[name]
    slope = function
    for _ in range(order):
        slope = jax.grad(slope)
    slope = jax.jit(slope)
    for z in np.array(arguments(name, 1e-12, 1e-3), dtype):
        got = slope(jnp.asarray(z))
        want = mpmath.diff(lambda t: exact(mpmath.sqrt(t)), mpf(float(z)), order)
        assert got.dtype == dtype
        assert relative_error(got, want) < bound * np.finfo(dtype).eps, z


def test_sinhc_of_a_zero_vector_has_the_hessian_of_its_series():
    def function(v):
        return numerics.sinhc_sqrt(jnp.sum(v * v))

    hessian = jax.jit(jax.hessian(function))(jnp.zeros(2))
    np.testing.assert_allclose(hessian, np.eye(2) / 3, rtol=1e-15)


@pytest.mark.parametrize("name", ["scaled_sinh", "scaled_asinh"])
def test_overflowing_slope_in_a_constant_curvature_is_harmless(name):
    function = getattr(numerics, name)
    v, c = jnp.float32(1e15), jnp.float32(1e-30)  # √c v is 1, the slope in c about 1e44
    slope = jax.jvp(lambda v, c: function(v, c), (v, c), (jnp.ones_like(v), jnp.zeros_like(c)))[1]
    expected = {"scaled_sinh": mpmath.cosh(1), "scaled_asinh": 1 / mpmath.sqrt(2)}[name]
    assert relative_error(slope, vector([expected])) < 1e-6  # 8 eps of float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaled_sinh_and_its_slope_are_exact_to_two_eps(dtype):
    v = np.concatenate([np.linspace(-30, 30, 40), [1e-20, 0.999, 1.001]]).astype(dtype)
    value, slope = jax.jvp(
        numerics.scaled_sinh, (jnp.asarray(v), jnp.ones_like(v)), (jnp.ones_like(v), 0 * v)
    )
    for got, exact in ((value, mpmath.sinh), (slope, mpmath.cosh)):
        for x, y in zip(v, np.asarray(got), strict=True):
            assert relative_error(y, vector([exact(mpf(float(x)))])) < 2 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaled_asinh_and_its_derivatives_are_exact_to_four_eps(dtype):
    x = np.concatenate([np.geomspace(1e-9, 1e9, 60), np.linspace(0.4, 0.5, 60)]).astype(dtype)
    one = jnp.ones_like(x)

    def value(x):
        return numerics.scaled_asinh(x, one)

    def slope(x):
        return jax.jvp(value, (x,), (one,))[1]

    def bend(x):
        return jax.jvp(slope, (x,), (one,))[1]

    def exact_slope(x):
        return 1 / mpmath.sqrt(1 + x * x)

    def exact_bend(x):
        return -x / mpmath.sqrt(1 + x * x) ** 3

    pairs = ((value, mpmath.asinh), (slope, exact_slope), (bend, exact_bend))
    for function, exact in pairs:
        for argument, got in zip(x, np.asarray(jax.jit(function)(x)), strict=True):
            expected = vector([exact(mpf(float(argument)))])
            assert relative_error(got, expected) < 4 * np.finfo(dtype).eps, argument


@pytest.mark.slow  # it takes seconds
def test_branch_on_any_element_survives_vmap():
    def function(v):
        return numerics.limit_norm(v, 1.0)

    program = str(jax.make_jaxpr(jax.vmap(jax.vmap(function)))(jnp.ones((2, 3, 4))))
    assert "cond[" in program
    rows = jnp.array([[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [6.0, 8.0]]])
    expected = np.array([[[0.6, 0.8], [0.3, 0.4]], [[0.0, 0.0], [0.6, 0.8]]], np.float32)
    np.testing.assert_allclose(jax.vmap(jax.vmap(function))(rows), expected, rtol=1e-6)
