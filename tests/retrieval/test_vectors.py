"""Unit vectors in the dtypes of a corpus, against NumPy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.retrieval import vectors

H = 16
X = np.random.default_rng(0).normal(size=(3, 4, H)).astype(np.float32) * 10
X[1, 2] = 0
QUERIES = np.random.default_rng(1).normal(size=(5, H)).astype(np.float32)


def _unit(x):
    return x / np.maximum(np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True), 1e-30)


def _values(stored):
    values = np.asarray(stored.values.astype(jnp.float32))
    return values if stored.scale is None else values * np.asarray(stored.scale)[..., None]


def test_values_are_unit_vectors_up_to_the_rounding_of_their_dtype():
    largest = np.abs(_unit(X)).max(-1, keepdims=True)
    # bfloat16 has 8 bits, of a coordinate of at most 1; int8 half a step of 127 to the largest.
    for dtype, error in (("float32", 2**-22), ("bfloat16", 2**-9), ("int8", largest / 253)):
        stored = vectors.store(X, dtype)
        assert stored.values.dtype == jnp.dtype(dtype)
        assert (stored.scale is None) == (dtype != "int8")
        assert np.all(np.abs(_values(stored) - _unit(X)) <= error), dtype
        assert not np.any(_values(stored)[1, 2])  # a zero vector stays zero


@pytest.mark.parametrize("dtype", vectors.DTYPES)
@pytest.mark.parametrize("count", [1, 5])
def test_cosines_are_products_of_the_stored_values_for_one_query_and_for_many(dtype, count):
    query, stored = vectors.store(QUERIES[:count], dtype), vectors.store(X, dtype)
    expected = np.einsum("qh,blh->qbl", *(_values(x).astype(np.float64) for x in (query, stored)))
    # Sums of 16 products of float32.
    np.testing.assert_allclose(vectors.cosines(query, stored), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", vectors.DTYPES)
def test_the_cosines_with_ones_own_video_are_those_with_all(dtype):
    query, stored = vectors.store(QUERIES[:3], dtype), vectors.store(X, dtype)
    own = np.asarray(vectors.own_cosines(query, stored))
    every = np.asarray(vectors.cosines(query, stored))[np.arange(3), np.arange(3)]
    np.testing.assert_allclose(own, every, rtol=0, atol=2e-6)


def test_positions_and_width_are_counted_over_the_branches():
    stored = {"clips": vectors.store(X, "int8"), "frames": vectors.store(X[:, :3], "int8")}
    assert vectors.positions(stored) == 7
    assert vectors.width(stored) == H
