"""Entailment cones of both models against 80 digits, and at undefined angles."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import cones, lorentz, poincare
from derivatives import check_curvature, check_finite, check_slopes, check_two_derivatives
from mpmath import mpf
from reference import BOUND, DTYPES, PRECISIONS, SLOW_FLOAT64, pairs

pytestmark = pytest.mark.usefixtures("float64")

C = np.array([0.3, 1.0, 2.5])


def exterior_angle(x, y, c=1.0):
    return cones.exterior_angle(lorentz.from_space(x, c), lorentz.from_space(y, c), c)


def half_aperture(x, c=1.0):
    return cones.half_aperture(lorentz.from_space(x, c), c)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_angles_of_awkward_pairs_against_80_digits(dtype, dim):
    x, y, c, _ = pairs(dtype, dim)
    angles, apertures = exterior_angle(x, y, c), half_aperture(x, c)
    assert angles.dtype == apertures.dtype == dtype
    radius = mpf(float(np.asarray(0.2, dtype))) / 2
    for i, row in enumerate(zip(x, y, strict=True)):
        apex, end, curvature = *map(reference.vector, row), mpf(float(c[i]))
        want = reference.exterior_angle(apex, end, curvature)
        assert abs(mpf(float(angles[i])) - want) <= BOUND[dtype], (i, float(want))
        want = reference.half_aperture(apex, curvature, radius)
        assert abs(mpf(float(apertures[i])) - want) <= BOUND[dtype], (i, float(want))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cone_inside_the_minimum_radius_is_a_half_space(dtype):
    for norm in (0, 1e-20, 1e-6, 0.1999):
        x = jnp.asarray([norm, 0, 0], dtype)
        value, gradient = jax.value_and_grad(half_aperture)(x)
        assert value == jnp.asarray(np.pi / 2, dtype)
        assert not gradient.any()


@pytest.mark.usefixtures("unchecked")
def test_minimum_radius_broadcasts_like_the_curvature():
    x = lorentz.from_space(np.random.default_rng(0).normal(size=(3, 2)))
    radii = np.array([0.1, 0.2, 0.3])
    want = [cones.half_aperture(*row) for row in zip(x, [1.0] * 3, radii, strict=True)]
    np.testing.assert_allclose(cones.half_aperture(x, 1.0, radii), want, rtol=1e-14)
    for function in (cones.half_aperture, lambda x, c, r: cones.energy(x, x, c, r)):
        with pytest.raises(ValueError, match=r"min_radius of shape \(3, 1\) does not broadcast"):
            function(x, 1.0, radii[:, None])


def test_half_aperture_is_exact_just_outside_the_minimum_radius():
    for excess in (1e-15, 1e-10, 1e-5):
        x = jnp.array([0.2 * (1 + excess), 0.0])
        value, gradient = jax.value_and_grad(half_aperture)(x)
        exact = reference.half_aperture(reference.vector(x), mpf(1), mpf(0.2) / 2)
        assert abs(mpf(float(value)) - exact) <= 4 * np.finfo(float).eps / np.sqrt(excess)
        assert np.isfinite(gradient).all()


@pytest.mark.slow
def test_second_derivatives_of_both_angles():
    x = jnp.array([[0.3, -0.7, 0.2], [3.0, -7.0, 2.0], [0.3, 0.1, 0.0], [0.3, -0.7, 0.2]])
    y = jnp.array([[-0.4, 0.5, 0.9], [2.0, -7.0, 3.0], [0.0, 0.0, 2.0], [0.31, -0.7, 0.25]])
    c = jnp.array([0.7, 1.0, 2.0, 1.0])

    def angles(x, y, c):
        return (exterior_angle(x, y, c), half_aperture(x, c))

    check_two_derivatives(angles, (x, y, c))


@pytest.mark.slow  # it takes seconds
def test_collinear_points_have_angle_zero_or_pi():
    angle = jax.jit(exterior_angle)
    for dtype in DTYPES:
        pi = jnp.asarray(np.pi, dtype)
        axis, generic = jnp.asarray([[0, -1.5, 0], [0.3, -0.7, 0.2]], dtype)
        eps = float(jnp.finfo(dtype).eps)
        for point, close in ((axis, 0), (generic, 8 * eps)):
            assert angle(point, 2 * point) <= close
            assert pi - angle(point, point / 2) <= close
        assert angle(generic, 0 * generic) == pi
        gradient = jax.jit(jax.grad(exterior_angle, argnums=(0, 1)))(axis, 2 * axis)
        assert not gradient[0].any() and not gradient[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_undefined_angles_are_as_documented_with_gradient_zero(dtype):
    x, zero = jnp.asarray([0.3, -0.7, 0.2], dtype), jnp.zeros(3, dtype)
    both = jax.jit(jax.value_and_grad(exterior_angle, argnums=(0, 1)))
    for apex, y, want in ((x, x, 0), (zero, zero, 0), (zero, x, np.pi / 2), (9 * x, 9 * x, 0)):
        value, gradient = both(apex, y)
        assert value == jnp.asarray(want, dtype)
        assert not gradient[0].any() and not gradient[1].any()


@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_two_derivatives, marks=pytest.mark.slow)]
)
def test_energy_is_the_angle_outside_the_cone(check):
    inside = jnp.array([[1.0, 0.1, 0.0], [2.0, 0.0, 0.0], [0.9, 0.0, 0.0]])
    apex, c, radius = jnp.array([0.9, 0.0, 0.0]), 0.7, 0.3
    outside = jnp.array([-1.0, 2.0, 0.3])

    def energy(x, y):
        return cones.energy(*(lorentz.from_space(v, c) for v in (x, y)), c, radius)

    points = [reference.vector(v) for v in (apex, outside)]
    want = reference.exterior_angle(*points, mpf(c))
    want -= reference.half_aperture(points[0], mpf(c), mpf(radius))
    assert abs(mpf(float(energy(apex, outside))) - want) <= BOUND["float64"]
    check(energy, (apex, outside))
    both = jax.jit(jax.value_and_grad(energy, argnums=(0, 1)))
    for y in inside:
        value, gradients = both(apex, y)
        assert value == 0 and not any(map(np.any, gradients))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_the_angle_to_a_point_near_the_origin(dtype):
    x, direction = jnp.array([0.3, -0.7, 0.2], dtype), np.array([0.5, 0.1, 0.9])

    def slope(y, i):
        def moved(t):
            return [b + t * (i == j) for j, b in enumerate(reference.vector(y))]

        def angle(t):
            return reference.exterior_angle(reference.vector(x), moved(t), mpf(1))

        return mpmath.diff(angle, 0)

    slopes = jax.jit(jax.grad(exterior_angle, argnums=1))
    for size in (1e-9, 1e-7, 1e-3):
        y = jnp.asarray(size * direction, dtype)
        gradient = slopes(x, y)
        for i in range(3):
            assert abs(mpf(float(gradient[i])) - slope(y, i)) <= 10 * BOUND[dtype]
    assert not slopes(x, jnp.zeros_like(x)).any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_cone_hessians_near_the_origin_are_finite(dtype):
    sizes = np.array([0, 1e-150, 1e-30, 1e-23, 1e-20, 1e-19, 2e-18, 1e-10])
    y = jnp.asarray([0.48, -0.64, 0.6], dtype)
    x = jnp.asarray(sizes[:, None] * np.array([0.6, 0.64, 0.48]), dtype)

    def energy(x, y):
        return cones.energy(*map(lorentz.from_space, (x, y)))

    @jax.jit
    @jax.vmap
    def curves(x):
        angles = [jax.hessian(f, i)(x, y) for f in (exterior_angle, energy) for i in (0, 1)]
        return *angles, jax.hessian(half_aperture)(x)

    for hessians in curves(x):
        for size, matrix in zip(sizes, hessians, strict=True):
            assert np.isfinite(matrix).all(), size


def test_tiny_apex_counts_as_the_origin():
    x, y = jnp.asarray([1, 0], jnp.float32), jnp.asarray([0.3, 0.4], jnp.float32)
    right_angle = jnp.asarray(np.pi / 2, jnp.float32)
    angle, gradient = jax.jit(exterior_angle), jax.jit(jax.grad(exterior_angle))
    assert angle(np.float32(2e-18) * x, y) != right_angle
    for size in (5e-19, 1e-30):
        apex = np.float32(size) * x
        assert angle(apex, y) == right_angle
        assert angle(apex, apex) == 0
        assert not gradient(apex, y).any()


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_angles_and_gradients_are_finite_everywhere(dtype):
    direction = np.array([0.6, -0.64, 0.48])
    radii = [0, 1e-20, 1e-6, 0.05, 0.2, 1, 80]
    points = np.array([r * s * direction for r in radii for s in (1, -1)] + [[0, 80, 1e-9]])
    points = points.astype(dtype)
    points = np.concatenate(
        [points, lorentz.exp_map0(points[-3:])[:, 1:], points * np.asarray(1 + 1e-6, dtype)]
    )
    x, y = np.repeat(points, len(points), axis=0), np.tile(points, (len(points), 1))
    c = np.resize(np.array([0.1, 10], dtype), len(x))

    def both(x, y, c):
        return exterior_angle(x, y, c), half_aperture(x, c)

    angle, aperture = check_finite(both, (x, y, c), dtype)
    assert ((angle >= 0) & (angle <= jnp.asarray(np.pi, dtype))).all()
    assert ((aperture > 0) & (aperture <= jnp.asarray(np.pi / 2, dtype))).all()


def _points():
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(2, 20, 3, 4))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    radius = np.array([1e-9, 1e-3, 0.05, 0.3, 0.9])[np.arange(20) % 5][:, None, None]
    p = directions[0] * radius / np.sqrt(C)[:, None]
    q = directions[1] * rng.uniform(0.01, 0.9, size=(20, 3, 1)) / np.sqrt(C)[:, None]
    q[10:15] = p[10:15] * 1.05 + 1e-3 * q[10:15] * radius[10:15]  # just behind
    return p, q


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_angles_of_the_ball_against_80_digits(dtype):
    bound = BOUND[dtype]
    p, q = (points.astype(dtype) for points in _points())
    c = C.astype(dtype)
    angle = cones.poincare_exterior_angle(p, q, c)
    aperture = cones.poincare_half_aperture(p, c)
    outside = np.maximum(angle - aperture, 0)
    np.testing.assert_allclose(cones.poincare_energy(p, q, c), outside, rtol=0, atol=bound)
    for i, j in np.ndindex(angle.shape):
        x, y, k = reference.vector(p[i, j]), reference.vector(q[i, j]), mpf(float(c[j]))
        # By the hyperbolic law of cosines; it equals the angle between Euclidean directions.
        xx, yy, xy = reference.dot(x, x), reference.dot(y, y), reference.dot(x, y)
        numerator = xy * (1 + k * xx) - xx * (1 + k * yy)
        gap = mpmath.sqrt(xx + yy - 2 * xy)
        denominator = mpmath.sqrt(xx) * gap * mpmath.sqrt(1 + k**2 * xx * yy - 2 * k * xy)
        want = mpmath.acos(numerator / denominator)
        assert abs(float(angle[i, j]) - want) <= bound, (i, j)
        sine = mpf(float(np.asarray(0.1, dtype))) * (1 - k * xx) / mpmath.sqrt(k * xx)
        assert abs(float(aperture[i, j]) - mpmath.asin(min(sine, mpf(1)))) <= bound, (i, j)


def test_ball_angle_gradients_at_very_different_radii():
    """The part of q − p across p is taken from q, because the difference has lost its digits."""
    p, q = np.random.default_rng(3).normal(size=(2, 80, 3))
    p *= np.tile([0.01, 0.3, 0.8, 0.95], 20)[:, None] / np.linalg.norm(p, axis=-1, keepdims=True)
    q *= np.repeat([1e-9, 1e-6, 1e-3, 0.01, 0.1], 16)[:, None] / np.linalg.norm(q, axis=-1)[:, None]
    slopes = jax.jit(jax.grad(lambda *pair: cones.poincare_exterior_angle(*pair).sum(), (0, 1)))
    for apex, end in ((p, q), (q, p)):
        pair = np.float32(apex), np.float32(end)
        exact = slopes(*map(np.float64, pair))
        for got, want in zip(map(np.float64, slopes(*pair)), map(np.asarray, exact), strict=True):
            size = np.linalg.norm(want, axis=-1)
            assert (np.linalg.norm(got - want, axis=-1) <= BOUND["float32"] * size).all()


@pytest.mark.slow
def test_second_derivatives_of_cones_of_the_ball():
    p, q = _points()
    rows = [3, 4, 8, 9]

    def run(p, q, c):
        return (
            cones.poincare_half_aperture(p, c),
            cones.poincare_exterior_angle(p, q, c),
            cones.poincare_energy(p, q, c),
        )

    check_curvature(run, (p[rows], q[rows], C))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_cones_and_layers_of_the_ball_are_finite_at_the_edges(dtype):
    direction = np.array([0.6, -0.64, 0.48])
    rows = np.array([r * s * direction for r in (0, 1e-30, 1e-6, 0.5, 1, 1.5) for s in (1, -1)])
    p, q = np.repeat(rows, len(rows), axis=0), np.tile(rows, (len(rows), 1))
    p, q = (points.astype(dtype) for points in (p, q))
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), dtype)

    def evaluate(p, q, c):
        return (
            cones.poincare_energy(p, q, c),
            cones.poincare_exterior_angle(p, q, c),
            poincare.mobius_linear(matrix, p, jnp.asarray([0.1, -0.2], dtype), c),
            poincare.concatenate([p, q], c),
            poincare.split(p, (1, 2), c),
            poincare.limit_distance0(p, 3.0, c),
        )

    value = check_finite(evaluate, (p, q, jnp.asarray(1.0, dtype)), dtype)
    coincident, origin = (
        (p == q).all(-1),
        np.linalg.norm(p, axis=-1) < (1e-18 if dtype == "float32" else 1e-150),
    )
    assert not np.any(value[1][coincident])
    np.testing.assert_allclose(
        value[1][origin & ~coincident & (np.linalg.norm(q, axis=-1) > 1e-18)], np.pi / 2, rtol=1e-6
    )
