"""Riemannian optimisers: what a step is, what is left alone, and a tree that they embed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import lorentz, poincare

from hlformer_jax.manifolds.manifold import Lorentz, Poincare
from hlformer_jax.manifolds.optimizer import ManifoldError, riemannian, scale_by_length_adam

SPACES = {"poincare": (poincare, Poincare), "lorentz": (lorentz, Lorentz)}


def _points(name, c, count=6):
    u = np.random.default_rng(0).normal(size=(count, 3)) / 2
    # Half as long a vector leads to the same point in the ball.
    return SPACES[name][0].exp_map0(jnp.asarray(u) / (2 if name == "poincare" else 1), c)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_a_step_of_sgd_follows_the_riemannian_gradient_along_a_geodesic(name):
    model, space = SPACES[name]
    x, c = _points(name, 0.7), 0.7
    target = x[::-1]
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(model.distance(x, target, c) ** 2) / 2))(x)
    optimizer = riemannian(optax.sgd(0.25), space(c))
    updates, _ = jax.jit(optimizer.update)(gradient, optimizer.init(x), x)
    moved = optax.apply_updates(x, updates)
    # The gradient of half the squared distance is minus the logarithm.
    np.testing.assert_allclose(moved, model.geodesic(0.25, x, target, c), rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_momentum_is_transported_with_the_point(name):
    model, space = SPACES[name]
    space, x = space(0.7), _points(name, 0.7)
    optimizer = riemannian(optax.sgd(0.3, momentum=0.9), space)
    update = jax.jit(optimizer.update)
    rng = np.random.default_rng(1)
    state, moment, expected = optimizer.init(x), 0, x
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(size=x.shape))
        updates, state = update(gradient, state, x)
        x = optax.apply_updates(x, updates)
        moment = space.egrad_to_rgrad(expected, gradient) + 0.9 * moment
        end = space.exp_map(expected, -0.3 * moment)
        moment, expected = space.transport(expected, end, moment), end
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("standard_promotion")
def test_parameters_that_are_no_points_are_optimised_as_ever():
    rng = np.random.default_rng(0)
    params = {
        "points": _points("lorentz", 1.0),
        "more": {"ball": jnp.zeros((2, 3)), "bias": jnp.asarray(rng.normal(size=4), jnp.float32)},
    }
    gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
    mask = {"points": True, "more": False}
    inner = optax.adamw(0.1, weight_decay=0.1)
    both = {
        "masked": riemannian(inner, Lorentz(), mask),
        "called": riemannian(inner, Lorentz(), lambda _: mask),
    }
    results = {}
    for name, optimizer in both.items():
        state = optimizer.init(params)
        for _ in range(2):
            updates, state = jax.jit(optimizer.update)(gradients, state, params)
        results[name] = updates
    jax.tree.map(np.testing.assert_array_equal, results["masked"], results["called"])
    state = inner.init(params["more"])
    for _ in range(2):
        updates, state = jax.jit(inner.update)(gradients["more"], state, params["more"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results["masked"]["more"], updates
    )
    points = optax.apply_updates(params, results["masked"])["points"]
    assert (lorentz.time_error(points) < 1e-6).all()
    # Weight decay would pull points to no end.
    plain = riemannian(optax.adam(0.1), Lorentz()).init(params["points"])
    step, _ = jax.jit(riemannian(optax.adam(0.1), Lorentz()).update)(
        gradients["points"], plain, params["points"]
    )
    decayed = riemannian(inner, Lorentz(), mask)
    first, _ = jax.jit(decayed.update)(gradients, decayed.init(params), params)
    np.testing.assert_allclose(first["points"], step, rtol=1e-5, atol=1e-6)


def test_parameters_are_needed():
    optimizer = riemannian(optax.sgd(0.1), Poincare())
    x = jnp.zeros((2, 3))
    with pytest.raises(ManifoldError, match="needs the params"):
        optimizer.update(x, optimizer.init(x))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("retract", [False, True])
def test_rotating_the_space_rotates_the_whole_run_of_length_adam(retract):
    matrix, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    target = _points("poincare", 1.0)[::-1]

    @jax.jit
    def run(turn):
        x, goal = _points("poincare", 1.0) @ turn.T, target @ turn.T
        inner = optax.chain(scale_by_length_adam(), optax.scale(-0.1))
        optimizer = riemannian(inner, Poincare(), retract=retract)

        def step(carry, _):
            x, state = carry
            gradient = jax.grad(lambda x: jnp.sum(poincare.distance(x, goal) ** 2))(x)
            updates, state = optimizer.update(gradient, state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(step, (x, optimizer.init(x)), None, length=30)[0][0]

    straight = run(np.eye(3))
    np.testing.assert_allclose(run(matrix), straight @ matrix.T, rtol=1e-8, atol=1e-10)
    assert (poincare.distance(straight, target) < poincare.distance(target[::-1], target)).all()


@pytest.mark.usefixtures("standard_promotion")
def test_both_models_take_the_same_steps():
    c = 0.7
    found = {}
    for name, (model, space) in SPACES.items():
        x = _points(name, c).astype(jnp.float32)
        optimizer = riemannian(optax.adam(0.05), space(c))
        state, target = optimizer.init(x), x[::-1]

        @jax.jit
        def run(x, state, target=target, optimizer=optimizer, model=model):
            def step(carry, _):
                x, state = carry
                gradient = jax.grad(lambda x: jnp.sum(model.distance(x, target, c) ** 2))(x)
                updates, state = optimizer.update(gradient, state, x)
                return (optax.apply_updates(x, updates), state), None

            return jax.lax.scan(step, (x, state), None, length=20)[0][0]

        x = run(x, state)
        found[name] = x if name == "poincare" else poincare.from_lorentz(x, c)
    np.testing.assert_allclose(found["poincare"], found["lorentz"], rtol=1e-3, atol=1e-4)
