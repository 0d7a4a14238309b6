"""Views of a sweep's results: table.json, .md, .csv, the plot and the printed tables.

Published figures are shown as the papers print them. If a figure contradicts its own table, a
further column, "corrected", has the intended figure with a footnote.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.console
from ml_collections import ConfigDict

from hlformer_jax import cli, files
from hlformer_jax.figures import curves
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import EMPTY, MAX_LEAVES, part_label
from hlformer_jax.sweep import Run, change_of
from hlformer_jax.sweep.comparison import LEVEL
from hlformer_jax.sweep.results import COSTS, Table, collect, is_ranked

NAMES = ("table.json", "table.md", "table.csv", "sweep.png", "sweep.svg")
"""The files of a sweep's results."""


def check_place(root: Path, replace: files.Replace) -> None:
    """Check that the tables and the plot may be written into a directory.

    Raises:
      OSError: if an existing file must not be replaced.
    """
    for name in NAMES:
        files.check_output(root / name, replace)


def publish(
    sweep: ConfigDict,
    runs: Sequence[Run],
    root: Path,
    replace: files.Replace = files.Replace.OWN,
    selection: Sequence[Run] | None = None,
) -> Table:
    """Write the tables and the plot of all runs of a sweep.

    Each of several tasks writes them when one of its runs ends. If another run has ended while a
    task was writing, the task writes again, so that the last version is complete.

    Args:
      sweep: the sweep's configuration.
      runs: all runs of the sweep.
      root: the directory of the sweep.
      replace: which existing files may be replaced.
      selection: the runs of the variants that were not left out; None for all runs.

    Returns:
      The content of table.json.

    Raises:
      MixedDataError: if the data of a variant was replaced between two of its runs.
      WorkdirError: if a finished run has other settings than the sweep.
    """
    table = collect(sweep, runs, root, selection)
    while True:
        write(table, root, replace)
        newest = collect(sweep, runs, root, selection)
        if newest == table:
            return table
        table = newest


def write(table: Table, root: Path, replace: files.Replace = files.Replace.OWN) -> None:
    """Write table.json, table.md, table.csv and the plot into the sweep's directory."""
    files.write_json(root / "table.json", table, replace)
    files.write_bytes(root / "table.md", markdown(table).encode(), replace)
    files.write_bytes(root / "table.csv", as_csv(table).encode(), replace)
    curves.draw_sweep(table, root, replace)


class Section(NamedTuple):
    """A table of the printed views and of table.md.

    Attributes:
      title: the heading.
      rows: the cells; the first row is the head.
      note: explanation below the table.
      groups: numbers of adjacent columns that must not be separated, from left to right, without
        the first column.
    """

    title: str
    rows: list[list[str]]
    note: str
    groups: tuple[int, ...] = ()


class Column(NamedTuple):
    """A metric in a table, with columns of its published and corrected figures if there are any."""

    metric: str  # without the name of a part of the test split; or a change ("Δ METRIC")
    published: bool
    corrected: bool

    @property
    def heads(self) -> list[str]:
        """The heads of the columns of the metric."""
        kinds = ["", *["published"] * self.published, *["corrected"] * self.corrected]
        return [f"{self.metric} {kind}".strip() for kind in kinds]


def sections(table: Table) -> list[Section]:
    """Return the main table and the tables of parts, costs, first moments and comparisons."""
    ranked = bool(table["corpora"])
    metrics = [name for name in table["metrics"] if "=" not in name]
    over = "corpora and seeds" if ranked else "seeds"
    columns = _columns(table, metrics)
    head = ["", *(head for column in columns for head in column.heads)]
    rows = [[*head, *(["rank"] if ranked else []), "runs" if ranked else "seeds"]]
    for row in table["variants"]:
        cells = [row["variant"], *_figures(table, row, columns)]
        cells += [_formatted(row["rank"], ".1f")] if ranked else []
        rows.append([*cells, _count_runs(row)])
    for row in table["references"]:
        cells = [row["method"], *_figures(table, row, columns)]
        rows.append(cells + [EMPTY] * (len(rows[0]) - len(cells)))
    for row in table["cited"]:
        if any("=" not in metric for metric in row["published"]):
            cells = [f"{row['method']} (cited)", *_figures(table, row, columns)]
            rows.append(cells + [EMPTY] * (len(rows[0]) - len(cells)))
    select = table["select"]
    epoch = "last epoch" if select == ranking.LAST else f"best epoch by validation {select}"
    note = (
        f"Test split, {epoch}; mean ± standard deviation"
        f" over seeds{(' within a corpus' if ranked else '')}, if there are several."
    )
    if ranked:
        note += " Means are over the seeds of each corpus, then over corpora."
    if table["references"]:
        note += " Rows without seeds are references on the same test split."
    if table["cited"]:
        note += " Cited methods are not trained here."
    groups = (*(len(column.heads) for column in columns), *[1] * (2 if ranked else 1))
    parts = [Section(table["title"], rows, note, groups), *_parts(table)]
    parts += [_costs(table)] if table["finished"] else []
    if table["localisation"]:
        names = table["localisation"]
        rows = [["", *names]]
        for row in table["variants"]:
            spreads = [_spread(name, row["mean"][name], row["std"][name]) for name in names]
            rows.append([row["variant"], *spreads])
        note = f"The first moment in the caption's own video, in percent; over {over} as above."
        parts.append(Section("Localisation", rows, note + table["coverage"]))
    if table["comparisons"]:
        head = ["", "difference", "queries", "queries, seeds", "real"]
        rows = [head, *map(_compared, table["comparisons"])]
        note = (
            f"Differences of SumR with {LEVEL:.0%} intervals of a paired bootstrap over"
            " queries, and over queries and seeds. A difference is real if the latter"
            " interval does not contain 0."
        )
        parts.append(Section("Comparisons", rows, note))
    return parts


