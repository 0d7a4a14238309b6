"""Intervals and probabilities of the comparisons of a sweep's variants."""

import itertools

import numpy as np
import pytest

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.sweep import Run, comparison

VIDEOS = np.repeat(np.arange(60), np.tile((1, 2, 6), 20))


def finished_run(root, variant, seed, ranks, corpus="5"):
    """Return a run, and write the file with these ranks of its queries."""
    run = Run(variant, seed, None, root / f"{variant}{corpus}{seed}", corpus)
    content = {"ranks": np.asarray(ranks, np.int32), "videos": VIDEOS}
    files.write_npz(root / run.directory / "test_queries.npz", content)
    return run


def random_ranks(seed, scale):
    return 1 + np.random.default_rng(seed).geometric(1 / scale, size=len(VIDEOS))


def width(interval):
    return interval[1] - interval[0]


def test_difference_is_the_mean_over_seeds_and_corpora(tmp_path):
    runs, sums = [], {"a": [], "b": []}
    for corpus, seeds in (("5", 2), ("6", 1)):
        for variant, scale in (("a", 20), ("b", 30)):
            ranks = [random_ranks(f, scale) for f in range(10 * seeds, 11 * seeds)]
            runs += [finished_run(tmp_path, variant, k, x, corpus) for k, x in enumerate(ranks)]
            sums[variant].append(np.mean([ranking.sum_recall(x) for x in ranks]))
    [pair] = comparison.compare([("a", "b")], runs, tmp_path)
    expected = np.mean(sums["a"]) - np.mean(sums["b"])
    assert pair["difference"] == pytest.approx(expected)
    low, high = pair["queries"]
    assert low < expected < high
    assert (pair["first"], pair["second"]) == ("a", "b")


@pytest.mark.parametrize("corpora", ["5", "56"])
def test_interval_over_queries_matches_the_standard_error(corpora, tmp_path):
    runs, variances = [], []
    for k, corpus in enumerate(corpora):
        a, b = random_ranks(2 * k, 20), random_ranks(2 * k + 1, 20)
        runs += [
            finished_run(tmp_path, "a", 0, a, corpus),
            finished_run(tmp_path, "b", 0, b, corpus),
        ]
        # The variance of a ratio of sums over clusters, by linearisation.
        differences = comparison.contributions(a) - comparison.contributions(b)
        counts = np.bincount(VIDEOS)
        residuals = np.bincount(VIDEOS, differences) - counts * differences.mean()
        variances.append(np.sum(residuals**2) / counts.sum() ** 2)
    [pair] = comparison.compare([("a", "b")], runs, tmp_path)
    error = np.sqrt(sum(variances)) / len(corpora)  # the corpora are drawn independently
    # 3 %: the quantiles of 10,000 draws vary by 1 to 2 %, 60 clusters are not quite normal.
    assert width(pair["queries"]) == pytest.approx(2 * 1.96 * error, rel=0.05)
    # A single run gives no information about the effect of seeds.
    assert pair["queries_seeds"] is pair["real"] is None


# The quantiles of Student's t for eight degrees of freedom and, with two corpora, for 16.
@pytest.mark.parametrize(("corpora", "quantile"), [("5", 2.306), ("56", 2.120)])
def test_interval_over_seeds_matches_the_spread_of_runs(corpora, quantile, tmp_path):
    # All queries of a run have one rank, so that queries do not vary, and SumR is 100 to 400.
    ranks_of = {"a": (1, 5, 5, 10, 100), "b": (5, 10, 100, 100, 10)}
    runs = [
        finished_run(tmp_path, variant, k, np.full(len(VIDEOS), rank), corpus)
        for corpus, (variant, ranks) in itertools.product(corpora, ranks_of.items())
        for k, rank in enumerate(ranks)
    ]
    [pair] = comparison.compare([("a", "b")], runs, tmp_path)
    assert width(pair["queries"]) == pytest.approx(0, abs=1e-9)
    sums = {v: [400 if r == 1 else 300 if r == 5 else 200 if r == 10 else 100 for r in ranks]
            for v, ranks in ranks_of.items()}  # fmt: skip
    variance = sum(np.var(x, ddof=1) / len(x) for x in sums.values())
    error = np.sqrt(variance / len(corpora))
    # Means of five of a few values are not quite normal.
    assert width(pair["queries_seeds"]) == pytest.approx(2 * quantile * error, rel=0.1)


