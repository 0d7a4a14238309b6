"""Fused similarities, run as JAX operations, against the plain ones; whether Triton takes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.ops import fused_similarity, kernels
from hlformer_jax.retrieval.similarity import MaximumSimilarity

PLAIN = MaximumSimilarity(np.ones(2, np.float32))


def _vectors(seed, *shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def _plain(queries, positions):
    owner = jnp.zeros(len(queries), jnp.int32)
    similar = PLAIN.similarities(queries, VideoEncoding(positions, None), owner)
    return similar.clip_cosine, similar.clip_dot


def _with_gradients(maxima, queries, positions):
    def total(queries, positions):
        out = maxima(queries, positions)
        weights = (_vectors(seed, *x.shape, dtype=x.dtype) for seed, x in enumerate(out, 7))
        return sum(jnp.sum(w * x) for w, x in zip(weights, out, strict=True)), out

    gradients, out = jax.jit(jax.grad(total, (0, 1), has_aux=True))(queries, positions)
    return *out, *gradients


# Queries, videos, positions, coordinates: odd sizes; more than one block of queries, and of
# coordinates; a single one of each.
@pytest.mark.parametrize("size", [(5, 3, 7, 24), (70, 4, 20, 100), (1, 1, 1, 1)])
def test_maxima_and_gradients_are_those_of_the_plain_similarities(size, float64):
    # In double precision: there is no rounding to tell maxima that are nearly equal apart by.
    count, videos, length, features = size
    queries = _vectors(0, count, features, dtype=np.float64)
    positions = _vectors(1, videos, length, features, dtype=np.float64)
    if length > 1:
        # Zero positions, as padded frames are; one of them is among the largest of some rows.
        positions = positions.at[0, 2:5].set(0)
    ours = _with_gradients(fused_similarity.max_similarities, queries, positions)
    theirs = _with_gradients(_plain, queries, positions)
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == their.dtype
        np.testing.assert_allclose(our, their, rtol=1e-11, atol=1e-11)


def test_zero_vectors_have_cosine_zero_and_finite_gradients():
    queries = _vectors(0, 3, 8).at[1].set(0)
    positions = _vectors(1, 2, 5, 8).at[0].set(0).at[1, 3].set(0)
    cosines, dots, *gradients = _with_gradients(
        fused_similarity.max_similarities, queries, positions
    )
    for out in (cosines, dots):
        np.testing.assert_array_equal(out[:, 0], np.zeros(3))
        np.testing.assert_array_equal(out[1], np.zeros(2))
    plain, _ = jax.jit(_plain)(queries, positions)
    np.testing.assert_allclose(cosines, plain, rtol=1e-6, atol=1e-7)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_ties_give_their_gradient_to_the_first_position_and_padding_never_wins():
    queries = jnp.ones((1, 4))
    positions = -jnp.ones((1, 3, 4)).at[0, 0].set(2)
    cosines, dots, _, gradient = _with_gradients(
        fused_similarity.max_similarities, queries, positions
    )
    np.testing.assert_allclose(cosines, [[-1]], rtol=1e-6)
    np.testing.assert_array_equal(dots, [[-4]])
    # Of the cosine the gradient is across the position: here, with parallel vectors, none.
    weight = _vectors(8, 1, 1)[0, 0]
    np.testing.assert_allclose(gradient[0], weight * np.outer([0, 1, 0], np.ones(4)), atol=1e-6)


def test_half_precision_inputs_give_float32_maxima():
    queries, positions = (_vectors(0, 3, 8), _vectors(1, 2, 5, 8))
    narrow = queries.astype(jnp.bfloat16), positions.astype(jnp.bfloat16)
    exact = jax.jit(_plain)(*(x.astype(jnp.float32) for x in narrow))
    ours = jax.jit(fused_similarity.max_similarities)(*narrow)
    for our, their in zip(ours, exact, strict=True):
        assert our.dtype == jnp.float32
        np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_queries_and_positions_of_different_widths_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 8\) and positions \(2, 5, 6\)"):
        fused_similarity.max_similarities(_vectors(0, 3, 8), _vectors(1, 2, 5, 6))


def _lowered(function, *arguments):
    """What XLA is given for an NVIDIA GPU, which need not be there."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def test_triton_takes_the_kernels():
    def copy(x, out):
        out[...] = x[...]

    params = kernels.compiler_params(4, 1)
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    try:
        _lowered(pl.pallas_call(copy, out_shape=x, compiler_params=params), x)
    except Exception as error:
        # JAX later than 0.10 compiles the kernel as it lowers it, which takes its CUDA plugin.
        pytest.skip(f"no kernel lowers for a GPU here: {error}")
    maxima = lambda q, x: fused_similarity.max_similarities(q, x, interpret=False)
    queries = jax.ShapeDtypeStruct((70, 384), jnp.float32)
    positions = jax.ShapeDtypeStruct((4, 100, 384), jnp.float32)
    text = _lowered(lambda *x: _with_gradients(maxima, *x), queries, positions)
    assert text.count("@__gpu$xla.gpu.triton") == 3
