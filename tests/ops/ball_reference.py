"""The Poincaré ball in 80-digit arithmetic: textbook formulas on the exact input numbers."""

import mpmath
import numpy as np
from mpmath import mpf
from reference import dot, norm

CURVATURES = (0.3, 1.0, 2.5)
KINDS = ("generic", "near", "nearest", "inward", "antipodal", "perpendicular", "rim")


def radii(dtype: str) -> tuple[float, ...]:
    """Return values of √c |p| from the origin to the rim."""
    return (0, 1e-30, 1e-6, 0.3, 0.9, 0.999, 1 - 4 * float(np.finfo(dtype).eps))


def pair(kind: str, radius: float, c: float, dim: int, dtype: str):
    """Return two points in the relation ``kind``, the first at √c |p| = radius."""
    rng = np.random.default_rng(dim)
    e, direction = rng.normal(size=(2, dim))
    e /= np.linalg.norm(e)
    across = direction - e * (direction @ e)
    across /= np.linalg.norm(across)
    p = radius * e

    def turned(angle):
        return radius * (np.cos(angle) * e + np.sin(angle) * across)

    q = {
        "generic": 0.7 * turned(1.0),
        "near": p * (1 - 1e-4) + 1e-4 * (1 - radius) * across,
        "nearest": p * (1 - 1e-12) + 1e-12 * (1 - radius) * across,
        "inward": p / 2,
        "antipodal": -p,
        "perpendicular": 0.6 * turned(np.pi / 2),
        "rim": -(1 - 4 * float(np.finfo(dtype).eps)) * (0.8 * e + 0.6 * across),
    }[kind]
    # Round towards the origin, so that points of the rim stay in the ball.
    down = 1 - float(np.finfo(dtype).eps)
    return tuple((v * down / c**0.5).astype(dtype) for v in (p, q))


def pairs(dtype: str, dim: int):
    """Return all kinds of pairs at all radii and curvatures: (p, q, c, kinds), one leading axis."""
    rows = [
        (*pair(kind, radius, c, dim, dtype), np.asarray(c, dtype), kind)
        for kind in KINDS
        for radius in radii(dtype)
        for c in CURVATURES
    ]
    p, q, c, kinds = zip(*rows, strict=True)
    return np.stack(p), np.stack(q), np.stack(c), kinds


def times(factor, p):
    return [factor * a for a in p]


def plus(p, q):
    return [a + b for a, b in zip(p, q, strict=True)]


def conformal_factor(p, c):
    return 2 / (1 - c * dot(p, p))


def mobius_add(p, q, c):
    pq, pp, qq = dot(p, q), dot(p, p), dot(q, q)
    numerator = plus(times(1 + 2 * c * pq + c * qq, p), times(1 - c * pp, q))
    return times(1 / (1 + 2 * c * pq + c**2 * pp * qq), numerator)


def exp_map0(v, c):
    length = mpmath.sqrt(c) * norm(v)
    return times(mpmath.tanh(length) / length, v) if length else v


def log_map0(p, c):
    length = mpmath.sqrt(c) * norm(p)
    return times(mpmath.atanh(length) / length, p) if length else p


def exp_map(p, v, c):
    return mobius_add(p, exp_map0(times(conformal_factor(p, c) / 2, v), c), c)


def log_map(p, q, c):
    difference = mobius_add(times(-1, p), q, c)
    return times(2 / conformal_factor(p, c), log_map0(difference, c))


def distance(p, q, c):
    return 2 / mpmath.sqrt(c) * mpmath.atanh(mpmath.sqrt(c) * norm(mobius_add(times(-1, p), q, c)))


def gyration(p, q, v, c):
    """Apply the definition of a gyration to v, shortened to a point of the ball."""
    size = 2 * mpmath.sqrt(c) * norm(v) + 1
    moved = mobius_add(p, mobius_add(q, times(1 / size, v), c), c)
    return times(size, mobius_add(times(-1, mobius_add(p, q, c)), moved, c))


def parallel_transport(p, q, v, c):
    share = conformal_factor(p, c) / conformal_factor(q, c)
    return times(share, gyration(q, times(-1, p), v, c))


def gyromidpoint(points, weights, c):
    if not any(a for p in points for a in p):
        return points[0]
    factors = [conformal_factor(p, c) for p in points]
    denominator = mpmath.fsum(w * (f - 1) for w, f in zip(weights, factors, strict=True))
    total = [mpf(0)] * len(points[0])
    for w, f, p in zip(weights, factors, points, strict=True):
        total = plus(total, times(w * f / denominator, p))
    return exp_map0(times(mpf(1) / 2, log_map0(total, c)), c)
