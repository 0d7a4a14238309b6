"""Short formulas for usual pairs, against 80-digit arithmetic and the general formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from compiled import lorentz
from derivatives import check_two_derivatives
from mpmath import mpf
from reference import assert_close

from hlformer_jax.ops.lorentz import pairs, usual

pytestmark = pytest.mark.usefixtures("float64")

EPS = float(jnp.finfo(jnp.float32).eps)
BOUND = 16 * EPS
# m cancels by a factor of τ² ≤ 9. Measured: at most 15 eps in thousands of pairs.
RADIAL_BOUND = 32 * EPS


def batch(kind):
    """Return usual pairs (space components, in units of 1/√c), curvatures and vectors; float32."""
    rng = np.random.default_rng(sum(map(ord, kind)))
    e, f, v = rng.normal(size=(3, 12, 6))
    e /= np.linalg.norm(e, axis=-1, keepdims=True)
    f -= e * np.sum(e * f, axis=-1, keepdims=True)
    f /= np.linalg.norm(f, axis=-1, keepdims=True)
    spread = np.linspace(0.2, 1, 12)[:, None]
    direction = 0.6 * e + 0.8 * f
    turned = np.cos(0.3 * spread) * e + np.sin(0.3 * spread) * f
    x, y = {
        # Angles from 45 to 180 degrees.
        "apart": (np.sinh(2 * spread + 0.5) * e, 2 * (spread * f + (spread / 2 - 1) * e)),
        "apart and far": (np.sinh(7 * spread) * e, np.sinh(6.5 * spread) * direction),
        "apart near the origin": (1e-3 * spread * e, 2e-3 * direction),
        "apart, one farther": (np.sinh(1.1 + spread) * e, np.sinh(0.7 * spread) * (f - e) / 2),
        "near": (2.8 * spread * e, 2.2 * spread * (e + 0.1 * direction)),
        "nearest": (2.8 * spread * e, 2.8 * spread * (e + 10.0 ** (-6 * spread) / 100 * direction)),
        "one ray": (2.8 * spread * e, 2.5 * spread**2 * e),
        "nearest on one ray": (2.8 * spread * e, 2.8 * spread * (1 - 10.0 ** (-4 * spread)) * e),
        "one shell": (2 * spread * e, 2 * spread * turned),
        "the origin": (2 * spread * e, 0 * e),
    }[kind]
    c = np.resize([0.1, 1, 10], 12)
    x, y = (z / np.sqrt(c)[:, None] for z in (x, y))
    # Space components of tangent vectors at x.
    v = v + x * np.sum(x * v, axis=-1, keepdims=True) / 5
    return tuple(np.float32(z) for z in (x, y, c, v))


KINDS = (
    "apart",
    "apart and far",
    "apart near the origin",
    "apart, one farther",
    "near",
    "nearest",
    "one ray",
    "nearest on one ray",
    "one shell",
    "the origin",
)


def bound(kind):
    return RADIAL_BOUND if kind == "nearest on one ray" else BOUND


def mixed(*kinds):
    return tuple(map(np.concatenate, zip(*map(batch, kinds), strict=True)))


def with_time(v):
    """Return vectors with an arbitrary time component, which no function reads."""
    return jnp.concatenate([jnp.ones_like(v[..., :1]), v], axis=-1)


def short(x, y, c, v):
    """Return the results of the public functions, from space components."""
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    moved = lorentz.parallel_transport(a, b, with_time(v), c)
    return lorentz.distance(a, b, c), lorentz.log_map(a, b, c), moved


def exact(x, y, c, v):
    """Return the same results from the general formulas."""
    return pairs.distance(x, y, c), pairs.logarithm(x, y, c), pairs.transport(x, y, v, c)


# Every kind has twelve pairs, so that all tests share the program.
of_twelve = jax.jit(short)


def of_kinds(*kinds):
    """Return the results for several kinds, from the shared program."""
    results = [of_twelve(*batch(kind)) for kind in kinds]
    return [np.concatenate(parts) for parts in zip(*results, strict=True)]


def assert_usual(x, y, c):
    assert usual._are_usual(usual._products(x, y), c).all()


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_usual_pairs_agree_with_80_digits(kind):
    x, y, c, v = batch(kind)
    assert_usual(x, y, c)
    got = of_twelve(x, y, c, v)
    for i in range(len(x)):
        p, q, w = map(reference.vector, (x[i], y[i], v[i]))
        k = mpf(float(c[i]))
        want = (
            reference.distance(p, q, k),
            reference.log_map(p, q, k),
            reference.parallel_transport(p, q, w, k),
        )
        for name, value, exact_value in zip(
            ("distance", "log_map", "transport"), got, want, strict=True
        ):
            assert_close(value[i], exact_value, bound(kind), f"{kind} {i}: {name}")


@functools.partial(jax.jit, static_argnums=0)
def slopes(function, *args):
    """Return one gradient per result, weighted by random numbers; all kinds share the program."""
    value, pullback = jax.vjp(function, *args)
    rng = np.random.default_rng(1)
    weights = [np.asarray(rng.normal(size=z.shape), np.float32) for z in value]
    # One row per result, with zeros for the remaining results.
    rows = [np.zeros((len(value), *weight.shape), weight.dtype) for weight in weights]
    for i, weight in enumerate(weights):
        rows[i][i] = weight
    cotangents = tuple(jnp.asarray(row, z.dtype) for row, z in zip(rows, value, strict=True))
    gradients = jax.vmap(pullback)(cotangents)
    return [tuple(gradient[i] for gradient in gradients) for i in range(len(value))]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_usual_pairs_equal_the_general_formulas(kind):
    x, y, c, v = batch(kind)
    of_short = slopes(short, x, y, c, v)
    of_exact = slopes(exact, *(np.float64(z) for z in (x, y, c, v)))
    for name, got, want in zip(
        ("distance", "log_map", "transport"), of_short, of_exact, strict=True
    ):
        for argument, actual, expected in zip("xycv", got, want, strict=True):
            if argument == "v" and name != "transport":
                continue
            assert actual.dtype == np.float32
            error = np.abs(np.asarray(actual, np.float64) - expected).reshape(len(x), -1).max(-1)
            # Rounding an argument of size s changes the derivative by about eps times the gradient
            # in x and y over their sizes; the derivative in c is a sum over the coordinates.
            size = np.abs(expected).reshape(len(x), -1).max(-1)
            if argument == "c":
                size = size + sum(
                    np.abs(np.asarray(w) * z).reshape(len(x), -1).max(-1) / c
                    for w, z in zip(want[:2], (x, y), strict=True)
                )
            if name == "transport" and argument in "xy":
                # Sums of terms of this size may cancel.
                size = size + c * np.abs(v).max(-1) * np.abs(x).max(-1)
            worst = (error / size).max() / EPS
            assert (error <= 2 * bound(kind) * size).all(), (name, argument, worst)


@pytest.mark.slow
def test_two_derivatives_of_usual_pairs():
    x, y, c, v = mixed("apart", "near")
    x, y, c, v = (z[::3] for z in (x, y, c, v))
    assert_usual(x, y, c)
    check_two_derivatives(short, (x, y, c, v))


slope_of_distance = jax.jit(jax.grad(lambda a, b, c: jnp.sum(lorentz.distance(a, b, c)), (0, 1)))


@pytest.mark.parametrize("kind", ["apart", "near"])
@pytest.mark.parametrize("factor", [1 + 1e-3, np.nan])
def test_distance_ignores_the_time_component(kind, factor):
    x, y, c, _ = batch(kind)
    a, b = (np.asarray(lorentz.from_space(z, c)) for z in (x, y))
    wrong = a.copy()
    wrong[..., 0] *= np.float32(factor)
    np.testing.assert_allclose(lorentz.distance(wrong, b, c), lorentz.distance(a, b, c), rtol=BOUND)
    slopes_of = (slope_of_distance(first, b, c) for first in (wrong, a))
    for got, want in zip(*slopes_of, strict=True):
        np.testing.assert_allclose(got, want, rtol=BOUND, atol=BOUND * np.abs(want).max())
        np.testing.assert_array_equal(got[..., 0], 0)


@pytest.mark.slow  # it takes seconds
def test_unusual_pair_changes_other_pairs_by_rounding_only():
    x, y, c, v = mixed(*KINDS)
    assert_usual(x, y, c)
    coordinate = np.float32(np.sinh(20.0) / np.sqrt(6))
    more = np.full((1, 6), coordinate), np.full((1, 6), coordinate / 2), np.ones(1), np.ones((1, 6))
    more = [np.concatenate([z, np.float32(w)]) for z, w in zip((x, y, c, v), more, strict=True)]
    for single, beside in zip(of_kinds(*KINDS), jax.jit(short)(*more), strict=True):
        single, beside = (np.asarray(z).reshape(len(z), -1) for z in (single, beside))
        size = np.abs(single).max(-1, keepdims=True)
        assert (np.abs(beside[:-1] - single) <= 2 * BOUND * size).all()
        assert np.isfinite(beside).all()


@pytest.mark.slow  # it takes seconds
def test_equal_points_and_zero_padding_are_usual_pairs():
    x, _, c, v = batch("near")
    x[::2] = 0
    assert_usual(x, x, c)
    distance, logarithm, moved = of_twelve(x, x, c, v)
    np.testing.assert_array_equal(distance, 0)
    np.testing.assert_array_equal(logarithm, 0)
    np.testing.assert_array_equal(moved[..., 1:], v)
    for gradients in slopes(short, x, x, c, v):
        assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_curvature_slope_of_a_tiny_distance_is_not_zero():
    # The square of the difference of the lengths is 1e-40.
    x = np.float32([[-4.142694520758994e-10, -2.3273907245879855e-09, -1.9138945983598887e-09]])
    y = np.float32([[-1.387635562011269e-10, -2.3145860783557737e-09, -1.982184860693792e-09]])
    slope = jax.jit(jax.grad(lambda c: usual.distance_of_pair(x, y, c).sum()))(np.ones(1, "f"))
    x, y = np.float64(x), np.float64(y)
    want = jax.jit(jax.grad(lambda c: pairs.distance(x, y, c).sum()))(np.ones(1))
    np.testing.assert_allclose(slope, want, rtol=BOUND, atol=0)


def test_vmap_gives_the_same_results():
    kinds = "apart", "near"
    batched = jax.jit(jax.vmap(short))(*mixed(*kinds))
    for got, want in zip(batched, of_kinds(*kinds), strict=True):
        np.testing.assert_allclose(got, want, rtol=BOUND, atol=BOUND * np.abs(want).max())
