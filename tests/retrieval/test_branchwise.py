"""The score of a model with a sentence embedding for each branch, against NumPy."""

import family
import jax
import linear
import numpy as np
import pytest

from hlformer_jax import models
from hlformer_jax.models import VideoEncoding
from hlformer_jax.retrieval import corpus, scorers, vectors
from hlformer_jax.retrieval.branchwise import BranchwiseSimilarity

RNG = np.random.default_rng(0)
VIDEOS = VideoEncoding(*(RNG.normal(size=(4, 5, 6)).astype(np.float32) for _ in range(2)))
QUERIES = RNG.normal(size=(3, 12)).astype(np.float32)
SCORER = BranchwiseSimilarity(np.asarray([0.7, 0.3], np.float32))


def test_each_branch_is_compared_with_its_own_half_of_the_query():
    found = jax.jit(SCORER.similarities)(QUERIES, VIDEOS, np.zeros(3, np.int32))
    clip = linear.cosine_maxima(QUERIES[:, :6], VIDEOS.clips)
    frame = linear.cosine_maxima(QUERIES[:, 6:], VIDEOS.frames)
    for ours, theirs in zip(found, (*clip, *frame), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not np.allclose(clip[0], linear.cosine_maxima(QUERIES[:, 6:], VIDEOS.clips)[0])


@pytest.mark.parametrize("count", [1, 3])
def test_a_search_adds_the_weighted_maxima_and_says_where_they_are(count):
    library = corpus.build(VIDEOS, SCORER, "float32", block=2)
    cosines = []
    for half, positions in zip(np.split(QUERIES[:count], 2, axis=1), VIDEOS, strict=True):
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (half, positions)]
        cosines.append(np.einsum("qh,vlh->qvl", *unit))
    expected = 0.7 * cosines[0].max(-1) + 0.3 * cosines[1].max(-1)
    np.testing.assert_allclose(
        jax.jit(corpus.scores)(library, QUERIES[:count])[:, :4], expected, atol=1e-6
    )
    found = corpus.search(library, QUERIES[:count], 4)
    order = np.argsort(-expected, axis=1)
    np.testing.assert_array_equal(found.videos, order)
    for name, one in zip(("clips", "frames"), cosines, strict=True):
        best = np.take_along_axis(one.argmax(-1), order, axis=1)
        np.testing.assert_array_equal(found.positions[name], best)


@pytest.mark.parametrize("num_frames", [3, 5, 10])
def test_over_time_both_branches_say_what_their_sampled_frame_says(num_frames):
    library = corpus.build(VIDEOS, SCORER, "int8")
    stored = corpus.rows(library, np.arange(3))
    found = {k: np.asarray(x) for k, x in SCORER.position_cosines(QUERIES, stored).items()}
    at = np.arange(num_frames) * 5 // max(num_frames, 5)  # two frames a position of ten
    halves = np.split(QUERIES, 2, axis=1)
    expected = np.zeros((3, num_frames))
    for weight, half, positions in zip((0.7, 0.3), halves, VIDEOS, strict=True):
        own = np.einsum("qh,qlh->ql", half, positions[:3])
        own /= np.linalg.norm(half, axis=-1)[:, None] * np.linalg.norm(positions[:3], axis=-1)
        expected += weight * own[:, at]
    over_time = SCORER.over_time(found, num_frames, 1, 5)
    np.testing.assert_allclose(over_time, expected, atol=0.02)  # 8 bits
    np.testing.assert_array_equal(over_time.argmax(-1), expected.argmax(-1))


def test_a_query_of_the_width_of_one_branch_is_refused():
    library = corpus.build(VIDEOS, SCORER, "float32")
    with pytest.raises(ValueError, match=r"shape \[Q, 12\], not k = 1 and \(3, 6\)"):
        corpus.search(library, QUERIES[:, :6], 1)


@pytest.mark.parametrize("off", ["", "gaze", "glance"])
def test_every_branch_that_is_on_is_seen_over_the_frames_it_read(off):
    config = family.config("dl_dkd")
    if off:
        config.model[off] = False
    scorer = scorers.build(config, models.build(config))
    own = {"clips": VIDEOS.clips[:1], "frames": VIDEOS.frames[:1]}
    own.pop({"gaze": "frames", "glance": "clips"}.get(off), None)
    stored = {name: vectors.store(branch, "float32") for name, branch in own.items()}
    assert scorer.width(stored) == (6 if off else 12)
    query = QUERIES[:1, :6] if off else QUERIES[:1]
    cosines = jax.device_get(scorer.position_cosines(query, stored))
    # Of three frames, which are no more than positions, each is its own.
    found = scorer.over_time(cosines, 3, config.data.max_clips, 5)
    weights = {name: 1.0 for name in own} if off else {"clips": 0.7, "frames": 0.3}
    expected = sum(weights[name] * cosines[name][:, :3] for name in own)
    np.testing.assert_allclose(found, expected, atol=1e-6)
