"""What a program costs, by the compiler's count and plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.parallel import analysis


def test_the_plan_of_memory_counts_arguments_and_results():
    x = jnp.ones((64, 64))
    plan = analysis.memory(jax.jit(lambda x: (x @ x, x[0])).lower(x).compile())
    assert plan["arguments"] == x.nbytes
    assert x.nbytes + 64 * 4 <= plan["results"] <= x.nbytes + 64 * 4 + 64
    assert plan["peak"] == plan["arguments"] + plan["results"] + plan["temporary"]


def test_a_product_is_counted_by_its_multiplications_and_additions():
    x, y = jax.ShapeDtypeStruct((5, 7), np.float32), jax.ShapeDtypeStruct((7, 11), np.float32)
    assert analysis.count(jnp.matmul, x, y) == 2 * 5 * 7 * 11
    twice = lambda x, y: (x @ y, (2 * x) @ y)
    assert analysis.count(twice, x, y) == pytest.approx(2 * 2 * 5 * 7 * 11 + 5 * 7, abs=5 * 7)


def test_bytes_are_those_of_all_leaves_arrays_or_shapes():
    tree = {"a": np.zeros((3, 5), np.float16), "b": [jax.ShapeDtypeStruct((7,), np.int32)]}
    assert analysis.nbytes(tree) == 3 * 5 * 2 + 7 * 4
