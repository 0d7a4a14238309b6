"""The table of results that a run prints."""

from collections.abc import Mapping

import rich.box
import rich.console
import rich.table

from hlformer_jax.retrieval.ranking import RECALLS

COLUMNS = (*(f"R@{k}" for k in RECALLS), "SumR")


def results_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints metrics, one row a name, to standard output."""
    table = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[column]:.2f}" for column in COLUMNS))
    rich.console.Console(width=100).print(table)
