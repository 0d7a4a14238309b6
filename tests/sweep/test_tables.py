"""Tables of sweeps, and the intervals and probabilities of their comparisons."""

import csv
import io
import json

import numpy as np
import pytest

from hlformer_jax import files
from hlformer_jax.config import ConfigError
from hlformer_jax.figures import curves
from hlformer_jax.retrieval import ranking
from hlformer_jax.sweep import Run, comparison, expand, tables

# Tables


@pytest.fixture
def table(result_of, small, tmp_path):
    sweep, planned = small
    sums = {"full": (10.25, 11.5), "w/ a|b": (9.0,), "bad": ()}
    for run in planned:
        if run.seed < len(sums[run.variant]):
            result = result_of(run, sums[run.variant][run.seed])
            files.write_json(tmp_path / run.directory / "result.json", result)
    return tables.publish(sweep, planned, tmp_path)


def test_the_table_has_mean_and_sample_deviation(table, tmp_path):
    full, other, bad = table["variants"]
    assert full["mean"]["SumR"] == np.mean([10.25, 11.5])
    assert full["std"]["SumR"] == np.std([10.25, 11.5], ddof=1)
    assert full["std"]["R@1"] == 0
    assert other["mean"]["SumR"] == 9.0
    assert other["std"]["SumR"] is None
    assert bad["mean"]["SumR"] is None
    assert full["published"]["R@100"] == 4.0
    assert full["parameters"] == 1234567
    assert [run["metrics"]["SumR"] for run in full["runs"]] == [10.25, 11.5]
    assert full["runs"][0]["versions"] == {"jax": "0"}
    assert other["missing_seeds"] == [1]
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(json.dumps(table))


def test_markdown_keeps_its_columns_whatever_a_name_has(table, tmp_path):
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == r"# a \| title"
    rows = [line.replace(r"\|", "") for line in lines if line.startswith("|")]
    assert len(rows) == 6
    assert {row.count("|") for row in rows} == {13}
    assert r"| w/ a\|b | 1.00 |" in "\n".join(lines)
    assert "10.88 ± 0.88 | 10.0 | 2 | 1,234,567 | 2.500 | 1.50 | 1.5 |" in lines[4]
    assert rows[-1].startswith("| other (published) | - | - | - | - | 8.0 | - |")
    assert lines[-1] == "- 3 of 6 runs are not finished"


def test_a_result_without_a_metric_of_the_sweep_is_named(result_of, small, tmp_path):
    sweep, planned = small
    result = result_of(planned[0], 10.0)
    del result["metrics"]["R@5"]
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    with pytest.raises(ConfigError, match="R@5"):
        tables.collect(sweep, planned, tmp_path)


def test_an_epoch_of_minutes_is_written_in_whole_seconds(result_of, small, tmp_path):
    sweep, planned = small
    result = result_of(planned[0], 10.0) | {"seconds_per_epoch": 1234.0}
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    assert tables.sections(tables.publish(sweep, planned, tmp_path))[0].rows[1][-1] == "1,234"


def test_csv_is_numbers(table, tmp_path):
    full, other, bad = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert float(full["SumR_mean"]) == np.mean([10.25, 11.5])
    assert float(full["SumR_std"]) == np.std([10.25, 11.5], ddof=1)
    assert float(full["SumR_published"]) == 10
    assert (other["variant"], other["SumR_std"], other["seeds"]) == ("w/ a|b", "", "1")
    assert (bad["SumR_mean"], bad["SumR_published"], bad["missing"]) == ("", "9.0", "2")


def test_the_printed_table_has_every_column_where_it_is_no_terminal(table, capsys):
    tables.show(table)
    out = capsys.readouterr().out
    assert all(word in out for word in ("R@100", "s/epoch", "w/ a|b", "10.88 ± 0.88", "3 of 6"))


SUMS = {
    ("a", "5"): (10.0, 12.0),
    ("a", "6"): (50.0, 54.0),
    ("b", "5"): (11.0, 11.5),
    ("b", "6"): (49.0, 60.0),
}


