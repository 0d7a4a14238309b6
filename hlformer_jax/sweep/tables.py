"""The tables of a sweep: table.json, .md, .csv and what is printed, all views of `summary`."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.markup
import rich.table

from hlformer_jax import command, files
from hlformer_jax.retrieval import ranking
from hlformer_jax.sweep import comparison
from hlformer_jax.sweep.summary import Table

NAMES = ("table.json", "table.md", "table.csv")


def write(table: Table, root: Path, replace: files.Replace = "own") -> None:
    """Writes table.json, table.md and table.csv into the sweep's directory, each whole."""
    files.write_json(root / "table.json", table, replace)
    files.write_bytes(root / "table.md", markdown(table).encode(), replace)
    files.write_bytes(root / "table.csv", as_csv(table).encode(), replace)


COSTS = ("parameters", "GFLOPs/video", "MFLOPs/caption", "s/epoch")


class Section(NamedTuple):
    """A part of what is printed and of table.md.

    Attributes:
      title: its title.
      rows: its cells, first those of the head.
      note: what is to be known of it.
    """

    title: str
    rows: list[list[str]]
    note: str


def sections(table: Table) -> list[Section]:
    """The table, that of the first moments where they are known, and the comparisons."""
    metrics, ranked = table["metrics"], bool(table["corpora"])
    over = "corpora and seeds" if ranked else "seeds"
    head = ["", *metrics, *(["rank"] if ranked else []), f"published {metrics[-1]}"]
    rows = [[*head, "runs" if ranked else "seeds", *COSTS]]
    rows += [_cells(row, metrics, ranked) for row in table["variants"]]
    note = (
        f"Test split, best epoch by validation {table['select']}; mean ± standard deviation over"
        f" seeds{' within a corpus' if ranked else ''}, where there are several."
    )
    found = [Section(table["title"], rows, note)]
    if table["localisation"]:
        names = table["localisation"]
        rows = [["", *names], *([row["variant"], *_means(row, names)] for row in table["variants"])]
        note = f"The first moment in the caption's own video, in percent; over {over} as above."
        found.append(Section("Localisation", rows, note))
    if table["comparisons"]:
        head = ["", "difference", "queries", "queries, seeds", "real"]
        rows = [head, *map(_compared, table["comparisons"])]
        note = (
            f"Differences of SumR with {comparison.LEVEL:.0%} intervals of a paired bootstrap over"
            " queries, and over queries and seeds; real is what does not hold 0 in the latter."
        )
        found.append(Section("Comparisons", rows, note))
    return found


def _cells(row: Mapping[str, Any], metrics: Sequence[str], ranked: bool) -> list[str]:
    seeds, all_seeds = len(row["seeds"]), len(row["seeds"]) + len(row["missing_seeds"])
    seconds = row["seconds_per_epoch"]
    return [
        row["variant"],
        *_means(row, metrics),
        *([_formatted(row["rank"], ".1f")] if ranked else []),
        _published(metrics[-1], row["published"].get(metrics[-1])),
        f"{seeds}" if seeds == all_seeds else f"{seeds} of {all_seeds}",
        _formatted(row["parameters"], ",d"),
        _formatted(row["flops_video"], ".3f", 1e9),
        _formatted(row["flops_caption"], ".2f", 1e6),
        "-" if seconds is None else command.three_digits(seconds),
    ]


def _means(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_spread(name, row["mean"][name], row["std"][name]) for name in names]


def _compared(pair: Mapping[str, Any]) -> list[str]:
    interval = lambda bounds: f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"
    return [
        f"{pair['first']} − {pair['second']}",
        f"{pair['difference']:+.2f}",
        interval(pair["queries"]),
        interval(pair["queries_seeds"]) if pair["queries_seeds"] else "-",
        {True: "yes", False: "no", None: "-"}[pair["real"]],
    ]


def notes(table: Table) -> list[str]:
    """Notes below the table: settings that are not the file's, failures, runs that are missing."""
    lines = []
    if changed := table["changed"]:
        settings = ", ".join(f"{name} = {value}" for name, value in changed.items())
        lines.append(f"other settings than the published ones: {settings}")
    lines += [
        f"{failure['title']} failed: {failure['reason']}"
        for row in table["variants"]
        for failure in row["failures"]
    ]
    failed = sum(len(row["failures"]) for row in table["variants"])
    if waiting := table["total"] - table["finished"] - failed:
        lines.append(f"{waiting} of {table['total']} runs are not finished")
    return lines


def markdown(table: Table) -> str:
    """The tables in GitHub's Markdown."""
    line = lambda row: f"| {' | '.join(_escaped(cell) for cell in row)} |"
    lines: list[str] = []
    for level, section in enumerate(sections(table)):
        head, *rows = section.rows
        lines += (
            ["", f"## {_escaped(section.title)}"] if level else [f"# {_escaped(section.title)}"]
        )
        lines += ["", line(head), line(["---", *["---:"] * (len(head) - 1)]), *map(line, rows)]
        lines += ["", section.note]
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
            *(["rank"] if table["corpora"] else []),
            *(
                f"{name}_{kind}"
                for name in (*table["metrics"], *table["localisation"])
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
                *([row["rank"]] if table["corpora"] else []),
                *(
                    kind.get(name)
                    for name in (*table["metrics"], *table["localisation"])
                    for kind in kinds
                ),
                row["parameters"],
                row["flops_video"],
                row["flops_caption"],
                row["seconds_per_epoch"],
            ]
        )
    return out.getvalue()


def show(table: Table) -> None:
    """Prints the tables and their notes to standard output."""
    console = rich.console.Console()
    for section in sections(table):
        view = rich.table.Table(
            title=rich.markup.escape(section.title),
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
        )
        head, *rows = section.rows
        for index, column in enumerate(head):
            view.add_column(column, justify="right" if index else "left")
        for row in rows:
            view.add_row(*map(rich.markup.escape, row))
        if not console.is_terminal:  # a file is as wide as its lines
            wide = rich.console.Console(width=400)
            console = rich.console.Console(width=wide.measure(view).maximum)
        console.print(view)
    for note in notes(table):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _spread(metric: str, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    written = ranking.format_metric(metric, mean)
    return (
        written if deviation is None else f"{written} ± {ranking.format_metric(metric, deviation)}"
    )


def _published(metric: str, value: float | None) -> str:
    """A published figure, with the decimals that papers give: of percentages one."""
    share = metric.rpartition("/")[2] in ranking.SHARES
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
