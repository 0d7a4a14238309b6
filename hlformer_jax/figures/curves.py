"""Curves of a run, and the plot of a sweep, drawn without JAX from the files of run or sweep.

The curves of a run are its loss terms and its validation metric over the epochs. The plot of a
sweep is the last metric of its table over the swept quantity, or by variant if there is no
quantity.
"""

import contextlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.figures import drawing
from hlformer_jax.figures.drawing import COLOURS, GREY, MARKERS, Axes, Figure


def draw(directory: Path, replace: files.Replace = files.Replace.OWN) -> Path:
    """Redraw the curves of a run, or the plot of a sweep and the curves of its runs.

    Args:
      directory: directory of the run or the sweep.
      replace: which existing files may be replaced.

    Returns:
      The path of curves.png or sweep.png.

    Raises:
      UserError: if the directory has neither table.json nor metrics.jsonl, or a file is damaged.
    """
    path = directory / "table.json"
    if not path.exists():
        if not draw_run(directory, replace=replace):
            raise UserError(f"{directory} contains neither table.json nor metrics.jsonl")
        return directory / "curves.png"
    table = _parse(path.read_bytes(), str(path))
    draw_sweep(table, directory, replace)
    for run in (run for row in table["variants"] for run in row["runs"]):
        draw_run(directory / run["directory"], run.get("title", run["directory"]), replace)
    return directory / "sweep.png"


def draw_run(directory: Path, title: str = "", replace: files.Replace = files.Replace.OWN) -> bool:
    """Draw the curves of a run as curves.png and curves.svg.

    A star marks the epoch that `eval.select` of the run's config.json selects.

    Args:
      directory: directory of the run.
      title: title of the picture; "" for the name of the directory.
      replace: which existing files may be replaced.

    Returns:
      False if the run has no records, so that nothing was drawn.
    """
    path = directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # an incomplete line: the run is writing it, or was killed while writing
    if not lines:
        return False
    records = [_parse(line, f"{path}, line {index}") for index, line in enumerate(lines, 1)]
    metric, path, about = "SumR", directory / "config.json", ""
    if path.exists():
        record = _parse(path.read_bytes(), str(path))
        if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
            raise UserError(f"{path} has no entry 'config': restore it from a copy")
        content = record["config"]
        metric = str(content.get("eval", {}).get("select", metric))
        with contextlib.suppress(KeyError):  # a family of models of your own has other fields
            about = drawing.data_line(content)
    with drawing.styled():
        figure = run_figure(records, title or directory.name, metric, about)
    drawing.write(figure, directory / "curves", replace=replace)
    return True


def draw_sweep(
    table: Mapping[str, Any], directory: Path, replace: files.Replace = files.Replace.OWN
) -> None:
    """Draw the content of a sweep's table.json as sweep.png and sweep.svg."""
    with drawing.styled():
        figure = sweep_figure(table)
    drawing.write(figure, directory / "sweep", replace=replace)


def _parse(text: str | bytes, where: str) -> Any:
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}): restore it from a copy") from error


