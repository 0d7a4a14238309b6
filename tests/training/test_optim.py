"""The optimiser's parts beyond what the recorded steps show."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hlformer_jax.training import optim


def _tree(seed):
    rng = np.random.default_rng(seed)
    return {
        "bank": {"kernel": jnp.asarray(rng.normal(size=(3, 4, 5)), jnp.float32)},
        "bank_2": {"kernel": jnp.asarray(rng.normal(size=(3, 4, 5)), jnp.float32)},
        "dense": {"kernel": jnp.asarray(0.01 * rng.normal(size=(4, 5)), jnp.float32)},
        "scale": jnp.asarray(7.0),
    }


def test_a_bank_is_clipped_block_by_block_and_other_tensors_whole():
    gradient = _tree(0)
    clipped, _ = optim.clip_by_tensor_norm(1.0).update(gradient, optax.EmptyState())
    for block in [*clipped["bank"]["kernel"], *clipped["bank_2"]["kernel"]]:
        np.testing.assert_allclose(np.linalg.norm(block), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(clipped["dense"]["kernel"], gradient["dense"]["kernel"])
    np.testing.assert_allclose(clipped["scale"], 1.0, rtol=1e-5)


def test_a_zero_gradient_stays_zero():
    zeros = jax.tree.map(jnp.zeros_like, _tree(0))
    clipped, _ = optim.clip_by_tensor_norm(1.0).update(zeros, optax.EmptyState())
    assert not any(np.any(x) for x in jax.tree.leaves(clipped))


@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_the_schedule_rises_falls_and_ends_at_zero(warmup):
    rates = np.array([optim.linear_warmup(2.0, warmup, 100)(step) for step in range(101)])
    assert rates[0] == (0.0 if warmup else 2.0)
    assert rates[100] == 0
    np.testing.assert_allclose(rates.max(), 2.0, rtol=1e-6)
    assert np.argmax(rates) == round(100 * warmup)
    assert np.all(np.diff(rates[round(100 * warmup) :]) < 0)


def test_moments_have_no_bias_correction_and_epsilon_stands_outside_the_root():
    transform = optim.scale_by_bert_adam(0.9, 0.999, 1e-6)
    gradient = {"x": jnp.asarray([2.0, -1e-4])}
    scaled, state = transform.update(gradient, transform.init(gradient))
    expected = 0.1 * gradient["x"] / (jnp.sqrt(0.001) * jnp.abs(gradient["x"]) + 1e-6)
    np.testing.assert_allclose(scaled["x"], expected, rtol=1e-5)
    np.testing.assert_allclose(state.first["x"], 0.1 * gradient["x"], rtol=1e-6)
