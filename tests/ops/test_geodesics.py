"""Points between two others, against 80-digit arithmetic, up to √c · norm of 2.5e5."""

import ball_reference
import jax
import jax.numpy as jnp
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
    """Pairs of space components with their curvatures, and the sizes to which errors relate."""
    rows = [
        (*reference.pair(kind, norm, 5, dtype), np.asarray(c, dtype), min(norm, 1 / c**0.5))
        for kind in reference.KINDS
        for norm in NORMS
        for c in reference.CURVATURES
    ]
    return map(np.stack, zip(*rows, strict=True))


def assert_on_geodesic(got, want, size, bound, context):
    """The error is relative to the point, or to the size if the point is nearer to the origin."""
    error = reference.norm([mpf(float(a)) - b for a, b in zip(got, want, strict=True)])
    assert error <= bound * max(reference.norm(want), size), context


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_between_far_and_near_points_of_the_hyperboloid(dtype):
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_between_points_of_the_ball_up_to_its_rim(dtype):
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


@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_the_ends_are_returned_but_for_the_last_bit(module):
    rng = np.random.default_rng(0)
    u = np.float32(rng.normal(size=(2, 200, 3)) * rng.choice([1e-3, 1, 4], size=(200, 1)))
    x, y = module.exp_map0(u, np.float32(0.7))
    for t, end in ((0.0, x), (1.0, y)):
        np.testing.assert_array_max_ulp(module.geodesic(t, x, y, np.float32(0.7)), end, 1)


# Distances of both ends from the origin: equal, near, and to both sides of a distance of 1 from
# each other, where one formula takes over from the other.
RADII = [(0, 0), (1e-3, 1e-3), (0.4, 0.4), (0.6, 0.6), (3, 3), (3, 0.1), (8, 8), (8, 1)]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_derivatives_in_every_argument_agree_with_those_in_float64(module):
    radii = np.float64(RADII if module is lorentz else RADII[:-2])  # the ball's 8 is at its rim
    count = 10 * len(radii)
    u = np.random.default_rng(1).normal(size=(2, count, 3))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    u *= np.repeat(radii.T, 10, axis=-1)[..., None] / (2 if module is poincare else 1)
    x, y = (np.float32(module.exp_map0(v)) for v in u)
    t = np.float32(np.tile([0, 0.3, 0.5, 0.7, 1], count // 5))

    def slopes(t, x, y, c):
        weights = np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape)
        point = lambda *args: jnp.sum(weights * module.geodesic(*args))
        return jax.grad(point, (0, 1, 2, 3))(t, x, y, c)

    args = t, x, y, np.ones(count, np.float32)
    got = jax.jit(slopes)(*args)
    want = jax.jit(slopes)(*map(np.float64, args))
    # Rounding a point of the ball at the distance 3 changes 1 − |p|² by 10 eps of its size.
    bound = np.finfo(np.float32).eps * (4 if module is lorentz else 40)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == np.float32 and np.isfinite(one).all()
        one, other = (np.asarray(v).reshape(count, -1) for v in (one, other))
        size = np.abs(other).max(-1, keepdims=True) + np.abs(x).max(-1, keepdims=True)
        assert (np.abs(one - other) <= bound * size).all()


@pytest.mark.parametrize("module", [lorentz, poincare], ids=["lorentz", "poincare"])
def test_points_far_beyond_the_ends_are_finite(module):
    ends = module.exp_map0(np.float32([[8, 0, 0], [-8, 1, 0], [1e-3, 0, 0], [1e-3, 1e-6, 0]]))
    x, y = ends[::2], ends[1::2]
    for t in (-1e6, -9.0, 9.0, 1e6):
        point = lambda t: jnp.sum(module.geodesic(t, x, y))
        assert np.isfinite(module.geodesic(t, x, y)).all()
        assert np.isfinite(jax.grad(point)(t))
