"""A corpus and its search, against NumPy over the whole array at once."""

import jax
import numpy as np
import pytest

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus, ranking, scoring
from hlformer_jax.retrieval.scoring import MaximumSimilarity

VIDEOS, CLIPS, FRAMES, H = 11, 3, 6, 16


@pytest.fixture(scope="module")
def encoded():
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(VIDEOS, FRAMES, H)).astype(np.float32)
    frames[3, 2:] = 0  # padding
    clips = rng.normal(size=(VIDEOS, CLIPS, H)).astype(np.float32)
    return VideoEncoding(clips, frames)


@pytest.fixture(scope="module")
def queries():
    return np.random.default_rng(1).normal(size=(7, H)).astype(np.float32)


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _cosines(queries, positions):
    return np.einsum("qh,vlh->qvl", _unit(queries), _unit(positions))


def _expected(queries, encoded):
    clip, frame = (_cosines(queries, x) for x in encoded[:2])
    return 0.7 * clip.max(-1) + 0.3 * frame.max(-1), clip, frame


# Half a unit in the last of 8 bits, in each of two unit vectors: 2 * 2^-9 at most for bfloat16.
# int8: half a step of each coordinate, largest / 254, against a unit vector whose coordinates'
# sizes add up to sqrt(H) at most: 2 * sqrt(16) / 254.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-7), ("bfloat16", 2**-8), ("int8", 8 / 254)]
)
# 7 queries, 4 videos and 9 positions in a block: two of three blocks at once, or all.
@pytest.mark.parametrize(("block", "at_once"), [(4, 2**26), (4, 2 * 7 * 4 * 9), (256, 2**26)])
def test_scores_are_those_of_the_equation(
    encoded, queries, dtype, tolerance, block, at_once, monkeypatch
):
    monkeypatch.setattr(corpus, "SIMILARITIES_AT_ONCE", at_once)
    built = corpus.build(encoded, dtype=dtype, block=block)
    scores = np.asarray(jax.jit(corpus.scores)(built, queries))
    expected, _, _ = _expected(queries, encoded)
    np.testing.assert_allclose(scores[:, :VIDEOS], expected, rtol=0, atol=tolerance)
    assert np.all(scores[:, VIDEOS:] == -np.inf)
    # One query alone takes another program.
    alone = np.asarray(jax.jit(corpus.scores)(built, queries[2:3]))
    np.testing.assert_allclose(alone, scores[2:3], rtol=0, atol=2e-7)


@pytest.mark.parametrize("k", [1, 4, 15])
def test_search_returns_the_best_with_their_positions(encoded, queries, k):
    found = corpus.search(corpus.build(encoded, dtype="float32", block=4), queries, k)
    expected, clip, frame = _expected(queries, encoded)
    order = np.argsort(-expected, axis=1)[:, :k]
    real = min(k, VIDEOS)
    np.testing.assert_array_equal(found.videos[:, :real], order)
    np.testing.assert_allclose(
        found.scores[:, :real], np.take_along_axis(expected, order, 1), atol=2e-7
    )
    clips, frames = found.positions["clips"], found.positions["frames"]
    for positions, cosine in ((clips, clip), (frames, frame)):
        best = np.take_along_axis(cosine.argmax(-1), order, 1)
        np.testing.assert_array_equal(positions[:, :real], best)
    every = found.videos, found.scores, clips, frames
    for values, beyond in zip(every, (-1, -np.inf, -1, -1), strict=True):
        assert values.shape == (len(queries), k)
        assert np.all(values[:, VIDEOS:] == beyond)


def test_a_branch_that_is_off_has_no_position(encoded, queries):
    only = encoded._replace(clips=None)
    scorer = MaximumSimilarity(np.ones(2, np.float32))
    found = corpus.search(corpus.build(only, scorer, "float32"), queries, 2)
    _, _, frame = _expected(queries, encoded)
    np.testing.assert_array_equal(found.videos, np.argsort(-frame.max(-1), axis=1)[:, :2])
    assert list(found.positions) == ["frames"]
    assert np.all(found.positions["frames"] >= 0)


def test_smaller_dtypes_find_nearly_the_same(encoded, queries):
    ranks = {}
    own = np.arange(len(queries), dtype=np.int32)
    near = encoded.frames[own, 1] + 0.3 * queries
    for dtype in scoring.DTYPES:
        built = corpus.build(encoded, dtype=dtype)
        ranks[dtype] = np.asarray(ranking.ranks(jax.jit(corpus.scores)(built, near), own))
    assert np.abs(ranks["bfloat16"] - ranks["float32"]).max() <= 1
    assert np.abs(ranks["int8"] - ranks["float32"]).max() <= 1
    size = lambda dtype: corpus.build(encoded, dtype=dtype).stored["frames"].values.nbytes
    assert size("float32") == 2 * size("bfloat16") == 4 * size("int8")


def test_what_makes_no_sense_is_refused(encoded, queries):
    with pytest.raises(ValueError, match="float16"):
        corpus.build(encoded, dtype="float16")
    with pytest.raises(ValueError, match="at least one"):
        corpus.build(VideoEncoding(encoded.clips[:0], encoded.frames[:0]))
    built = corpus.build(encoded)
    with pytest.raises(ValueError, match="k = 0"):
        corpus.search(built, queries, 0)
    with pytest.raises(ValueError, match=r"\[Q, 16\]"):
        corpus.search(built, queries[:, :5], 1)