# One variant's runs vary twice as much as the other's. At a rate of 5 %, 10 of 200 comparisons are
# false alarms, with a deviation of 3; without the quantile of t there would be about 30. With two
# and ten runs the rate is 10 %, and twice as high with the sum of the degrees of freedom.
@pytest.mark.parametrize(("counts", "limit"), [((3, 3), 19), ((2, 10), 30)])
def test_rate_of_false_alarms_is_bounded(counts, limit, monkeypatch):
    monkeypatch.setattr(comparison, "DRAWS", 500)
    rng = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(200):
        # The runs on a corpus differ only by their seeds.
        sums = {
            name: np.repeat(rng.normal(scale=scale, size=(count, 1)), 4, axis=1)
            for name, count, scale in zip("ab", counts, (2, 1), strict=True)
        }
        draws = comparison._draw(comparison.Scores(sums, np.ones(4)), np.random.default_rng(1))
        false_alarms += comparison._compare("a", "b", [draws])["real"]
    assert 3 <= false_alarms <= limit


@pytest.mark.parametrize("variant", ["a", "b"])
def test_single_run_on_a_corpus_leaves_seeds_unknown(variant, tmp_path):
    runs = [
        finished_run(tmp_path, name, seed, random_ranks(10 * k + seed, 20), corpus)
        for k, (name, corpus) in enumerate(itertools.product("ab", "56"))
        for seed in range(3)
        if (name, corpus) != (variant, "6") or not seed
    ]
    [pair] = comparison.compare([("a", "b")], runs, tmp_path)
    assert pair["queries_seeds"] is pair["real"] is None
    assert width(pair["queries"]) > 0


def test_only_a_planted_difference_is_real(tmp_path):
    runs = []
    for seed in range(3):
        base = random_ranks(seed, 20)
        better = np.maximum(base // 4, 1)
        runs += [
            finished_run(tmp_path, "base", seed, base),
            finished_run(tmp_path, "better", seed, better),
        ]
        runs.append(finished_run(tmp_path, "other", seed, random_ranks(7 + seed, 20)))
    pairs = [("better", "base"), ("base", "better"), ("other", "base"), ("base", "base")]
    comparisons = comparison.compare(pairs, runs, tmp_path)
    assert [pair["real"] for pair in comparisons] == [True, True, False, False]
    assert comparisons[0]["difference"] == -comparisons[1]["difference"] > 0
    assert comparisons[3]["difference"] == 0


def test_pairs_without_a_common_corpus_are_left_out(tmp_path):
    runs = [
        finished_run(tmp_path, "a", 0, random_ranks(0, 20), "5"),
        finished_run(tmp_path, "b", 0, random_ranks(1, 20), "6"),
        Run("c", 0, None, tmp_path / "unfinished", "5"),
    ]
    assert comparison.compare([("a", "b"), ("a", "c"), ("a", "d")], runs, tmp_path) == []


def test_runs_with_other_queries_are_not_compared(tmp_path):
    runs = [finished_run(tmp_path, name, 0, random_ranks(k, 20)) for k, name in enumerate("ab")]
    content = {"ranks": random_ranks(2, 20), "videos": VIDEOS[::-1]}
    files.write_npz(tmp_path / runs[1].directory / "test_queries.npz", content)
    with pytest.raises(UserError, match="a50 and .*b50 ranked the queries of other test videos"):
        comparison.compare([("a", "b")], runs, tmp_path)


def test_damaged_file_of_ranks_is_named(tmp_path):
    run = finished_run(tmp_path, "a", 0, random_ranks(0, 20))
    path = tmp_path / run.directory / "test_queries.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match=r"test_queries\.npz is damaged"):
        comparison.compare([("a", "a")], [run], tmp_path)
