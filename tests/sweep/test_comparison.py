"""The paired bootstrap, against what statistics says of its draws, and on planted differences."""

import numpy as np
import pytest

from hlformer_jax import files
from hlformer_jax.retrieval import ranking
from hlformer_jax.sweep import comparison
from hlformer_jax.sweep.definition import Run

VIDEOS = np.repeat(np.arange(60), np.tile((1, 2, 6), 20))


def leave(root, variant, seed, ranks, corpus="5"):
    """A run that left these ranks."""
    run = Run(variant, seed, None, root / f"{variant}{corpus}{seed}", corpus)
    content = {"ranks": np.asarray(ranks, np.int32), "videos": VIDEOS}
    files.write_npz(root / run.directory / "test_queries.npz", content)
    return run


def random_ranks(seed, scale):
    return 1 + np.random.default_rng(seed).geometric(1 / scale, size=len(VIDEOS))


def width(interval):
    return interval[1] - interval[0]


def test_the_difference_is_that_of_sumr_in_the_mean_over_seeds_and_corpora(tmp_path):
    runs, sums = [], {"a": [], "b": []}
    for corpus, seeds in (("5", 2), ("6", 1)):
        for variant, scale in (("a", 20), ("b", 30)):
            own = [random_ranks(f, scale) for f in range(10 * seeds, 11 * seeds)]
            runs += [leave(tmp_path, variant, k, x, corpus) for k, x in enumerate(own)]
            sums[variant].append(np.mean([ranking.sum_recall(x) for x in own]))
    [found] = comparison.compare([("a", "b")], runs, tmp_path)
    expected = np.mean(sums["a"]) - np.mean(sums["b"])
    assert found["difference"] == pytest.approx(expected)
    low, high = found["queries"]
    assert low < expected < high
    assert (found["first"], found["second"]) == ("a", "b")


def test_the_interval_over_queries_has_the_width_of_its_standard_error(tmp_path):
    a, b = random_ranks(0, 20), random_ranks(1, 20)
    runs = [leave(tmp_path, "a", 0, a), leave(tmp_path, "b", 0, b)]
    [found] = comparison.compare([("a", "b")], runs, tmp_path)
    # The standard error of a ratio of sums over clusters, by linearisation.
    differences = comparison.contributions(a) - comparison.contributions(b)
    counts = np.bincount(VIDEOS)
    residuals = np.bincount(VIDEOS, differences) - counts * differences.mean()
    error = np.sqrt(np.sum(residuals**2)) / counts.sum()
    # 3 %: the quantiles of 10,000 draws vary by 1 to 2 %, 60 clusters are not quite normal.
    assert width(found["queries"]) == pytest.approx(2 * 1.96 * error, rel=0.05)
    # A single run says nothing of its seed.
    assert found["queries_seeds"] is found["real"] is None


def test_the_interval_over_seeds_has_the_width_that_the_spread_of_the_runs_says(tmp_path):
    # All queries of a run have one rank, so that queries do not vary, and SumR is 100 to 400.
    levels = {"a": (1, 5, 5, 10, 100), "b": (5, 10, 100, 100, 10)}
    runs = [
        leave(tmp_path, variant, k, np.full(len(VIDEOS), rank))
        for variant, ranks in levels.items()
        for k, rank in enumerate(ranks)
    ]
    [found] = comparison.compare([("a", "b")], runs, tmp_path)
    assert width(found["queries"]) == pytest.approx(0, abs=1e-9)
    sums = {v: [400 if r == 1 else 300 if r == 5 else 200 if r == 10 else 100 for r in ranks]
            for v, ranks in levels.items()}  # fmt: skip
    error = np.sqrt(sum(np.var(x, ddof=1) / len(x) for x in sums.values()))
    # Student's t of eight degrees of freedom; means of five of a few values are not quite normal.
    assert width(found["queries_seeds"]) == pytest.approx(2 * 2.306 * error, rel=0.1)


def test_where_there_is_no_difference_seldom_one_is_called_real(monkeypatch):
    monkeypatch.setattr(comparison, "DRAWS", 500)
    rng = np.random.default_rng(0)
    real = 0
    for _ in range(200):
        # Three runs of each variant on a corpus, which differ by their seeds alone.
        sums = {name: np.repeat(rng.normal(size=(3, 1)), 4, axis=1) for name in ("a", "b")}
        draws = comparison._draw(comparison.Scores(sums, np.ones(4)), np.random.default_rng(1))
        real += comparison._compare("a", "b", [draws])["real"]
    # 5 % are 10, with a deviation of 3; without the quantile of t there would be some 30.
    assert 3 <= real <= 19


def test_a_planted_difference_is_real_and_none_is_not(tmp_path):
    runs = []
    for seed in range(3):
        base = random_ranks(seed, 20)
        better = np.maximum(base // 4, 1)
        runs += [leave(tmp_path, "base", seed, base), leave(tmp_path, "better", seed, better)]
        runs.append(leave(tmp_path, "other", seed, random_ranks(7 + seed, 20)))
    pairs = [("better", "base"), ("base", "better"), ("other", "base"), ("base", "base")]
    found = comparison.compare(pairs, runs, tmp_path)
    assert [pair["real"] for pair in found] == [True, True, False, False]
    assert found[0]["difference"] == -found[1]["difference"] > 0
    assert found[3]["difference"] == 0


def test_pairs_without_a_common_corpus_are_left_out(tmp_path):
    runs = [
        leave(tmp_path, "a", 0, random_ranks(0, 20), "5"),
        leave(tmp_path, "b", 0, random_ranks(1, 20), "6"),
        Run("c", 0, None, tmp_path / "unfinished", "5"),
    ]
    assert comparison.compare([("a", "b"), ("a", "c"), ("a", "d")], runs, tmp_path) == []
