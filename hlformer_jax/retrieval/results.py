"""Metrics of a split, and the table of them that a run prints."""

from collections.abc import Mapping
from typing import NamedTuple

import rich.box
import rich.console
import rich.table

SHARES = ("MRR", "RadiusTau")
"""Metrics that are not in percent, and at most 1."""


class Result(NamedTuple):
    """Metrics of a split.

    Attributes:
      metrics: metrics by the names that the field uses, recalls in percent.
      queries: number of queries.
      videos: number of videos.
    """

    metrics: dict[str, float]
    queries: int
    videos: int

    def as_json(self) -> dict[str, float | int]:
        """The form in which test metrics are written."""
        return {**self.metrics, "queries": self.queries, "videos": self.videos}


def print_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints metrics, one row a name, to standard output.

    A metric may be of a part, which then stands before its last slash: "leaves=2/t2v/MRR" is the
    column MRR in a row of its own, "leaves=2/t2v". Parts of the same metrics share a table.

    Args:
      title: title of the first table.
      rows: metrics by the name of what they are of.
    """
    console = rich.console.Console(width=200)  # a table takes what it needs, no name is cut short
    for columns, parts in _tables(next(iter(rows.values()))).items():
        table = rich.table.Table(title=title or None, box=rich.box.SIMPLE_HEAD)
        table.title_justify = "left"
        table.add_column("", no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right")
        for part in parts:
            for name, metrics in rows.items():
                prefix = f"{part}/" if part else ""
                cells = [_written(metrics, f"{prefix}{column}") for column in columns]
                table.add_row(" ".join(filter(None, (name, part))), *cells)
        console.print(table)
        title = ""


def written(name: str, value: float) -> str:
    """A metric as tables have it: with two decimals, three where it lies between -1 and 1."""
    return f"{value:.{3 if name.rpartition('/')[2] in SHARES else 2}f}"


def _written(metrics: Mapping[str, float], name: str) -> str:
    return written(name, metrics[name]) if name in metrics else ""


def _tables(metrics: Mapping[str, float]) -> dict[tuple[str, ...], list[str]]:
    """The parts that metrics are of, by the metrics of each."""
    columns: dict[str, list[str]] = {}
    for name in metrics:
        part, _, column = name.rpartition("/")
        columns.setdefault(part, []).append(column)
    tables: dict[tuple[str, ...], list[str]] = {}
    for part, names in columns.items():
        tables.setdefault(tuple(names), []).append(part)
    return tables
