"""The hyperboloid in 80-digit arithmetic: the independent source of the values in these tests.

Textbook formulas, evaluated on exactly the floating-point numbers that the code under test gets.
Points and tangent vectors are lists of space components; time components are derived.
"""

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from hlformer_jax.ops import lorentz

mpmath.mp.dps = 80

NORMS = (1e-6, 1e-3, 0.3, 8.0)
CURVATURES = (0.1, 1.0, 10.0)
KINDS = ("generic", "near", "near_across", "inward", "outward", "antipodal", "perpendicular")
BOUND = {"float32": 2e-5, "float64": 1e-12}  # what the module promises
DTYPES = tuple(BOUND)
# For tests whose float64 run takes the same path as the float32 run.
SLOW_FLOAT64 = ("float32", pytest.param("float64", marks=pytest.mark.slow))
# Models use 127 dimensions in float32.
PRECISIONS = [(dtype, 3) for dtype in DTYPES] + [
    ("float32", 127),
    pytest.param("float64", 127, marks=pytest.mark.slow),
]


def slow_except(fast, values):
    """Mark all values of a parameter as slow, except those in `fast`."""
    return [
        value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]


POINTS = np.random.default_rng(0).normal(size=(3, 6, 5)) * np.array([0.1, 0.5, 1, 2, 3, 4])[:, None]
CURVATURE = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 0.5])  # one for each of the six points


def pair(kind: str, norm: float, dim: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two vectors of about this norm in the awkward relation that ``kind`` names."""
    rng = np.random.default_rng(dim)
    x, direction = rng.normal(size=(2, dim))
    x *= norm / np.linalg.norm(x)
    across = direction - x * (direction @ x) / (x @ x)
    across *= norm / np.linalg.norm(across)
    y = {
        "generic": direction / np.linalg.norm(direction) * norm * 0.7,
        "near": x + 1e-6 * direction / np.linalg.norm(direction) * norm,
        "near_across": x + 1e-3 * across,
        "inward": x / 2,
        "outward": x * 1.5,
        "antipodal": -x,
        "perpendicular": across * 0.6,
    }[kind]
    return x.astype(dtype), y.astype(dtype)


def vector(values: np.ndarray) -> list[mpf]:
    return [mpf(float(value)) for value in values]


def dot(x, y):
    return mpmath.fsum(a * b for a, b in zip(x, y, strict=True))


def norm(x):
    return mpmath.sqrt(dot(x, x))


def time(x, c):
    return mpmath.sqrt(1 / c + dot(x, x))


def tangent_time(x, v, c):
    return dot(x, v) / time(x, c)


def inner(x, y, c):
    return dot(x, y) - time(x, c) * time(y, c)


def tangent_inner(x, v, w, c):
    return dot(v, w) - tangent_time(x, v, c) * tangent_time(x, w, c)


def squared_distance(x, y, c):
    return -2 / c - 2 * inner(x, y, c)


def distance(x, y, c):
    return mpmath.acosh(-c * inner(x, y, c)) / mpmath.sqrt(c)


def exp_map(x, v, c):
    length = mpmath.sqrt(c * tangent_inner(x, v, v, c))
    cosh, sinhc = mpmath.cosh(length), mpmath.sinh(length) / length
    space = [cosh * a + sinhc * b for a, b in zip(x, v, strict=True)]
    return [time(space, c), *space]


def log_map(x, y, c):
    beta = -c * inner(x, y, c)
    factor = mpmath.acosh(beta) / mpmath.sqrt(beta**2 - 1)
    space = [factor * (b - beta * a) for a, b in zip(x, y, strict=True)]
    return [tangent_time(x, space, c), *space]


def parallel_transport(x, y, v, c):
    along = dot(y, v) - time(y, c) * tangent_time(x, v, c)
    factor = c * along / (1 - c * inner(x, y, c))
    space = [w + factor * (a + b) for w, a, b in zip(v, x, y, strict=True)]
    return [tangent_time(y, space, c), *space]


def exterior_angle(x, y, c):
    product = c * inner(x, y, c)
    sine = norm(x) * mpmath.sqrt(product**2 - 1)
    cosine = (time(y, c) + time(x, c) * product) / sine
    return mpmath.acos(max(mpf(-1), min(mpf(1), cosine)))


def half_aperture(x, c, min_radius):
    return mpmath.asin(min(mpf(1), 2 * min_radius / (mpmath.sqrt(c) * norm(x))))


def centroid(points, weights, c):
    total = [
        mpmath.fsum(w * a for w, a in zip(weights, column, strict=True))
        for column in zip(*points, strict=True)
    ]
    scale = mpmath.sqrt(c * (total[0] ** 2 - dot(total[1:], total[1:])))
    return [a / scale for a in total]


def relative_error(got, want) -> float:
    """Return |got − want| / |want|, norm-wise."""
    want = list(want) if isinstance(want, list) else [want]
    got = vector(np.atleast_1d(np.asarray(got, np.float64)))
    return float(norm([a - b for a, b in zip(got, want, strict=True)]) / norm(want))


def tangent(x, u, c):
    """Return a tangent vector at x, transported from the origin."""
    return lorentz.transport0(x, u, c)


def pairs(dtype, dim):
    """Return all kinds of pairs at all norms and curvatures: (x, y, c, kinds), one leading axis."""
    rows = [
        (*pair(kind, norm, dim, dtype), np.asarray(c, dtype), kind)
        for kind in KINDS
        for norm in NORMS
        for c in CURVATURES
    ]
    x, y, c, kinds = zip(*rows, strict=True)
    return np.stack(x), np.stack(y), np.stack(c), kinds


def assert_close(got, want, bound, context):
    error = relative_error(got, want)
    assert error <= bound, f"{context}: {error:.1e} > {bound:.1e}"