@pytest.fixture
def finished(sweep_of, result_of, tmp_path):
    """A sweep of two variants on two corpora with two seeds, done."""
    sweep = sweep_of(
        {"a": {}, "b": {"model": {"fusion": "mean"}}},
        seeds=(0, 1),
        corpora={"5": "five", "6": "six"},
        settings={"eval": {"moments": "m.json"}, "data": {"manual_dir": "/corpora"}},
        pairs=[("a", "b")],
    )
    planned = expand(sweep)
    for run in planned:
        sum_recall = SUMS[run.variant, run.corpus][run.seed]
        result = result_of(run, sum_recall)
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
    a, b = tables.collect(*finished, tmp_path)["variants"]
    assert a["mean"]["SumR"] == np.mean([10, 12, 50, 54])
    within = [np.var([10, 12], ddof=1), np.var([50, 54], ddof=1)]
    assert a["std"]["SumR"] == pytest.approx(np.sqrt(np.mean(within)))
    # b is ahead of a with seed 0 on corpus 5, and with seed 1 on corpus 6.
    assert (a["rank"], b["rank"]) == (1.5, 1.5)
    assert a["mean"]["IoU 0.5"] == 30.5 and a["std"]["IoU 0.5"] == pytest.approx(np.sqrt(0.5))


def test_the_tables_have_ranks_first_moments_and_comparisons(finished, tmp_path, capsys):
    table = tables.publish(*finished, tmp_path)
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
    a, b = tables.collect(sweep, planned, tmp_path)["variants"]
    assert a["rank"] is None and b["rank"] is None
    tables.publish(sweep, planned, tmp_path)


def test_the_table_says_which_settings_are_not_the_files(small, tmp_path):
    sweep, planned = small
    assert tables.publish(sweep, planned, tmp_path)["changed"] == {}
    with sweep.unlocked():
        sweep.base.train.epochs = 7
        sweep.base.data.data_dir = "anywhere"
    assert tables.publish(sweep, planned, tmp_path)["changed"] == {"train.epochs": 7}
    assert "settings than the published ones: train.epochs = 7" in (
        (tmp_path / "table.md").read_text(encoding="utf-8")
    )


def test_a_sweep_of_another_family_shows_its_own_metrics(sweep_of, result_of, tmp_path, capsys):
    names = ("t2v/R@1", "v2t/R@1", "mean")
    sweep = sweep_of({"full": {}}, metrics=names, published={"full": {"mean": 6.0}}, seeds=(0,))
    planned = expand(sweep)
    result = result_of(planned[0], 10.0) | {
        "metrics": dict(zip(names, (4.0, 6.0, 5.0), strict=True))
    }
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    table = tables.publish(sweep, planned, tmp_path)
    assert curves.sweep_figure(table).axes[0].get_xlabel().startswith("test mean")
    tables.show(table)
    out = capsys.readouterr().out
    assert "SumR" not in out and "published mean" in out and "v2t/R@1" in out
    assert "| full | 4.00 | 6.00 | 5.00 | 6.0 |" in (tmp_path / "table.md").read_text()
    [row] = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert (row["t2v/R@1_mean"], row["mean_published"]) == ("4.0", "6.0")


