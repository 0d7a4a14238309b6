"""The Poincaré ball against 80 digits, differences and geoopt; its rim; hyperplanes."""

import pathlib

import ball_reference as exact
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import lorentz, poincare
from derivatives import check_curvature, check_finite, check_slopes, check_two_derivatives
from mpmath import mpf, sqrt
from reference import BOUND, DTYPES, PRECISIONS, SLOW_FLOAT64, pairs, tangent

from hlformer_jax.ops import poincare as ball

pytestmark = pytest.mark.usefixtures("float64")

GOLDEN = np.load(pathlib.Path(__file__).parent.parent / "golden" / "poincare.npz")
C = np.array([0.3, 1.0, 2.5])


def from_space(x, c=1.0):
    return poincare.from_lorentz(lorentz.from_space(x, c), c)


def _points(count, c=C):
    """Return points of the ball for each curvature, up to 0.9 of the radius."""
    rng = np.random.default_rng(0)
    p = rng.normal(size=(count, len(c), 4))
    p /= np.linalg.norm(p, axis=-1, keepdims=True)
    return p * rng.uniform(0, 0.9, (count, len(c), 1)) / np.sqrt(c)[:, None]


@pytest.mark.parametrize(("dtype", "dim"), PRECISIONS)
def test_conversion_between_models_and_back(dtype, dim):
    rows = [
        (reference.pair("generic", norm, dim, dtype)[0], np.asarray(c, dtype))
        for norm in reference.NORMS
        for c in reference.CURVATURES
    ]
    x, c = map(np.stack, zip(*rows, strict=True))
    ball = np.asarray(from_space(x, c))
    restored = np.asarray(poincare.to_lorentz(ball, c))
    assert ball.dtype == restored.dtype == dtype
    for i in range(len(rows)):
        space, p, curvature = reference.vector(x[i]), reference.vector(ball[i]), mpf(float(c[i]))
        scale = 1 + sqrt(curvature) * reference.time(space, curvature)
        assert reference.relative_error(ball[i], [a / scale for a in space]) <= BOUND[dtype]
        scale = 2 / (1 - curvature * reference.dot(p, p))
        space = [scale * a for a in p]
        want = [reference.time(space, curvature), *space]
        assert reference.relative_error(restored[i], want) <= BOUND[dtype]
    np.testing.assert_allclose(restored[:, 1:], x, rtol=0, atol=50 * BOUND[dtype])


# In units of eps / (1 − √c |p|). Measured: at most 3.5, and 13.5 for the exponential map of a
# vector that leads from the rim through the centre to the rim.
CONDITION = 16

MATRIX = np.array([[0.5, -1, 0.3], [0, 1, 2], [1, 0, 0], [0.2, 0.1, 0]])


def _gyromidpoint(p, q, t, c):
    t = jnp.broadcast_to(jnp.asarray(t, p.dtype), p.shape[:-1])
    weights = jnp.stack([1 - t, t], -1)[..., None, :]
    return poincare.gyromidpoint(jnp.stack([p, q], -2), weights, c)[..., 0, :]


# Functions of two points, a vector, a number and c.
CALLS = {
    "conformal_factor": lambda p, q, v, t, c: poincare.conformal_factor(p, c),
    "tangent_norm": lambda p, q, v, t, c: poincare.tangent_norm(p, v, c),
    "distance": lambda p, q, v, t, c: poincare.distance(p, q, c),
    "squared_distance": lambda p, q, v, t, c: poincare.squared_distance(p, q, c),
    "distance0": lambda p, q, v, t, c: poincare.distance0(p, c),
    "exp_map0": lambda p, q, v, t, c: poincare.exp_map0(v, c),
    "log_map0": lambda p, q, v, t, c: poincare.log_map0(p, c),
    "exp_map": lambda p, q, v, t, c: poincare.exp_map(p, v, c),
    "log_map": lambda p, q, v, t, c: poincare.log_map(p, q, c),
    "mobius_add": lambda p, q, v, t, c: poincare.mobius_add(p, q, c),
    "mobius_scalar_mul": lambda p, q, v, t, c: poincare.mobius_scalar_mul(t, p, c),
    "mobius_matvec": lambda p, q, v, t, c: poincare.mobius_matvec(
        jnp.asarray(np.resize(MATRIX, (4, p.shape[-1])), p.dtype), p, c
    ),
    "gyration": lambda p, q, v, t, c: poincare.gyration(p, q, v, c),
    "parallel_transport": lambda p, q, v, t, c: poincare.parallel_transport(p, q, v, c),
    "transport0": lambda p, q, v, t, c: poincare.transport0(q, v, c),
    "gyromidpoint": lambda p, q, v, t, c: _gyromidpoint(p, q, t, c),
    "geodesic": lambda p, q, v, t, c: poincare.geodesic(t, p, q, c),
    "geodesic_unit": lambda p, q, v, t, c: poincare.geodesic_unit(t, p, v, c),
    "antipode": lambda p, q, v, t, c: poincare.antipode(p),
    "egrad_to_rgrad": lambda p, q, v, t, c: poincare.egrad_to_rgrad(p, v, c),
}


