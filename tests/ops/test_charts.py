"""Klein and half-space coordinates against their textbook formulas in 60 digits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from compiled import lorentz as compiled
from derivatives import check_finite, check_slopes, check_two_derivatives
from mpmath import mpf
from reference import distance, norm, relative_error, vector

from hlformer_jax.ops import lorentz

RADII = (1e-6, 0.01, 1.0, 3.0, 6.0)
"""Distances from the origin, in units of the radius of curvature."""
CURVATURES = (0.1, 1.0, 7.0)
BOUND = {"float32": 3e-6, "float64": 3e-14}
"""Bound of relative errors, 24 eps."""


def points(dtype, dim=4, radii=RADII):
    """Return space components in six directions, two of them vertical, for each radius and c."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(6, dim))
    directions[4:] = 0
    directions[4:, -1] = 1, -1
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    rows = [
        (np.sinh(radius) / np.sqrt(c) * direction, c)
        for radius in radii
        for c in CURVATURES
        for direction in directions
    ]
    space, c = zip(*rows, strict=True)
    return np.asarray(space, dtype), np.asarray(c, dtype)


def klein(s, c):
    tau = mpmath.sqrt(1 + c * mpmath.fsum(a * a for a in s))
    return [a / tau for a in s]


def half_space(s, c):
    root = mpmath.sqrt(c)
    tau = mpmath.sqrt(1 + c * mpmath.fsum(a * a for a in s))
    height = 1 / (tau - root * s[-1])
    return [*(height * a for a in s[:-1]), height / root]


def gap(u, v, c):
    return 1 - c * mpmath.fsum(p * q for p, q in zip(u, v, strict=True))


def lift(space, c):
    return jax.jit(lorentz.from_space)(jnp.asarray(space), jnp.asarray(c))


@pytest.mark.parametrize("name", ["klein", "half_space"])
def test_charts_and_inverses_against_their_formulas(name, dtype):
    space, c = points(dtype)
    forward, formula = getattr(lorentz, f"to_{name}"), {"klein": klein, "half_space": half_space}
    coordinates = np.asarray(jax.jit(forward)(lift(space, c), c))
    assert coordinates.dtype == dtype and coordinates.shape == space.shape
    restored = jax.jit(getattr(lorentz, f"from_{name}"))(coordinates, c)
    assert restored.dtype == dtype
    for s, got, point, curvature in zip(space, coordinates, restored, c, strict=True):
        exact, curvature = vector(s), mpf(float(curvature))
        want = formula[name](exact, curvature)
        assert relative_error(got, want) < BOUND[dtype]
        if name == "half_space":  # the height separately
            assert relative_error(got[-1:], want[-1:]) < BOUND[dtype]
        # Rounding the coordinates moves the point: by τ² in the Klein model, and by 1/√c near the
        # origin in the half-space.
        root = float(mpmath.sqrt(curvature) * norm(exact))
        condition = (1 + root**2) if name == "klein" else 1 + 1 / root + root
        assert relative_error(point[1:], exact) < BOUND[dtype] * condition


@pytest.mark.usefixtures("float64")
def test_charts_keep_the_distances_of_their_metrics():
    """Compare arcosh(1 + |Δ|² / (2 h h')) in the half-space, and a cosine in the Klein model."""
    space, c = points("float64", radii=(0.1, 1.0, 3.0))
    x = lift(space, c)
    h, k = (jax.jit(f)(x, c) for f in (lorentz.to_half_space, lorentz.to_klein))
    for i in range(len(c) - 1):
        if c[i] != c[i + 1]:
            continue
        curvature = mpf(c[i])
        want = distance(vector(space[i]), vector(space[i + 1]), curvature)
        a, b = vector(h[i]), vector(h[i + 1])
        squared_gap = mpmath.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True))
        of_heights = mpmath.acosh(1 + squared_gap / (2 * a[-1] * b[-1])) / mpmath.sqrt(curvature)
        a, b = vector(k[i]), vector(k[i + 1])
        cosine = gap(a, b, curvature) / mpmath.sqrt(gap(a, a, curvature) * gap(b, b, curvature))
        of_klein = mpmath.acosh(cosine) / mpmath.sqrt(curvature)
        # Klein coordinates lose τ² = 100, and 3 is short beside their rounding.
        assert abs(of_heights / want - 1) < 1e-12 and abs(of_klein / want - 1) < 1e-9


