"""The best position of each branch (eq. 8, 9), against NumPy."""

import jax
import linear
import numpy as np
import pytest

from hlformer_jax.models import VideoEncoding
from hlformer_jax.retrieval.similarity import MaximumSimilarity


def test_zero_frames_have_cosine_zero_and_a_finite_gradient():
    frames = np.zeros((1, 2, 3), np.float32)
    frames[0, 0] = [-1, 0, 0]
    queries, owner = np.array([[1, 0, 0]], np.float32), np.zeros(1, np.int32)
    scorer = MaximumSimilarity(np.ones(2, np.float32))

    def best(frames):
        return scorer.similarities(queries, VideoEncoding(None, frames), owner).frame_cosine[0, 0]

    value, gradient = jax.jit(jax.value_and_grad(best))(frames)
    assert value == 0
    assert np.all(np.isfinite(gradient))


def _encoded():
    rng = np.random.default_rng(0)
    clips, frames = (rng.normal(size=(4, length, 6)).astype(np.float32) for length in (2, 5))
    frames[1, 3:] = 0  # padding
    return VideoEncoding(clips, frames), rng.normal(size=(3, 6)).astype(np.float32)


@pytest.mark.parametrize("missing", ["", "clips", "frames"])
def test_losses_see_the_maxima_over_the_positions_of_each_branch(missing):
    videos, queries = _encoded()
    if missing:
        videos = videos._replace(**{missing: None})
    scorer = MaximumSimilarity(np.ones(2, np.float32))
    found = jax.jit(scorer.similarities)(queries, videos, np.zeros(3, np.int32))
    expected = [
        part
        for branch in videos
        for part in ((None, None) if branch is None else linear.cosine_maxima(queries, branch))
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:  # rounding of float32 sums of six products
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_score_is_the_weighted_sum_and_its_positions_are_those_of_the_maxima():
    videos, queries = _encoded()
    scorer = MaximumSimilarity(np.asarray([0.7, 0.3], np.float32))
    stored = scorer.store(videos, "float32")
    clip, frame = (linear.cosine_maxima(queries, branch)[0] for branch in videos)
    np.testing.assert_allclose(scorer.scores(queries, stored), 0.7 * clip + 0.3 * frame, atol=1e-6)
    own = jax.tree.map(lambda x: x[:3], stored)  # one video for each query
    for name, branch in videos._asdict().items():
        each = [
            linear.cosine_maxima(q[None], v[:, None])[0][0]
            for q, v in zip(queries, branch, strict=False)
        ]
        np.testing.assert_array_equal(scorer.locate(queries, own)[name], np.argmax(each, axis=1))
    assert scorer.similarities_per_video(stored) == 2 + 5
    assert scorer.width(stored) == 6
