"""Ranks and metrics: ties in the middle, NaN at the end, and the recorded ones."""

import numpy as np
import pytest
import released

from hlformer_jax.retrieval import ranking


@pytest.fixture(scope="module")
def recorded():
    with np.load(released.GOLDEN / "hlformer_eval.npz") as file:
        return dict(file)


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