def _columns(table: Table, metrics: Sequence[str], prefixes: Sequence[str] = ("",)) -> list[Column]:
    """Return the columns of some metrics, and of the last metric's change if there is any.

    Args:
      table: the table.
      metrics: names of the metrics, without the name of a part of the test split.
      prefixes: the starts of their full names, such as "leaves=2/" for a part.
    """
    rows = [*table["variants"], *table["cited"]]

    def has(kind: str, name: str) -> bool:
        return any(f"{prefix}{name}" in row[kind] for row in rows for prefix in prefixes)

    changes = [change_of(metric) for metric in metrics[-1:]]
    names = [*metrics, *(x for x in changes if table["relative"] or has("published", x))]
    return [Column(name, has("published", name), has("corrected", name)) for name in names]


def _figures(
    table: Table, row: Mapping[str, Any], columns: Sequence[Column], prefix: str = ""
) -> list[str]:
    """Return the cells of some columns: measured, published and corrected figures of a row."""
    marks = {
        (note["name"], note["metric"]): _superscript(note["number"]) for note in table["footnotes"]
    }
    name = row["variant"] if "variant" in row else row["method"]
    cells = []
    for column in columns:
        metric, is_change = f"{prefix}{column.metric}", column.metric.startswith("Δ ")
        if is_change:
            cells.append(_formatted(change(table, row, metric), "+.2f", suffix=" %"))
        elif "mean" in row:
            cells.append(_spread(metric, row["mean"][metric], row["std"][metric]))
        else:
            cells.append(EMPTY)
        mark = marks.get((name, metric), "")
        for kind in ["published"] * column.published + ["corrected"] * column.corrected:
            value = row[kind].get(metric)
            if is_change:
                text = _formatted(value, "+.2f", suffix=" %")
            elif kind == "corrected":
                text = EMPTY if value is None else f"{value:g}"
            else:
                text = _published(metric, value)
            cells.append(text if value is None else f"{text}{mark}")
    return cells


def _superscript(number: int) -> str:
    return " " + str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _count_runs(row: Mapping[str, Any]) -> str:
    """Return the number of a variant's finished runs, or the reason why no run is finished."""
    finished, planned = len(row["seeds"]), len(row["seeds"]) + len(row["missing_seeds"])
    if not finished and row["left_out"]:
        return "left out"
    if not finished and row["skipped"]:
        return "skipped"
    return f"{finished}" if finished == planned else f"{finished} of {planned}"


def _parts(table: Table) -> list[Section]:
    """Return tables of the parts of the test split; parts with the same metrics share a table."""
    columns: dict[str, list[str]] = {}
    names = [name for name in table["metrics"] if "=" in name] + table["parts"]
    for part, _, metric in (name.partition("/") for name in names):
        columns.setdefault(part, []).append(metric)
    sections = []
    for shown in dict.fromkeys(map(tuple, columns.values())):
        parts = [part for part, names in columns.items() if tuple(names) == shown]
        part_columns = _columns(table, shown, [f"{part}/" for part in parts])
        rows = [["", *(head for column in part_columns for head in column.heads)]]
        for part in parts:
            prefix, label = f"{part}/", part_label(part)
            for row in table["variants"]:
                cells = _figures(table, row, part_columns, prefix)
                rows.append([f"{label}, {row['variant']}", *cells])
            for row in table["cited"]:
                if any(metric.startswith(prefix) for metric in row["published"]):
                    cells = _figures(table, row, part_columns, prefix)
                    rows.append([f"{label}, {row['method']} (cited)", *cells])
        kinds = " and ".join(dict.fromkeys(part.partition("=")[0] for part in parts))
        groups = tuple(len(column.heads) for column in part_columns)
        note = "Over the queries of each part; as above." + table["coverage"]
        sections.append(Section(f"By {kinds}", rows, note, groups))
    return sections


