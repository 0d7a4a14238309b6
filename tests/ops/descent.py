"""Steps of an optimiser, in one compiled loop."""

import jax
import jax.numpy as jnp
import optax


def take_steps(optimizer, params, gradient_of, inputs):
    """Parameters after a step for each of some inputs, which go to the gradient."""

    def step(carry, x):
        params, state = carry
        updates, state = optimizer.update(gradient_of(params, x), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), inputs)[0][0]


def descend(loss, params, optimizer, steps):
    """Parameters after so many steps down a loss of them."""
    gradient_of = lambda params, _: jax.grad(loss)(params)
    run = jax.jit(lambda params: take_steps(optimizer, params, gradient_of, jnp.arange(steps)))
    return run(params)