def _of_pairs(name):
    """Return a function of two points and c that uses the second point as the vector as well."""
    turned, t = name in ("gyration", "parallel_transport"), -1.5 if "scalar" in name else 0.3
    return lambda p, q, c: CALLS[name](p, q, p - q + 1 if turned else q, t, c)


OPS = {name: _of_pairs(name) for name in CALLS}
KINKS = {"tangent_norm", "distance", "distance0", "geodesic_unit"}  # where a norm is 0


def _values(p, q, c, v, w, share):
    """Return all results for pairs of points, tangent vectors v, w at the first, and a share."""
    return {name: call(p, q, v, share, c) for name, call in CALLS.items()} | {
        "exp_map, long": poincare.exp_map(p, w, c),
        "mobius_add, inverse": poincare.mobius_add(-p, q, c),
    }


def _exact_values(p, q, c, v, w, share):
    distance, ratio = exact.distance(p, q, c), exact.conformal_factor(p, c)
    zero = [mpf(0)] * len(p)
    return {
        "conformal_factor": ratio,
        "tangent_norm": ratio * reference.norm(v),
        "distance": distance,
        "squared_distance": 4 / c * mpmath.sinh(mpmath.sqrt(c) * distance / 2) ** 2,
        "distance0": exact.distance(zero, p, c),
        "exp_map0": exact.exp_map0(v, c),
        "log_map0": exact.log_map0(p, c),
        "exp_map": exact.exp_map(p, v, c),
        "exp_map, long": exact.exp_map(p, w, c),
        "log_map": exact.log_map(p, q, c),
        "mobius_add": exact.mobius_add(p, q, c),
        "mobius_add, inverse": exact.mobius_add(exact.times(-1, p), q, c),
        "mobius_scalar_mul": exact.exp_map0(exact.times(share, exact.log_map0(p, c)), c),
        "gyration": exact.gyration(p, q, v, c),
        "parallel_transport": exact.parallel_transport(p, q, v, c),
        "transport0": exact.times(1 - c * reference.dot(q, q), v),
        "gyromidpoint": exact.gyromidpoint([p, q], [1 - share, share], c),
    }


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dim", [3, pytest.param(127, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", SLOW_FLOAT64)  # geoopt's values are in float64
def test_ball_values_against_80_digits(dtype, dim):
    p, q, c, kinds = exact.pairs(dtype, dim)
    eps = float(jnp.finfo(dtype).eps)
    run = jax.jit(_values)
    share = np.asarray(0.375, dtype) + 0 * c
    w = np.asarray(poincare.log_map(p, q, c)) * np.asarray(0.75, dtype)
    got = {name: np.asarray(value) for name, value in run(p, q, c, q - p / 2, w, share).items()}
    for i, kind in enumerate(kinds):
        args = [*map(reference.vector, (p[i], q[i])), mpf(float(c[i]))]
        args += [*map(reference.vector, (q[i] - p[i] / 2, w[i])), mpf(0.375)]
        root = float(c[i]) ** 0.5
        norms = [float(reference.norm(point)) for point in args[:2]]
        bound = max(BOUND[dtype], CONDITION * eps / (1 - root * max(norms)))
        # Squares of smaller points underflow; sums of points have the rounding of their terms.
        tiny = float(jnp.finfo(dtype).tiny) ** (0.5 if norms[0] > 1e-25 else 1)
        for name, want in _exact_values(*args).items():
            assert got[name].dtype == dtype
            want = want if isinstance(want, list) else [want]
            actual = reference.vector(np.atleast_1d(got[name][i]))
            error = float(reference.norm(exact.plus(actual, exact.times(-1, want))))
            size = float(reference.norm(want))
            if name == "exp_map, long":  # through the origin, and near it
                size = max(size, min(norms[0], 1e-3 / root))
            if name == "squared_distance":
                size = max(size, tiny)
            assert error <= max(bound * size, 4 * eps * tiny, 1e-75), (  # of 80 digits
                f"{name} {kind} c={c[i]} {norms}: {error / max(size, 1e-300):.1e} > {bound:.1e}"
            )


