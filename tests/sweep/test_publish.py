"""What is published of a sweep: the complete table, and what makes it comparable."""

import csv
import io
import json

import pytest
import sweeps

from hlformer_jax import files
from hlformer_jax.figures import curves
from hlformer_jax.sweep import publish, tables
from hlformer_jax.sweep.definition import expand


def test_the_table_says_which_settings_are_not_the_files(small, tmp_path):
    sweep, planned = small
    assert publish.write(sweep, planned, tmp_path)["changed"] == {}
    with sweep.unlocked():
        sweep.base.train.epochs = 7
        sweep.base.data.data_dir = "anywhere"
    assert publish.write(sweep, planned, tmp_path)["changed"] == {"train.epochs": 7}
    assert "settings than the published ones: train.epochs = 7" in (
        (tmp_path / "table.md").read_text(encoding="utf-8")
    )


def test_a_sweep_of_another_family_shows_its_own_metrics(tmp_path, capsys):
    names = ("t2v/R@1", "v2t/R@1", "mean")
    sweep = sweeps.sweep({"full": {}}, metrics=names, published={"full": {"mean": 6.0}}, seeds=(0,))
    planned = expand(sweep)
    result = sweeps.result(planned[0], 10.0) | {
        "metrics": dict(zip(names, (4.0, 6.0, 5.0), strict=True))
    }
    files.write_json(tmp_path / planned[0].directory / "result.json", result)
    table = publish.write(sweep, planned, tmp_path)
    assert curves.sweep_figure(table).axes[0].get_xlabel().startswith("test mean")
    tables.show(table)
    out = capsys.readouterr().out
    assert "SumR" not in out and "published mean" in out and "v2t/R@1" in out
    assert "| full | 4.00 | 6.00 | 5.00 | 6.0 |" in (tmp_path / "table.md").read_text()
    [row] = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert (row["t2v/R@1_mean"], row["mean_published"]) == ("4.0", "6.0")


def test_a_task_that_was_overtaken_writes_the_complete_table(small, tmp_path, monkeypatch):
    sweep, planned = small
    write = tables.write

    def overtaken(table, root, replace):
        write(table, root, replace)
        if table["finished"] == 0:  # meanwhile another task ends
            files.write_json(
                root / planned[0].directory / "result.json", sweeps.result(planned[0], 8.0)
            )

    monkeypatch.setattr(tables, "write", overtaken)
    assert publish.write(sweep, planned, tmp_path)["finished"] == 1
    assert json.loads((tmp_path / "table.json").read_text())["finished"] == 1


def test_the_sweep_writes_its_own_tables_again_and_no_one_elses(small, tmp_path):
    sweep, planned = small
    (tmp_path / "notes.md").write_text("theirs")
    for _ in range(2):
        publish.check_place(tmp_path, "own")
        publish.write(sweep, planned, tmp_path)
    for name in (*tables.NAMES, "sweep.png", "sweep.svg"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"theirs")
        with pytest.raises(files.OutputError, match=name):
            publish.check_place(tmp_path, "own")
        with pytest.raises(files.OutputError, match=name):
            publish.write(sweep, planned, tmp_path)
        assert (tmp_path / name).read_bytes() == b"theirs"
        (tmp_path / name).write_bytes(before)
    (tmp_path / "table.md").write_bytes(b"theirs")
    publish.write(sweep, planned, tmp_path, files.replacing(True, own=True))
    publish.write(sweep, planned, tmp_path)
