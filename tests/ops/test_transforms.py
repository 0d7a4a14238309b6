"""Every public function under the transformations of JAX: what they change is nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from public import CASES

# A program for each function: minutes in all.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

CURVED = [case for case in CASES if case.curved]
NAME = lambda case: case.name


def assert_close(got, want, rtol, atol, context=""):
    """Compares the arrays of two results."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=context)


@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_a_curvature_of_the_batch_under_vmap_scan_and_checkpoint(case):
    arrays, call = case.traceable(case.arguments((3,)))
    fixed = {name: array for name, array in arrays.items() if name not in case.batched}
    rows = {name: array for name, array in arrays.items() if name in case.batched}

    @jax.jit
    def everything(rows, fixed, c):
        alone = lambda row, c: call({**row, **fixed}, c)
        return {
            "plain": call({**rows, **fixed}, c),
            "checkpoint": jax.checkpoint(call)({**rows, **fixed}, c),
            "vmap": jax.vmap(alone)(rows, c),
            "scan": jax.lax.scan(lambda _, row: (None, alone(*row)), None, (rows, c))[1],
        }

    got = everything(rows, fixed, np.linspace(0.5, 2, 3))
    # Random numbers are drawn for the whole batch, or for each entry.
    drawn = "key" in case.required
    for name, want in [("checkpoint", "plain"), ("scan", "vmap")] + [("vmap", "plain")] * (
        not drawn
    ):
        assert_close(got[name], got[want], 1e-12, 1e-14, name)


STEP = 1e-5


@pytest.mark.parametrize("case", CURVED, ids=NAME)
def test_derivatives_in_a_learned_curvature_agree_and_are_those_of_differences(case):
    """Of a number, `jacrev` is a gradient, and a Hessian the gradient's forward derivative."""
    arrays, call = case.traceable(case.arguments((2,)))

    def loss(theta, arrays):
        c = jnp.exp(theta) if case.batched else jnp.exp(theta)[None]
        return sum(jnp.sum(jnp.sin(value)) for value in jax.tree.leaves(call(arrays, c)))

    @jax.jit
    def derivatives(arrays, theta):
        both = lambda theta: jax.value_and_grad(loss)(theta, arrays)
        return jax.jvp(both, (theta,), (jnp.ones(()),))

    theta = jnp.asarray(-0.4)
    here, ahead, behind = (derivatives(arrays, theta + step) for step in (0, STEP, -STEP))
    (_, reverse), (forward, second) = here
    slopes = [(a - b) / (2 * STEP) for a, b in zip(ahead[0], behind[0], strict=True)]
    np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-11)
    # Differences have the error STEP² f''' / 6 and eps f / STEP.
    np.testing.assert_allclose(forward, slopes[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(second, slopes[1], rtol=1e-6, atol=1e-7)


def test_points_and_curvatures_that_are_sharded_over_two_devices_give_the_same_values():
    program = processes.ROOT / "tests" / "ops" / "sharded_program.py"
    done = processes.finish(
        [processes.sys.executable, str(program)], env=processes.environment(devices=2)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(CURVED))]
