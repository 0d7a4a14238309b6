"""Hyperbolic functions of a square root: values, slopes and second derivatives, 0 among them."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.test_util import check_grads
from mpmath import mpf
from reference import relative_error, vector

from hlformer_jax.ops import numerics

pytestmark = pytest.mark.usefixtures("float64")

SMOOTH = {
    "cosh_sqrt": (numerics.cosh_sqrt, mpmath.cosh),
    "sinhc_sqrt": (numerics.sinhc_sqrt, lambda r: mpmath.sinh(r) / r),
    "asinhc_sqrt": (numerics.asinhc_sqrt, lambda r: mpmath.asinh(r) / r),
    "tanhc_sqrt": (numerics.tanhc_sqrt, lambda r: mpmath.tanh(r) / r),
    "artanhc_sqrt": (numerics.artanhc_sqrt, lambda r: mpmath.atanh(r) / r),
}
THRESHOLDS = [0.062, 0.063, 0.124, 0.126, 0.24, 0.26, 0.3, 0.5, 0.999]  # and both their sides


def arguments(name, *more):
    """Squares on both sides of all thresholds, and larger ones where there may be any."""
    return [*more, *THRESHOLDS, *([] if name == "artanhc_sqrt" else [1, 2, 40, 640])]


@pytest.mark.parametrize("name", SMOOTH)
# sinh of 25 has 25 times the relative error of its argument.
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-6), ("float64", 1e-14)])
def test_smooth_functions_of_the_squared_norm_on_both_sides_of_their_thresholds(name, dtype, bound):
    function, exact = SMOOTH[name]
    z = np.array(arguments(name, 1e-30, 1e-12, 1e-3), dtype)
    want = [exact(mpmath.sqrt(a)) for a in vector(z)]
    for got, value in zip(function(z), want, strict=True):
        assert got.dtype == dtype
        assert relative_error(got, value) < bound


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_of_the_squared_norm_have_second_derivatives(name):
    z = jnp.array([0.0, 1e-30, 1e-9, 0.0625, 0.3, 0.9 if name == "artanhc_sqrt" else 30.0])
    check_grads(SMOOTH[name][0], (z,), order=2, modes=("fwd", "rev"))


# Just above their thresholds the slopes cancel by z, second derivatives by z².
@pytest.mark.parametrize(("order", "bound"), [(1, 64), (2, 2000)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_of_smooth_functions_on_both_sides_of_their_thresholds(name, dtype, order, bound):
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


@pytest.mark.parametrize("name", SMOOTH)
def test_nan_is_not_taken_for_a_small_number(name):
    assert jnp.isnan(SMOOTH[name][0](jnp.full(3, jnp.nan))).all()
