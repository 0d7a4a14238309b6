"""Plots of sweeps hold the tables that they are drawn from."""

import math

import numpy as np
import plotted
import pytest

from hlformer_jax import plots
from hlformer_jax.plots import sweeps

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_line_runs_over_the_quantity_with_its_spread_and_the_published_values():
    table = plotted.table(
        plotted.row("c", [5.0, 7.0], 8, 6.5),
        plotted.row("a", [1.0, 2.0], 0.5),
        plotted.row("b", [3.0], 1, 2.5),
        plotted.row("none", [4.0, 4.5], "inf"),
        plotted.row("all", [9.0], None, 8.0),
        plotted.row("gone", [], 2),
        quantity="width",
    )
    [axes] = plots.sweep_figure(table).axes
    lines = plotted.lines(axes)
    assert lines["mean over seeds"] == ([0.5, 1, 8, 16], [1.5, 3, 6, 4.25])
    assert lines["published"] == ([1, 8], [2.5, 6.5])
    assert lines["all"][1] == [9, 9]
    assert lines["all, published"][1] == [8, 8]
    deviation = np.std([5.0, 7.0], ddof=1)
    edges = axes.collections[0].get_paths()[0].vertices
    at = edges[edges[:, 0] == 8][:, 1]
    np.testing.assert_allclose([at.min(), at.max()], [6 - deviation, 6 + deviation])
    assert axes.get_xscale() == "log"
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels == ["0.5", "1", "2", "8", "∞"]
    assert axes.get_xlabel() == "width"


def test_series_have_lines_of_their_own_and_lone_points_do_not_hide_one_another():
    table = plotted.table(
        plotted.row("a", [1.0], 2, series="one"), plotted.row("b", [2.0], 4, series="one"),
        plotted.row("c", [3.0], 4, series="two"), plotted.row("d", [4.0], 4, series="three"),
        quantity="blocks",
    )  # fmt: skip
    [axes] = plots.sweep_figure(table).axes
    lines = plotted.lines(axes)
    assert lines["one"] == ([2, 4], [1, 2])
    assert axes.get_xscale() == "linear"
    places = {lines[name][0][0] for name in ("two", "three")} | {4.0}
    assert len(places) == 3
    assert all(abs(place - 4) < 0.2 for place in places)
    styles = [(x.get_color(), x.get_marker()) for x in axes.lines if x.get_label() in lines]
    assert len(set(styles)) == 3


def test_bars_have_mean_spread_seeds_and_published_value():
    rows = (
        plotted.row("full", [150.0, 154.0], None, 154.9),
        plotted.row("w/o", [148.0]),
        plotted.row("bad", [], None, 150.2, failures=[{"seed": 0, "reason": "x"}]),
        plotted.row("later", []),
    )
    [axes] = plots.sweep_figure(plotted.table(*rows)).axes
    bars = axes.containers[0]
    assert [bar.get_x() + bar.get_width() for bar in bars] == pytest.approx([152, 148])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["full", "w/o", "bad", "later"]
    lines = plotted.lines(axes)
    assert lines["published"] == ([154.9, 150.2], [0, 2])
    assert lines["one seed"][0] == [150, 154]
    deviation = np.std([150.0, 154.0], ddof=1)
    [segment] = axes.containers[1].lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 0], [152 - deviation, 152 + deviation])
    words = [text.get_text() for text in axes.texts]
    assert {"failed", "not finished", "152.0", "148.0"} <= set(words)
    low, high = axes.get_xlim()
    assert 0 < low < 148 and high > 154.9
    assert f"begins at {low:g}" in axes.get_xlabel()  # bars that do not begin at 0 say so


@pytest.mark.parametrize(
    ("values", "low"), [([], 0), ([0.0], 0), ([10, 90], 0), ([100, 100], 98), ([152, 154.9], 148)]
)
def test_bars_begin_at_zero_unless_they_are_close_together(values, low):
    found = sweeps._range(values)
    assert found[0] == low
    assert found[1] > max(values, default=0)


@pytest.mark.parametrize("quantity", ["", "width"])
def test_a_sweep_without_any_result_can_be_drawn(tmp_path, quantity):
    plots.draw_sweep(
        plotted.table(plotted.row("a", [], 1), quantity=quantity) | {"total": 3}, tmp_path
    )
    assert (tmp_path / "sweep.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("quantity", ["", "width"])
def test_a_single_seed_is_called_that(quantity):
    rows = plotted.row("a", [3.0], 1), plotted.row("b", [4.0], 2)
    [axes] = plots.sweep_figure(plotted.table(*rows, quantity=quantity)).axes
    _, labels = axes.get_legend_handles_labels()
    assert labels == ["one seed"]


def test_infinity_stands_beyond_the_largest_value():
    assert sweeps._positions([2, 4, math.inf, 6]) == ("linear", {2: 2, 4: 4, 6: 6, math.inf: 8})
    assert sweeps._positions([1, 16, math.inf])[1][math.inf] == 32