def run_figure(
    records: Sequence[Mapping[str, Any]], title: str, metric: str = "SumR", about: str = ""
) -> Figure:
    """Draw loss terms and a validation metric of a run over its epochs.

    Args:
      records: the lines of metrics.jsonl.
      title: the title.
      metric: the validation metric that selects the epoch; "last" selects the last epoch and draws
        the first validation metric.
      about: a line below the title, with the data of the run.
    """
    selects_last = metric == "last"
    if selects_last:
        names = [name for record in records for name in record if name.startswith("validation/")]
        metric = names[0].partition("/")[2] if names else metric
    validations = [record for record in records if _is_defined(record, f"validation/{metric}")]
    steps = [record for record in records if "loss" in record]
    # Records have the index of a step; a validation has the index of the last step of its epoch.
    length = (validations[0]["step"] + 1) / (validations[0]["epoch"] + 1) if validations else 1
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    drawing.add_title(figure, (title, about))
    inside = [record for record in validations if "validation/InCone" in record]
    heights = (3, 2, 2) if inside else (3, 2)
    rows = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    losses, recalls, *rest = rows
    names = sorted({name for record in steps for name in record if name.startswith("loss/")})
    smallest, signed = math.inf, False
    for position, name in enumerate(("loss", *names)):
        points = [(record["step"] + 1, record[name]) for record in steps if name in record]
        x, y = np.array(points, float).reshape(-1, 2).T
        smallest = min([smallest, *np.abs(y[y != 0])])
        signed = signed or bool((y <= 0).any())
        _curve(losses, x / length, y, name, position)
    if signed:  # a logarithmic scale cannot show 0 and negative numbers
        losses.set_yscale("symlog", linthresh=max(smallest, 1e-4))
    else:
        losses.set_yscale("log")
    losses.set_ylabel("loss terms, before weighting")
    losses.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    recalls.set_ylabel(f"validation {metric}")
    rows[-1].set_xlabel("epoch" if validations else "step")
    for axes in rest:
        at, share = zip(*((x["epoch"] + 1, x["validation/InCone"]) for x in inside), strict=True)
        axes.plot(at, share, color=COLOURS[2], marker="o" if len(at) <= 30 else "")
        axes.set_ylabel("captions in the cone\nof their video (%)")
        axes.set_ylim(-3, 103)
    if validations:
        epochs = [record["epoch"] + 1 for record in validations]
        values = [record[f"validation/{metric}"] for record in validations]
        best = -1 if selects_last else int(np.argmax(values))
        marker = "o" if len(epochs) <= 30 else ""
        recalls.plot(epochs, values, color=COLOURS[0], marker=marker, label=metric)
        label = f"{'last' if selects_last else 'best'}: {_short(values[best])}"
        recalls.plot(epochs[best], values[best], "*", label=label, color=COLOURS[1], markersize=11)
        recalls.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        if len(epochs) <= 12:
            recalls.set_xticks(epochs)
    recalls.set_xlim(left=0)
    return figure


def _is_defined(record: Mapping[str, Any], name: str) -> bool:
    """Return whether a record has a value; it is null if the split has nothing to measure."""
    value = record.get(name)
    return value is not None and math.isfinite(value)


def _curve(axes: Axes, x: np.ndarray, y: np.ndarray, name: str, position: int) -> None:
    """Draw a term: its records, thin, and the mean of each epoch if there are several."""
    colour = GREY if name == "loss" else COLOURS[(position - 1) % len(COLOURS)]
    label = "loss, weighted sum" if name == "loss" else name.removeprefix("loss/").replace("_", " ")
    epochs = np.ceil(x - 1e-9)
    means = [float(np.mean(y[epochs == epoch])) for epoch in np.unique(epochs)]
    style: dict[str, Any] = {"color": colour, "linestyle": "--" if name == "loss" else "-"}
    if len(means) < 3:
        axes.plot(x, y, label=label, marker=MARKERS[position % len(MARKERS)], markersize=3, **style)
        return
    axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.7)
    # The mean of an epoch is drawn at the middle of the epoch.
    axes.plot(np.unique(epochs) - 0.5, means, label=label, **style)


def sweep_figure(table: Mapping[str, Any]) -> Figure:
    """Draw a table's last metric over the swept quantity, or by variant without a quantity.

    The lines of the table's "about" and the reasons of corrected figures are printed below the
    plot, so that the picture can be read without the table.
    """
    figure, columns = _against_quantity(table) if table["quantity"] else _by_variant(table)
    is_complete = table["finished"] == table["total"]
    state = "" if is_complete else f"({table['finished']} of {table['total']} runs so far)"
    drawing.add_title(figure, (table["title"], state))
    metric = table["metrics"][-1]
    # Tables of earlier versions do not have these.
    footnotes, about = table.get("footnotes", []), table.get("about", [])
    reasons = [note["reason"] for note in footnotes if note["metric"] == metric]
    texts = [*about, *(f"Corrected: {reason}" for reason in dict.fromkeys(reasons))]
    lines = [line for text in texts for line in textwrap.wrap(text, 108)]
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = min(columns, len(handles))
    # Heights in inches: lines of 7 points, below a legend with lines of 9 points.
    caption = 0.08 + 0.125 * len(lines)
    legend = 0.1 + 0.2 * math.ceil(len(handles) / columns) if handles else 0.0
    width, height = figure.get_size_inches()
    total = height + caption
    figure.set_size_inches(width, total)
    bottom = (caption + legend) / total
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0, bottom, 1, 1 - bottom))
    figure.text(0.01, caption / total, "\n".join(lines), va="top", fontsize=7, color=GREY)
    if handles:
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, bottom)}
        figure.legend(handles, labels, ncols=columns, **place)
    return figure


