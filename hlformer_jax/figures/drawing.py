"""Colours, style and files of all figures, and the tables of their numbers.

This is the only module that imports matplotlib. A figure is made inside of `styled` and written by
`write`: the same data gives the same bytes. The colours are Okabe and Ito's, which people with any
colour vision can distinguish. Lines also differ in their markers, and the colours for quantities
change in lightness in one direction.
"""

import contextlib
import csv
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.cm
import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure
from matplotlib.lines import Line2D as Line2D
from matplotlib.ticker import MaxNLocator
from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.config import describe_data

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D1F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#6E6E6E"
MAP = "Blues"

KINDS = ("png", "svg", "csv")
"""The files of a figure: the picture in two formats, and its numbers."""

STYLE: Any = {
    "svg.hashsalt": "hlformer_jax",  # otherwise the file contains random names
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}

Table = Mapping[str, Sequence[Any] | np.ndarray]
"""Columns of equal length by name."""


class Drawing(NamedTuple):
    """A figure with its description.

    Attributes:
      figure: the figure.
      table: the numbers that are drawn.
      shows: a few sentences that describe the figure.
    """

    figure: Figure
    table: Table
    shows: str


class Columns:
    """A table to which rows are added."""

    def __init__(self, *names: str) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, *values: Any) -> None:
        """Add rows.

        Args:
          *values: for each column the value of all rows, or a sequence with a value for each row.

        Raises:
          ValueError: for sequences of different lengths.
        """
        is_scalar = [value is None or np.isscalar(value) for value in values]
        lengths = {len(x) for x, scalar in zip(values, is_scalar, strict=True) if not scalar}
        if len(lengths) > 1:
            raise ValueError(f"columns of {sorted(lengths)} rows")
        count = lengths.pop() if lengths else 1
        for column, value, scalar in zip(self.columns.values(), values, is_scalar, strict=True):
            column += [value] * count if scalar else list(value)


def styled() -> contextlib.AbstractContextManager[Any]:
    """Return a context that applies the style to figures made or written in its block."""
    return matplotlib.rc_context(STYLE)


def add_title(figure: Figure, lines: Iterable[str], size: float = 10, **style: str) -> None:
    """Write lines of text above a figure, wrapped to its width; `size` is in points."""
    width = int(130 / size * figure.get_figwidth())
    wrapped = [part for line in lines for part in textwrap.wrap(line, width)]
    figure.suptitle("\n".join(wrapped), x=0.01, ha="left", fontsize=size, **style)


def data_line(config: Mapping[str, Any] | ConfigDict) -> str:
    """Return the data set, the features and the seed of a run in one line."""
    data = describe_data(config)
    origin = " (made by this program)" if data["synthetic"] else f", {data['feature']} features"
    sizes = ""
    if data["synthetic"]:
        train, val, test = config["data"]["synthetic_videos"]
        sizes = f", {train} training, {val} validation and {test} test videos"
    return f"Data: {data['title']}{origin}{sizes}; seed {config['seed']}"


def add_colour_scale(
    figure: Figure, rows: Sequence[Axes], scale: tuple[float, float], label: str
) -> None:
    """Add a scale of the colours of `MAP` beside some axes.

    Args:
      figure: the figure.
      rows: the axes.
      scale: the least and the largest number.
      label: label of the scale.
    """
    colours = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(*scale), MAP)
    figure.colorbar(colours, ax=rows, label=label, pad=0.02, aspect=22, fraction=0.04)


def integer_ticks(axes: Axes) -> None:
    """Label only whole numbers on the horizontal axis, for positions and counts."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def write(
    figure: Figure,
    path: Path,
    table: Table | None = None,
    replace: files.Replace = files.Replace.OWN,
) -> None:
    """Write PATH.png, PATH.svg and, with a table, PATH.csv, each atomically.

    Raises:
      OSError: if an existing file must not be replaced; before any file is written.
    """
    for kind in KINDS[: 2 if table is None else 3]:
        files.check_output(path.with_name(f"{path.name}.{kind}"), replace)
    with styled():
        for kind, hidden in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=160, metadata=hidden)
            files.write_bytes(path.with_name(f"{path.name}.{kind}"), buffer.getvalue(), replace)
    if table is not None:
        content = as_csv(table).encode(errors="replace")  # the name of a video may not be UTF-8
        files.write_bytes(path.with_name(f"{path.name}.csv"), content, replace)


def as_csv(table: Table) -> str:
    """Return columns as CSV: numbers with nine digits, empty cells for None and NaN."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, float | np.floating):
        return "" if value is None else value
    return "" if np.isnan(value) else f"{float(value):.9g}"
