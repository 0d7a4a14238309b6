"""Points of geodesics against 80-digit arithmetic, up to √c · norm = 2.5e5."""

import ball_reference
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz, poincare
from mpmath import mpf
from reference import BOUND, DTYPES

pytestmark = pytest.mark.usefixtures("float64")

INSIDE = (0, 0.1, 0.25, 0.5, 0.51, 0.9, 1)
BEYOND = (-0.5, 1.3)
NORMS = (1e-6, 0.3, 1, 8, 30, 300, 8e4)


def lorentz_cases(dtype):
    """Return pairs of space components, curvatures, and the sizes to which errors are relative."""
    rows = [
        (*reference.pair(kind, norm, 5, dtype), np.asarray(c, dtype), min(norm, 1 / c**0.5))
        for kind in reference.KINDS
        for norm in NORMS
        for c in reference.CURVATURES
    ]
    return map(np.stack, zip(*rows, strict=True))


def assert_on_geodesic(got, want, size, bound, context):
    """Assert an error relative to the point, or to `size` if the point is nearer to the origin."""
    error = reference.norm([mpf(float(a)) - b for a, b in zip(got, want, strict=True)])
    assert error <= bound * max(reference.norm(want), size), context


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", DTYPES)
def test_lorentz_geodesics_against_80_digits(dtype):
    x, y, c, size = lorentz_cases(dtype)
    fractions = np.asarray(INSIDE + BEYOND, dtype)
    ends = (lorentz.from_space(v, c) for v in (x, y))
    got = np.asarray(lorentz.geodesic(fractions[:, None], *ends, c))[..., 1:]
    assert got.dtype == dtype
    for i in range(len(x)):
        p, q, k = *map(reference.vector, (x[i], y[i])), mpf(float(c[i]))
        velocity = reference.log_map(p, q, k)[1:]
        for j, t in enumerate(fractions):
            if j >= len(INSIDE) and np.abs(x[i]).max() > 100:
                continue  # beyond the ends errors grow with the distance
            step = [mpf(float(t)) * v for v in velocity]
            want = reference.exp_map(p, step, k)[1:] if t else p
            assert_on_geodesic(got[j, i], want, float(size[i]), BOUND[dtype], (i, t))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", DTYPES)
def test_poincare_geodesics_against_80_digits(dtype):
    p, q, c, kinds = ball_reference.pairs(dtype, 3)
    fractions = np.asarray(INSIDE, dtype)
    got = np.asarray(poincare.geodesic(fractions[:, None], p, q, c))
    eps = float(np.finfo(dtype).eps)
    for i, kind in enumerate(kinds):
        a, b, k = *map(reference.vector, (p[i], q[i])), mpf(float(c[i]))
        velocity = ball_reference.log_map(a, b, k)
        outermost = max(float(mpf(k) ** 0.5 * reference.norm(v)) for v in (a, b))
        bound = max(BOUND[dtype], 16 * eps / (1 - outermost))
        for j, t in enumerate(fractions):
            want = ball_reference.exp_map(a, ball_reference.times(mpf(float(t)), velocity), k)
            size = float(c[i]) ** -0.5 if outermost > 0.1 else float(reference.norm(a))
            assert_on_geodesic(got[j, i], want, size, bound, (kind, i, t))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_geodesics_return_their_ends(module):
    rng = np.random.default_rng(0)
    u = np.float32(rng.normal(size=(2, 200, 3)) * rng.choice([1e-3, 1, 4], size=(200, 1)))
    x, y = module.exp_map0(u, np.float32(0.7))
    # The combination rounds once. Near the rim of the ball, `project` may shorten by another eps,
    # which is up to two units of a coordinate's last place.
    bound = 1 if module is lorentz else 3
    for t, end in ((0.0, x), (1.0, y)):
        np.testing.assert_array_max_ulp(module.geodesic(t, x, y, np.float32(0.7)), end, bound)


