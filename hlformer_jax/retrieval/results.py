"""Metrics of a split, and the table of them that a run prints."""

from collections.abc import Mapping
from typing import NamedTuple

import rich.box
import rich.console
import rich.table


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
    """Prints metrics, one row a name, to standard output; the first row names the columns."""
    table = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    columns = list(next(iter(rows.values())))
    for column in columns:
        table.add_column(column, justify="right")
    for name, metrics in rows.items():
        cells = (f"{metrics[column]:.2f}" if column in metrics else "" for column in columns)
        table.add_row(name, *cells)
    rich.console.Console(width=100).print(table)
