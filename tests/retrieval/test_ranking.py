"""Ranks, their metrics, and the table of results."""

import numpy as np
import pytest
import released

from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result, print_table


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


@pytest.mark.usefixtures("unchecked")
def test_candidates_of_other_queries_are_refused():
    with pytest.raises(ValueError, match="the other arguments"):
        ranking.ranks(np.ones((2, 3)), np.zeros(3, int))


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


def test_a_result_is_written_with_what_it_is_of():
    assert Result({"R@1": 12.5}, 40, 10).as_json() == {"R@1": 12.5, "queries": 40, "videos": 10}


def test_a_table_has_a_row_a_name_and_leaves_empty_what_a_row_lacks(capsys):
    print_table("Test", {"model": {"R@1": 12.345, "SumR": 100.0}, "baseline": {"SumR": 7.0}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Test"] in lines and ["R@1", "SumR"] in lines
    assert ["model", "12.35", "100.00"] in lines or ["model", "12.34", "100.00"] in lines
    assert ["baseline", "7.00"] in lines