@pytest.mark.usefixtures("float64")
def test_geodesics_are_straight_in_the_klein_model():
    c = 0.7
    x, y = (lift(s, c) for s in np.random.default_rng(1).normal(size=(2, 3)))
    along = jax.jit(lambda t: lorentz.to_klein(lorentz.geodesic(t, x, y, c), c))
    line = along(np.linspace(0, 1, 5))
    steps = np.asarray(line[1:] - line[:-1])
    directions = steps / np.linalg.norm(steps, axis=1, keepdims=True)
    np.testing.assert_allclose(directions, np.broadcast_to(directions[0], (4, 3)), atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_charts_are_isometric_at_the_origin():
    origin, c = np.zeros(3), 0.7
    for chart in (lorentz.to_klein, lorentz.to_half_space):
        of_space = jax.jacfwd(lambda s, chart=chart: chart(lorentz.from_space(s, c), c))
        jacobian = jax.jit(of_space)(origin)
        np.testing.assert_allclose(jacobian, np.eye(3), atol=1e-15)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_two_derivatives, marks=pytest.mark.slow)]
)
def test_charts_have_two_derivatives(check):
    rng = np.random.default_rng(2)
    s, c = rng.normal(size=(4, 3)), np.array([0.3, 1.0, 2.0, 0.7])
    s[0], s[1, -1] = 0, 0  # the origin, and a point at the height where the form changes

    def evaluate(s, c):
        x = lorentz.from_space(s, c)
        k, h = lorentz.to_klein(x, c), lorentz.to_half_space(x, c)
        return k, h, lorentz.from_klein(k, c), lorentz.from_half_space(h, c)

    check(evaluate, (s, c))


def test_charts_are_finite_at_the_most_distant_points():
    directions = np.concatenate([np.zeros((1, 3)), np.eye(3), -np.eye(3), np.full((1, 3), 3**-0.5)])
    u = (31.0 * directions).astype(np.float32)

    def evaluate(x):
        k, h = lorentz.to_klein(x), lorentz.to_half_space(x)
        return k, h, lorentz.from_klein(k), lorentz.from_half_space(h)

    k, h, inside, x = check_finite(evaluate, (compiled.exp_map0(u),), jnp.float32)
    assert (np.linalg.norm(k, axis=-1) < 1).all() and (h[:, -1] > 0).all()
    # Klein coordinates end at a distance of 7.2; the half-space has all points.
    assert (compiled.distance0(inside)[1:] > 7).all()
    np.testing.assert_allclose(compiled.distance0(x)[1:], 31, rtol=1e-5)
    outside = compiled.from_klein(jnp.asarray([3.0, 4.0]))
    np.testing.assert_allclose(compiled.to_klein(outside), [0.6, 0.8], rtol=1e-5)


@pytest.mark.usefixtures("float64")
def test_half_space_gradients_keep_digits_of_distant_points():
    space, c = points("float32", radii=(24.0, 31.0))

    def slope(dtype):
        cotangent = jnp.ones(space.shape, dtype)
        x = lift(space.astype(dtype), c.astype(dtype))
        return jax.vjp(lambda x: lorentz.to_half_space(x, c), x)[1](cotangent)[0]

    got, want = np.asarray(slope("float32"), np.float64), np.asarray(slope("float64"))
    error = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
    assert error.max() < 2e-5


def test_nonpositive_height_is_refused_or_nan():
    h = jnp.asarray([[1.0, 0.5], [2.0, 0.0]])
    with pytest.raises(ValueError, match="height"):
        lorentz.from_half_space(h)
    x = jax.jit(lorentz.from_half_space)(h)
    assert np.isfinite(x[0]).all() and np.isnan(x[1]).all()
