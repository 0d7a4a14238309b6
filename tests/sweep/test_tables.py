"""The tables of a sweep: means and deviations, as numbers, text and columns."""

import csv
import io
import json

import numpy as np
import pytest
import sweeps

from hlformer_jax import files
from hlformer_jax.config import ConfigError
from hlformer_jax.sweep import publish, summary, tables


@pytest.fixture
def table(small, tmp_path):
    sweep, planned = small
    sums = {"full": (10.25, 11.5), "w/ a|b": (9.0,), "bad": ()}
    for run in planned:
        if run.seed < len(sums[run.variant]):
            result = sweeps.result(run, sums[run.variant][run.seed])
            files.write_json(tmp_path / run.directory / "result.json", result)
    return publish.write(sweep, planned, tmp_path)


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
    assert len(rows) == 5
    assert {row.count("|") for row in rows} == {13}
    assert r"| w/ a\|b | 1.00 |" in "\n".join(lines)
    assert "10.88 ± 0.88 | 10.0 | 2 | 1,234,567 | 2.500 | 1.50 | 1.5 |" in lines[4]
    assert lines[-1] == "- 3 of 6 runs are not finished"


def test_a_result_without_a_metric_of_the_sweep_is_named(small, tmp_path):
    sweep, planned = small
    result = sweeps.result(planned[0], 10.0)
    del result["metrics"]["R@5"]
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    with pytest.raises(ConfigError, match="full/seed0 has no R@5, but R@1, R@10"):
        summary.collect(sweep, planned, tmp_path)


def test_an_epoch_of_minutes_is_written_in_whole_seconds(small, tmp_path):
    sweep, planned = small
    result = sweeps.result(planned[0], 10.0) | {"seconds_per_epoch": 1234.0}
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    assert tables.sections(publish.write(sweep, planned, tmp_path))[0].rows[1][-1] == "1,234"


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
