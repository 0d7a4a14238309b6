"""Curves of runs and plots of sweeps show the numbers of their logs and tables."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from hlformer_jax.errors import UserError
from hlformer_jax.figures import curves

PNG = b"\x89PNG\r\n\x1a\n"


def _row(variant, sums, value=None, published=None, series="", failures=()):
    return {
        "variant": variant,
        "value": value,
        "series": series,
        "published": {} if published is None else {"SumR": published},
        "mean": {"SumR": float(np.mean(sums)) if sums else None},
        "std": {"SumR": float(np.std(sums, ddof=1)) if len(sums) > 1 else None},
        "failures": list(failures),
        "runs": [{"metrics": {"SumR": x}, "seed": k} for k, x in enumerate(sums)],
    }


def _table(*rows, quantity=""):
    finished = sum(len(row["runs"]) for row in rows)
    return {
        "title": "Title", "metrics": ["SumR"], "quantity": quantity, "variants": list(rows),
        "finished": finished, "total": finished,
    }  # fmt: skip


def _lines(axes):
    """Return x and y of every labelled line."""
    return {
        line.get_label(): tuple(np.asarray(x, float).tolist() for x in line.get_data())
        for line in axes.lines
        if not line.get_label().startswith("_")
    }


def _records(epochs, zero=False):
    for step in range(4 * epochs):
        terms = {"loss/clip_nce": 5.0 / (step + 1), "loss/partial_order": 0.0 if zero else 0.01}
        yield {"step": step, "epoch": step // 4, "loss": 1.0 / (step + 1), **terms, "rate": 1.0}
        if step % 4 == 3:
            yield {"step": step, "epoch": step // 4, "validation/SumR": 100.0 - (step - 7) ** 2}


@pytest.mark.slow  # it takes seconds
def test_command_redraws_a_sweep_reproducibly(tmp_path):
    row = _row("a", [1.0, 2.0], 1)
    for run, directory in zip(row["runs"], ("a/seed0", "a/seed1"), strict=True):
        run["directory"] = directory
    (tmp_path / "a" / "seed0").mkdir(parents=True)
    log = "".join(json.dumps(record) + "\n" for record in _records(2))
    (tmp_path / "a" / "seed0" / "metrics.jsonl").write_text(log)
    (tmp_path / "table.json").write_text(json.dumps(_table(row, quantity="width")))
    names = [f"{stem}.{kind}" for stem in ("sweep", "a/seed0/curves") for kind in ("png", "svg")]
    first = None
    for _ in range(2):
        assert curves.draw(tmp_path) == tmp_path / "sweep.png"
        content = {name: (tmp_path / name).read_bytes() for name in names}
        first = first or content
        assert content == first
    for name, file in first.items():
        if name.endswith("png"):
            assert file.startswith(PNG) and file.rstrip().endswith(b"IEND\xaeB`\x82")
        else:
            assert ElementTree.fromstring(file).tag == "{http://www.w3.org/2000/svg}svg"
    run = tmp_path / "a" / "seed0"
    (run / "curves.png").unlink()
    assert curves.draw(run) == run / "curves.png" and (run / "curves.png").exists()


def test_missing_data_of_curves_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text("{}\nnone\n")
    (tmp_path / "table.json").write_text("{")
    nowhere = tmp_path / "nowhere"
    for directory, name in ((nowhere, "nowhere"), (tmp_path, "JSON"), (log.parent, "line 2")):
        with pytest.raises(UserError, match=name) as raised:
            curves.draw(directory)
        assert "\n" not in str(raised.value)
    log.write_bytes(b'{}\n{"loss": \xff}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        curves.draw(log.parent)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"config": 1}'])
def test_damaged_configuration_beside_curves_is_named(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json .*: restore it from a copy"):
        curves.draw(tmp_path)


@pytest.mark.slow  # it takes seconds
def test_truncated_record_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = "".join(json.dumps(record) + "\n" for record in _records(2))
    path.write_text(log + '{"step": 12')
    assert curves.draw_run(tmp_path)
    drawn = (tmp_path / "curves.svg").read_bytes()
    path.write_text(log)
    assert curves.draw_run(tmp_path) and (tmp_path / "curves.svg").read_bytes() == drawn


def test_curves_have_every_term_and_the_best_epoch():
    losses, recalls = curves.run_figure(list(_records(5)), "run").axes
    lines = _lines(losses)
    assert set(lines) == {"loss, weighted sum", "clip nce", "partial order"}
    x, y = lines["clip nce"]
    assert x == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert y[1] == pytest.approx(np.mean([5 / n for n in (5, 6, 7, 8)]))
    assert losses.get_yscale() == "log"
    sums = _lines(recalls)
    assert sums["SumR"] == ([1, 2, 3, 4, 5], [84, 100, 84, 36, -44])
    assert sums["best: 100.0"] == ([2], [100])


def test_last_epoch_has_the_star_if_selected():
    _, recalls = curves.run_figure(list(_records(5)), "run", "last").axes
    lines = _lines(recalls)
    assert recalls.get_ylabel() == "validation SumR" and "best: 100.0" not in lines
    assert lines["last: -44.0"] == ([5], [-44])


def test_undefined_validation_is_left_out():
    records = [
        {"step": 3, "epoch": 0, "validation/m": None},
        {"step": 7, "epoch": 1, "validation/m": 0.0},
        {"step": 11, "epoch": 2, "validation/m": math.nan},
    ]
    figure = curves.run_figure(records, "run", "m")
    assert figure.axes[1].lines[0].get_xdata().tolist() == [2]


def test_cone_share_is_drawn_if_recorded():
    records = list(_records(3))
    validated = [record for record in records if "validation/SumR" in record]
    for k, record in enumerate(validated):
        record["validation/InCone"] = 30.0 + k
    *_, recalls, shares = curves.run_figure(records, "run").axes
    [line] = shares.lines
    assert [x.tolist() for x in line.get_data()] == [[1, 2, 3], [30, 31, 32]]
    assert (shares.get_xlabel(), recalls.get_xlabel()) == ("epoch", "")


def test_line_about_the_data_is_not_cut_off():
    about = "Data: captioned videos, 24 training, 8 validation and 8 test videos; " * 2 + "seed 0"
    figure = curves.run_figure(list(_records(1)), "run", about=about)
    figure.draw_without_rendering()
    assert figure._suptitle.get_text().endswith("seed 0")
    assert figure._suptitle.get_window_extent().x1 < figure.bbox.x1


def test_zero_loss_term_is_drawn_on_a_symlog_axis():
    losses, _ = curves.run_figure(list(_records(1, zero=True)), "run").axes
    assert losses.get_yscale() == "symlog"
    x, y = _lines(losses)["partial order"]
    assert (x, y) == ([0.25, 0.5, 0.75, 1.0], [0, 0, 0, 0])


def test_run_stopped_in_its_first_epoch_can_be_drawn():
    records = [record for record in _records(1) if "loss" in record][:2]
    losses, recalls = curves.run_figure(records, "run").axes
    assert _lines(losses)["clip nce"] == ([1, 2], [5, 2.5])
    assert recalls.get_xlabel() == "step"


def test_line_shows_spread_and_published_values():
    table = _table(
        _row("c", [5.0, 7.0], 8, 6.5),
        _row("a", [1.0, 2.0], 0.5),
        _row("b", [3.0], 1, 2.5),
        _row("none", [4.0, 4.5], "inf"),
        _row("all", [9.0], None, 8.0),
        _row("gone", [], 2),
        quantity="width",
    )
    [axes] = curves.sweep_figure(table).axes
    lines = _lines(axes)
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


def test_series_have_own_lines_and_visible_points():
    table = _table(
        _row("a", [1.0], 2, series="one"), _row("b", [2.0], 4, series="one"),
        _row("c", [3.0], 4, series="two"), _row("d", [4.0], 4, series="three"),
        quantity="blocks",
    )  # fmt: skip
    [axes] = curves.sweep_figure(table).axes
    lines = _lines(axes)
    assert lines["one"] == ([2, 4], [1, 2])
    assert axes.get_xscale() == "linear"
    places = {lines[name][0][0] for name in ("two", "three")} | {4.0}
    assert len(places) == 3
    assert all(abs(place - 4) < 0.2 for place in places)
    styles = [(x.get_color(), x.get_marker()) for x in axes.lines if x.get_label() in lines]
    assert len(set(styles)) == 3


def test_bars_have_mean_spread_seeds_and_published_value():
    rows = (
        _row("full", [150.0, 154.0], None, 154.9),
        _row("w/o", [148.0]),
        _row("bad", [], None, 150.2, failures=[{"seed": 0, "reason": "x"}]),
        _row("later", []),
    )
    [axes] = curves.sweep_figure(_table(*rows)).axes
    bars = axes.containers[0]
    assert [bar.get_x() + bar.get_width() for bar in bars] == pytest.approx([152, 148])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["full", "w/o", "bad", "later"]
    lines = _lines(axes)
    assert lines["published"] == ([154.9, 150.2], [0, 2])
    assert lines["one seed"][0] == [150, 154]
    deviation = np.std([150.0, 154.0], ddof=1)
    [segment] = axes.containers[1].lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 0], [152 - deviation, 152 + deviation])
    words = [text.get_text() for text in axes.texts]
    assert {"failed", "not finished", "152.0", "148.0"} <= set(words)
    low, high = axes.get_xlim()
    assert 0 < low < 148 and high > 154.9
    assert f"begins at {low:g}" in axes.get_xlabel()  # bars that do not begin at 0 have a note


def test_axis_of_bars_contains_deviations():
    [axes] = curves.sweep_figure(_table(_row("a", [100.0, 110.0]), _row("b", [105.0, 106.0]))).axes
    deviation = np.std([100.0, 110.0], ddof=1)
    low, high = axes.get_xlim()
    assert low < 105 - deviation and high > 105 + deviation


@pytest.mark.parametrize(
    ("values", "low"), [([], 0), ([0.0], 0), ([10, 90], 0), ([100, 100], 98), ([152, 154.9], 148)]
)
def test_bars_begin_at_zero_unless_they_are_close_together(values, low):
    limits = curves._range(values)
    assert limits[0] == low
    assert limits[1] > max(values, default=0)


@pytest.mark.parametrize("quantity", ["", "width"])
def test_sweep_without_results_can_be_drawn(quantity):
    [axes] = curves.sweep_figure(_table(_row("a", [], 1), quantity=quantity) | {"total": 3}).axes
    rows = _row("a", [3.0], 1), _row("b", [4.0], 2)
    [axes] = curves.sweep_figure(_table(*rows, quantity=quantity)).axes
    assert axes.get_legend_handles_labels()[1] == ["one seed"]


def test_infinity_is_drawn_beyond_the_largest_value():
    assert curves._positions([2, 4, math.inf, 6]) == ("linear", {2: 2, 4: 4, 6: 6, math.inf: 8})
    assert curves._positions([1, 16, math.inf])[1][math.inf] == 32


def test_labels_of_metrics_are_percentages_or_shares():
    assert [curves._short(x) for x in (140.04, 0, 0.12345, 1)] == ["140.0", "0.0", "0.123", "1.0"]
