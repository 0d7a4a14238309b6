"""Publishes a sweep's results so far: its tables and its plot."""

from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax import files
from hlformer_jax.figures import curves
from hlformer_jax.sweep import summary, tables
from hlformer_jax.sweep.definition import Run


def check_place(root: Path, replace: files.Replace) -> None:
    """Refuses a directory whose tables or plot must not be replaced.

    Raises:
      OSError: saying which.
    """
    for name in (*tables.NAMES, "sweep.png", "sweep.svg"):
        files.check_output(root / name, replace)


def write(
    sweep: ConfigDict, runs: Sequence[Run], root: Path, replace: files.Replace = "own"
) -> summary.Table:
    """Writes the tables and the plot of a sweep.

    Of several tasks, each writes when a run of its own ends. One that was overtaken while it wrote
    writes again, so that what the last leaves is complete.

    Args:
      sweep: its configuration.
      runs: all its runs, not only those of this task.
      root: its directory.
      replace: which tables and plots there are replaced.

    Returns:
      The table.
    """
    table = summary.collect(sweep, runs, root)
    while True:
        tables.write(table, root, replace)
        curves.draw_sweep(table, root, replace)
        newest = summary.collect(sweep, runs, root)
        if newest == table:
            return table
        table = newest
