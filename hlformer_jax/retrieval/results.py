"""Metrics of a split, and the table of them that a run prints."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import rich.box
import rich.console
import rich.table

from hlformer_jax import files

METRICS_FILE, QUERIES_FILE = "test_metrics.json", "test_queries.npz"
"""What `write` writes: metrics of the test split, and what each of its queries adds to them."""

SHARES = ("MRR", "RadiusTau")
"""Metrics that are not in percent, and at most 1."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Metrics of a split.

    Attributes:
      metrics: metrics by the names that the field uses, recalls in percent.
      queries: number of queries.
      videos: number of videos.
      per_query: what the metrics are made of, an array [queries] each, for comparing models query
        by query: "ranks", the index of its video, "videos", and where times are known "overlaps";
        empty where a family has none.
    """

    metrics: dict[str, float]
    queries: int
    videos: int
    per_query: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, float | int]:
        """The form in which test metrics are written."""
        return {**self.metrics, "queries": self.queries, "videos": self.videos}


def write(result: Result, directory: Path) -> None:
    """Writes test_metrics.json, and test_queries.npz where the family knows its `per_query`.

    Raises:
      OSError: when they cannot be written.
    """
    files.write_json(directory / METRICS_FILE, result.as_json())
    if result.per_query:
        files.write_npz(directory / QUERIES_FILE, result.per_query)


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
