"""Relations that the suites of geoopt and hyperbolix ask for, in both models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import poincare, whole

from hlformer_jax.ops import lorentz as plain
from hlformer_jax.ops.manifolds import Lorentz, Poincare

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

CURVATURES = [0.1, 1.0, 2.7]
MODELS = {"ball": Poincare, "hyperboloid": Lorentz}


@pytest.fixture(params=[(name, c, n) for name in MODELS for c in CURVATURES for n in (2, 10)])
def drawn(request):
    """A space, and points and tangent vectors at some of them, 20 of each."""
    name, c, n = request.param
    space = MODELS[name](c)
    keys = jax.random.split(jax.random.key(n), 6)
    # About 2 from the origin in units of the radius of curvature: farther out rounding counts.
    scale = 2 / np.sqrt(c * n)
    x, y, z = (space.random(key, n, (20,), scale) for key in keys[:3])
    u, v = (scale / 2 * jax.random.normal(key, (20, n)) for key in keys[3:5])
    compiled = whole(space)
    return compiled, (x, y, z), (compiled.from_frame(x, u), compiled.from_frame(x, v)), c


def close(a, b, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_distance_is_a_metric(drawn):
    space, (x, y, z), _, _ = drawn
    close(space.distance(x, y), space.distance(y, x), 1e-12)
    np.testing.assert_array_equal(space.distance(x, x), 0)
    assert (space.distance(x, y) > 0).all()
    assert (space.distance(x, z) <= space.distance(x, y) + space.distance(y, z) + 1e-12).all()


def test_exponential_and_logarithm_are_inverse(drawn):
    space, (x, y, _), (v, _), _ = drawn
    close(space.exp_map(x, space.log_map(x, y)), y)
    close(space.log_map(x, space.exp_map(x, v)), v, 1e-7, 1e-8)
    close(space.distance(x, space.exp_map(x, v)), space.norm(x, v))
    close(space.exp_map(x, 0 * v), x, 1e-15)
    close(space.log_map0(space.exp_map0(space.log_map0(x))), space.log_map0(x))


def test_geodesics_have_constant_speed_and_ends(drawn):
    space, (x, y, _), (v, _), _ = drawn
    close(space.geodesic(0.0, x, y), x)
    close(space.geodesic(1.0, x, y), y)
    middle = space.geodesic(0.5, x, y)
    for end in (x, y):
        close(space.distance(middle, end), space.distance(x, y) / 2)
    close(space.geodesic(0.3, x, y), space.geodesic(0.7, y, x))
    line = space.geodesic(np.linspace(0, 1, 7)[:, None], x, y)
    steps = space.distance(line[1:], line[:-1])
    close(steps, np.broadcast_to(space.distance(x, y) / 6, steps.shape), 1e-8)


def test_transport_keeps_inner_products_and_comes_back(drawn):
    space, (x, y, _), (v, w), _ = drawn
    there, other = space.transport(x, y, v), space.transport(x, y, w)
    close(space.inner(y, there, other), space.inner(x, v, w), 1e-8, 1e-8)
    close(space.transport(y, x, there), v, 1e-8, 1e-8)
    close(space.transport(x, x, v), v, 1e-9)
    # The velocity of a geodesic is transported into itself.
    close(space.transport(x, y, space.log_map(x, y)), -space.log_map(y, x), 1e-8, 1e-8)


def test_the_gradient_of_the_squared_distance_is_the_logarithm(drawn):
    space, (x, y, _), (v, _), _ = drawn
    gradient = jax.grad(lambda x: jnp.sum(space.distance(x, y) ** 2) / 2)(x)
    rgrad = space.egrad_to_rgrad(x, gradient)
    close(rgrad, -space.log_map(x, y), 1e-8, 1e-8)
    ahead, behind = (space.exp_map(x, sign * 1e-5 * v) for sign in (1, -1))
    rise = (space.distance(ahead, y) ** 2 - space.distance(behind, y) ** 2) / 4e-5
    close(space.inner(x, rgrad, v), rise, 1e-6, 1e-7)


def test_projections_are_idempotent(drawn):
    space, (x, _, _), _, _ = drawn
    close(space.project(x), x, 1e-14)
    close(space.project(space.project(3 * x)), space.project(3 * x), 1e-15)


def test_retraction_agrees_to_first_order(drawn):
    space, (x, _, _), (v, _), _ = drawn
    gaps = [np.abs(space.retract(x, t * v) - space.exp_map(x, t * v)).max() for t in (1e-4, 5e-5)]
    assert gaps[0] < 1e-5 and 3 < gaps[0] / gaps[1] < 5


def test_both_models_are_isometric():
    for c in CURVATURES:
        ball, hyperboloid = whole(Poincare(c)), whole(Lorentz(c))
        p, q = (Poincare(c).random(jax.random.key(k), 4, (20,), 1.5) for k in (0, 1))
        x, y = poincare.to_lorentz(p, c), poincare.to_lorentz(q, c)
        close(plain.inner(x, x), np.full(20, -1 / c), 1e-9)
        close(ball.distance(p, q), hyperboloid.distance(x, y))
        close(poincare.to_lorentz(ball.geodesic(0.3, p, q), c), hyperboloid.geodesic(0.3, x, y))
        close(poincare.from_lorentz(x, c), p, 1e-12)


@pytest.mark.parametrize("c", CURVATURES)
def test_moebius_addition_is_that_of_a_gyrovector_space(c):
    p, q, r = (Poincare(c).random(jax.random.key(k), 3, (20,), 0.8) for k in range(3))
    add = lambda a, b: poincare.mobius_add(a, b, c)
    zero = jnp.zeros_like(p)
    np.testing.assert_array_equal(add(p, zero), p)
    np.testing.assert_array_equal(add(zero, p), p)
    close(add(-p, p), zero, atol=1e-15)
    close(add(-p, add(p, q)), q)  # left cancellation
    turned = poincare.gyration(p, q, r, c)
    close(add(p, add(q, r)), add(add(p, q), turned))  # gyroassociative
    close(poincare.gyration(p, q, add(q, p), c), add(p, q))  # gyrocommutative
    close(jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(r, axis=-1))
    times = lambda t, a: poincare.mobius_scalar_mul(t, a, c)
    close(times(1.0, p), p)
    close(times(2.0, p), add(p, p))
    close(times(1.7, p), add(times(0.5, p), times(1.2, p)))
    close(times(6.0, p), times(2.0, times(3.0, p)))
    close(poincare.distance(p, q, c), poincare.distance0(add(-p, q), c))


@pytest.mark.parametrize("c", CURVATURES)
def test_hyperplanes_have_points_at_distance_zero(c):
    scale = 0.8 / np.sqrt(c)
    p, q = (Poincare(c).random(jax.random.key(k), 3, (20,), scale) for k in range(2))
    normal = scale / 4 * jax.random.normal(jax.random.key(9), (20, 3))
    sideways = jnp.cross(normal, jax.random.normal(jax.random.key(8), (20, 3)))
    on_plane = poincare.exp_map(p, sideways, c)
    close(poincare.hyperplane_distance(on_plane, p, normal, c), np.zeros(20), atol=1e-9)
    foot = poincare.hyperplane_distance(poincare.exp_map(p, normal / 3, c), p, normal, c)
    close(foot, poincare.tangent_norm(p, normal / 3, c))
    there = poincare.hyperplane_distance(q, p, normal, c)
    close(there, -poincare.hyperplane_distance(q, p, -normal, c))
    assert (jnp.abs(there) <= poincare.distance(p, q, c) + 1e-12).all()


@pytest.mark.parametrize("c", CURVATURES)
def test_midpoints_are_means(c):
    p = Poincare(c).random(jax.random.key(0), 3, (6, 2), 0.8)
    middle = poincare.gyromidpoint(p, None, c)[:, 0]
    close(middle, poincare.geodesic(0.5, p[:, 0], p[:, 1], c))
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    close(poincare.gyromidpoint(p @ turn.T, None, c)[:, 0], middle @ turn.T)
    moved = poincare.mobius_add(middle[:, None], p, c)
    close(
        poincare.gyromidpoint(moved, None, c)[:, 0],
        poincare.mobius_add(middle, middle, c),
    )
