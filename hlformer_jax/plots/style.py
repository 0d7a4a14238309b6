"""What every drawing shares: colours, markers, the style, and how it is written.

The only file that imports matplotlib. Whoever draws takes `Figure` and `Axes` from here, makes the
figure inside of `applied`, and writes it by `write`: the same data gives the same bytes. Colours
are Okabe and Ito's, which people with any colour vision tell apart; lines differ in their markers
too, and quantities are shown by maps of one direction of lightness.
"""

import contextlib
import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure
from matplotlib.lines import Line2D as Line2D
from matplotlib.ticker import MaxNLocator

from hlformer_jax import files

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D1F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PUBLISHED = "#000000"
GREY = "#6E6E6E"
MAP = "Blues"

STYLE: Any = {
    "svg.hashsalt": "hlformer_jax",  # names in the file are otherwise drawn at random
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


def applied() -> contextlib.AbstractContextManager[Any]:
    """The style, for all that is made and written inside of the block."""
    return matplotlib.rc_context(STYLE)


def integer_ticks(axes: Axes) -> None:
    """Leaves whole numbers alone on the horizontal axis, for positions and counts."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def write(figure: Figure, path: Path) -> None:
    """Writes a figure as PATH.png and PATH.svg, each whole or not at all."""
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
        files.write_bytes(path.with_name(f"{path.name}.{kind}"), buffer.getvalue())


def short(value: float) -> str:
    """A metric beside its mark: a percentage with one decimal, a share with three."""
    return f"{value:.1f}" if abs(value) > 1 or value == int(value) else f"{value:.3f}"
