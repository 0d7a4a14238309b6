"""Gradients in a curvature at the ends of what float32 holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lorentz_cases import tangent

from hlformer_jax.ops import cones, lorentz, poincare

pytestmark = pytest.mark.usefixtures("float64")

TWO_POINTS = (
    lorentz.squared_distance,
    lorentz.distance,
    lorentz.direction,
    lorentz.log_map,
    lorentz.exp_map,
    lorentz.tangent_norm,
    lorentz.project_tangent,
    lambda x, y, c: lorentz.parallel_transport(x, y, y, c),
    lambda x, y, c: lorentz.transport0(x, y[..., 1:], c),
    cones.exterior_angle,
    cones.energy,
)
ONE_POINT = (
    lorentz.project,
    lorentz.from_space,
    lorentz.time,
    lorentz.exp_map0,
    lorentz.log_map0,
    lorentz.time_error,
    cones.half_aperture,
    poincare.from_lorentz,
    poincare.to_lorentz,
    poincare.project,
)
EVERY = [*TWO_POINTS, *(lambda x, y, c, f=f: f(x, c) for f in ONE_POINT)]
OF_THE_BALL = [
    len(TWO_POINTS) + ONE_POINT.index(f) for f in (poincare.to_lorentz, poincare.project)
]


@pytest.mark.parametrize("number", range(len(EVERY)))
def test_gradients_in_a_tiny_or_huge_curvature_are_finite_in_float32(number):
    way = np.array([[0.6, -0.64, 0.48], [-0.3, 0.5, 0.8], [0.6, -0.64, 0.4800001]], np.float32)
    rows = [
        (radius * way[0], radius * way[j], c)
        for c in np.array([1e-22, 1e-20, 1e-19, 1e-15, 1e10, 1e18], np.float32)
        for radius in np.array([0, 1e-6, 1, 0.5 / np.sqrt(c), 5 / np.sqrt(c)], np.float32)
        for j in range(3)
        # The squared distance over c would be infinite.
        if EVERY[number] is not lorentz.squared_distance or c > 1e-18 or radius < 2
    ]
    x, y, c = map(np.stack, zip(*rows, strict=True))

    def function(x, y, c):
        a = lorentz.from_space(x, c)
        b = lorentz.from_space(y, c)
        if EVERY[number] in (lorentz.exp_map, lorentz.tangent_norm):
            b = tangent(a, y, c)
        if number in OF_THE_BALL:  # at its rim to_lorentz and its slope in c leave the numbers
            a = poincare.from_lorentz(a, c)
        return EVERY[number](a, b, c)

    @jax.jit
    def gradients(*args):
        value, pullback = jax.vjp(function, *args)
        return value, pullback(jax.tree.map(jnp.ones_like, value))

    assert all(np.isfinite(array).all() for array in jax.tree.leaves(gradients(x, y, c)))
