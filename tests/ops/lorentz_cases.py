"""Pairs of points of the hyperboloid at all norms and curvatures, and what is promised of them."""

import numpy as np
import pytest
import reference

from hlformer_jax.ops import lorentz

BOUND = {"float32": 2e-5, "float64": 1e-12}  # what the module promises
DTYPES = tuple(BOUND)
# Of tests that say in float64 what they say in float32.
SLOW_FLOAT64 = ("float32", pytest.param("float64", marks=pytest.mark.slow))
# Models have 127 dimensions, in float32.
PRECISIONS = [(dtype, 3) for dtype in DTYPES] + [
    ("float32", 127),
    pytest.param("float64", 127, marks=pytest.mark.slow),
]
POINTS = np.random.default_rng(0).normal(size=(3, 6, 5)) * np.array([0.1, 0.5, 1, 2, 3, 4])[:, None]
CURVATURE = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 0.5])  # one for each of the six


def tangent(x, u, c):
    """A tangent vector at x, moved there from the origin."""
    return lorentz.transport0(x, u, c)


def pairs(dtype, dim):
    """All kinds of pairs at all norms and curvatures: (x, y, c) with one leading axis."""
    rows = [
        (*reference.pair(kind, norm, dim, dtype), np.asarray(c, dtype), kind)
        for kind in reference.KINDS
        for norm in reference.NORMS
        for c in reference.CURVATURES
    ]
    x, y, c, kinds = zip(*rows, strict=True)
    return np.stack(x), np.stack(y), np.stack(c), kinds


def assert_close(got, want, bound, context):
    error = reference.relative_error(got, want)
    assert error <= bound, f"{context}: {error:.1e} > {bound:.1e}"