def _against_quantity(table: Mapping[str, Any]) -> tuple[Figure, int]:
    """Draw a line for each series, and a horizontal line for each variant without a value.

    Returns:
      The figure, and the number of columns of its legend.
    """
    metric, rows = table["metrics"][-1], table["variants"]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    with_value = [row for row in rows if row["value"] is not None]
    scale, positions = _positions([float(row["value"]) for row in with_value])
    axes.set_xscale(scale)
    lines = list(dict.fromkeys(row["series"] for row in with_value))
    alone: list[float] = []
    for index, name in enumerate(lines):
        points = sorted(
            (row for row in with_value if row["series"] == name),
            key=lambda row: float(row["value"]),
        )
        at = [positions[float(row["value"])] for row in points]
        if len(points) == 1 and len(lines) > 1:
            alone += at
            at = [_beside(at[0], alone.count(at[0]), scale, list(positions.values()))]
        _draw_series(axes, index, name, points, at, metric)
    for index, row in enumerate((row for row in rows if row["value"] is None), len(lines)):
        _draw_level(axes, COLOURS[index % len(COLOURS)], row, metric)
    ticks = ["∞" if math.isinf(value) else f"{value:g}" for value in positions]
    axes.set_xticks(list(positions.values()), ticks)
    axes.tick_params(axis="x", which="minor", length=0)
    axes.set_xlabel(table["quantity"])
    axes.set_ylabel(f"test {metric}")
    return figure, 2


def _draw_series(
    axes: Any,
    index: int,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    at: Sequence[float],
    metric: str,
) -> None:
    """Draw the means, spreads, published and corrected values of a series.

    Args:
      axes: the axes.
      index: number of the series, which decides its colour and marker.
      name: name of the series; "" if it is the only one.
      rows: the variants of the series.
      at: position of each variant.
      metric: name of the metric.
    """
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    done = [row for row in rows if row["mean"][metric] is not None]
    x = np.array([x for x, row in zip(at, rows, strict=True) if row in done])
    mean = np.array([row["mean"][metric] for row in done])
    spread = np.array([row["std"][metric] or 0.0 for row in done])
    several = any(row["std"][metric] is not None for row in done)
    label = name or ("mean over seeds" if several else "one seed")
    axes.plot(x, mean, color=colour, marker=marker, label=label, zorder=3)
    if spread.any() and len(done) == 1:  # a band needs a width
        axes.errorbar(x, mean, yerr=spread, fmt="none", ecolor=colour, capsize=3)
    elif spread.any():
        edges = (mean - spread, mean + spread)
        axes.fill_between(x, *edges, color=colour, alpha=0.18, linewidth=0)
    values = [(x, row["published"].get(metric)) for x, row in zip(at, rows, strict=True)]
    published = np.array([pair for pair in values if pair[1] is not None]).reshape(-1, 2)
    if len(published):
        label = f"{name}, published" if name else "published"
        style: dict[str, Any] = {"markeredgecolor": colour, "markerfacecolor": "white"}
        axes.plot(*published.T, marker, linestyle=":", label=label, color=colour, **style)
    corrected = [(x, row.get("corrected", {}).get(metric)) for x, row in zip(at, rows, strict=True)]
    _mark_corrected(axes, [pair for pair in corrected if pair[1] is not None])


def _draw_level(axes: Any, colour: str, row: Mapping[str, Any], metric: str) -> None:
    """Draw a variant without a value as a horizontal line, with its spread."""
    name = row["variant"]
    level, deviation = row["mean"][metric], row["std"][metric]
    if level is not None:
        axes.axhline(level, color=colour, linestyle="--", label=name)
        if deviation:
            band = level - deviation, level + deviation
            axes.axhspan(*band, color=colour, alpha=0.12, linewidth=0)
    if (value := row["published"].get(metric)) is not None:
        axes.axhline(value, color=colour, linestyle=":", label=f"{name}, published")


def _positions(values: Sequence[float]) -> tuple[str, dict[float, float]]:
    """Return the scale of the axis, and the position of each value; infinity is drawn last."""
    distinct = sorted(set(values))
    finite = [value for value in distinct if math.isfinite(value)]
    scale = "log" if finite and finite[0] > 0 and finite[-1] >= 16 * finite[0] else "linear"
    positions = {value: value for value in finite}
    if len(finite) < len(distinct):
        last = finite[-1] if finite else 1.0
        step = (last - finite[0]) / (len(finite) - 1) if len(finite) > 1 else 1.0
        positions[math.inf] = 2 * last if scale == "log" else last + step
    return scale, positions


