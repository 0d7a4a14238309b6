"""Similarities, ranks and metrics; the recorded evaluation of the released code."""

import jax
import numpy as np
import pytest
import released

from hlformer_jax import models
from hlformer_jax.models import VideoEncoding
from hlformer_jax.retrieval import ranking, scorers
from hlformer_jax.retrieval.similarity import MaximumSimilarity


@pytest.fixture(scope="module")
def recorded():
    with np.load(released.GOLDEN / "hlformer_eval.npz") as file:
        return dict(file)


def test_recorded_evaluation_scores_ranks_and_metrics(recorded):
    recording = released.HLFORMER
    config, model, params = recording.config(), recording.build(), recording.params()
    from hlformer_jax.typing import Captions, Videos

    videos = Videos(
        recorded["in/clip_video_features"],
        recorded["in/frame_video_features"],
        recorded["in/videos_mask"] > 0,
        np.ones(12, bool),
    )
    captions = Captions(
        recorded["in/text_feat"],
        recorded["in/text_mask"] > 0,
        np.zeros(40, np.int32),
        np.ones(40, bool),
    )

    def run(params):
        encoded = models.encode_video(model, params, videos)
        queries = models.encode_query(model, params, captions)
        similar = scorers.build(config, model).similarities(queries, encoded, captions.video)
        weights = config.model.clip_weight, config.model.frame_weight
        return weights[0] * similar.clip_cosine + weights[1] * similar.frame_cosine

    scores = np.asarray(jax.jit(run)(params))
    # Four times the float32 noise of the recorded cosines (6.4e-7, golden/README.md).
    np.testing.assert_allclose(scores, recorded["out/score"], rtol=0, atol=2.6e-6)
    own = np.asarray([list(recorded["in/video_ids"]).index(v) for v in _own_videos(recorded)])
    rank = ranking.ranks(scores, own.astype(np.int32))
    np.testing.assert_array_equal(rank, recorded["out/rank"])
    metrics = ranking.metrics(rank)
    np.testing.assert_allclose(
        list(metrics.values()), recorded["out/metrics_r1_r5_r10_r100_sumr"], rtol=1e-6
    )


def _own_videos(recorded):
    own = recorded["in/gt_video"]
    return recorded["in/video_ids"][own] if own.dtype.kind in "iu" else own


@pytest.mark.parametrize("case", ["tie_small", "tie_large", "tie_allequal"])
def test_ties_lie_between_the_optimistic_and_the_pessimistic_rank(recorded, case):
    score, own = recorded[f"{case}/score"], recorded[f"{case}/gt"][:, 0].astype(np.int32)
    rank = np.asarray(ranking.ranks(score, own))
    low, high = recorded[f"{case}/rank_optimistic"], recorded[f"{case}/rank_pessimistic"]
    assert np.all((low <= rank) & (rank <= high))
    np.testing.assert_array_equal(rank, low + np.ceil((high - low) / 2))
    alone = low == high
    np.testing.assert_array_equal(rank[alone], recorded[f"{case}/rank_stable"][alone])
    assert not np.all(alone)


def test_a_model_that_scores_all_equal_gets_the_middle_rank():
    rank = ranking.ranks(np.zeros((3, 11), np.float32), np.array([0, 5, 10], np.int32))
    np.testing.assert_array_equal(rank, [6, 6, 6])


def test_a_row_with_nan_gets_the_worst_rank():
    scores = np.array([[0.9, np.nan, 0.1], [0.9, 0.5, 0.1]], np.float32)
    rank = ranking.ranks(scores, np.zeros(2, np.int32))
    np.testing.assert_array_equal(rank, [3, 1])


def test_ranks_equal_sorting():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20, 30)).astype(np.float32)
    own = rng.integers(0, 30, 20).astype(np.int32)
    order = np.argsort(-scores, axis=1)
    expected = [list(row).index(video) + 1 for row, video in zip(order, own, strict=True)]
    np.testing.assert_array_equal(ranking.ranks(scores, own), expected)


def test_metrics_of_known_ranks():
    rank = np.array([1, 1, 3, 6, 11, 101])
    assert ranking.metrics(rank) == pytest.approx(
        {"R@1": 200 / 6, "R@5": 50, "R@10": 400 / 6, "R@100": 500 / 6, "SumR": 1400 / 6}
    )
    expected = np.mean([1, 1, 1 / 3, 1 / 6, 1 / 11, 1 / 101])
    assert ranking.mean_reciprocal_rank(rank) == pytest.approx(expected)


def test_zero_frames_have_cosine_zero_and_a_finite_gradient():
    frames = np.zeros((1, 2, 3), np.float32)
    frames[0, 0] = [-1, 0, 0]
    queries, owner = np.array([[1, 0, 0]], np.float32), np.zeros(1, np.int32)
    scorer = MaximumSimilarity(np.ones(2, np.float32))

    def best(frames):
        return scorer.similarities(queries, VideoEncoding(None, frames), owner).frame_cosine[0, 0]

    value, gradient = jax.value_and_grad(best)(frames)
    assert value == 0
    assert np.all(np.isfinite(gradient))


def test_the_rank_of_several_relevant_candidates_is_that_of_the_best_among_the_others():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(12, 20)).astype(np.float32)
    relevant = rng.uniform(size=scores.shape) < 0.2
    relevant[np.arange(12), rng.integers(0, 20, 12)] = True
    expected = [
        1 + np.sum(row[~own] > row[own].max()) for row, own in zip(scores, relevant, strict=True)
    ]
    np.testing.assert_array_equal(ranking.ranks_of_any(scores, relevant), expected)
    alone = np.zeros_like(relevant)
    columns = np.arange(12, dtype=np.int32)
    alone[columns, columns] = True
    np.testing.assert_array_equal(
        ranking.ranks_of_any(scores, alone), ranking.ranks(scores, columns)
    )