# Distances of both ends from the origin: equal, near, and on both sides of a mutual distance of
# 0.96, where the formula changes.
RADII = [(0, 0), (1e-3, 1e-3), (0.4, 0.4), (0.6, 0.6), (3, 3), (3, 0.1), (8, 8), (8, 1)]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_float32_derivatives_agree_with_float64(module):
    radii = np.float64(RADII if module is lorentz else RADII[:-2])  # 8 is at the rim
    count = 10 * len(radii)
    u = np.random.default_rng(1).normal(size=(2, count, 3))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    u *= np.repeat(radii.T, 10, axis=-1)[..., None] / (2 if module is poincare else 1)
    x, y = (np.float32(module.exp_map0(v)) for v in u)
    t = np.float32(np.tile([0, 0.3, 0.5, 0.7, 1], count // 5))

    def slopes(t, x, y, c):
        weights = np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape)

        def point(*args):
            return jnp.sum(weights * module.geodesic(*args))

        return jax.grad(point, (0, 1, 2, 3))(t, x, y, c)

    args = t, x, y, np.ones(count, np.float32)
    got = jax.jit(slopes)(*args)
    want = jax.jit(slopes)(*map(np.float64, args))
    # Rounding a point of the ball at the distance 3 changes 1 − |p|² by 10 eps of its size.
    bound = np.finfo(np.float32).eps * (4 if module is lorentz else 40)
    for actual, expected in zip(got, want, strict=True):
        assert actual.dtype == np.float32 and np.isfinite(actual).all()
        actual, expected = (np.asarray(v).reshape(count, -1) for v in (actual, expected))
        size = np.abs(expected).max(-1, keepdims=True) + np.abs(x).max(-1, keepdims=True)
        assert (np.abs(actual - expected) <= bound * size).all()


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_points_far_beyond_the_ends_are_finite(module):
    ends = module.exp_map0(np.float32([[8, 0, 0], [-8, 1, 0], [1e-3, 0, 0], [1e-3, 1e-6, 0]]))
    x, y = ends[::2], ends[1::2]
    for t in (-1e6, -9.0, 9.0, 1e6):

        def point(t):
            return jnp.sum(module.geodesic(t, x, y))

        assert np.isfinite(module.geodesic(t, x, y)).all()
        assert np.isfinite(jax.grad(point)(t))


RADII_OF_STARTS = (0.5, 3, 6, 10)
LENGTHS = (1e-3, 0.3, 0.99, 1.01, 3)
FRACTIONS = (0, 0.3, 0.5, 1 - 2.0**-20, 1)


def pair_at(model, radius, length, rng):
    """Return a point at distance `radius` from the origin, and a second at `length` from it."""
    outward, across = np.linalg.qr(rng.normal(size=(3, 2)))[0].T
    angle = rng.uniform(0, np.pi)
    along = np.cosh(length) * np.sinh(radius)
    along += np.sinh(length) * np.cos(angle) * np.cosh(radius)
    x, y = np.sinh(radius) * outward, along * outward + np.sinh(length) * np.sin(angle) * across
    if model is poincare:
        x, y = (v / (1 + np.sqrt(1 + v @ v)) for v in (x, y))
    return x, y


def space_geodesic(t, x, y, c):
    x, y = (lorentz.from_space(v, c) for v in (x, y))
    return lorentz.geodesic(t, x, y, c)[..., 1:]


def exact_geodesic(t, x, y, c):
    """Return the space components in 80 digits, by the weights of the ends."""
    length = 2 * mpmath.asinh(mpmath.sqrt(c * reference.squared_distance(x, y, c)) / 2)
    by_x, by_y = (mpmath.sinh(share * length) / mpmath.sinh(length) for share in (1 - t, t))
    return [by_x * a + by_y * b for a, b in zip(x, y, strict=True)]


def exact_ball_geodesic(t, p, q, c):
    ends = (ball_reference.times(ball_reference.conformal_factor(v, c), v) for v in (p, q))
    space = exact_geodesic(t, *ends, c)
    return ball_reference.times(1 / (1 + mpmath.sqrt(c) * reference.time(space, c)), space)


def at(args, direction, step):
    """Return the arguments t, x, y, c moved by a step along a direction."""
    return [
        ball_reference.plus(value, ball_reference.times(step, by))
        if isinstance(value, list)
        else value + step * by
        for value, by in zip(args, direction, strict=True)
    ]


def difference(a, b):
    return [u - v for u, v in zip(a, b, strict=True)]


def exact_columns(exact, args, name):
    """Yield derivatives in the numbers of an argument, by central differences in 80 digits."""
    for j in range(3 if name in "xy" else 1):
        basis = [mpf(i == j) for i in range(3)]
        zero = [mpf(0)] * 3
        direction = [
            basis
            if name == argument and name in "xy"
            else zero
            if argument in "xy"
            else mpf(name == argument)
            for argument in "txyc"
        ]
        step = mpf(10) ** -20
        ends = (exact(*at(args, direction, sign * step)) for sign in (1, -1))
        yield ball_reference.times(1 / (2 * step), difference(*ends))


MODELS = [
    pytest.param(lorentz, space_geodesic, exact_geodesic, id="lorentz"),
    pytest.param(poincare, poincare.geodesic, exact_ball_geodesic, id="poincare"),
]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("model", "function", "exact"), MODELS)
def test_values_and_gradients_far_out_against_80_digits(model, function, exact, dtype):
    rng, rows = np.random.default_rng(2), []
    for radius in RADII_OF_STARTS:
        for length in LENGTHS:
            for t in FRACTIONS + ((-0.5, 1.5) if length < 0.9 else ()):
                rows.append((t, *pair_at(model, radius, length, rng), 1.0))
    args = [np.asarray(column, dtype) for column in zip(*rows, strict=True)]
    values = jax.jit(jax.vmap(function))(*args)
    slopes = jax.jit(jax.vmap(jax.jacrev(function, (0, 1, 2, 3))))(*args)
    for i, (t, x, y, c) in enumerate(zip(*args, strict=True)):
        row = mpf(float(t)), reference.vector(x), reference.vector(y), mpf(float(c))
        want = exact(*row)
        # The largest error is 14 eps. Rounding a point of the ball changes 1 − |p|², and with it
        # the length, by a multiple of eps / (1 − |p|).
        outermost = max(float(reference.norm(v)) for v in row[1:3])
        bound = 32 * float(np.finfo(dtype).eps) / (1 if model is lorentz else 1 - outermost)
        assert_on_geodesic(values[i], want, 0, bound, (i, t))
        for name, block in zip("txyc", slopes, strict=True):
            # Far out c hardly changes the result, so the error is relative to the point.
            least = reference.norm(want) if name == "c" else 0
            columns = list(exact_columns(exact, row, name))
            size = max(reference.norm([a for column in columns for a in column]), least)
            got = np.asarray(block[i], np.float64).reshape(3, -1).T
            error = [
                mpf(float(a)) - b
                for pair in zip(got, columns, strict=True)
                for a, b in zip(*pair, strict=True)
            ]
            assert reference.norm(error) <= bound * size + mpf(10) ** -30, (name, i, t)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("model", "function", "exact"), MODELS)
