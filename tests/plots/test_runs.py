"""Curves hold the records that they are drawn from."""

import numpy as np
import plotted
import pytest

from hlformer_jax import plots


def test_curves_have_every_term_and_the_best_epoch():
    losses, recalls = plots.curves_figure(list(plotted.records(5)), "run").axes
    lines = plotted.lines(losses)
    assert set(lines) == {"loss, weighted sum", "clip nce", "partial order"}
    x, y = lines["clip nce"]
    assert x == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert y[1] == pytest.approx(np.mean([5 / n for n in (5, 6, 7, 8)]))
    assert losses.get_yscale() == "log"
    sums = plotted.lines(recalls)
    assert sums["SumR"] == ([1, 2, 3, 4, 5], [84, 100, 84, 36, -44])
    assert sums["best: 100.0"] == ([2], [100])


def test_a_term_that_is_zero_has_its_place_in_the_curves():
    losses, _ = plots.curves_figure(list(plotted.records(1, zero=True)), "run").axes
    assert losses.get_yscale() == "symlog"
    x, y = plotted.lines(losses)["partial order"]
    assert (x, y) == ([0.25, 0.5, 0.75, 1.0], [0, 0, 0, 0])


def test_a_run_cut_in_its_first_epoch_can_be_drawn():
    records = [record for record in plotted.records(1) if "loss" in record][:2]
    losses, recalls = plots.curves_figure(records, "run").axes
    assert plotted.lines(losses)["clip nce"] == ([1, 2], [5, 2.5])
    assert recalls.get_xlabel() == "step"