def test_parts_have_a_table_of_their_own_and_changes_a_column(sweep_of, result_of, tmp_path):
    names = ("leaves=1/t2v/MRR", "leaves=2/t2v/MRR", "t2v/R@1", "t2v/MRR")
    sweep = sweep_of(
        {"flat": {}, "ball": {"model": {"fusion": "mean"}}},
        metrics=names,
        published={
            "flat": dict(zip(names, (0.2, 0.1, 5.0, 0.151), strict=True)),
            "ball": dict(zip(names, (0.1, 0.12, 5.0, 0.1645), strict=True)),
        },
        relative={"ball": "flat"},
        seeds=(0,),
    )
    planned = expand(sweep)
    for run, values in zip(planned, ((0.4, 0.3, 6.0, 0.2), (0.3, 0.33, 7.0, 0.25)), strict=True):
        result = result_of(run, 10.0) | {"metrics": dict(zip(names, values, strict=True))}
        result |= {"seconds_query": 0.0125, "bytes_corpus": 614.4e6}
        files.write_json(tmp_path / run.directory / "result.json", result)
    main, parts = tables.sections(tables.publish(sweep, planned, tmp_path))
    assert main.rows[0][:6] == [
        "",
        "t2v/R@1",
        "t2v/MRR",
        "published t2v/MRR",
        "Δ t2v/MRR",
        "published Δ",
    ]
    assert main.rows[1][4:6] == ["", ""]
    assert main.rows[2][1:6] == ["7.00", "0.250", "0.165", "+25.00 %", "+8.94 %"]
    assert main.rows[0][-2:] == ["ms/query", "MB of 2,500 videos"]
    assert main.rows[1][-2:] == ["12.5", "614.4"]
    assert parts.title == "By leaves"
    assert parts.rows == [
        ["", "t2v/MRR", "published t2v/MRR", "Δ t2v/MRR", "published Δ"],
        ["leaves=1, flat", "0.400", "0.200", "", ""],
        ["leaves=1, ball", "0.300", "0.100", "-25.00 %", "-50.00 %"],
        ["leaves=2, flat", "0.300", "0.100", "", ""],
        ["leaves=2, ball", "0.330", "0.120", "+10.00 %", "+20.00 %"],
    ]


def test_ratios_of_moments_are_parts_where_all_runs_have_them(small, result_of, tmp_path):
    sweep, planned = small
    for count, run in enumerate(planned[:2]):
        result = result_of(run, 10.0)
        result["metrics"] |= {"ratio=0-0.2/R@1": 1.0, "ratio=0-0.2/SumR": 60.0 + count}
        files.write_json(tmp_path / run.directory / "result.json", result)
    table = tables.publish(sweep, planned, tmp_path)
    part = tables.sections(table)[1]
    assert part.title == "By ratio" and part.rows[1][:3] == ["ratio=0-0.2, full", "1.00", "60.00"]
    assert "ratio=0-0.2/SumR_mean" in (tmp_path / "table.csv").read_text()
    files.write_json(tmp_path / planned[2].directory / "result.json", result_of(planned[2], 10.0))
    assert tables.collect(sweep, planned, tmp_path)["parts"] == []


def test_a_task_that_was_overtaken_writes_the_complete_table(
    result_of, small, tmp_path, monkeypatch
):
    sweep, planned = small
    write = tables.write

    def overtaken(table, root, replace):
        write(table, root, replace)
        if table["finished"] == 0:  # meanwhile another task ends
            files.write_json(
                root / planned[0].directory / "result.json", result_of(planned[0], 8.0)
            )

    monkeypatch.setattr(tables, "write", overtaken)
    assert tables.publish(sweep, planned, tmp_path)["finished"] == 1
    assert json.loads((tmp_path / "table.json").read_text())["finished"] == 1


def test_the_sweep_writes_its_own_tables_again_and_no_one_elses(small, tmp_path):
    sweep, planned = small
    (tmp_path / "notes.md").write_text("theirs")
    for _ in range(2):
        tables.check_place(tmp_path, "own")
        tables.publish(sweep, planned, tmp_path)
    for name in tables.NAMES:
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"theirs")
        with pytest.raises(files.OutputError, match=name):
            tables.check_place(tmp_path, "own")
        with pytest.raises(files.OutputError, match=name):
            tables.publish(sweep, planned, tmp_path)
        assert (tmp_path / name).read_bytes() == b"theirs"
        (tmp_path / name).write_bytes(before)
    (tmp_path / "table.md").write_bytes(b"theirs")
    tables.publish(sweep, planned, tmp_path, files.replacing(True, own=True))
    tables.publish(sweep, planned, tmp_path)


# Comparisons


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
