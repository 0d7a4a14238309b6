"""The table of a sweep: mean and spread of every variant's metrics over its finished seeds.

`collect` makes the table as data, which is table.json; table.md, table.csv and what is printed are
views of it. The spread is the sample's standard deviation (n - 1); one seed has none.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.markup
import rich.table
from ml_collections import ConfigDict

from hlformer_jax.run import files
from hlformer_jax.sweep import runs as runs_of
from hlformer_jax.sweep.definition import METRICS, Run, changed_fields

Table = dict[str, Any]

PLACES = ("data.manual_dir", "data.data_dir")
"""Fields that say where data lies, and nothing of the result."""


def collect(sweep: ConfigDict, runs: Sequence[Run], root: Path) -> Table:
    """Reads what the runs of a sweep have come to so far.

    Args:
      sweep: its configuration.
      runs: all its runs.
      root: its directory.

    Returns:
      The content of table.json.
    """
    rows = []
    for name in sweep.variants:
        found, failures, missing = [], [], []
        for run in (run for run in runs if run.variant == name):
            directory = root / run.directory
            result = runs_of.read(directory / runs_of.RESULT)
            if result is not None:
                found.append({**result, "directory": str(run.directory)})
                continue
            missing.append(run.seed)
            failure = runs_of.read(directory / runs_of.FAILURE)
            if failure is not None:
                failures.append({"seed": run.seed, "reason": failure["reason"]})
        value = sweep["values"].get(name)
        rows.append(
            {
                "variant": name,
                # JSON has no infinity; Python's float takes this word for it.
                "value": "inf" if value is not None and math.isinf(value) else value,
                "series": sweep.series.get(name, ""),
                "published": dict(sweep.published.get(name, {})),
                **_summary(found),
                "seeds": [result["seed"] for result in found],
                "missing_seeds": missing,
                "failures": failures,
                "runs": found,
            }
        )
    return {
        "title": sweep.title,
        "quantity": sweep.quantity,
        "changed": {
            name: value for name, value in changed_fields(sweep).items() if name not in PLACES
        },
        "finished": sum(len(row["runs"]) for row in rows),
        "total": len(runs),
        "variants": rows,
    }


def _summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics = {name: [result["metrics"][name] for result in results] for name in METRICS}
    seconds = [result["seconds_per_epoch"] for result in results]
    first = results[0] if results else {}
    return {
        "mean": {name: float(np.mean(x)) if x else None for name, x in metrics.items()},
        "std": {
            name: float(np.std(x, ddof=1)) if len(x) > 1 else None for name, x in metrics.items()
        },
        "parameters": first.get("parameters"),
        "flops_video": first.get("flops_video"),
        "flops_caption": first.get("flops_caption"),
        "seconds_per_epoch": float(np.mean(seconds)) if seconds else None,
    }


def write(table: Table, root: Path) -> None:
    """Writes table.json, table.md and table.csv into the sweep's directory, each whole."""
    files.write_json(root / "table.json", table)
    files.write_bytes(root / "table.md", markdown(table).encode())
    files.write_bytes(root / "table.csv", as_csv(table).encode())


HEADER = (
    "",
    *METRICS,
    "published SumR",
    "seeds",
    "parameters",
    "GFLOPs/video",
    "MFLOPs/caption",
    "s/epoch",
)


def cells(row: Mapping[str, Any]) -> list[str]:
    """One variant as the printed table and table.md have it, in the order of `HEADER`."""
    seeds, all_seeds = len(row["seeds"]), len(row["seeds"]) + len(row["missing_seeds"])
    return [
        row["variant"],
        *(_spread(row["mean"][name], row["std"][name]) for name in METRICS),
        _number(row["published"].get("SumR"), ".1f"),
        f"{seeds}" if seeds == all_seeds else f"{seeds} of {all_seeds}",
        _number(row["parameters"], ",d"),
        _number(row["flops_video"], ".3f", 1e9),
        _number(row["flops_caption"], ".2f", 1e6),
        _number(row["seconds_per_epoch"], ".3g"),
    ]


def notes(table: Table) -> list[str]:
    """What else a reader must know: other settings than the file's, and what is missing."""
    found = []
    if changed := table["changed"]:
        settings = ", ".join(f"{name} = {value}" for name, value in changed.items())
        found.append(f"other settings than the published ones: {settings}")
    found += [
        f"{row['variant']}, seed {failure['seed']} failed: {failure['reason']}"
        for row in table["variants"]
        for failure in row["failures"]
    ]
    failed = sum(len(row["failures"]) for row in table["variants"])
    if waiting := table["total"] - table["finished"] - failed:
        found.append(f"{waiting} of {table['total']} runs are not finished")
    return found


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""
    line = lambda row: f"| {' | '.join(_escaped(cell) for cell in row)} |"
    lines = [f"# {_escaped(table['title'])}", "", line(HEADER)]
    lines.append(line(["---", *["---:"] * (len(HEADER) - 1)]))
    lines += [line(cells(row)) for row in table["variants"]]
    lines += [
        "",
        "Test split, best epoch by validation SumR; mean ± standard deviation over seeds, where"
        " there are several.",
    ]
    if found := notes(table):
        lines += ["", *(f"- {_escaped(note)}" for note in found)]
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """The table as numbers: a column for every mean, deviation and published metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "variant",
            "series",
            "value",
            "seeds",
            "missing",
            "failed",
            *(f"{name}_{kind}" for name in METRICS for kind in ("mean", "std", "published")),
            "parameters",
            "flops_video",
            "flops_caption",
            "seconds_per_epoch",
        ]
    )
    for row in table["variants"]:
        kinds = row["mean"], row["std"], row["published"]
        # None becomes an empty cell.
        writer.writerow(
            [
                row["variant"],
                row["series"],
                row["value"],
                len(row["seeds"]),
                len(row["missing_seeds"]),
                len(row["failures"]),
                *(kind.get(name) for name in METRICS for kind in kinds),
                row["parameters"],
                row["flops_video"],
                row["flops_caption"],
                row["seconds_per_epoch"],
            ]
        )
    return out.getvalue()


def show(table: Table) -> None:
    """Prints the table, and what is missing from it, to standard output."""
    view = rich.table.Table(
        title=rich.markup.escape(table["title"]), box=rich.box.SIMPLE_HEAD, title_justify="left"
    )
    for place, column in enumerate(HEADER):
        view.add_column(column, justify="right" if place else "left")
    for row in table["variants"]:
        view.add_row(*(rich.markup.escape(cell) for cell in cells(row)))
    console = rich.console.Console()
    if not console.is_terminal:  # a file is as wide as its lines
        console = rich.console.Console(width=400)
        console = rich.console.Console(width=console.measure(view).maximum)
    console.print(view)
    for note in notes(table):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _spread(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _number(value: float | None, form: str, unit: float = 1) -> str:
    if value is None:
        return "-"
    return format(value if unit == 1 else value / unit, form)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: nothing of it is a column, emphasis or a tag."""
    for character in "\\|*_`<>[]":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