def test_second_derivatives_at_the_change_of_formulas(model, function, exact):
    rng, rows = np.random.default_rng(3), []
    for radius in (0.5, 3):
        for length in (1e-3, 0.96242, 0.96243, 3):
            rows += [(t, *pair_at(model, radius, length, rng), 1.0) for t in FRACTIONS[:-2]]
    args = [np.asarray(column) for column in zip(*rows, strict=True)]
    along = 0.3, *(rng.normal(size=(2, 3)) * (1 if model is lorentz else 0.05)), 0.2

    @jax.jit
    @jax.vmap
    def second(*args):
        def line(s):
            return function(*(value + s * by for value, by in zip(args, along, strict=True)))

        return jax.jacfwd(jax.jacfwd(line))(0.0)

    step = mpf(10) ** -20
    direction = [reference.vector(v) if np.ndim(v) else mpf(v) for v in along]
    for got, *row in zip(second(*args), *args, strict=True):
        row = [reference.vector(v) if np.ndim(v) else mpf(float(v)) for v in row]
        behind, middle, ahead = (exact(*at(row, direction, k * step)) for k in (-1, 0, 1))
        bend = difference(difference(ahead, middle), difference(middle, behind))
        want = ball_reference.times(1 / step**2, bend)
        assert reference.relative_error(got, want) < 1e-12  # the bound of `lorentz` for values


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_second_derivatives_of_tiny_and_equal_ends_are_finite(module):
    sizes = np.float32([0, 1e-32, 1e-29, 1e-19, 1e-3])
    u = np.float32([0.6, 0.8, 0]) * sizes[:, None]
    across = np.float32([0, 0, 1e-6]) * sizes[:, None]

    def total(t, u, v, c):
        return jnp.sum(module.geodesic(t, module.exp_map0(u, c), module.exp_map0(v, c), c))

    hessian = jax.jit(jax.vmap(jax.hessian(total, (0, 1, 2, 3))))
    for c in np.float32([1e-3, 1, 1e3]):
        for v in (u, u + across):
            blocks = hessian(np.full(5, 0.3, np.float32), u, v, np.full(5, c))
            assert all(np.isfinite(block).all() for block in jax.tree.leaves(blocks))


def test_geodesics_between_points_outside_stay_inside():
    rng = np.random.default_rng(4)
    p, q = rng.normal(size=(2, 500, 3))
    c = np.float32(rng.choice([1e-3, 1, 1e3], size=500))
    radius = 2.0 / np.sqrt(c)[:, None]  # outside; both are moved inside
    p, q = (np.float32(radius * v / np.linalg.norm(v, axis=-1, keepdims=True)) for v in (p, q))
    t = np.float32(rng.choice([0, 1e-7, 0.3, 0.5, 1], size=500))
    got = np.float64(poincare.geodesic(t, p, q, c))
    radii = np.sqrt(np.float64(c)) * np.linalg.norm(got, axis=-1)
    # `project` moves to 1 − 4 eps, and rounding adds at most 3 eps.
    assert (radii <= 1 - np.finfo(np.float32).eps).all()
