"""DL-DKD: two embeddings of a sentence, two of the frames, and padding that changes no score."""

import functools

import jax
import numpy as np
import pytest
import tiny

from hlformer_jax import models
from hlformer_jax.models.dl_dkd import repeat_first
from hlformer_jax.retrieval import scoring

BATCH = tiny.batch()


@functools.cache
def _encoder(off=""):
    """A configuration, and the program that encodes the captions and videos with its model."""
    config = tiny.case("dl_dkd")
    if off:
        config.model[off] = False
    model, params = models.build(config), tiny.params(config)

    @jax.jit
    def encode(videos):
        queries = models.encode_query(model, params, BATCH.captions)
        encoded = models.encode_video(model, params, videos)
        similar = scoring.build_scorer(config, model).similarities(
            queries, encoded, BATCH.captions.video
        )
        return queries, encoded, similar

    return config, encode


def test_padded_frames_repeat_the_first_so_that_they_change_no_score():
    config, encode = _encoder()
    queries, videos, similar = encode(BATCH.videos)
    assert queries.shape == (tiny.CAPTIONS, 2 * config.model.hidden_size)
    mask = BATCH.videos.frame_mask
    for branch in videos:
        first = np.broadcast_to(np.asarray(branch)[:, :1], branch.shape)
        np.testing.assert_array_equal(np.asarray(branch)[~mask], first[~mask])
    for name, half, branch in zip(
        ("clip_cosine", "frame_cosine"),
        np.split(np.asarray(queries), 2, axis=-1),
        videos,
        strict=True,
    ):
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (half, np.asarray(branch))]
        cosines = np.einsum("qh,vlh->qvl", *unit)
        expected = np.where(mask[None], cosines, -np.inf).max(-1)  # over real frames alone
        np.testing.assert_allclose(getattr(similar, name), expected, atol=1e-6)


def test_what_stands_in_padded_frames_does_not_matter():
    _, encode = _encoder()
    frames = np.where(BATCH.videos.frame_mask[..., None], BATCH.videos.frames, np.float32(9))
    for one, other in zip(
        jax.tree.leaves(encode(BATCH.videos)),
        jax.tree.leaves(encode(BATCH.videos._replace(frames=frames))),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("off", ["gaze", "glance"])
def test_a_branch_alone_has_one_embedding_of_a_sentence(off):
    config, encode = _encoder(off)
    queries, videos, similar = encode(BATCH.videos)
    assert queries.shape == (tiny.CAPTIONS, config.model.hidden_size)
    assert (videos.clips is None, videos.frames is None) == (off == "glance", off == "gaze")
    assert (similar.clip_dot is None, similar.frame_dot is None) == (off == "glance", off == "gaze")


def test_the_gradient_of_a_repeated_position_goes_to_the_first():
    mask = np.array([[True, True, False, False]])
    encoded = np.array([[[2.0], [1.0], [9.0], [9.0]]], np.float32)
    largest = lambda x: repeat_first(x, mask).max()
    assert largest(encoded) == 2
    np.testing.assert_allclose(jax.grad(largest)(encoded)[0, :, 0], [1, 0, 0, 0], atol=1e-6)
