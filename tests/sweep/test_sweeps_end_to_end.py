"""Rehearsals of every packaged sweep in its debug size: its runs train and fill its table.

The configuration is the file's own. All runs of all sweeps share a process, because most of their
time is tracing and compilation. `launch/test.sh --nightly` trains every variant; otherwise a sweep
of more than four trains the first and the last, as its option --only does.
"""

import csv
import io
import json
import os

import processes
import pytest
import tensorflow_datasets as tfds

from hlformer_jax import sweep as definition
from hlformer_jax.config import load
from hlformer_jax.sweep import __main__ as command
from hlformer_jax.sweep import tables

FILES = sorted(path.stem for path in (processes.ROOT / "configs" / "sweeps").glob("*.py"))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Folder in which all sweeps prepare their data."""
    return tmp_path_factory.mktemp("prepared")


def rehearsed(planned):
    """Return the names of the variants that this session trains."""
    names = list(dict.fromkeys(run.variant for run in planned))
    if len(names) <= 4 or os.environ.get("HLFORMER_TEST_OPTIMISED"):
        return names
    return [names[0], names[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("stem", FILES)
def test_rehearsal_trains_variants_and_fills_the_table(
    stem, data_dir, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(data_dir))
    sweep = load(processes.ROOT / "configs" / "sweeps" / f"{stem}.py", "debug")
    planned = definition.expand(sweep)
    only = rehearsed(planned)
    selected = definition.choose(planned, only)
    assert command.perform(sweep, planned, selected, selected, tmp_path) == 0
    printed = capsys.readouterr().out
    table = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert table["total"] == len(planned) and table["finished"] == len(selected) > 1
    for row in table["variants"]:
        assert row["left_out"] == (row["variant"] not in only)
        if row["left_out"]:
            continue
        assert row["seeds"] == [0] and not row["failures"] and not row["skipped"]
        # The debug size has every group of queries, so that every cell has a figure.
        assert None not in row["mean"].values()
        assert row["published"] == dict(sweep.published.get(row["variant"], {}))
    assert table["absent"] == []
    markdown = (tmp_path / "table.md").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text(encoding="utf-8"))))
    references = [row["method"] for row in table["references"]]
    assert [row["variant"] for row in rows] == [*sweep.variants, *references, *sweep.cited]
    assert bool(references) == any(run.config.train.get("baseline") for run in planned)
    assert all(row["synthetic"] == "True" for row in rows)
    for text in (printed, markdown):
        assert "(debug): synthetic " in text and "The videos are synthetic" in text
    for section in tables.sections(table):
        assert all(len(row) == len(section.rows[0]) for row in section.rows)
    assert (tmp_path / "sweep.png").stat().st_size > 100