def _costs(table: Table) -> Section:
    """Return the table of the costs of each variant, beside published costs if any."""
    timed = any(row["seconds_query"] is not None for row in table["variants"])
    rows: list[list[str]] = [[""]]
    groups = []
    for name in list(COSTS)[: None if timed else -2]:
        published = any(name in row["published_costs"] for row in table["variants"])
        rows[0] += [COSTS[name][0], *([f"{COSTS[name][0]} published"] if published else [])]
        groups.append(1 + published)
    for row in table["variants"]:
        cells = [row["variant"]]
        for name, width in zip(COSTS, groups, strict=False):
            cells.append(_cost(name, row[name]))
            if width == 2:
                cells.append(_cost(name, row["published_costs"].get(name)))
        rows.append(cells)
    note = (
        f"Of the first finished run of each variant; {COSTS['seconds_per_epoch'][0]} is the mean"
        " over its finished runs."
    )
    return Section("Cost", rows, note, tuple(groups))


def change(table: Table, row: Mapping[str, Any], name: str) -> float | None:
    """Return the change of a metric from the reference variant, in percent.

    Args:
      table: the table.
      row: the row of a variant.
      name: name of the change, from `change_of`.

    Returns:
      The change; None if there is no reference or if one of the two values is missing.
    """
    reference_name = table["relative"].get(row.get("variant"))
    metric = name.replace("Δ ", "", 1)
    for base in (base for base in table["variants"] if base["variant"] == reference_name):
        value, reference = row["mean"].get(metric), base["mean"].get(metric)
        if value is not None and reference:
            return float(100 * (value / reference - 1))
    return None


def _cost(name: str, value: float | None) -> str:
    _, form, unit = COSTS[name]
    if value is None:
        return EMPTY
    if form == ",d":
        return format(round(value / unit), form)
    return format(value / unit, form) if form else cli.three_digits(value / unit)


def _compared(pair: Mapping[str, Any]) -> list[str]:
    def interval(bounds: Sequence[float]) -> str:
        return f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"

    return [
        f"{pair['first']} − {pair['second']}",
        f"{pair['difference']:+.2f}",
        interval(pair["queries"]),
        interval(pair["queries_seeds"]) if pair["queries_seeds"] else EMPTY,
        {True: "yes", False: "no", None: EMPTY}[pair["real"]],
    ]


def notes(table: Table) -> list[str]:
    """Return the notes below the table.

    They are footnotes of corrected figures, remarks of the sweep, reasons for missing figures,
    changed settings, skipped variants, failures, variants that were left out, and the number of
    runs that are not finished.
    """
    reasons = {note["number"]: note["reason"] for note in table["footnotes"]}
    lines = [f"{_superscript(number).strip()} {reason}" for number, reason in reasons.items()]
    lines += [*table["notes"], *table["absent"]]
    if changed := table["changed"]:
        settings = ", ".join(f"{name} = {value}" for name, value in changed.items())
        lines.append(f"other settings than the published ones: {settings}")
    rows = table["variants"]
    lines += [
        f"{row['variant']} skipped, its data is missing: {reason}"
        for row in rows
        for reason in dict.fromkeys(skipped["reason"] for skipped in row["skipped"])
    ]
    lines += [
        f"{failure['title']} failed: {failure['reason']}"
        for row in rows
        for failure in row["failures"]
    ]
    if left_out := [row["variant"] for row in rows if row["left_out"] and not row["runs"]]:
        lines.append(f"left out on request: {', '.join(left_out)}")
    unranked = [row["variant"] for row in rows if table["corpora"] and not is_ranked(row)]
    if unranked:
        lines.append(f"ranks are among the other variants, without {', '.join(unranked)}")
    selected = [row for row in rows if not row["left_out"]]
    explained = sum(len(row["failures"]) + len(row["skipped"]) for row in selected)
    missing = sum(len(row["missing_seeds"]) for row in selected)
    if waiting := missing - explained:
        lines.append(f"{waiting} of {table['total']} runs are not finished")
    return lines


