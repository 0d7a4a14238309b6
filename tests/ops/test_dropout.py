"""Dropout's generator: uniform, independent, a function of key and index alone; derived keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hlformer_jax.ops.dropout import derive_key, dropout, random_bits


def _bits(seed=0, shape=(1 << 16,)):
    return np.asarray(random_bits(jax.random.key(seed), shape))


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_every_bit_is_fair_and_bytes_are_uniform(seed):
    bits = _bits(seed)
    ones = ((bits[:, None] >> np.arange(32)) & 1).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))  # five standard deviations
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits >> shift) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-5


@pytest.mark.parametrize("lag", [1, 2, 64, 128, 4096])
def test_neighbours_are_independent(lag):
    kept = _bits(3) >= 2**31
    table = np.histogram2d(kept[:-lag], kept[lag:], bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-5


def test_streams_of_neighbouring_keys_are_independent():
    keys = jax.random.split(jax.random.key(0), 8)
    streams = np.stack([np.asarray(random_bits(key, (1 << 14,))) for key in keys]) >= 2**31
    correlation = np.corrcoef(streams) - np.eye(len(keys))
    assert np.abs(correlation).max() < 5 / np.sqrt(1 << 14)


def test_bits_depend_on_the_row_major_index_alone():
    key = jax.random.key(7)
    flat = random_bits(key, (24,))
    np.testing.assert_array_equal(random_bits(key, (2, 3, 4)).ravel(), flat)
    jitted = jax.jit(lambda key: random_bits(key, (24,)))(key)
    np.testing.assert_array_equal(jitted, flat)
    np.testing.assert_array_equal(random_bits(jax.random.key_data(key), (24,)), flat)
    rows = jax.vmap(lambda key: random_bits(key, (24,)))(jax.random.split(key, 2))
    np.testing.assert_array_equal(rows[1], random_bits(jax.random.split(key, 2)[1], (24,)))


@pytest.mark.parametrize("rate", [0.1, 0.31, 0.9])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_share_of_zeros_scale_and_dtype(rate, dtype):
    x = jnp.full((1 << 16,), 2, dtype)
    y = dropout(jax.random.key(1), x, rate)
    assert y.dtype == dtype
    dropped = np.asarray(y) == 0
    deviation = np.sqrt(rate * (1 - rate) / len(dropped))
    assert abs(dropped.mean() - rate) < 5 * deviation
    kept = np.asarray(y, np.float64)[~dropped]
    np.testing.assert_allclose(kept, 2 / (1 - rate), rtol=0.01)


def test_rates_of_zero_and_one():
    x = jnp.arange(5.0)
    np.testing.assert_array_equal(dropout(jax.random.key(0), x, 0.0), x)
    np.testing.assert_array_equal(dropout(jax.random.key(0), x, 1.0), np.zeros(5))


def test_gradient_is_the_mask():
    x = jnp.linspace(-1, 1, 64)
    key = jax.random.key(2)
    gradient = jax.grad(lambda x: jnp.sum(dropout(key, x, 0.5)))(x)
    kept = np.asarray(dropout(key, jnp.ones(64), 0.5))
    np.testing.assert_array_equal(gradient, kept)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_dropout_of_integers_is_refused(rate):
    with pytest.raises(TypeError, match="floating arrays, not int32"):
        dropout(jax.random.key(0), jnp.arange(5), rate)


def key_data(*arguments):
    return tuple(np.asarray(jax.random.key_data(derive_key(*arguments))).tolist())


def test_a_key_is_another_one_for_another_seed_name_or_step():
    found = {
        key_data(seed, name, step)
        for seed in (0, 1, 2**31)
        for name in ("params", "dropout", "negatives", "")
        for step in (0, 1, 2)
    }
    assert len(found) == 36
    assert key_data(1, "dropout", 2) == key_data(1, "dropout", 2) in found


def test_the_step_is_0_where_none_is_given():
    assert key_data(7, "params") == key_data(7, "params", 0)


def test_a_seed_and_a_step_that_are_traced_give_the_same_key():
    traced = jax.jit(lambda seed, step: derive_key(seed, "dropout", step))
    key = jax.random.key_data(traced(jnp.int32(5), jnp.int32(9)))
    assert tuple(key.tolist()) == key_data(5, "dropout", 9)


def test_a_name_stands_for_its_cyclic_redundancy_check_and_no_hash_of_this_process():
    """A seed repeats a run. The number is the check value that CRC-32 is defined with."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 0xCBF43926), 2)
    assert key_data(3, "123456789", 2) == tuple(jax.random.key_data(key).tolist())
