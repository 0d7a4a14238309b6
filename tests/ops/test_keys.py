"""Random keys are functions of a seed, a name and a step alone."""

import jax
import jax.numpy as jnp
import numpy as np

from hlformer_jax.ops.dropout import derive_key


def data(*arguments):
    return tuple(np.asarray(jax.random.key_data(derive_key(*arguments))).tolist())


def test_a_key_is_another_one_for_another_seed_name_or_step():
    found = {
        data(seed, name, step)
        for seed in (0, 1, 2**31)
        for name in ("params", "dropout", "negatives", "")
        for step in (0, 1, 2)
    }
    assert len(found) == 36
    assert data(1, "dropout", 2) == data(1, "dropout", 2) in found


def test_the_step_is_0_where_none_is_given():
    assert data(7, "params") == data(7, "params", 0)


def test_a_seed_and_a_step_that_are_traced_give_the_same_key():
    traced = jax.jit(lambda seed, step: derive_key(seed, "dropout", step))
    key = jax.random.key_data(traced(jnp.int32(5), jnp.int32(9)))
    assert tuple(key.tolist()) == data(5, "dropout", 9)


def test_a_name_stands_for_its_cyclic_redundancy_check_and_no_hash_of_this_process():
    """A seed repeats a run. The number is the check value that CRC-32 is defined with."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 0xCBF43926), 2)
    assert data(3, "123456789", 2) == tuple(jax.random.key_data(key).tolist())
