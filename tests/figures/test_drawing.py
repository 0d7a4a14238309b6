"""A figure and its numbers, and the names that runs have in it."""

from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.figures import drawing
from hlformer_jax.figures.drawing import Columns, NotApplicable
from hlformer_jax.plots import style


def test_columns_are_written_with_nine_digits_and_nothing_where_there_is_nothing():
    table = Columns("run", "k", "value")
    table.add("a,b", np.arange(2), np.array([1 / 3, np.nan]))
    table.add("c", None, 2.0)
    assert drawing.as_csv(table.columns) == 'run,k,value\n"a,b",0,0.333333333\n"a,b",1,\nc,,2\n'
    with pytest.raises(ValueError):
        table.add("c", np.arange(2), np.arange(3))


def test_the_same_drawing_gives_the_same_bytes(tmp_path):
    with style.applied():
        figure = style.Figure(figsize=(2, 2))
        figure.add_subplot().plot([0, 1], label="a")
    made = drawing.Drawing(figure, {"x": [0, 1]}, "")
    for name in ("a", "b"):
        drawing.write(made, tmp_path / name)
    for kind in ("png", "svg", "csv"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_runs_of_one_model_are_told_apart_by_their_directories(subject, plain, trees):
    placed = lambda run, path: run._replace(directory=Path(path))
    sweep = [placed(subject.run, f"/sweep/{x}/seed0") for x in ("a", "b")]
    found = drawing.subjects([*sweep, plain.run, trees.run, placed(subject.run, "/c/seed1")])
    assert [one.label for one in found] == [
        "HLFormer (a/seed0)", "HLFormer (b/seed0)", "GMMFormer", "HOVER", "HLFormer (seed1)"
    ]  # fmt: skip
    with pytest.raises(NotApplicable, match="HOVER embeds nodes"):
        _ = found[3].encoder


def test_a_run_that_is_given_twice_has_one_label(subject, monkeypatch):
    monkeypatch.chdir(subject.run.directory)
    here = subject.run._replace(directory=Path())
    labels = {one.label for one in drawing.subjects([subject.run, here])}
    assert labels == {f"HLFormer ({subject.run.directory.name})"}
