"""Riemannian gradients, retractions and frames: what they mean, in both models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import lorentz, poincare

from hlformer_jax.manifolds.manifold import Lorentz, Poincare

pytestmark = pytest.mark.usefixtures("float64")

C = np.array([0.3, 1.0, 2.5])


def _spaces():
    """For each model: the manifold, points, tangent vectors, and inner products of those."""
    rng = np.random.default_rng(0)
    p, q, v, w = rng.uniform(-0.3, 0.3, size=(4, 3, 4))
    lift = lambda p, v: jax.jvp(lambda p: poincare.to_lorentz(p, C), (p,), (v,))
    (x, a), (_, b) = lift(p, v), lift(p, w)
    flat = lambda x, v, w: jnp.sum(v * w, -1) * poincare.conformal_factor(x, C) ** 2
    return {
        "poincare": (Poincare(C), p, q, v, w, flat),
        "lorentz": (
            Lorentz(C),
            x,
            poincare.to_lorentz(q, C),
            a,
            b,
            lambda _, v, w: lorentz.inner(v, w),
        ),
    }


@pytest.mark.parametrize("name", ["poincare", "lorentz"])
def test_the_riemannian_gradient_is_the_derivative_along_tangent_vectors(name):
    space, x, y, v, w, inner = _spaces()[name]
    model = {"poincare": poincare, "lorentz": lorentz}[name]
    for function in (
        lambda x: jnp.sum(model.distance(x, y, C) ** 2),
        lambda x: jnp.sum(jnp.sin(x)),  # of the time component too
    ):

        @jax.jit
        def gradients(x, function=function):
            gradient = jax.grad(function)(x)
            riemannian = space.egrad_to_rgrad(x, gradient)
            end = lambda t: function(space.exp_map(x, t * v))
            rise = jnp.sum(inner(x, riemannian, v)), jax.jvp(end, (0.0,), (1.0,))[1]
            frame = space.gradient_in_frame(x, gradient)
            back = space.from_frame(x, frame)
            return riemannian, rise, back, (jnp.sum(frame**2, -1), inner(x, back, back))

        riemannian, rise, back, sizes = gradients(x)
        np.testing.assert_allclose(*rise, rtol=1e-11)
        # The frame is orthonormal, and its gradient is the same vector.
        np.testing.assert_allclose(back, riemannian, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(*sizes, rtol=1e-11)


@pytest.mark.parametrize("name", ["poincare", "lorentz"])
def test_retraction_agrees_with_the_exponential_map_to_first_order(name):
    space, x, _, v, _, _ = _spaces()[name]
    gaps = []
    for t in (1e-3, 5e-4):
        step = space.retract(x, t * v)
        np.testing.assert_allclose(space.project(step), step, rtol=1e-15)
        gaps.append(np.abs(step - space.exp_map(x, t * v)).max())
    assert gaps[0] < 1e-5
    np.testing.assert_allclose(gaps[0] / gaps[1], 4, rtol=0.02)


@pytest.mark.parametrize("name", ["poincare", "lorentz"])
def test_transport_in_the_frame_is_transport(name):
    space, x, y, v, w, inner = _spaces()[name]
    u = np.random.default_rng(1).normal(size=(3, 4))
    want = space.transport(x, y, space.from_frame(x, u))
    got = space.from_frame(y, space.transport_in_frame(x, y, u))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


def test_a_gradient_far_out_on_the_hyperboloid_keeps_its_transverse_part():
    x = lorentz.exp_map0(jnp.asarray([25.0, 0, 0]))
    frame = jax.jit(Lorentz().gradient_in_frame)(x, jnp.asarray([0, 1.0, 1e-9, 0]))
    np.testing.assert_allclose(frame[0], np.cosh(25.0), rtol=1e-13)
    np.testing.assert_allclose(frame[1:], [1e-9, 0], rtol=1e-12)
