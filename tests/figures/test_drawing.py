"""Files are whole, deterministic, and of one style."""

import sys

import numpy as np
import processes
import pytest

from hlformer_jax.figures import drawing
from hlformer_jax.figures.drawing import Columns


def test_columns_are_written_with_nine_digits_and_nothing_where_there_is_nothing():
    table = Columns("run", "k", "value")
    table.add("a,b", np.arange(2), np.array([1 / 3, np.nan]))
    table.add("c", None, 2.0)
    assert drawing.as_csv(table.columns) == 'run,k,value\n"a,b",0,0.333333333\n"a,b",1,\nc,,2\n'
    with pytest.raises(ValueError):
        table.add("c", np.arange(2), np.arange(3))


def test_equal_drawings_are_equal_files_and_a_name_may_have_a_dot(tmp_path):
    for name in ("one.a", "one.b"):
        with drawing.styled():
            figure = drawing.Figure(figsize=(2, 1))
            figure.add_subplot().plot([0, 1], [1, 0], label="a")
        drawing.write(figure, tmp_path / name, {"x": [0, 1]})
    for kind in ("png", "svg", "csv"):
        one, other = (tmp_path / f"one.{name}.{kind}" for name in "ab")
        assert one.read_bytes() == other.read_bytes()


def test_curves_load_neither_a_screen_nor_jax():
    code = (
        "import sys, hlformer_jax.figures.curves;"
        " sys.exit(bool({'matplotlib.pyplot', 'jax'} & set(sys.modules)))"
    )
    assert processes.finish([sys.executable, "-c", code]).returncode == 0
