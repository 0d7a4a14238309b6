"""The score of MS-SL: the guided vector of the best proposal, against NumPy."""

import jax
import numpy as np
import pytest

from hlformer_jax.models.ms_sl import GuidedEncoding
from hlformer_jax.retrieval import corpus
from hlformer_jax.retrieval.guided import GuidedSimilarity

VIDEOS, PROPOSALS, H = 11, 3, 16


def _normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def encoded():
    shape = VIDEOS, PROPOSALS, H
    return GuidedEncoding(_normal(0, *shape), _normal(2, *shape))


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _cosines(queries, positions):
    return np.einsum("qh,vlh->qvl", _unit(queries), _unit(positions))


@pytest.mark.parametrize("count", [1, 7])
def test_guided_vectors_are_scored_at_the_best_clip(encoded, count):
    queries = _normal(1, 7, H)
    scorer = GuidedSimilarity(np.asarray([0.7, 0.3], np.float32))
    stored = corpus.build(encoded, scorer, "float32", block=4)
    clip, other = (_cosines(queries, x) for x in encoded)
    best = clip.argmax(-1)[..., None]
    expected = 0.7 * clip.max(-1) + 0.3 * np.take_along_axis(other, best, -1)[..., 0]
    scores = jax.jit(corpus.scores)(stored, queries[:count])
    np.testing.assert_allclose(scores[:, :VIDEOS], expected[:count], rtol=0, atol=2e-7)
    found = corpus.search(stored, queries, 3)
    order = np.argsort(-expected, axis=1)[:, :3]
    np.testing.assert_array_equal(found.videos, order)
    clips = found.positions["clips"]
    np.testing.assert_array_equal(clips, np.take_along_axis(best[..., 0], order, 1))
    assert list(found.positions) == ["clips"]


def test_in_training_a_caption_is_compared_with_what_the_others_best_proposals_were_told(encoded):
    queries, owner = _normal(1, 5, H), np.array([0, 0, 3, 7, 10], np.int32)
    scorer = GuidedSimilarity(np.ones(2, np.float32))
    found = jax.jit(scorer.similarities)(queries, encoded, owner)
    cosines = _cosines(queries, encoded.clips)
    products = np.einsum("qh,vlh->qvl", queries, encoded.clips)
    guided = np.stack(
        [encoded.guided[video, cosines[row, video].argmax()] for row, video in enumerate(owner)]
    )
    # Rounding of float32 sums of 16 products of size 1.
    expected = cosines.max(-1), products.max(-1), _unit(queries) @ _unit(guided).T
    for ours, theirs in zip(found, (*expected, queries @ guided.T), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