@jax.jit
def _recorded_values(recorded, c):
    """Return the values of the recorded functions for the recorded arguments."""
    x, y, v, t = (recorded[name] for name in "xyvt")
    special = {
        "mobius_scalar_mul": poincare.mobius_scalar_mul(recorded["r"], x, c),
        "mobius_matvec": poincare.mobius_matvec(recorded["matrix"], x, c),
        "gyromidpoint": poincare.gyromidpoint(x, recorded["weights"][None], c)[0],
        "midpoint": poincare.gyromidpoint(x, None, c)[0],
    }
    names = (set(CALLS) & set(recorded)) - set(special)
    return special | {name: CALLS[name](x, y, v, t, c) for name in names}


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("c", [0.3, 1.0, 2.5])
def test_results_equal_the_recording_of_geoopt(c):
    recorded = {name.split("/")[1]: GOLDEN[name] for name in GOLDEN if name.startswith(f"{c}/")}
    values = _recorded_values(recorded, c)
    assert len(values) == 19
    for name, value in values.items():
        if name in ("exp_map", "geodesic", "geodesic_unit", "mobius_scalar_mul", "mobius_add"):
            # geoopt moves results, and arguments of artanh, beyond 1 − 1e-5 inside.
            is_unclipped = np.sqrt(c) * np.linalg.norm(recorded[name], axis=-1) < 0.9999
            assert is_unclipped.sum() >= 3
            value, recorded[name] = value[is_unclipped], recorded[name][is_unclipped]
        np.testing.assert_allclose(value, recorded[name], rtol=1e-10, atol=1e-10, err_msg=name)
    got = poincare.hyperplane_distance(recorded["x"], recorded["z"], recorded["normal"], c)
    np.testing.assert_allclose(got, recorded["hyperplane"], rtol=1e-10, atol=1e-12)


_slopes = jax.jit(jax.grad(poincare.distance, (0, 1)))


@pytest.mark.parametrize("size", [1e-33, 1e-30, 1e-20])
def test_distances_and_gradients_of_tiny_points(size):
    p, q = jnp.asarray([3 * size, 0], jnp.float32), jnp.asarray([0, 4 * size], jnp.float32)
    np.testing.assert_allclose(poincare.distance(p, q), 10 * size, rtol=1e-6)
    np.testing.assert_allclose(poincare.distance0(p), 6 * size, rtol=1e-6)
    np.testing.assert_allclose(_slopes(p, q), [[1.2, -1.6], [-1.2, 1.6]], rtol=1e-6)
    assert not np.any(_slopes(p, p))


