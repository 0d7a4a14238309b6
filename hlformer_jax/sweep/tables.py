"""The tables of a sweep: mean and spread of every variant's metrics over its finished seeds.

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

from hlformer_jax.config import ConfigError
from hlformer_jax.retrieval import results
from hlformer_jax.run import files
from hlformer_jax.sweep import runs as runs_of
from hlformer_jax.sweep.definition import Run, changed_fields

Table = dict[str, Any]

LOCATIONS = ("data.manual_dir", "data.data_dir")
"""Fields that say where data lies, and nothing of the result."""


def collect(sweep: ConfigDict, runs: Sequence[Run], root: Path) -> Table:
    """Collects the results of a sweep's runs so far.

    Args:
      sweep: its configuration.
      runs: all its runs.
      root: its directory.

    Returns:
      The content of table.json.

    Raises:
      ConfigError: when a result lacks one of the sweep's metrics.
    """
    rows = []
    for name in sweep.variants:
        results, failures, missing = [], [], []
        for run in (run for run in runs if run.variant == name):
            directory = root / run.directory
            result = runs_of.read(directory / runs_of.RESULT)
            if result is not None:
                results.append({**result, "directory": str(run.directory)})
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
                **_summary(results, sweep.metrics),
                "seeds": [result["seed"] for result in results],
                "missing_seeds": missing,
                "failures": failures,
                "runs": results,
            }
        )
    return {
        "title": sweep.title,
        "quantity": sweep.quantity,
        "metrics": list(sweep.metrics),
        "select": " or ".join(sorted({run.config.eval.select for run in runs})),
        "changed": {
            name: value for name, value in changed_fields(sweep).items() if name not in LOCATIONS
        },
        "finished": sum(len(row["runs"]) for row in rows),
        "total": len(runs),
        "variants": rows,
    }


def _summary(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    for result in results:
        if missing := [name for name in names if name not in result["metrics"]]:
            raise ConfigError(
                f"config.metrics: {result['directory']} has no {', '.join(missing)}, but"
                f" {', '.join(result['metrics'])}: change the sweep's metrics"
            )
    metrics = {name: [result["metrics"][name] for result in results] for name in names}
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


COSTS = ("parameters", "GFLOPs/video", "MFLOPs/caption", "s/epoch")


def header(table: Table) -> tuple[str, ...]:
    """The names of the columns of the printed table and table.md."""
    return ("", *table["metrics"], f"published {table['metrics'][-1]}", "seeds", *COSTS)


def cells(row: Mapping[str, Any], metrics: Sequence[str]) -> list[str]:
    """One variant as the printed table and table.md have it, in the order of `header`."""
    seeds, all_seeds = len(row["seeds"]), len(row["seeds"]) + len(row["missing_seeds"])
    return [
        row["variant"],
        *(_spread(name, row["mean"][name], row["std"][name]) for name in metrics),
        _published(metrics[-1], row["published"].get(metrics[-1])),
        f"{seeds}" if seeds == all_seeds else f"{seeds} of {all_seeds}",
        _formatted(row["parameters"], ",d"),
        _formatted(row["flops_video"], ".3f", 1e9),
        _formatted(row["flops_caption"], ".2f", 1e6),
        _formatted(row["seconds_per_epoch"], ".3g"),
    ]


def notes(table: Table) -> list[str]:
    """Notes below the table: settings that are not the file's, failures, runs that are missing."""
    lines = []
    if changed := table["changed"]:
        settings = ", ".join(f"{name} = {value}" for name, value in changed.items())
        lines.append(f"other settings than the published ones: {settings}")
    lines += [
        f"{row['variant']}, seed {failure['seed']} failed: {failure['reason']}"
        for row in table["variants"]
        for failure in row["failures"]
    ]
    failed = sum(len(row["failures"]) for row in table["variants"])
    if waiting := table["total"] - table["finished"] - failed:
        lines.append(f"{waiting} of {table['total']} runs are not finished")
    return lines


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""
    line = lambda row: f"| {' | '.join(_escaped(cell) for cell in row)} |"
    lines = [f"# {_escaped(table['title'])}", "", line(header(table))]
    lines.append(line(["---", *["---:"] * (len(header(table)) - 1)]))
    lines += [line(cells(row, table["metrics"])) for row in table["variants"]]
    lines += [
        "",
        f"Test split, best epoch by validation {table['select']}; mean ± standard deviation over"
        " seeds, where there are several.",
    ]
    if remarks := notes(table):
        lines += ["", *(f"- {_escaped(remark)}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """The table as CSV: a column for every mean, deviation and published metric."""
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
            *(
                f"{name}_{kind}"
                for name in table["metrics"]
                for kind in ("mean", "std", "published")
            ),
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
                *(kind.get(name) for name in table["metrics"] for kind in kinds),
                row["parameters"],
                row["flops_video"],
                row["flops_caption"],
                row["seconds_per_epoch"],
            ]
        )
    return out.getvalue()


def show(table: Table) -> None:
    """Prints the table and its notes to standard output."""
    view = rich.table.Table(
        title=rich.markup.escape(table["title"]), box=rich.box.SIMPLE_HEAD, title_justify="left"
    )
    for index, column in enumerate(header(table)):
        view.add_column(column, justify="right" if index else "left")
    for row in table["variants"]:
        view.add_row(*(rich.markup.escape(cell) for cell in cells(row, table["metrics"])))
    console = rich.console.Console()
    if not console.is_terminal:  # a file is as wide as its lines
        console = rich.console.Console(width=400)
        console = rich.console.Console(width=console.measure(view).maximum)
    console.print(view)
    for note in notes(table):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _spread(metric: str, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    written = results.written(metric, mean)
    return written if deviation is None else f"{written} ± {results.written(metric, deviation)}"


def _published(metric: str, value: float | None) -> str:
    """A published figure, with the decimals that papers give: of percentages one."""
    share = metric.rpartition("/")[2] in results.SHARES
    return _formatted(value, ".3f" if share else ".1f")


def _formatted(value: float | None, form: str, unit: float = 1) -> str:
    if value is None:
        return "-"
    return format(value if unit == 1 else value / unit, form)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: nothing of it is a column, emphasis or a tag."""
    for character in "\\|*_`<>[]":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
