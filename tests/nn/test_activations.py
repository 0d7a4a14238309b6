"""Activations of points and of tangent vectors against their formulas in NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import check_curvature
from scipy.special import erf

import hlformer_jax as hl
from hlformer_jax.nn import activations
from hlformer_jax.ops.manifolds import Lorentz, Poincare

C = 0.7
ROOT = np.sqrt(C)
U = np.random.default_rng(0).normal(size=(5, 4))
"""Tangent vectors at the origin, of the hyperboloid."""
FUNCTIONS = {  # in JAX and in NumPy
    "relu": (jax.nn.relu, lambda u: np.maximum(u, 0)),
    "tanh": (jnp.tanh, np.tanh),
    "gelu": (lambda u: jax.nn.gelu(u, approximate=False), lambda u: u * (1 + erf(u / 2**0.5)) / 2),
}


def space_components(u):
    length = ROOT * np.linalg.norm(u, axis=-1, keepdims=True)
    return u * np.sinh(length) / np.where(length == 0, 1, length)


def points_of(space, s):
    """Return points of a space from space components of the hyperboloid."""
    tau = np.sqrt(1 + C * np.sum(s * s, -1, keepdims=True))
    if isinstance(space, Poincare):
        return s / (1 + tau)
    return np.concatenate([tau / ROOT, s], -1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", [Lorentz, Poincare])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations_have_the_values_of_their_formulas(model, name):
    space, (function, formula) = model(C), FUNCTIONS[name]
    x = points_of(space, space_components(U))

    @jax.jit
    def both(x):
        results = (
            activations.activate(space, x, function),
            activations.activate_tangent(space, x, function),
        )
        modules = hl.nn.Activation(function, space), hl.nn.Activation(function, space, True)
        return results, [module.apply({}, x) for module in modules]

    (direct, tangent), of_modules = both(x)
    np.testing.assert_array_equal(of_modules, [direct, tangent])
    want = points_of(space, formula(space_components(U)))
    np.testing.assert_allclose(direct, want, rtol=1e-12, atol=1e-14)
    want = points_of(space, space_components(formula(U)))
    np.testing.assert_allclose(tangent, want, rtol=1e-12, atol=1e-14)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_activations_have_two_derivatives():
    def evaluate(s, c):
        space = Lorentz(c)
        x = hl.lorentz.from_space(s, c)
        return (
            activations.activate(space, x, jnp.tanh),
            activations.activate_tangent(space, x, jnp.tanh),
        )

    check_curvature(evaluate, (np.concatenate([U, np.zeros((1, 4))]), np.asarray(C)))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("model", [Lorentz, Poincare])
def test_activation_modules_are_finite_in_float32(model):
    """The modules take bfloat16, and are layers of a sequence."""
    space = model(C)
    radius = 30.0 if model is Lorentz else 7.0
    u = np.concatenate([np.zeros((1, 4)), radius * np.eye(4), -radius * np.eye(4)]) / ROOT
    x = space.exp_map0(jnp.asarray(u, "float32")).astype(jnp.bfloat16)
    layers = [hl.nn.Activation(jax.nn.relu, space), hl.nn.Activation(jnp.tanh, space, True)]
    sequence = nn.Sequential(layers)

    @jax.jit
    def run(x):
        y, pullback = jax.vjp(lambda x: sequence.apply({}, x), x)
        return y, pullback(jnp.ones_like(y))

    y, slope = run(x)
    assert y.dtype == jnp.float32 and np.isfinite(y).all() and np.isfinite(slope).all()
    np.testing.assert_array_equal(y[0], space.origin(4, jnp.float32))


@pytest.mark.parametrize("space", [Lorentz(C), Poincare(C)])
@pytest.mark.parametrize("apply", [activations.activate, activations.activate_tangent])
def test_activation_that_changes_the_shape_is_refused(space, apply):
    x = space.exp_map0(jnp.ones((5, 4)))
    for function in (lambda u: u.sum(-1), lambda u: u[..., :2], lambda u: u[None]):
        with pytest.raises(ValueError, match=r"the result of function must have shape \(5, 4\)"):
            apply(space, x, function)