def test_gradients_near_coincident_points_have_metric_length():
    p = jnp.asarray([0.3, -0.5, 0.6])
    for gap in (1e-12, 1e-9, 1e-6):
        q = p + gap * jnp.asarray([0.6, 0.8, 0])
        gradient, _ = _slopes(p, q)
        want = -poincare.conformal_factor(p) * jnp.asarray([0.6, 0.8, 0])
        # Rounding the points changes the gap.
        np.testing.assert_allclose(gradient, want, atol=1e-15 / gap + 20 * gap)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_in_the_curvature_for_near_points_far_out(dtype):
    rng = np.random.default_rng(3)
    c, radius = np.asarray(30, dtype), np.tanh(3.5)  # at the distance 7 / √c from the origin
    directions, aside, vectors = rng.normal(size=(3, 8, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    p = (directions * radius / np.sqrt(c)).astype(dtype)
    q = (p + aside * 1e-2 * (1 - radius) / np.sqrt(c)).astype(dtype)
    v = vectors.astype(dtype)
    # The docstring's bound, of the slope and of what a relative error of c does to the value.
    bound = max(BOUND[dtype], 16 * float(np.finfo(dtype).eps) / (1 - radius))
    for name, args in {"log_map": (p, q), "parallel_transport": (p, q, v)}.items():
        function = getattr(poincare, name)
        _, slopes = jax.jvp(lambda c, f=function, a=args: f(*a, c), (c,), (np.ones_like(c),))
        for row, slope in zip(zip(*args, strict=True), slopes, strict=True):
            exact_row, exact_c = [reference.vector(x) for x in row], mpf(float(c))
            step = exact_c * mpf(10) ** -25
            low, value, high = (
                getattr(exact, name)(*exact_row, exact_c + k * step) for k in (-1, 0, 1)
            )
            want = exact.times(1 / (2 * step), exact.plus(high, exact.times(-1, low)))
            error = reference.norm(exact.plus(reference.vector(slope), exact.times(-1, want)))
            assert error <= bound * (reference.norm(want) + reference.norm(value) / exact_c), name


POINTS = {
    "generic": ([0.3, -0.5, 0.2], [-0.4, 0.3, 0.4]),
    "far": ([0.48, -0.6, 0.62], [0.5, 0.6, -0.61]),
    "tiny": ([1e-9, 2e-9, 0.0], [0.0, -1e-9, 1e-9]),
    "origins": ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "from the origin": ([0.0, 0.0, 0.0], [0.4, 0.5, -0.3]),
    "to the origin": ([0.4, 0.5, -0.3], [0.0, 0.0, 0.0]),
    "coincident": ([0.3, -0.7, 0.2], [0.3, -0.7, 0.2]),
    "collinear": ([0.6, -0.6, 0.2], [0.3, -0.3, 0.1]),
    "antipodal": ([0.3, -0.7, 0.2], [-0.3, 0.7, -0.2]),
    "inwards through the middle": ([0.6, -0.6, 0.2], [-1.5, 1.4, -0.5]),  # a vector
}


def _awkward(names):
    return (jnp.array(points) for points in zip(*(POINTS[name] for name in names), strict=True))


@pytest.mark.parametrize(
    "check", [check_slopes, pytest.param(check_two_derivatives, marks=pytest.mark.slow)]
)
def test_derivatives_at_the_origin_and_far_out(check):
    x = jnp.array([[0.0, 0.0], [1e-9, 0.0], [0.3, -0.4], [3.0, -8.0]])
    c = jnp.array([1.0, 1.0, 0.5, 2.0])
    check(lambda x, p, c: (from_space(x, c), poincare.to_lorentz(p, c)), (x, x / 20, c))


@pytest.mark.slow
def test_second_derivatives_wherever_the_functions_are_smooth():
    inside = [name for name in POINTS if name != "inwards through the middle"]
    p, q = _awkward(inside)
    smooth = sorted(set(OPS) - KINKS)

    def evaluate(p, q, c):
        return [OPS[name](p, q, c) for name in smooth]

    check_curvature(evaluate, (p, q, jnp.full(len(inside), 0.7)))
    distinct = ("generic", "far", "collinear", "antipodal")
    p, q = _awkward(distinct)

    def evaluate(p, q, c):
        return [OPS[name](p, q, c) for name in sorted(KINKS)]

    check_curvature(evaluate, (p, q, jnp.full(len(distinct), 0.7)))
    p, v = _awkward(["inwards through the middle", "far", "generic"])
    check_curvature(poincare.exp_map, (p, v, jnp.full(3, 0.7)))


@pytest.mark.parametrize("dtype", SLOW_FLOAT64)
def test_conversion_between_models_is_finite_beyond_the_rim(dtype):
    radii = [0, 1e-20, 1e-6, 0.5, 1, 80]
    x = np.array([r * np.array([0.6, -0.64, 0.48]) for r in radii] + [[1 / np.sqrt(0.1), 0, 0]])
    x = x.astype(dtype)
    x = np.concatenate([x, lorentz.exp_map0(x[-2:], 0.1)[:, 1:]])

    def both(x, c):
        return (from_space(x, c), poincare.to_lorentz(x, c))

    inside, _ = check_finite(both, (x, np.full(len(x), 0.1, dtype)), dtype)
    assert (np.sum(np.asarray(inside, np.float64) ** 2, axis=-1) < 10).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_ball_functions_are_finite_up_to_the_rim_and_beyond(dtype):
    direction = np.array([0.6, -0.64, 0.48])
    rim = 1 - 4 * float(jnp.finfo(dtype).eps)
    radii = [0, 1e-35, 1e-30, 1e-20, 1e-6, 0.5, 0.999, rim, 1, 1.5]
    rows = [r * s * direction for r in radii for s in (1, -1)] + [[rim, 0, 0], [0.3, 0.4, 1e-9]]
    p = np.array(rows)
    first, second = np.repeat(p, len(p), axis=0), np.tile(p, (len(p), 1))
    first, second = (np.concatenate([v, v * (1 + 1e-6)]) for v in (first, second))

    def run(x, y, c):
        return [OPS[name](x, y, c) for name in OPS]

    for c in (0.3, 2.5):
        x, y = ((v / c**0.5).astype(dtype) for v in (first, second))
        values = check_finite(run, (x, y, np.full(len(x), c, dtype)), dtype)
        for name in ("exp_map", "mobius_add", "geodesic", "mobius_matvec"):
            norm = np.linalg.norm(np.asarray(values[list(OPS).index(name)], np.float64), axis=-1)
            assert (c**0.5 * norm < 1).all(), name


@pytest.mark.slow
def test_second_derivatives_are_finite_in_float32():
    direction = np.array([0.6, -0.64, 0.48])
    radii = [0, 1e-35, 1e-30, 1e-23, 1e-20, 1e-10, 0.5, 1 - 4 * 2.0**-23, 1.2]
    p = jnp.asarray(np.outer(radii, direction), jnp.float32)
    q = jnp.broadcast_to(jnp.asarray([0.48, -0.64, 0.3], jnp.float32), p.shape)
    p, q = jnp.concatenate([p, p, q]), jnp.concatenate([q, p, p])
    directions = [(jnp.ones_like(p).at[:, 1].set(-0.3), 0 * q), (0 * p, jnp.ones_like(q) * 0.7)]

    @jax.jit
    def curves(args):
        gradients = [jax.grad(lambda args, op=op: jnp.sum(op(*args, 1.0))) for op in OPS.values()]
        return [
            [jax.jvp(f, (args,), (direction,))[1] for direction in directions] for f in gradients
        ]

    for name, arrays in zip(OPS, curves((p, q)), strict=True):
        assert all(np.isfinite(array).all() for array in jax.tree.leaves(arrays)), name


_AT_THE_RIM = {
    "squared_distance": lambda p, q, c: ball.squared_distance(p, q, c),
    "pairwise_distance": lambda p, q, c: ball.pairwise_distance(p, q, c),
    "log_map": lambda p, q, c: ball.log_map(p, q, c),
    "mobius_add": lambda p, q, c: ball.mobius_add(p, q, c),
    "gyration": lambda p, q, c: ball.gyration(p, q, jnp.ones_like(p), c),
    "parallel_transport": lambda p, q, c: ball.parallel_transport(p, q, jnp.ones_like(p), c),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "squared_distance" else pytest.param(name, marks=pytest.mark.slow)
        for name in _AT_THE_RIM
    ],
)
def test_second_derivatives_at_the_rim_are_finite(name):
    """At c = 1000 gaps are rounded down to 2 eps, and the cube of their product to 0."""
    direction = np.array([0.6, -0.64, 0.48])
    p, q = (
        np.asarray(np.outer(sign, direction / 1000**0.5), np.float32) for sign in ([1, 1], [1, -1])
    )
    gradient = jax.grad(lambda *args: jnp.sum(_AT_THE_RIM[name](*args)), (0, 1, 2))
    args = p, q, np.float32(1000)
    directions = np.full_like(p, 0.01), np.full_like(q, -0.02), np.float32(100)
    for array in jax.jit(lambda *args: jax.jvp(gradient, args, directions))(*args)[1]:
        assert np.isfinite(array).all()


def test_limit_beyond_all_points_changes_nothing():
    p = np.array([[0.3, 0.4], [0.0, 0.0]], np.float32)
    for module, x in ((lorentz, np.asarray(lorentz.from_space(p))), (poincare, p)):

        def limited(limit, c, m=module, x=x):
            return m.limit_distance0(x, limit, c)[..., -2:]

        for limit in (100.0, np.inf):
            slopes = jax.jacfwd(limited, (0, 1)), jax.jacrev(limited, (0, 1))
            np.testing.assert_array_equal(limited(limit, 1.0), p)
            for slope in jax.tree.leaves([f(np.float32(limit), np.float32(1)) for f in slopes]):
                np.testing.assert_array_equal(slope, 0)


def test_nearly_flat_ball_is_euclidean():
    x, y, v = _points(3, np.array([0.3, 1.0, 2.5, 0.3, 1.0, 2.5])).astype(np.float32)
    size = np.linalg.norm(x - y, axis=-1)
    slope = np.sum(size * (np.sum(x**2 + y**2, -1) - np.sum((x - y) ** 2, -1) / 3))
    flat = (2 * size, x + y, x + v, y - x, v, slope)

    @jax.jit
    def results(c):
        return (
            poincare.distance(x, y, c),
            poincare.mobius_add(x, y, c),
            poincare.exp_map(x, v, c),
            poincare.log_map(x, y, c),
            poincare.gyration(x, y, v, c),
            jax.grad(lambda c: poincare.distance(x, y, c).sum())(c),
        )

    for c in (1e-22, 1e-12, 1e-8):
        for actual, expected in zip(results(jnp.float32(c)), flat, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_project_moves_points_to_the_documented_rim(dtype):
    edge = poincare.to_lorentz(jnp.asarray([2, 0], dtype))
    want = -np.log(2 * float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(jnp.linalg.norm(lorentz.log_map0(edge)), want, rtol=0.02)
    inside = jnp.asarray([0.6, 0.7], dtype)
    np.testing.assert_array_equal(poincare.project(inside), inside)


@pytest.mark.parametrize("dtype", DTYPES)
def test_projection_is_inside_the_ball_with_a_positive_gap(dtype):
    eps = float(jnp.finfo(dtype).eps)
    rng = np.random.default_rng(0)
    p = jnp.asarray(rng.normal(size=(500, 3)) * 1e3, dtype)
    c = jnp.asarray(rng.uniform(0.1, 10, 500), dtype)
    inside = jax.jit(ball.inside)
    projected = jax.jit(ball.project)(p, c)
    unchanged, gap = inside(projected, c)
    np.testing.assert_array_equal(unchanged, projected)
    # 8 eps without rounding. The radius has at most 6.5 roundings of eps / 2 (root and quotient of
    # the limit, 2.5 of the norm, scale and product), the square twice as many and 4 more: 8.5 eps.
    # Gaps below 2 eps are clamped.
    assert (gap >= 2 * eps).all() and (gap < 16.5 * eps).all()
    gap = inside(p, c)[1]
    assert (gap > 0).all() and (gap < 8 * eps).all()


@pytest.mark.slow  # it takes seconds
def test_gap_to_the_rim_is_clamped_with_a_constant_gradient():
    p = jnp.asarray([[1.0, 0.0], [0.5, 0.0]])
    gap, pullback = jax.vjp(lambda p: ball.inside(p, jnp.ones(2))[1], p)
    assert 0 < gap[0] < 1e-15 and gap[1] == 0.75
    # The gap of a point that was moved is constant.
    np.testing.assert_array_equal(pullback(jnp.ones(2))[0], [[0, 0], [-1, 0]])


def test_point_is_limited_to_a_distance_from_the_origin():
    directions = np.random.default_rng(0).normal(size=(20, 3, 4))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    radius = np.array([1e-9, 1e-3, 0.05, 0.3, 0.9])[np.arange(20) % 5][:, None, None]
    p = directions * radius / np.sqrt(C)[:, None]
    limit = np.array([1.0, 2.0, 0.5])
    got = poincare.distance0(poincare.limit_distance0(p, limit, C), C)
    np.testing.assert_allclose(got, np.minimum(poincare.distance0(p, C), limit), rtol=1e-13)
    is_within = np.asarray(poincare.distance0(p, C)) < limit
    np.testing.assert_array_equal(poincare.limit_distance0(p, limit, C)[is_within], p[is_within])
    halved = poincare.project(p, C, 0.5)
    assert (np.sqrt(C) * np.linalg.norm(halved, axis=-1) < 0.5 + 1e-12).all()


def test_mobius_products_act_on_logarithms():
    (p,) = _points(1)
    matrix = np.random.default_rng(0).normal(size=(2, 4)) / 2

    @jax.jit
    def logarithms(p):
        products = (
            ball.mobius_scalar_mul(0.3, p, C),
            ball.mobius_matvec(matrix, p, C),
            ball.mobius_matvec(0 * matrix, p, C),
        )
        return [ball.log_map0(point, C) for point in (p, *products)]

    log, shorter, mapped, zero = logarithms(p)
    np.testing.assert_allclose(shorter, 0.3 * log, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mapped, log @ matrix.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(zero, 0)
    # The exponential map ends at the Euclidean radius tanh(√c |v|) / √c.
    radius = np.tanh(np.sqrt(C) * np.linalg.norm(log, axis=-1)) / np.sqrt(C)
    np.testing.assert_allclose(np.linalg.norm(p, axis=-1), radius, rtol=1e-12)


@pytest.mark.slow  # it takes seconds
def test_mobius_linear_is_a_product_and_a_translation():
    rng = np.random.default_rng(0)
    p, matrix, bias = rng.uniform(-0.3, 0.3, (5, 3, 4)), rng.normal(size=(2, 4)), rng.normal(size=2)
    got = poincare.mobius_linear(matrix, p, bias, C)
    start = jnp.broadcast_to(poincare.exp_map0(jnp.tile(bias, (3, 1)), C), (5, 3, 2))
    want = poincare.mobius_add(poincare.mobius_matvec(matrix, p, C), start, C)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    # The first layer of HOVER lifts features and needs no logarithm.
    feature = rng.normal(size=(5, 3, 4)) / 2
    lifted = poincare.mobius_linear(np.eye(4), poincare.exp_map0(feature, C), np.zeros(4), C)
    np.testing.assert_allclose(lifted, poincare.exp_map0(feature, C), rtol=1e-13, atol=1e-15)


@pytest.mark.slow  # it takes seconds
def test_split_and_concatenate_keep_the_expected_length():
    rng = np.random.default_rng(0)
    p = rng.uniform(-0.4, 0.4, size=(5, 3, 4))
    parts = poincare.split(p, (1, 3), C)
    assert [part.shape[-1] for part in parts] == [1, 3]
    np.testing.assert_allclose(poincare.concatenate(parts, C), p, rtol=1e-13)
    for wrong in ((1, 2), (0, 4)):
        with pytest.raises(ValueError, match="dims must be positive and sum up to 4, got"):
            poincare.split(p, wrong, C)
    # The expected length of a normal vector of n coordinates is √2 Γ((n+1)/2) / Γ(n/2).
    v = rng.normal(size=(2, 20000, 8)) * 0.02
    concatenated = poincare.log_map0(poincare.concatenate(list(map(poincare.exp_map0, v))))
    ratio = np.linalg.norm(concatenated, axis=-1).mean() / np.linalg.norm(v[0], axis=-1).mean()
    np.testing.assert_allclose(ratio, 1, rtol=0.01)  # 0.0025 is its standard deviation over √n


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_to_hyperplanes_of_the_lorentz_model(dtype):
    x, y, c, kinds = pairs(dtype, 3)
    u = np.random.default_rng(0).normal(size=x.shape).astype(dtype)
    a, b = lorentz.from_space(x, c), lorentz.from_space(y, c)
    v = np.asarray(tangent(a, u, c))
    got = lorentz.hyperplane_distance(b, a, v, c)
    for i, kind in enumerate(kinds):
        point, end, normal = map(reference.vector, (x[i], y[i], v[i, 1:]))
        k = mpf(float(c[i]))
        length = mpmath.sqrt(reference.tangent_inner(point, normal, normal, k))
        time = reference.tangent_time(point, normal, k)
        rise = reference.dot(end, normal) - time * reference.time(end, k)
        want = mpmath.asinh(mpmath.sqrt(k) * rise / length) / mpmath.sqrt(k)
        # The distance may vanish though the points differ.
        size = reference.distance(point, end, k)
        assert abs(float(got[i]) - want) <= BOUND[dtype] * size, (kind, float(c[i]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_to_hyperplanes_of_the_ball(dtype):
    p, q, c, kinds = exact.pairs(dtype, 3)
    normal = np.random.default_rng(0).normal(size=p.shape).astype(dtype)
    got = poincare.hyperplane_distance(q, p, normal, c)
    eps = float(jnp.finfo(dtype).eps)
    for i, kind in enumerate(kinds):
        point, end, a = map(reference.vector, (p[i], q[i], normal[i]))
        k = mpf(float(c[i]))
        w = exact.mobius_add(exact.times(-1, point), end, k)
        sine = 2 * mpmath.sqrt(k) * reference.dot(w, a) / (1 - k * reference.dot(w, w))
        want = mpmath.asinh(sine / reference.norm(a)) / mpmath.sqrt(k)
        size = exact.distance(point, end, k)
        gap = 1 - float(mpmath.sqrt(k)) * float(max(map(reference.norm, (point, end))))
        bound = max(BOUND[dtype], 16 * eps / gap)
        assert abs(float(got[i]) - want) <= bound * size, (kind, float(c[i]))


def _classes():
    rng = np.random.default_rng(1)
    p = rng.uniform(-0.3, 0.3, size=(5, 2, 4))
    return p, rng.normal(size=(3, 4)), rng.normal(size=3), np.array([0.3, 2.5])


@pytest.mark.slow  # it takes seconds
def test_logit_is_scaled_distance_to_the_hyperplane():
    p, normals, offsets, c = _classes()
    got = poincare.mlr(p, normals, offsets, c)
    assert got.shape == (5, 2, 3)
    unit = normals / np.linalg.norm(normals, axis=-1, keepdims=True)
    for i, k in np.ndindex(2, 3):
        foot = poincare.exp_map0(unit[k] * offsets[k] / 2, c[i])
        distance = poincare.hyperplane_distance(p[:, i], foot[None], unit[None, k], c[i])
        want = 2 * np.linalg.norm(normals[k]) * distance
        np.testing.assert_allclose(got[:, i, k], want, rtol=1e-12, atol=1e-13)
    x = poincare.to_lorentz(p, c)
    lorentz_logits = lorentz.mlr(x, 2 * normals, offsets, c)
    np.testing.assert_allclose(lorentz_logits, got, rtol=1e-12, atol=1e-13)
    flat = poincare.mlr(p, normals, offsets, 1e-12)
    linear = np.linalg.norm(normals, axis=-1) * (2 * p @ unit.T - offsets) * 2
    np.testing.assert_allclose(flat, linear, rtol=1e-9)


@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_logits_are_linear_for_curvature_zero(module):
    along, offset = [0.3, -2.0, 0.0], [0.1, -50.0, 0.0]

    def evaluate(c):
        points = np.pad(np.asarray(along)[:, None, None], ((0, 0), (0, 0), (1, 0)))
        points = points if module is lorentz else points[..., 1:]
        normals = np.ones((1, 1))
        calls = zip(points, np.asarray(offset)[:, None], strict=True)
        return jnp.concatenate([module.mlr(x, normals, b, c)[0] for x, b in calls])

    def exact(x, b, c):
        root, scale = mpmath.sqrt(c), 1 if module is lorentz else 2
        x = mpf(x) if module is lorentz else 2 * mpf(x) / (1 - c * mpf(x) ** 2)
        rise = mpmath.cosh(root * b) * root * x - mpmath.sinh(root * b) * mpmath.sqrt(1 + c * x * x)
        return scale * mpmath.asinh(rise) / root

    values, slopes = jax.jit(lambda c: jax.jvp(evaluate, (c,), (jnp.ones_like(c),)))(jnp.zeros(()))
    reverse = jax.jit(jax.jacrev(evaluate))(jnp.zeros(()))
    eps, near, nearer = np.finfo(np.float64).eps, mpf(10) ** -20, mpf(10) ** -25
    for x, b, value, *pair in zip(along, offset, values, slopes, reverse, strict=True):
        limit = exact(x, b, nearer)
        slope = (exact(x, b, near) - limit) / (near - nearer)
        # A few roundings; the terms of the slope of the second point are up to 50³ / 3 in size.
        assert abs(float(value) - limit) <= 8 * eps * (abs(x) + abs(b))
        # The radius of the ball has no derivative there.
        for got in pair if module is lorentz else ():
            assert abs(float(got) - slope) <= 32 * eps * (abs(x) + abs(b)) ** 3


@pytest.mark.slow
def test_second_derivatives_of_distances_and_logits():
    p, normals, offsets, c = _classes()

    def evaluate(p, normals, offsets, c):
        x = poincare.to_lorentz(p, c)
        v = lorentz.transport0(x, p[..., ::-1] + 0.2, c)
        return (
            poincare.mlr(p, normals, offsets, c),
            lorentz.mlr(x, normals, offsets, c),
            poincare.hyperplane_distance(p, p[::-1], p[..., ::-1] + 0.2, c),
            lorentz.hyperplane_distance(x[::-1], x, v, c),
        )

    check_curvature(evaluate, (p, normals, offsets, c))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_hyperplanes_are_finite_for_zero_normals_and_far_points(dtype):
    sizes = np.array([0, 1e-30, 1e-6, 1, 30.0])
    x = np.concatenate(
        [sizes[:, None] * direction for direction in np.array([[0.6, 0.8], [-0.6, 0.8]])]
    )
    normals = np.array([[0, 0], [1e-30, 0], [3, 1], [0.6, 0.8]])
    offsets = np.array([0, 1, 1000, -30.0])
    x, normals, offsets = (np.asarray(a, dtype) for a in (x, normals, offsets))

    def evaluate(u, normals, offsets, c):
        x, p = lorentz.exp_map0(u, c), poincare.exp_map0(u, c)
        return (
            lorentz.mlr(x, normals, offsets, c),
            poincare.mlr(p, normals, offsets, c),
            lorentz.hyperplane_distance(x, x[::-1], tangent(x[::-1], normals[:1], c), c),
            poincare.hyperplane_distance(p, p[::-1], normals[:1], c),
        )

    args = x, normals, offsets, jnp.asarray(0.7, dtype)
    value = check_finite(evaluate, args, dtype)
    assert not np.any(value[0][:, 0]) and not np.any(value[2])
