"""Steps of an optimiser, in one compiled loop."""

import jax
import jax.numpy as jnp
import optax


def take_steps(optimizer, params, gradient_of, inputs):
    """Return the parameters after one step per input; the gradient depends on the input."""

    def step(carry, x):
        params, state = carry
        updates, state = optimizer.update(gradient_of(params, x), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), inputs)[0][0]


def descend(loss, params, optimizer, steps):
    """Return the parameters after `steps` steps of gradient descent on a loss."""

    def gradient_of(params, _):
        return jax.grad(loss)(params)

    run = jax.jit(lambda params: take_steps(optimizer, params, gradient_of, jnp.arange(steps)))
    return run(params)