def _beside(position: float, count: int, scale: str, positions: Sequence[float]) -> float:
    """Return a shifted position for the `count`-th single point at a position, to avoid overlap."""
    shift = (count + 1) // 2 * (1 if count % 2 else -1)
    if scale == "log":
        return position * (max(positions) / min(positions)) ** (0.02 * shift)
    return position + 0.02 * shift * ((max(positions) - min(positions)) or 1.0)


def _by_variant(table: Mapping[str, Any]) -> tuple[Figure, int]:
    """Draw a bar for each variant, with its seeds as dots and the published value as a diamond.

    Returns:
      The figure, and the number of columns of its legend.
    """
    metric, rows = table["metrics"][-1], table["variants"]
    names = ["\n".join(textwrap.wrap(row["variant"], 26)) for row in rows]
    height = 1.5 + 0.42 * len(rows) + 0.12 * sum(name.count("\n") for name in names)
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.add_subplot()
    means, deviations = ([row[kind][metric] for row in rows] for kind in ("mean", "std"))
    seeds = [
        [run["metrics"][metric] for run in row["runs"] if metric in run["metrics"]] for row in rows
    ]
    published, corrected = (
        [row.get(kind, {}).get(metric) for row in rows] for kind in ("published", "corrected")
    )
    ends = [x + d for x, y in zip(means, deviations, strict=True) if y is not None for d in (-y, y)]
    values = [*(x for results in seeds for x in results), *published, *corrected, *ends]
    low, high = _range([x for x in values if x is not None])
    done = [place for place, results in enumerate(seeds) if results]
    spread = [place for place in done if deviations[place] is not None]
    label = "mean" if spread else "one seed"
    widths = [means[place] - low for place in done]
    bars = axes.barh(done, widths, 0.62, left=low, color=COLOURS[4], label=label)
    if spread:
        middles, errors = ([x[place] for place in spread] for x in (means, deviations))
        axes.errorbar(
            middles, spread, xerr=errors, fmt="none", ecolor="black", elinewidth=1.2, capsize=3,
            label="± standard deviation over seeds",
        )  # fmt: skip
        dots = [(x, place + 0.2) for place in spread for x in seeds[place]]
        axes.plot(*np.transpose(dots), ".", color=COLOURS[0], markersize=4, label="one seed")
    if points := [(x, place) for place, x in enumerate(published) if x is not None]:
        axes.plot(
            *np.transpose(points), "D", color=COLOURS[1], markeredgecolor="white", markersize=7,
            label="published",
        )  # fmt: skip
    _mark_corrected(axes, [(x, place) for place, x in enumerate(corrected) if x is not None])
    # Numbers are written to the right of all marks, so that they do not cover one.
    right = axes.get_yaxis_transform()
    for place, row in enumerate(rows):
        if not seeds[place]:
            word = _reason_without_bar(row)
            axes.text(1.02, place, word, transform=right, va="center", color=GREY)
    if done:
        axes.text(1.02, -0.62, label, transform=right, va="bottom", color=GREY)
    for bar, place in zip(bars, done, strict=True):
        middle = bar.get_y() + bar.get_height() / 2
        axes.text(1.02, middle, _short(means[place]), transform=right, va="center")
    axes.set_xlim(low, high)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), names)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"test {metric}" + (f" (the axis begins at {low:g})" if low else ""))
    return figure, 4


def _mark_corrected(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw corrected figures as hollow diamonds; published figures are filled diamonds."""
    if points:
        style: dict[str, Any] = {"markeredgecolor": COLOURS[1], "markerfacecolor": "none"}
        axes.plot(*np.transpose(points), "D", markersize=7, label="corrected", zorder=4, **style)


def _reason_without_bar(row: Mapping[str, Any]) -> str:
    """Return why a variant has no bar."""
    if row["runs"]:
        return "no such metric"
    if row.get("left_out"):
        return "left out"
    if row.get("skipped"):
        return "skipped"
    return "failed" if row["failures"] else "not finished"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis of bars.

    It begins at 0 unless all values are close together and far from 0.
    """
    if not values:
        return 0.0, 1.0
    least, most = min(values), max(values)
    spread = max(most - least, 0.02 * abs(most), 1e-6)
    if spread > 0.3 * most:
        return 0.0, most + 0.05 * spread
    unit = 10.0 ** math.floor(math.log10(spread))
    return math.floor((least - spread) / unit) * unit, most + 0.15 * spread


def _short(value: float) -> str:
    """Format a metric beside its mark: one decimal for percentages, three for shares."""
    return f"{value:.1f}" if abs(value) > 1 or value == int(value) else f"{value:.3f}"
