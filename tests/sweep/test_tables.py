"""Tables of sweeps: metrics, published figures, costs, comparisons, and the data of the runs."""

import csv
import io
import json
import re

import numpy as np
import pytest

from hlformer_jax import files, terminal
from hlformer_jax import sweep as definition
from hlformer_jax.config import describe_data
from hlformer_jax.figures import curves
from hlformer_jax.sweep import comparison, expand, results, tables
from hlformer_jax.sweep.provenance import MixedDataError
from hlformer_jax.training.run_directory import WorkdirError

# Tables


def finish(root, run, result, fingerprint=""):
    """Write the files of a finished run; by default the fingerprint of its data is unknown."""
    files.write_json(root / run.directory / "result.json", result)
    if fingerprint:
        config = json.loads(run.config.to_json())
        content = {"config": config, "data_fingerprint": fingerprint}
        files.write_json(root / run.directory / "config.json", content)


@pytest.fixture
def table(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    sums = {"full": (10.25, 11.5), "w/ a|b": (9.0,), "bad": ()}
    for run in planned:
        if run.seed < len(sums[run.variant]):
            result = result_of(run, sums[run.variant][run.seed])
            finish(tmp_path, run, result)
    return tables.publish(sweep, planned, tmp_path)


def csv_rows(root):
    """Return the rows of the table.csv of a sweep."""
    text = (root / "table.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def test_table_has_mean_and_sample_deviation(table, tmp_path):
    full, mean_fusion, bad = table["variants"]
    assert full["mean"]["SumR"] == np.mean([10.25, 11.5])
    assert full["std"]["SumR"] == np.std([10.25, 11.5], ddof=1)
    assert full["std"]["R@1"] == 0
    assert mean_fusion["mean"]["SumR"] == 9.0
    assert mean_fusion["std"]["SumR"] is None
    assert bad["mean"]["SumR"] is None
    assert full["published"]["R@100"] == 4.0
    assert full["parameters"] == 1234567
    assert [run["metrics"]["SumR"] for run in full["runs"]] == [10.25, 11.5]
    assert full["runs"][0]["versions"] == {"jax": "0"}
    assert mean_fusion["missing_seeds"] == [1]
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(json.dumps(table))


def test_devices_and_versions_that_differ_are_noted(small_sweep, result_of, tmp_path):
    sweep, planned = small_sweep
    environments = [("1 x cpu", "0.6"), ("1 x cpu", "0.7"), ("1 x H100", "0.7"), (None, "0.7")]
    for run, (device, version) in zip(planned, environments, strict=False):
        fields = {"device": device, "versions": {"jax": version, "numpy": version}}
        result = result_of(run, 10.0) | fields
        finish(tmp_path, run, result)
    *_, note = tables.publish(sweep, planned, tmp_path)["notes"]
    assert note == (
        "The runs differ in device (1 x cpu in 2 runs, 1 x H100 in 1 run);"
        " jax (0.6 in 1 run, 0.7 in 3 runs)"
    )


def test_names_are_escaped_in_markdown(table, tmp_path):
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == r"# a \| title: ActivityNet Captions"
    rows = [line.replace(r"\|", "") for line in lines if line.startswith("|")]
    assert len(rows) == 6 + 5
    assert [row.count("|") for row in rows] == 6 * [13] + 5 * [6]
    assert r"| w/ a\|b | 1.00 |" in "\n".join(lines)
    assert rows[2].endswith("| 4.88 ± 0.88 | 4.0 | 10.88 ± 0.88 | 10.0 | 2 |")
    assert rows[5] == "| other (cited) |" + 7 * " – |" + " – | – | 8.0 | – |"
    assert rows[8] == "| full | 1,234,567 | 2.500 | 1.50 | 1.5 |"
    assert lines[-1] == "- 3 of 6 runs are not finished"
    escaped = tables._escaped("a|b*c_d`e<f>[g]\\\nh")
    assert escaped == r"a\|b\*c\_d\`e\<f\>\[g\]\\ h"


def test_missing_metric_is_a_dash_with_its_reason(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    for run in planned[:2]:
        result = result_of(run, 10.0)
        del result["metrics"]["R@5"]
        finish(tmp_path, run, result)
    table = tables.publish(sweep, planned, tmp_path)
    rows = tables.sections(table)[0].rows
    assert rows[1][1:5] == ["1.00", "1.0", "–", "2.0"]
    assert table["absent"] == ["– in every run: no R@5"]
    finish(tmp_path, planned[3], result_of(planned[3], 12.0))
    table = tables.publish(sweep, planned, tmp_path)
    # The mean is over the one run that has the metric.
    assert table["variants"][0]["mean"]["R@5"] == 2.0
    assert table["absent"] == ["– in full, seed 0; w/ a|b, seed 0: no R@5"]
    assert "no R@5" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("value", ["null", "NaN"])
def test_undefined_metric_is_a_dash_with_its_reason(value, sweep_of, result_of, tmp_path):
    name = "hierarchy/t2v/MAP"
    sweep = sweep_of(
        {"full": {}, "other": {"model": {"fusion": "mean"}}}, metrics=(name,), seeds=(0,)
    )
    for run, cell in zip(expand(sweep), (value, "40.0"), strict=True):
        path = tmp_path / run.directory / "result.json"
        files.write_json(path, result_of(run, 10.0) | {"metrics": {name: 12.5}})
        path.write_text(path.read_text().replace("12.5", cell))
    table = tables.publish(sweep, expand(sweep), tmp_path)
    assert [row[1] for row in tables.sections(table)[0].rows[1:]] == ["–", "40.00"]
    reason = f"– in full, seed 0: the test split has no pairs or trees to measure {name} on"
    assert table["absent"] == [reason]
    full, _ = csv_rows(tmp_path)
    assert full[f"{name}_mean"] == ""


def test_references_have_a_row_in_every_view(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    for run in planned[:3]:
        linear = {"linear baseline": {"R@1": 1.5, "SumR": 31.0}}
        result = result_of(run, 10.0) | {"references": linear}
        finish(tmp_path, run, result)
    table = tables.publish(sweep, planned, tmp_path)
    main = tables.sections(table)[0]
    row = next(row for row in main.rows if row[0] == "linear baseline")
    assert {len(row) for row in main.rows} == {1 + sum(main.groups)}
    assert main.note == (
        "Test split, best epoch by validation SumR; mean ± standard deviation over seeds, if there"
        " are several. Rows without seeds are references on the same test split. Cited methods are"
        " not trained here."
    )
    assert [cell for cell in row[1:] if cell != "–"] == ["1.50", "31.00"]
    assert "| linear baseline | 1.50 |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    [cells] = [x for x in csv_rows(tmp_path) if x["variant"] == row[0]]
    assert (cells["SumR_mean"], cells["SumR_std"], cells["cited"]) == ("31.0", "", "False")


def test_missing_group_of_trees_is_named_in_every_view(sweep_of, result_of, tmp_path, capsys):
    names = ("leaves=2/t2v/MRR", "leaves=5/t2v/MRR", "t2v/MRR")
    sweep = sweep_of({"full": {}}, metrics=names, seeds=(0,))
    planned = expand(sweep)
    result = result_of(planned[0], 10.0) | {"metrics": {"t2v/MRR": 0.25, names[0]: 0.5}}
    finish(tmp_path, planned[0], result)
    table = tables.publish(sweep, planned, tmp_path)
    reason = "– in every run: the test split has no query of leaves ≥ 5"
    assert table["absent"] == [reason]
    assert tables.sections(table)[1].rows[1:] == [
        ["leaves = 2, full", "0.500"], ["leaves ≥ 5, full", "–"],
    ]  # fmt: skip
    assert reason in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "leaves>=5/t2v/MRR_mean" in (tmp_path / "table.csv").read_text(encoding="utf-8")
    tables.show(table)
    assert reason in capsys.readouterr().out
    (tmp_path / planned[0].directory / "result.json").unlink()
    finish(tmp_path, planned[0], result | {"metrics": {names[0]: 0.5}})
    tables.publish(sweep, planned, tmp_path)  # the picture shows the missing metric


CORRECTED = {
    "published": {"ours": {"leaves=2/t2v/MRR": 0.1, "t2v/MRR": 0.176, "Δ t2v/MRR": 16.56}},
    "cited": {"theirs": {"leaves=2/t2v/MRR": 0.05, "t2v/MRR": 0.151}},
    "corrections": {
        "ours": {"t2v/MRR": (0.1645, "by its rows"), "Δ t2v/MRR": (8.94, "by its rows")},
    },
    "metrics": ("leaves=2/t2v/MRR", "t2v/MRR"),
    "published_on": "trees of somebody",
    "seeds": (0,),
}


@pytest.fixture
def corrected(sweep_of, result_of, tmp_path):
    """A table with corrections of a published MRR and change."""
    flat = {"flat": {}, "ours": {"model": {"fusion": "mean"}}}
    sweep = sweep_of(flat, "debug", relative={"ours": "flat"}, **CORRECTED)
    planned = expand(sweep)
    for run, value in zip(planned, (0.2, 0.25), strict=True):
        metrics = {"leaves=2/t2v/MRR": value, "t2v/MRR": value}
        result = result_of(run, 10.0) | {"metrics": metrics}
        finish(tmp_path, run, result)
    return tables.publish(sweep, planned, tmp_path)


def test_published_figures_are_shown_beside_corrections(corrected, tmp_path, capsys):
    main, parts, _ = tables.sections(corrected)
    assert main.rows == [
        [
            *("", "t2v/MRR", "t2v/MRR published", "t2v/MRR corrected"),
            *("Δ t2v/MRR", "Δ t2v/MRR published", "Δ t2v/MRR corrected", "seeds"),
        ],
        ["flat", "0.200", "–", "–", "–", "–", "–", "1"],
        ["ours", "0.250", "0.176 ¹", "0.1645 ¹", "+25.00 %", "+16.56 % ¹", "+8.94 % ¹", "1"],
        ["theirs (cited)", "–", "0.151", "–", "–", "–", "–", "–"],
    ]
    assert parts.title == "By leaves" and parts.rows == [
        ["", "t2v/MRR", "t2v/MRR published", "Δ t2v/MRR"],
        ["leaves = 2, flat", "0.200", "–", "–"],
        ["leaves = 2, ours", "0.250", "0.100", "+25.00 %"],
        ["leaves = 2, theirs (cited)", "–", "0.050", "–"],
    ]
    assert (main.groups, parts.groups) == ((3, 3, 1), (2, 1))
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "0.176 ¹ | 0.1645 ¹" in text and "- ¹ by its rows" in text
    flat_row, model_row, cited_row = csv_rows(tmp_path)
    assert (model_row["t2v/MRR_published"], model_row["t2v/MRR_corrected"]) == ("0.176", "0.1645")
    assert (model_row["Δ t2v/MRR_published"], model_row["Δ t2v/MRR_corrected"]) == ("16.56", "8.94")
    assert float(model_row["Δ t2v/MRR_measured"]) == pytest.approx(25)
    assert model_row["footnotes"] == "by its rows" and not flat_row["footnotes"]
    assert (cited_row["cited"], cited_row["t2v/MRR_published"]) == ("True", "0.151")
    stored = json.loads((tmp_path / "table.json").read_text("utf-8"))
    assert stored["variants"][1]["published"]["t2v/MRR"] == 0.176
    assert stored["variants"][1]["corrected"] == {"t2v/MRR": 0.1645, "Δ t2v/MRR": 8.94}
    tables.show(corrected)
    assert "0.1645 ¹" in capsys.readouterr().out
    figure = curves.sweep_figure(corrected)
    lines = {line.get_label(): line.get_xdata().tolist() for line in figure.axes[0].lines}
    assert (lines["published"], lines["corrected"]) == ([0.176], [0.1645])
    assert "Corrected: by its rows" in figure.texts[-1].get_text()


def test_every_view_says_that_videos_are_synthetic(corrected, tmp_path, capsys):
    assert corrected["title"] == "a | title (debug): synthetic captioned videos"
    assert corrected["data"][0]["synthetic"] is True
    tables.show(corrected)
    for text in (
        capsys.readouterr().out,
        (tmp_path / "table.md").read_text("utf-8"),
        curves.sweep_figure(corrected).texts[-1].get_text().replace("\n", " "),
    ):
        text = " ".join(text.split())
        assert "The videos are synthetic, made by this program" in text
        assert "Seed: 0" in text and "trees of somebody" in text
    for row in csv_rows(tmp_path):
        assert (row["synthetic"], row["data"]) == ("True", "synthetic captioned videos")
        assert row["published_on"] == "trees of somebody"


def test_table_names_data_set_features_and_split_sizes(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    sweep.base.data.manual_dir = "/features"
    planned = expand(sweep)
    splits = {"train": {"videos": 9}, "val": {"videos": 1}, "test": {"videos": 4, "captions": 17}}
    data = {**describe_data(planned[0].config), "splits": splits}
    result = result_of(planned[0], 10.0) | {"data": data}
    table = tables.publish(sweep, planned, tmp_path)
    assert table["title"] == "a | title: ActivityNet Captions"
    assert table["about"] == [
        "Measured on: ActivityNet Captions, features i3d (1024 wide) and texts (1024 wide)",
        "Seeds: 0, 1",
    ]
    finish(tmp_path, planned[0], result)
    table = tables.publish(sweep, planned, tmp_path)
    sizes = "training 9 videos; validation 1 video; test 4 videos, 17 captions"
    assert table["about"][0].endswith(sizes)


def test_data_lines_name_variants_with_different_data(sweep_of, result_of, tmp_path):
    variants = {"full": {}, "narrow": {"data": {"visual_dim": 8}}, "short": {}}
    sweep = sweep_of(variants, seeds=(0, 1))
    planned = expand(sweep)
    splits = {"train": {"videos": 9}}
    for run in planned[::2]:
        result = result_of(run, 10.0) | {"data": describe_data(run.config) | {"splits": splits}}
        finish(tmp_path, run, result)
    about = results.collect(sweep, planned, tmp_path)["about"]
    assert about[0].startswith("full, short measured on: ") and "(1024 wide)" in about[0]
    assert about[1].startswith("narrow measured on: ") and "(8 wide)" in about[1]


@pytest.mark.parametrize("width", [60, 71])
def test_narrow_terminal_shows_a_table_in_parts(width, table, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "width", lambda: width)
    tables.show(table)
    lines = capsys.readouterr().out.splitlines()
    heads = [lines[k] for k, line in enumerate(lines[1:]) if set(line.strip()) == {"─"}]
    assert max(map(len, heads)) <= width
    parts = [re.split(" {2,}", line.strip()) for line in heads]
    main = tables.sections(table)[0].rows[0][1:]
    assert sum(parts, [])[: len(main)] == main and len(parts) > 3
    for part in parts:  # a metric stays with its published figure
        assert [head for head in part if head.endswith("published")] == [
            f"{head} published" for head in part if head in definition.METRICS
        ]
    assert any(line.strip() == "a | title: ActivityNet Captions (continued)" for line in lines)


def test_skipped_and_left_out_variants_are_marked(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    selection = [run for run in planned if run.variant != "bad"]
    finish(tmp_path, selection[0], result_of(selection[0], 10.0), "aaaa")
    for run in selection:
        if run.variant != "full":
            failure = {"skipped": True, "reason": "teacher.hdf5: no such file"}
            files.write_json(tmp_path / run.directory / "failure.json", failure)
    table = tables.publish(sweep, planned, tmp_path, selection=selection)
    assert [row[-1] for row in tables.sections(table)[0].rows[1:4]] == [
        *("1 of 2", "skipped", "left out"),
    ]
    assert tables.notes(table) == [
        "w/ a|b skipped, its data is missing: teacher.hdf5: no such file",
        "left out on request: bad",
        "1 of 6 runs are not finished",
    ]
    words = {text.get_text() for text in curves.sweep_figure(table).axes[0].texts}
    assert {"skipped", "left out"} <= words


def test_note_of_costs_names_their_runs(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    for run, seconds in ((planned[0], 1.0), (planned[3], 2.0)):  # seeds of the first variant
        result = result_of(run, 10.0) | {"seconds_per_epoch": seconds, "parameters": int(seconds)}
        finish(tmp_path, run, result)
    costs = tables.sections(tables.publish(sweep, planned, tmp_path))[1]
    assert (costs.rows[1][1], costs.rows[1][-1]) == ("1", "1.5")
    assert costs.note == (
        "Of the first finished run of each variant; s/epoch is the mean over its finished runs."
    )


@pytest.mark.parametrize(
    ("seeds", "missing", "left_out", "skipped", "shown"),
    [
        ([0, 1], [], False, [], "2"), ([0], [1], False, [], "1 of 2"),
        ([], [0], False, [], "0 of 1"),
        ([], [0], True, [], "left out"), ([0], [1], True, [], "1 of 2"),
        ([], [0], False, [{}], "skipped"), ([0], [1], False, [{}], "1 of 2"),
    ],
)  # fmt: skip
def test_finished_runs_are_counted(seeds, missing, left_out, skipped, shown):
    row = {"seeds": seeds, "missing_seeds": missing, "left_out": left_out, "skipped": skipped}
    assert tables._count_runs(row) == shown


@pytest.mark.parametrize(
    ("value", "reference", "change"),
    [(3.0, 2.0, 50), (0.0, 2.0, -100), (None, 2.0, None), (3.0, None, None), (3.0, 0.0, None)],
)
def test_change_needs_both_values(value, reference, change):
    flat = {"variant": "flat", "mean": {"a=1/x": reference}}
    row = {"variant": "ours", "mean": {"a=1/x": value}}
    table = {"relative": {"ours": "flat"}, "variants": [flat, row]}
    assert tables.change(table, row, "a=1/Δ x") == change


def test_comparison_tells_real_differences():
    pair = {"first": "a", "second": "b", "difference": 1.0, "queries": (0.5, 1.5)}
    cells = [
        tables._compared(pair | {"queries_seeds": interval, "real": real})[2:]
        for interval, real in (((0.25, 2), True), ((-1, 3), False), (None, None))
    ]
    assert cells == [
        ["+0.50 to +1.50", "+0.25 to +2.00", "yes"],
        ["+0.50 to +1.50", "-1.00 to +3.00", "no"],
        ["+0.50 to +1.50", "–", "–"],
    ]


def test_parts_with_different_metrics_have_their_own_table():
    cited = {"method": "m", "published": {"b=2/x": 1.0, "SumR": 2.0}, "corrected": {}}
    nothing = {"parts": [], "variants": [], "relative": {}, "coverage": "", "footnotes": []}
    metrics = ["SumR", "a=1/x", "a=1/y", "b=2/x"]
    first, second = tables._parts({"metrics": metrics, "cited": [cited], **nothing})
    assert (first.title, first.rows) == ("By a", [["", "x", "y"]])
    assert (second.title, second.rows) == (
        "By b", [["", "x", "x published"], ["b=2, m (cited)", "–", "1.0"]]
    )  # fmt: skip


def test_cost_of_one_variant_has_a_column():
    rows = [
        {**dict.fromkeys(results.COSTS), "variant": "a", "published_costs": {"parameters": 2e6}},
        {**dict.fromkeys(results.COSTS, 0.5), "variant": "b", "published_costs": {}},
    ]
    section = tables._costs({"variants": rows})
    assert section.rows[0][1:3] == ["parameters", "parameters published"]
    assert section.rows[0][-2:] == ["ms/query", "MB of 2,500 videos"]
    assert section.rows[1] == ["a", "–", "2,000,000", *5 * ["–"]]
    assert section.groups == (2, 1, 1, 1, 1, 1)


def test_csv_has_numbers_without_units(table, tmp_path):
    full, mean_fusion, bad, cited = csv_rows(tmp_path)
    assert float(full["SumR_mean"]) == np.mean([10.25, 11.5])
    assert float(full["SumR_std"]) == np.std([10.25, 11.5], ddof=1)
    assert float(full["SumR_published"]) == 10
    assert (mean_fusion["variant"], mean_fusion["SumR_std"], mean_fusion["seeds"]) == (
        "w/ a|b",
        "",
        "0",
    )
    assert (cited["variant"], cited["cited"], cited["SumR_published"]) == ("other", "True", "8.0")
    assert (bad["SumR_mean"], bad["SumR_published"], bad["missing"]) == ("", "9.0", "2")
    assert (full["parameters"], full["parameters_published"], cited["seeds"]) == ("1234567", "", "")
    assert {"series", "value"} <= full.keys() and "rank" not in full
    assert not any(column.startswith("Δ") for column in full)


def test_published_changes_do_not_need_measured_ones(sweep_of, tmp_path):
    sweep = sweep_of({"ours": {}}, "debug", **CORRECTED)
    table = results.collect(sweep, expand(sweep), tmp_path)
    model_row, _ = csv.DictReader(io.StringIO(tables.as_csv(table)))
    assert (model_row["Δ t2v/MRR_measured"], model_row["Δ t2v/MRR_published"]) == ("", "16.56")
    main, *_ = tables.sections(table)
    assert main.rows[0][4:6] == ["Δ t2v/MRR", "Δ t2v/MRR published"]
    assert main.rows[1][4:6] == ["–", "+16.56 % ¹"]


SUMS = {
    ("a", "5"): (10.0, 12.0),
    ("a", "6"): (50.0, 54.0),
    ("b", "5"): (11.0, 11.5),
    ("b", "6"): (49.0, 60.0),
}


@pytest.fixture
def finished(sweep_of, result_of, tmp_path):
    """A finished sweep of two variants on two corpora with two seeds."""
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
        finish(tmp_path, run, result)
        ranks = np.random.default_rng(run.seed).integers(1, 30, 20).astype(np.int32)
        content = {"ranks": ranks, "videos": np.arange(20) // 2}
        files.write_npz(tmp_path / run.directory / "test_queries.npz", content)
    return sweep, planned


def test_each_corpus_has_its_folder_and_runs(finished):
    _, planned = finished
    assert len(planned) == 8
    first, second = planned[0], planned[2]
    assert (first.title, str(first.directory)) == ("a, corpus 5, seed 0", "a/5/seed0")
    assert first.config.data.manual_dir == "/corpora/five"
    assert second.config.data.manual_dir == "/corpora/six" and second.variant == "a"
    assert all(run.config.eval.moments == "m.json" for run in planned)


def test_deviations_and_ranks_are_per_corpus(finished, tmp_path):
    a, b = tables.collect(*finished, tmp_path)["variants"]
    assert a["mean"]["SumR"] == np.mean([10, 12, 50, 54])
    within = [np.var([10, 12], ddof=1), np.var([50, 54], ddof=1)]
    assert a["std"]["SumR"] == pytest.approx(np.sqrt(np.mean(within)))
    # b is ahead of a with seed 0 on corpus 5, and with seed 1 on corpus 6.
    assert (a["rank"], b["rank"]) == (1.5, 1.5)
    assert a["mean"]["IoU 0.5"] == 30.5 and a["std"]["IoU 0.5"] == pytest.approx(np.sqrt(0.5))


def test_equal_values_share_the_mean_of_their_ranks(finished, result_of, tmp_path):
    sweep, planned = finished
    for run in planned:
        finish(tmp_path, run, result_of(run, 10.0))
    table = tables.collect(sweep, planned, tmp_path)
    assert [row["rank"] for row in table["variants"]] == [1.5, 1.5]


def test_corpora_count_equally_and_a_missing_corpus_is_noted(finished, tmp_path):
    sweep, planned = finished
    (tmp_path / planned[-1].directory / "result.json").unlink()  # b, corpus 6, seed 1
    table = tables.collect(sweep, planned, tmp_path)
    _, b = table["variants"]
    assert b["mean"]["SumR"] == np.mean([np.mean([11.0, 11.5]), 49.0])
    assert not any("fewer corpora" in note for note in table["notes"])
    (tmp_path / planned[3].directory / "result.json").unlink()  # b, corpus 6, seed 0
    table = tables.collect(sweep, planned, tmp_path)
    assert table["variants"][1]["mean"]["SumR"] == np.mean([11.0, 11.5])
    expected = "b has no finished run on 6: its means are over fewer corpora"
    assert table["notes"][-1].startswith(expected)


def test_tables_have_ranks_localisation_and_comparisons(finished, tmp_path, capsys):
    table = tables.publish(*finished, tmp_path)
    main, _, localisation, _ = tables.sections(table)
    assert main.rows[1][-2:] == ["1.5", "4"] and localisation.note == (
        "The first moment in the caption's own video, in percent; over corpora and seeds as above."
    )
    assert {len(row) for row in main.rows} == {1 + sum(main.groups)}
    assert main.groups[-2:] == (1, 1) and main.note == (
        "Test split, best epoch by validation SumR; mean ± standard deviation over seeds within a"
        " corpus, if there are several. Means are over the seeds of each corpus, then over corpora."
    )
    text = (tmp_path / "table.md").read_text()
    assert "| SumR | rank |" in text and "± standard deviation over seeds within a corpus" in text
    assert "## Localisation" in text and "| a | 40.00 ± 0.00 | 30.50 ± 0.71 |" in text
    assert "## Comparisons" in text
    assert "| a − b | +0.00 |" in text and text.count("| no |") == 1
    a, _ = csv_rows(tmp_path)
    assert a["rank"] == "1.5" and a["IoU 0.5_mean"] == "30.5"
    tables.show(table)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Localisation", "mIoU", "Comparisons", "rank"))


def test_ranks_need_results_of_every_variant(finished, tmp_path):
    sweep, planned = finished
    for run in planned:
        if run.variant == "b":
            (tmp_path / run.directory / "result.json").unlink()
    a, b = tables.collect(sweep, planned, tmp_path)["variants"]
    assert a["rank"] is None and b["rank"] is None
    tables.publish(sweep, planned, tmp_path)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("reason", ["left out", "skipped"])
def test_ranks_compare_trained_variants(reason, finished, tmp_path):
    sweep, planned = finished
    sweep.variants["c"] = {"model": {"gaze": False}}
    planned = expand(sweep)
    selection = [run for run in planned if reason == "skipped" or run.variant != "c"]
    for run in planned:
        if run.variant == "c" and reason == "skipped":
            failure = {"skipped": True, "reason": "no such file"}
            files.write_json(tmp_path / run.directory / "failure.json", failure)
    table = tables.publish(sweep, planned, tmp_path, selection=selection)
    assert [row["rank"] for row in table["variants"]] == [1.5, 1.5, None]
    note = "ranks are among the other variants, without c"
    assert note in tables.notes(table)
    table = tables.collect(sweep, planned, tmp_path)
    if reason == "left out":  # without a selection the table waits for it
        assert [row["rank"] for row in table["variants"]] == [None] * 3
        assert note not in tables.notes(table)


def test_note_names_the_tested_epoch(sweep_of, tmp_path):
    for select, words in (("SumR", "best epoch by validation SumR;"), ("last", "last epoch;")):
        sweep = sweep_of({"a": {}}, settings={"eval": {"select": select}})
        table = tables.collect(sweep, expand(sweep), tmp_path)
        assert f"Test split, {words}" in tables.sections(table)[0].note


def test_table_names_settings_changed_by_the_user(small_sweep, tmp_path):
    sweep, planned = small_sweep
    assert tables.publish(sweep, planned, tmp_path)["changed"] == {}
    with sweep.unlocked():
        sweep.base.train.epochs = 7
        sweep.base.data.data_dir = "anywhere"
    assert tables.publish(sweep, planned, tmp_path)["changed"] == {"train.epochs": 7}
    assert "settings than the published ones: train.epochs = 7" in (
        (tmp_path / "table.md").read_text(encoding="utf-8")
    )


def test_sweep_of_hover_shows_its_metrics(sweep_of, result_of, tmp_path, capsys):
    names = ("t2v/R@1", "v2t/R@1", "mean")
    sweep = sweep_of({"full": {}}, metrics=names, published={"full": {"mean": 6.0}}, seeds=(0,))
    planned = expand(sweep)
    result = result_of(planned[0], 10.0) | {
        "metrics": dict(zip(names, (4.0, 6.0, 5.0), strict=True))
    }
    finish(tmp_path, planned[0], result)
    table = tables.publish(sweep, planned, tmp_path)
    assert curves.sweep_figure(table).axes[0].get_xlabel().startswith("test mean")
    tables.show(table)
    out = capsys.readouterr().out
    assert "SumR" not in out.replace("validation SumR", "")
    assert "mean published" in out and "v2t/R@1" in out
    assert "| full | 4.00 | 6.00 | 5.00 | 6.0 | 1 |" in (tmp_path / "table.md").read_text()
    [row] = csv_rows(tmp_path)
    assert (row["t2v/R@1_mean"], row["mean_published"]) == ("4.0", "6.0")


def test_parts_have_their_own_table_with_changes(sweep_of, result_of, tmp_path):
    names = ("leaves=1/t2v/MRR", "leaves=5/t2v/MRR", "t2v/R@1", "t2v/MRR")
    sweep = sweep_of(
        {"flat": {}, "ball": {"model": {"fusion": "mean"}}},
        metrics=names,
        published={
            "ball": dict(zip(names, (0.1, 0.12, 5.0, 0.176), strict=True))
            | {"leaves=5/Δ t2v/MRR": 8.33},
        },
        cited={"theirs": {"leaves=1/t2v/MRR": 0.2}},
        relative={"ball": "flat"},
        seeds=(0,),
    )
    planned = expand(sweep)
    for run, values in zip(planned, ((0.4, 0.3, 6.0, 0.2), (0.3, 0.33, 7.0, 0.25)), strict=True):
        result = result_of(run, 10.0) | {"metrics": dict(zip(names, values, strict=True))}
        result |= {"seconds_query": 0.0125, "bytes_corpus": 614.4e6}
        finish(tmp_path, run, result)
    main, parts, costs = tables.sections(tables.publish(sweep, planned, tmp_path))
    assert main.rows == [
        ["", "t2v/R@1", "t2v/R@1 published", "t2v/MRR", "t2v/MRR published", "Δ t2v/MRR", "seeds"],
        ["flat", "6.00", "–", "0.200", "–", "–", "1"],
        ["ball", "7.00", "5.0", "0.250", "0.176", "+25.00 %", "1"],
    ]
    assert costs.rows[0][-2:] == ["ms/query", "MB of 2,500 videos"]
    assert costs.rows[1][-2:] == ["12.5", "614.4"]
    assert parts.title == "By leaves"
    assert parts.rows == [
        ["", "t2v/MRR", "t2v/MRR published", "Δ t2v/MRR", "Δ t2v/MRR published"],
        ["leaves = 1, flat", "0.400", "–", "–", "–"],
        ["leaves = 1, ball", "0.300", "0.100", "-25.00 %", "–"],
        ["leaves = 1, theirs (cited)", "–", "0.200", "–", "–"],
        ["leaves ≥ 5, flat", "0.300", "–", "–", "–"],
        ["leaves ≥ 5, ball", "0.330", "0.120", "+10.00 %", "+8.33 %"],
    ]
    flat, ball, _ = csv_rows(tmp_path)
    assert float(ball["Δ t2v/MRR_measured"]) == pytest.approx(25)
    assert float(ball["leaves=1/Δ t2v/MRR_measured"]) == pytest.approx(-25)
    assert flat["Δ t2v/MRR_measured"] == ball["Δ t2v/MRR_published"] == ""


def test_sweep_may_show_parts_of_the_test_split_only(sweep_of, result_of, tmp_path):
    names = ("leaves=2/t2v/MRR", "leaves=3/t2v/MRR")
    sweep = sweep_of({"full": {}}, metrics=names, seeds=(0,))
    [run] = expand(sweep)
    result = result_of(run, 10.0) | {"metrics": dict(zip(names, (0.5, 0.25), strict=True))}
    finish(tmp_path, run, result)
    main, parts, _ = tables.sections(tables.publish(sweep, [run], tmp_path))
    assert main.rows == [["", "seeds"], ["full", "1"]]
    assert [row[1] for row in parts.rows[1:]] == ["0.500", "0.250"]


def test_published_costs_are_shown_beside_measured_ones(sweep_of, result_of, tmp_path):
    costs = {"full": {"parameters": 4.85e6, "seconds_query": 12.93e-3, "bytes_corpus": 250.11e6}}
    sweep = sweep_of({"full": {}}, seeds=(0,), published_costs=costs, notes=["of 250 videos"])
    planned = expand(sweep)
    result = result_of(planned[0], 10.0) | {"seconds_query": 0.0125, "bytes_corpus": 614.4e6}
    finish(tmp_path, planned[0], result)
    table = tables.publish(sweep, planned, tmp_path)
    rows = tables.sections(table)[1].rows
    assert dict(zip(*rows, strict=True)) == {
        "": "full", "parameters": "1,234,567", "parameters published": "4,850,000",
        "GFLOPs/video": "2.500", "MFLOPs/caption": "1.50", "s/epoch": "1.5",
        "ms/query": "12.5", "ms/query published": "12.9",
        "MB of 2,500 videos": "614.4", "MB of 2,500 videos published": "250.1",
    }  # fmt: skip
    assert "of 250 videos" in tables.notes(table)


def test_moment_ratios_are_shown_if_all_runs_have_them(small_sweep, result_of, tmp_path):
    sweep, planned = small_sweep
    for count, run in enumerate(planned[:2]):
        result = result_of(run, 10.0)
        result["metrics"] |= {"ratio=0-0.2/R@1": 1.0, "ratio=0-0.2/SumR": 60.0 + count}
        finish(tmp_path, run, result)
    table = tables.publish(sweep, planned, tmp_path)
    part = tables.sections(table)[1]
    assert part.title == "By ratio" and part.rows[1][:3] == ["ratio=0-0.2, full", "1.00", "60.00"]
    assert "ratio=0-0.2/SumR_mean" in (tmp_path / "table.csv").read_text()
    finish(tmp_path, planned[2], result_of(planned[2], 10.0))
    assert tables.collect(sweep, planned, tmp_path)["parts"] == []


def test_note_counts_captions_with_times(finished, result_of, tmp_path):
    sweep, planned = finished
    for run in planned:
        path = tmp_path / run.directory / "result.json"
        result = json.loads(path.read_text())
        result["metrics"]["ratio=0-0.2/R@1"] = 1.0
        timed = 1 if run.corpus == "5" else 21
        files.write_json(path, result | {"queries": 21, "timed_queries": timed})
    table = tables.publish(sweep, planned, tmp_path)
    note = "Only captions with times of moments count: 1 of 21 of corpus 5."
    notes = {section.title: section.note for section in tables.sections(table)}
    assert [title for title in notes if notes[title].endswith(note)] == ["By ratio", "Localisation"]
    assert note in (tmp_path / "table.md").read_text("utf-8")


def test_overtaken_task_writes_the_complete_table(result_of, small_sweep, tmp_path, monkeypatch):
    sweep, planned = small_sweep
    write = tables.write

    def overtaken(table, root, replace):
        write(table, root, replace)
        if table["finished"] == 0:  # meanwhile another task ends
            finish(root, planned[0], result_of(planned[0], 8.0))

    monkeypatch.setattr(tables, "write", overtaken)
    assert tables.publish(sweep, planned, tmp_path)["finished"] == 1
    assert json.loads((tmp_path / "table.json").read_text())["finished"] == 1


@pytest.mark.slow  # it takes seconds
def test_sweep_replaces_only_its_own_tables(small_sweep, tmp_path):
    sweep, planned = small_sweep
    (tmp_path / "notes.md").write_text("theirs")
    for _ in range(2):
        tables.check_place(tmp_path, files.Replace.OWN)
        tables.publish(sweep, planned, tmp_path)
    for name in tables.NAMES:
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"theirs")
        with pytest.raises(files.OutputError, match=name):
            tables.check_place(tmp_path, files.Replace.OWN)
        with pytest.raises(files.OutputError, match=name):
            tables.publish(sweep, planned, tmp_path)
        assert (tmp_path / name).read_bytes() == b"theirs"
        (tmp_path / name).write_bytes(before)
    (tmp_path / "table.md").write_bytes(b"theirs")
    tables.publish(sweep, planned, tmp_path, files.replacing(True, listed=True))
    tables.publish(sweep, planned, tmp_path)


# Data


def test_comparisons_use_finished_runs_and_name_missing_ranks(finished, tmp_path):
    sweep, planned = finished
    before = tables.collect(sweep, planned, tmp_path)
    unfinished, without_ranks = planned[0], planned[1]
    (tmp_path / unfinished.directory / "result.json").unlink()
    (tmp_path / without_ranks.directory / "test_queries.npz").unlink()
    table = tables.collect(sweep, planned, tmp_path)
    [line] = [note for note in table["notes"] if "comparisons" in note]
    assert line.endswith("because test_queries.npz is missing: b, corpus 5, seed 0")
    assert table["comparisons"] == comparison.compare(sweep.pairs, planned[2:], tmp_path)
    assert table["comparisons"] != before["comparisons"]
    assert not any("comparisons" in note for note in before["notes"])


def test_table_of_two_data_sets_is_refused(result_of, small_sweep, tmp_path):
    sweep, planned = small_sweep
    finish(tmp_path, planned[0], result_of(planned[0], 10.0), "aaaa")
    finish(tmp_path, planned[2], result_of(planned[2], 10.0))
    table = tables.collect(sweep, planned, tmp_path)
    assert table["finished"] == 2
    assert table["notes"][-1].startswith(f"{planned[2].directory} does not say which data was used")
    for run in (planned[1], planned[-1]):  # another variant, and another seed
        finish(tmp_path, run, result_of(run, 20.0), "bbbb")
        message = rf"{planned[0].directory} .*'aaaa'.*{run.directory} has 'bbbb'.* `workdir`"
        with pytest.raises(MixedDataError, match=message) as raised:
            tables.publish(sweep, planned, tmp_path)
        assert "\n" not in str(raised.value)
        finish(tmp_path, run, result_of(run, 20.0), "aaaa")
    assert not (tmp_path / "table.md").exists()
    assert tables.collect(sweep, planned, tmp_path)["finished"] == 4
    (tmp_path / planned[0].directory / "config.json").write_text("{")
    with pytest.raises(WorkdirError, match="is not JSON"):
        tables.collect(sweep, planned, tmp_path)


def test_variants_may_have_different_data(sweep_of, result_of, tmp_path):
    sweep = sweep_of(
        {"a": {}, "b": {"data": {"manual_dir": "/other"}}},
        settings={"data": {"manual_dir": "/first"}},
        seeds=(0, 1),
    )
    planned = expand(sweep)

    def finish_all(features):
        for run in planned:
            videos = {"a": 9, "b": 8}[run.variant]
            splits = {name: {"videos": videos} for name in ("train", "val", "test")}
            data = {**describe_data(run.config), "splits": splits, **features[run.variant]}
            chance = {name: float(videos) for name in sweep.metrics}
            more = {"data": data, "references": {"chance": chance}}
            finish(tmp_path, run, result_of(run, 10.0) | more, f"of {run.variant}")

    def references():
        rows = tables.collect(sweep, planned, tmp_path)["references"]
        return {row["method"]: row["mean"]["SumR"] for row in rows}

    finish_all({"a": {}, "b": {"feature": "clip"}})
    assert references() == {"chance, i3d": 9.0, "chance, clip": 8.0}
    finish_all({"a": {}, "b": {}})
    table = tables.collect(sweep, planned, tmp_path)
    assert [data["splits"]["test"]["videos"] for data in table["data"]] == [9, 8]
    assert references() == {"chance, data of a": 9.0, "chance, data of b": 8.0}
    finish(tmp_path, planned[-1], result_of(planned[-1], 10.0), "of a")
    with pytest.raises(MixedDataError, match=r"b/seed0 .*'of b'.*b/seed1 has 'of a'"):
        tables.collect(sweep, planned, tmp_path)
