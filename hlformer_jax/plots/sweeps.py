"""A sweep: its metric over the swept quantity where there is one, else by variant."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.plots.style import (
    COLOURS,
    GREY,
    MARKERS,
    PUBLISHED,
    Figure,
    applied,
    short,
    write,
)


def draw_sweep(table: Mapping[str, Any], directory: Path) -> None:
    """Draws a sweep into its directory, as sweep.png and sweep.svg.

    Args:
      table: the content of its table.json.
      directory: where it lies.
    """
    with applied():
        write(sweep_figure(table), directory / "sweep")


def sweep_figure(table: Mapping[str, Any]) -> Figure:
    """Draws a table's last metric over the swept quantity where there is one, else by variant."""
    return _against_quantity(table) if table["quantity"] else _by_variant(table)


def _against_quantity(table: Mapping[str, Any]) -> Figure:
    """A line for each series, a level for each variant that has no value."""
    metric = _headline(table)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    rows = table["variants"]
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
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        done = [row for row in points if row["mean"][metric] is not None]
        x = np.array([x for x, row in zip(at, points, strict=True) if row in done])
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
        values = [(x, row["published"].get(metric)) for x, row in zip(at, points, strict=True)]
        published = np.array([pair for pair in values if pair[1] is not None]).reshape(-1, 2)
        if len(published):
            label = f"{name}, published" if name else "published"
            style: dict[str, Any] = {"markeredgecolor": colour, "markerfacecolor": "white"}
            axes.plot(*published.T, marker, linestyle=":", label=label, color=colour, **style)
    for index, row in enumerate((row for row in rows if row["value"] is None), len(lines)):
        colour = COLOURS[index % len(COLOURS)]
        mean, spread = row["mean"][metric], row["std"][metric]
        if mean is not None:
            axes.axhline(mean, color=colour, linestyle="--", label=row["variant"])
            if spread:
                axes.axhspan(mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
        if (value := row["published"].get(metric)) is not None:
            label = f"{row['variant']}, published"
            axes.axhline(value, color=colour, linestyle=":", label=label)
    axes.set_xticks(list(positions.values()), [_tick(value) for value in positions])
    axes.tick_params(axis="x", which="minor", length=0)
    axes.set_xlabel(table["quantity"])
    axes.set_ylabel(f"test {metric}")
    _finish(figure, table, columns=2)
    return figure


def _headline(table: Mapping[str, Any]) -> str:
    """The metric that is drawn, the last of the table's; SumR in tables of earlier versions."""
    return str(table.get("metrics", ["SumR"])[-1])


def _positions(values: Sequence[float]) -> tuple[str, dict[float, float]]:
    """The scale of the axis, and each value's position there; infinity is beyond the largest."""
    known = sorted(set(values))
    finite = [value for value in known if math.isfinite(value)]
    scale = "log" if finite and finite[0] > 0 and finite[-1] >= 16 * finite[0] else "linear"
    positions = {value: value for value in finite}
    if len(finite) < len(known):
        last = finite[-1] if finite else 1.0
        step = (last - finite[0]) / (len(finite) - 1) if len(finite) > 1 else 1.0
        positions[math.inf] = 2 * last if scale == "log" else last + step
    return scale, positions


def _beside(position: float, count: int, scale: str, positions: Sequence[float]) -> float:
    """Where the `count`-th lone point at a position stands, so that it hides no other."""
    shift = (count + 1) // 2 * (1 if count % 2 else -1)
    if scale == "log":
        return position * (max(positions) / min(positions)) ** (0.02 * shift)
    return position + 0.02 * shift * ((max(positions) - min(positions)) or 1.0)


def _tick(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _by_variant(table: Mapping[str, Any]) -> Figure:
    """A bar for each variant, with its seeds as dots and the published value as a diamond."""
    metric = _headline(table)
    rows = table["variants"]
    names = ["\n".join(textwrap.wrap(row["variant"], 26)) for row in rows]
    height = 1.5 + 0.42 * len(rows) + 0.12 * sum(name.count("\n") for name in names)
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.add_subplot()
    seeds = [[run["metrics"][metric] for run in row["runs"]] for row in rows]
    published = [row["published"].get(metric) for row in rows]
    known = [x for points in seeds for x in points] + [x for x in published if x is not None]
    low, high = _range(known)
    y = range(len(rows))
    done = [position for position in y if seeds[position]]
    mean = [rows[position]["mean"][metric] for position in done]
    spread = [(position, rows[position]["std"][metric]) for position in done]
    spread = [(position, deviation) for position, deviation in spread if deviation is not None]
    label = "mean" if spread else "one seed"
    bars = axes.barh(done, np.subtract(mean, low), 0.62, left=low, color=COLOURS[4], label=label)
    if spread:
        positions, deviations = zip(*spread, strict=True)
        middle = [rows[position]["mean"][metric] for position in positions]
        axes.errorbar(
            middle, positions, xerr=deviations, fmt="none", ecolor=PUBLISHED, elinewidth=1.2,
            capsize=3, label="± standard deviation over seeds",
        )  # fmt: skip
        dots = [(x, position + 0.2) for position in positions for x in seeds[position]]
        axes.plot(*np.transpose(dots), ".", color=COLOURS[0], markersize=4, label="one seed")
    points = [
        (value, position) for position, value in zip(y, published, strict=True) if value is not None
    ]
    if points:
        axes.plot(
            *np.transpose(points), "D", color=COLOURS[1], markeredgecolor="white", markersize=7,
            label="published",
        )  # fmt: skip
    for missing in sorted(set(range(len(rows))) - set(done)):
        word = "failed" if rows[missing]["failures"] else "not finished"
        axes.annotate(
            word, (low, missing), (4, 0), textcoords="offset points", va="center", color=GREY
        )
    # Beyond all marks, so that no figure stands on one.
    right = axes.get_yaxis_transform()
    if done:
        axes.text(1.02, -0.62, label, transform=right, va="bottom", color=GREY)
    for bar, position in zip(bars, done, strict=True):
        text = short(rows[position]["mean"][metric])
        axes.text(1.02, bar.get_y() + bar.get_height() / 2, text, transform=right, va="center")
    axes.set_xlim(low, high)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(y, names)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"test {metric}" + (f" (the axis begins at {low:g})" if low else ""))
    _finish(figure, table, columns=4)
    return figure


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis of bars: from 0, unless all values lie far from it and close together."""
    if not values:
        return 0.0, 1.0
    least, most = min(values), max(values)
    spread = max(most - least, 0.02 * abs(most), 1e-6)
    if spread > 0.3 * most:
        return 0.0, most + 0.05 * spread
    unit = 10.0 ** math.floor(math.log10(spread))
    return math.floor((least - spread) / unit) * unit, most + 0.15 * spread


def _finish(figure: Figure, table: Mapping[str, Any], columns: int) -> None:
    title = "\n".join(textwrap.wrap(table["title"], 78))
    if table["finished"] < table["total"]:
        title += f"\n({table['finished']} of {table['total']} runs so far)"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        columns = min(columns, len(handles))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
