"""The style of all drawings, and the files they become."""

import sys

import processes

from hlformer_jax.plots import style


def test_nothing_of_a_screen_is_loaded():
    code = "import sys, hlformer_jax.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert processes.finish([sys.executable, "-c", code]).returncode == 0


def test_the_same_figure_gives_the_same_bytes_and_a_name_may_have_a_dot(tmp_path):
    drawn = []
    for _ in range(2):
        with style.applied():
            figure = style.Figure(figsize=(2, 1))
            figure.add_subplot().plot([0, 1], [1, 0], label="a")
            style.write(figure, tmp_path / "one.two")
        drawn.append([(tmp_path / f"one.two.{kind}").read_bytes() for kind in ("png", "svg")])
    assert drawn[0] == drawn[1]


def test_a_metric_beside_its_mark_is_a_percentage_or_a_share():
    assert [style.short(x) for x in (140.04, 0, 0.12345, 1)] == ["140.0", "0.0", "0.123", "1.0"]
