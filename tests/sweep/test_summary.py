"""What a sweep's results come to over several corpora, and with times of moments."""

import numpy as np
import pytest
import sweeps

from hlformer_jax import files
from hlformer_jax.sweep import publish, summary, tables
from hlformer_jax.sweep.definition import expand

SUMS = {
    ("a", "5"): (10.0, 12.0),
    ("a", "6"): (50.0, 54.0),
    ("b", "5"): (11.0, 11.5),
    ("b", "6"): (49.0, 60.0),
}


@pytest.fixture
def finished(tmp_path):
    """A sweep of two variants on two corpora with two seeds, done."""
    sweep = sweeps.sweep(
        {"a": {}, "b": {"model": {"fusion": "mean"}}},
        seeds=(0, 1),
        corpora={"5": "five", "6": "six"},
        settings={"eval": {"moments": "m.json"}, "data": {"manual_dir": "/corpora"}},
        pairs=[("a", "b")],
    )
    planned = expand(sweep)
    for run in planned:
        sum_recall = SUMS[run.variant, run.corpus][run.seed]
        result = sweeps.result(run, sum_recall)
        result["metrics"] |= {
            "IoU 0.3": 40.0,
            "IoU 0.5": 30.0 + run.seed,
            "IoU 0.7": 9.0,
            "mIoU": 1,
        }
        files.write_json(tmp_path / run.directory / "result.json", result)
        ranks = np.random.default_rng(run.seed).integers(1, 30, 20).astype(np.int32)
        content = {"ranks": ranks, "videos": np.arange(20) // 2}
        files.write_npz(tmp_path / run.directory / "test_queries.npz", content)
    return sweep, planned


def test_each_corpus_has_its_folder_and_its_runs(finished):
    _, planned = finished
    assert len(planned) == 8
    first, second = planned[0], planned[2]
    assert (first.title, str(first.directory)) == ("a, corpus 5, seed 0", "a/5/seed0")
    assert first.config.data.manual_dir == "/corpora/five"
    assert second.config.data.manual_dir == "/corpora/six" and second.variant == "a"
    assert all(run.config.eval.moments == "m.json" for run in planned)


def test_deviations_are_within_a_corpus_and_ranks_the_mean_over_corpora_and_seeds(
    finished, tmp_path
):
    a, b = summary.collect(*finished, tmp_path)["variants"]
    assert a["mean"]["SumR"] == np.mean([10, 12, 50, 54])
    within = [np.var([10, 12], ddof=1), np.var([50, 54], ddof=1)]
    assert a["std"]["SumR"] == pytest.approx(np.sqrt(np.mean(within)))
    # b is ahead of a with seed 0 on corpus 5, and with seed 1 on corpus 6.
    assert (a["rank"], b["rank"]) == (1.5, 1.5)
    assert a["mean"]["IoU 0.5"] == 30.5 and a["std"]["IoU 0.5"] == pytest.approx(np.sqrt(0.5))


def test_the_tables_have_ranks_first_moments_and_comparisons(finished, tmp_path, capsys):
    table = publish.write(*finished, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "| SumR | rank |" in text and "± standard deviation over seeds within a corpus" in text
    assert "## Localisation" in text and "| a | 40.00 ± 0.00 | 30.50 ± 0.71 |" in text
    assert "## Comparisons" in text
    assert "| a − b | +0.00 |" in text and text.count("| no |") == 1
    assert "IoU 0.5_mean" in (tmp_path / "table.csv").read_text()
    tables.show(table)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Localisation", "mIoU", "Comparisons", "rank"))


def test_a_rank_waits_for_all_variants(finished, tmp_path):
    sweep, planned = finished
    for run in planned:
        if run.variant == "b":
            (tmp_path / run.directory / "result.json").unlink()
    a, b = summary.collect(sweep, planned, tmp_path)["variants"]
    assert a["rank"] is None and b["rank"] is None
    publish.write(sweep, planned, tmp_path)
