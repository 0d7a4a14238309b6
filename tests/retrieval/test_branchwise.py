"""The score of a model with a sentence embedding for each branch, against NumPy."""

import jax
import linear
import numpy as np
import pytest

from hlformer_jax.models import VideoEncoding
from hlformer_jax.retrieval import corpus
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


def test_a_query_of_the_width_of_one_branch_is_refused():
    library = corpus.build(VIDEOS, SCORER, "float32")
    with pytest.raises(ValueError, match=r"shape \[Q, 12\], not k = 1 and \(3, 6\)"):
        corpus.search(library, QUERIES[:, :6], 1)