def markdown(table: Table) -> str:
    """Return the tables in GitHub's Markdown."""

    def line(row: Sequence[str]) -> str:
        return f"| {' | '.join(_escaped(cell) for cell in row)} |"

    lines: list[str] = []
    for section in sections(table):
        head, *rows = section.rows
        if lines:
            lines += ["", f"## {_escaped(section.title)}"]
        else:
            lines += [f"# {_escaped(section.title)}", ""]
            lines += [f"- {_escaped(about)}" for about in table["about"]]
        lines += ["", line(head), line(["---", *["---:"] * (len(head) - 1)]), *map(line, rows)]
        lines += ["", section.note]
    if remarks := notes(table):
        lines += ["", *(f"- {_escaped(remark)}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """Return the table as CSV, with a row for every variant, reference and cited method.

    Every metric has columns of its mean, deviation, published and corrected figure. A missing value
    is an empty cell.
    """
    rows = []
    data = table["data"]
    splits = [x.get("splits", {}) for x in data]
    of_data = {
        "data": " and ".join(dict.fromkeys(x["title"] for x in data)),
        "feature": " and ".join(dict.fromkeys(x["feature"] for x in data)),
        "synthetic": any(x["synthetic"] for x in data),
        **{
            f"{name}_videos": " and ".join(str(sizes[name]["videos"]) for sizes in splits if sizes)
            for name in ("train", "val", "test")
        },
        "published_on": table["published_on"],
    }
    names = (*table["metrics"], *table["parts"], *table["localisation"])
    rows_of_table = [*table["variants"], *table["references"], *table["cited"]]
    changes = [
        name
        for name in map(change_of, table["metrics"])
        if table["relative"] or any(name in row["published"] for row in rows_of_table)
    ]
    reasons = {(note["name"], note["metric"]): note["reason"] for note in table["footnotes"]}
    for row in rows_of_table:
        trained = "variant" in row
        label = row["variant"] if trained else row["method"]
        cells: dict[str, Any] = {"variant": label, "cited": row in table["cited"]}
        cells |= {name: row.get(name) for name in ("series", "value")}
        if trained:
            cells["seeds"] = " ".join(map(str, row["seeds"]))
            cells |= {name: len(row[name]) for name in ("failures", "skipped")}
            cells["missing"] = len(row["missing_seeds"])
        if table["corpora"]:
            cells["rank"] = row.get("rank")
        for name in names:
            for kind in ("mean", "std", "published", "corrected"):
                cells[f"{_csv_name(name)}_{kind}"] = row.get(kind, {}).get(name)
        for name in changes:
            cells[f"{_csv_name(name)}_measured"] = change(table, row, name)
            for kind in ("published", "corrected"):
                cells[f"{_csv_name(name)}_{kind}"] = row[kind].get(name)
        cells |= {name: row.get(name) for name in COSTS}
        published_costs = row.get("published_costs", {})
        cells |= {f"{name}_published": published_costs.get(name) for name in COSTS}
        mine = [reasons[key] for key in reasons if key[0] == label]
        cells["footnotes"] = " ".join(dict.fromkeys(mine))
        rows.append(cells | of_data)
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_name(metric: str) -> str:
    """Return a metric's name in CSV; the group of trees with the most leaves has ">=" for "="."""
    return metric.replace(f"leaves={MAX_LEAVES}/", f"leaves>={MAX_LEAVES}/")


def show(table: Table) -> None:
    """Print the tables and their notes; in a narrow terminal a table is split into several."""
    console = rich.console.Console()
    for index, section in enumerate(sections(table)):
        title = section.title
        if index == 0:
            title = "\n".join([section.title, *table["about"]])
        cli.print_table(section.rows[0], section.rows[1:], title, groups=section.groups)
        console.print(section.note, markup=False, highlight=False, soft_wrap=True)
    for note in notes(table):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _spread(metric: str, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return EMPTY
    values = [value for value in (mean, deviation) if value is not None]
    return " ± ".join(ranking.format_metric(metric, value) for value in values)


def _published(metric: str, value: float | None) -> str:
    """Format a published figure: one decimal for percentages, three for `ranking.SHARES`."""
    share = metric.rpartition("/")[2] in ranking.SHARES
    return _formatted(value, ".3f" if share else ".1f")


def _formatted(value: float | None, form: str, suffix: str = "") -> str:
    return EMPTY if value is None else f"{value:{form}}{suffix}"


def _escaped(text: str) -> str:
    """Escape a text, so that Markdown shows it unchanged."""
    for character in "\\|*_`<>[]":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
