"""The encoders that the models share: permutation, padding and half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.models import ms_sl

CONFIG, BATCH = tiny.config(), tiny.batch()


@pytest.fixture(scope="module")
def params():
    return tiny.params(CONFIG)


@pytest.fixture(scope="module")
def encode(params):
    """One program for all tests of this file."""
    model = models.build(CONFIG)
    return jax.jit(lambda videos: models.encode_video(model, params, videos))


def test_a_permuted_batch_permutes_its_encodings(encode):
    order = np.array([2, 0, 1])
    straight, permuted = (
        encode(BATCH.videos),
        encode(jax.tree.map(lambda x: x[order], BATCH.videos)),
    )
    np.testing.assert_allclose(permuted.frames, straight.frames[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(permuted.clips, straight.clips[order], rtol=1e-5, atol=1e-6)


def test_padded_frames_come_out_zero_and_padded_words_do_not_matter(encode, params):
    encoded = encode(BATCH.videos)
    assert not np.any(np.asarray(encoded.frames)[~BATCH.videos.frame_mask])
    words = np.array(BATCH.captions.words)
    words[~BATCH.captions.word_mask] = 9.0
    model = models.build(CONFIG)
    query = jax.jit(lambda captions: models.encode_query(model, params, captions))
    np.testing.assert_array_equal(
        query(BATCH.captions), query(BATCH.captions._replace(words=words))
    )


def test_bfloat16_stays_close_to_float32_and_keeps_its_parameters(encode, params):
    half = tiny.config(dtype="bfloat16")
    exact = encode(BATCH.videos)
    # Flax's layer norm asks JAX for the promotion of bfloat16 and float32.
    with jax.numpy_dtype_promotion("standard"):
        assert {x.dtype for x in jax.tree.leaves(tiny.params(half))} == {jnp.dtype("float32")}
        model = models.build(half)
        ours = jax.jit(lambda v: models.encode_video(model, params, v))(BATCH.videos)
    assert ours.frames.dtype == jnp.float32
    # bfloat16 has 8 bits: 2^-8 an operation, on outputs of a layer norm, of size 1. Measured: 0.012
    # and 0.016; one bit less in the weights alone gives 0.027.
    np.testing.assert_allclose(ours.clips, exact.clips, atol=0.02)
    np.testing.assert_allclose(ours.frames, exact.frames, atol=0.02)


def test_proposals_are_the_means_of_all_windows():
    clips = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    ours = np.asarray(ms_sl.sliding_means(clips))
    expected = [
        clips[:, start : start + size].mean(axis=1)
        for size in range(1, 6)
        for start in range(5 - size + 1)
    ]
    np.testing.assert_allclose(ours, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


def test_proposals_are_windows_by_their_length_then_their_start():
    starts, ends = ms_sl.proposals(3)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [
        (0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3),
    ]  # fmt: skip
