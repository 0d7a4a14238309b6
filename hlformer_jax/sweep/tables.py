"""The results of a sweep so far: metrics of every variant over its finished runs, and their views.

The spread is the sample standard deviation over seeds (n - 1). Over several corpora, a mean is the
mean over corpora of the mean over seeds, and the spread is the root of the mean of the variances. A
single seed has no spread. With several corpora, the variants are ranked by the last metric; the
rank is a mean over the pairs of corpus and seed for which all variants are finished, apart from
variants without runs that were left out or skipped. table.json, .md, .csv, the plot and the printed
tables are views of one `Table`.

Published figures are shown as the papers print them. If a figure contradicts its own table, a
further column, "corrected", has the intended figure with a footnote.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rich.console
from ml_collections import ConfigDict

from hlformer_jax import cli, files
from hlformer_jax.config import describe_data
from hlformer_jax.figures import curves
from hlformer_jax.retrieval import moments, ranking
from hlformer_jax.retrieval.ranking import EMPTY, MAX_LEAVES, part_label
from hlformer_jax.sweep import Run, change_of, changed_fields
from hlformer_jax.sweep.comparison import LEVEL, compare, describe_left_out
from hlformer_jax.sweep.provenance import (
    check_same_data,
    describe_environments,
    describe_unrecorded,
    name_data,
)
from hlformer_jax.sweep.runs import FAILURE, RESULT, read_result

Table = dict[str, Any]
"""The content of table.json."""

NAMES = ("table.json", "table.md", "table.csv", "sweep.png", "sweep.svg")
"""The files of a sweep's results."""

LOCATIONS = ("data.manual_dir", "data.data_dir")
"""Fields with the location of data, which does not affect the results."""

COSTS: Mapping[str, tuple[str, str, float]] = {
    "parameters": ("parameters", ",d", 1),
    "flops_video": ("GFLOPs/video", ".3f", 1e9),
    "flops_caption": ("MFLOPs/caption", ".2f", 1e6),
    "seconds_per_epoch": ("s/epoch", "", 1),
    "seconds_query": ("ms/query", "", 1e-3),
    "bytes_corpus": ("MB of 2,500 videos", ".1f", 1e6),
}
"""Costs of a variant: head, format ("" for three digits) and unit of the column.

The last two exist only in sweeps that are `timed`.
"""


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


def collect(
    sweep: ConfigDict, runs: Sequence[Run], root: Path, selection: Sequence[Run] | None = None
) -> Table:
    """Return the table of a sweep's results so far; for the arguments see `publish`.

    Raises:
      MixedDataError: if the data of a variant was replaced between two of its runs.
      WorkdirError: if a finished run has other settings than the sweep.
    """
    selection = runs if selection is None else selection
    trained = {run.variant for run in selection}
    rows = []
    finished = {run.directory: _read_finished(root / run.directory / RESULT) for run in runs}
    have_ended = [run for run in runs if finished[run.directory] is not None]
    unrecorded = check_same_data(runs, have_ended, root)
    results_so_far = [result for result in finished.values() if result is not None]
    measured = [result["metrics"] for result in results_so_far]
    common = [name for name in measured[0] if all(name in x for x in measured)] if measured else []
    localised = set(moments.METRICS) <= set(common)
    # Parts of the test split by the ratio of moment to video, if all runs have annotated moments.
    parts = [name for name in common if name.startswith("ratio=") and name not in sweep.metrics]
    names = [*sweep.metrics, *parts, *(moments.METRICS if localised else ())]
    for name in sweep.variants:
        results, missing = [], []
        failures: list[dict[str, str]] = []
        skipped: list[dict[str, str]] = []
        for run in (run for run in runs if run.variant == name):
            if (result := finished[run.directory]) is not None:
                place = {"directory": str(run.directory), "title": run.title}
                results.append({**result, **place})
                continue
            missing.append(run.seed)
            if failure := read_result(root / run.directory / FAILURE):
                attempt = {"title": run.title, "reason": failure["reason"]}
                (skipped if failure.get("skipped") else failures).append(attempt)
        value = sweep["values"].get(name)
        rows.append(
            {
                "variant": name,
                # JSON has no infinity; Python's float accepts this word.
                "value": "inf" if value is not None and math.isinf(value) else value,
                "series": sweep.series.get(name, ""),
                "published": dict(sweep.published.get(name, {})),
                "corrected": _corrected(sweep, name),
                "published_costs": dict(sweep.published_costs.get(name, {})),
                **_summary(results, names),
                "seeds": [result["seed"] for result in results],
                "missing_seeds": missing,
                "failures": failures,
                "skipped": skipped,
                "left_out": name not in trained,
                "runs": results,
            }
        )
    if sweep.corpora:
        _rank(rows, sweep.metrics[-1])
    data = _describe_data(runs, finished)
    return {
        "title": f"{sweep.title}: {' and '.join(dict.fromkeys(x['title'] for x in data))}",
        "about": _about(sweep, data),
        "data": data,
        "quantity": sweep.quantity,
        "metrics": list(sweep.metrics),
        "parts": parts,
        "relative": dict(sweep.relative),
        "localisation": list(moments.METRICS) if localised else [],
        "coverage": _describe_coverage(rows),
        "corpora": list(sweep.corpora),
        "comparisons": compare(sweep.pairs, have_ended, root),
        "select": " or ".join(sorted({run.config.eval.select for run in runs})),
        "changed": {
            name: value for name, value in changed_fields(sweep).items() if name not in LOCATIONS
        },
        "cited": [
            {"method": name, "published": dict(figures), "corrected": _corrected(sweep, name)}
            for name, figures in sweep.cited.items()
        ],
        "references": _references(runs, finished, names),
        "published_on": sweep.published_on,
        "footnotes": _footnotes(sweep),
        "absent": _absent(rows, names),
        "notes": [
            *sweep.notes,
            *describe_unrecorded(unrecorded),
            *describe_environments(results_so_far),
            *describe_left_out(sweep.pairs, have_ended, root),
            *_describe_corpora(rows),
        ],
        "finished": len(results_so_far),
        "total": len(runs),
        "variants": rows,
    }


def _read_finished(path: Path) -> dict[str, Any] | None:
    """Read result.json, with the names of metrics that are null or NaN as "undefined"."""
    result = read_result(path)
    if result is None:
        return None
    metrics = result["metrics"]
    undefined = [name for name, value in metrics.items() if value is None or math.isnan(value)]
    if not undefined:
        return result
    defined = {name: value for name, value in metrics.items() if name not in undefined}
    return result | {"metrics": defined, "undefined": undefined}


def _references(
    runs: Sequence[Run], finished: Mapping[Path, Mapping[str, Any] | None], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each reference of the runs, such as the linear baseline.

    References depend only on the data. For each corpus and each data set the first run is used, and
    corpora are averaged. A row whose features are not unique names them; if variants have other
    data with the same features, a row names the first of its variants as well.
    """
    # For each method and features a row for each data set: its first variant, and by corpus the
    # name of the data and the metrics.
    rows: dict[tuple[str, str], list[tuple[str, dict[str, tuple[str, Any]]]]] = {}
    for run in runs:
        result = finished[run.directory] or {}
        feature = result.get("data", {}).get("feature", "")
        for method, metrics in result.get("references", {}).items():
            same_features = rows.setdefault((method, feature), [])
            found = name_data(run.config), metrics
            for _, corpora in same_features:
                name, values = corpora.setdefault(run.corpus, found)
                if name == found[0] or values == metrics:  # a teacher changes no reference
                    break
            else:
                same_features.append((run.variant, {run.corpus: found}))
    features = {feature for _, feature in rows}
    return [
        {
            "method": method
            + (f", {feature}" if len(features) > 1 else "")
            + (f", data of {variant}" if len(same_features) > 1 else ""),
            **_summary([{"corpus": key, "metrics": x} for key, (_, x) in corpora.items()], names),
            "published": {},
            "corrected": {},
        }
        for (method, feature), same_features in rows.items()
        for variant, corpora in same_features
    ]


def _describe_data(
    runs: Sequence[Run], finished: Mapping[Path, Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    """Return the distinct descriptions of the runs' data, with split sizes if a run is finished.

    A description without sizes is left out if another one differs from it only by its sizes.
    """
    described: dict[str, dict[str, Any]] = {}
    with_sizes: set[str] = set()
    for run in runs:
        result = finished[run.directory] or {}
        data = {"corpus": run.corpus, **(result.get("data") or describe_data(run.config))}
        described.setdefault(repr(sorted(data.items())), data)
        if "splits" in data:
            with_sizes.add(_without_sizes(data))
    return [
        data
        for data in described.values()
        if "splits" in data or _without_sizes(data) not in with_sizes
    ]


def _without_sizes(data: Mapping[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in data.items() if name != "splits"))


def _about(sweep: ConfigDict, data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines that name the data of the measured and of the published figures."""
    lines = []
    for corpus_data in data:
        corpus = f"corpus {corpus_data['corpus']}, " if corpus_data.get("corpus") else ""
        lines.append(f"Measured on: {corpus}{_data_line(corpus_data)}")
    synthetic = any(corpus_data["synthetic"] for corpus_data in data)
    if synthetic:
        lines.append(
            "The videos are synthetic, made by this program: the measured figures say nothing about"
            " any data set"
            + (" and cannot be compared with the published ones." if sweep.published_on else ".")
        )
    seeds = ", ".join(map(str, sweep.seeds))
    lines.append(f"{'Seeds' if len(sweep.seeds) > 1 else 'Seed'}: {seeds}")
    if sweep.published_on:
        lines.append(f"Published figures, as the papers print them, on: {sweep.published_on}")
    return lines


def _data_line(data: Mapping[str, Any]) -> str:
    """Return a data set with its features and the sizes of its splits in one line."""
    features = (
        f"features {data['feature']} ({data['visual_dim']} wide) and texts"
        f" ({data['text_dim']} wide)"
    )
    words = {"train": "training", "val": "validation", "test": "test"}
    sizes = [
        f"{words[split]} "
        + ", ".join(f"{n:,} {name if n != 1 else name[:-1]}" for name, n in counts.items())
        for split, counts in data.get("splits", {}).items()
    ]
    tested = [f"tested on {data['tested_on']}"] if "tested_on" in data else []
    return "; ".join([f"{data['title']}, {features}", *tested, *sizes])


def _corrected(sweep: ConfigDict, name: str) -> dict[str, float]:
    """Return the corrected figures of a variant or a method."""
    return {metric: value for metric, (value, _) in sweep.corrections.get(name, {}).items()}


def _footnotes(sweep: ConfigDict) -> list[dict[str, Any]]:
    """Return the corrections with their reasons, numbered from 1; equal reasons share a number."""
    numbers: dict[str, int] = {}
    footnotes = []
    for name, figures in sweep.corrections.items():
        printed = sweep.published.get(name) or sweep.cited[name]
        for metric, (value, reason) in figures.items():
            footnotes.append(
                {
                    "number": numbers.setdefault(reason, len(numbers) + 1),
                    "name": name,
                    "metric": metric,
                    "published": printed[metric],
                    "corrected": value,
                    "reason": reason,
                }
            )
    return footnotes


def _absent(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return why metrics are missing from finished runs, a line for each group of queries."""
    runs = [run for row in rows for run in row["runs"]]
    reasons: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        lacking = [run["title"] for run in runs if name not in run["metrics"]]
        if not lacking:
            continue
        part = name.partition("/")[0] if "=" in name else ""
        what = f"the test split has no query of {part_label(part)}" if part else f"no {name}"
        if any(name in run.get("undefined", ()) for run in runs):
            what = f"the test split has no pairs or trees to measure {name} on"
        titles = reasons.setdefault((what,), [])
        titles += [title for title in lacking if title not in titles]
    lines = []
    for (what,), titles in reasons.items():
        where = "every run" if len(titles) == len(runs) else "; ".join(titles)
        lines.append(f"{EMPTY} in {where}: {what}")
    return lines


def _describe_coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of captions with times if some have none; otherwise ""."""
    counts = dict.fromkeys(
        (run.get("corpus", ""), timed, run["queries"])
        for row in rows
        for run in row["runs"]
        if (timed := run.get("timed_queries")) is not None and timed < run["queries"]
    )
    if not counts:
        return ""
    shares = [
        f"{timed:,} of {queries:,}" + (f" of corpus {corpus}" if corpus else "")
        for corpus, timed, queries in counts
    ]
    return f" Only captions with times of moments count: {', '.join(shares)}."


def _summary(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    metrics = {
        name: _by_corpus(results, [x["metrics"].get(name) for x in results]) for name in names
    }
    seconds = _by_corpus(results, [x.get("seconds_per_epoch") for x in results])
    first = results[0] if results else {}
    return {
        "mean": {name: _mean(values) for name, values in metrics.items()},
        "std": {name: _deviation(values) for name, values in metrics.items()},
        **{name: first.get(name) for name in COSTS},
        "seconds_per_epoch": _mean(seconds),
    }


def _by_corpus(
    results: Sequence[Mapping[str, Any]], values: Sequence[float | None]
) -> list[list[float]]:
    """Return the values that are not None in a list for each corpus."""
    corpora: dict[str, list[float]] = {}
    for result, value in zip(results, values, strict=True):
        if value is not None:
            corpora.setdefault(result.get("corpus", ""), []).append(value)
    return list(corpora.values())


def _mean(corpora: Sequence[Sequence[float]]) -> float | None:
    """Return the mean over corpora of the mean over seeds."""
    return float(np.mean([np.mean(values) for values in corpora])) if corpora else None


def _deviation(corpora: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation over seeds; over corpora the root of the mean variance."""
    squares = [np.var(values, ddof=1) for values in corpora if len(values) > 1]
    return float(np.sqrt(np.mean(squares))) if squares else None


def _describe_corpora(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each variant without a finished run on a corpus that others have."""
    measured = {row["variant"]: {run.get("corpus", "") for run in row["runs"]} for row in rows}
    corpora = sorted(set().union(*measured.values()))
    lines = []
    for name, own in measured.items():
        if own and (missing := [corpus for corpus in corpora if corpus not in own]):
            lines.append(
                f"{name} has no finished run on {', '.join(missing)}: its means are over fewer"
                " corpora, so do not compare them with those of other variants"
            )
    return lines


def _is_ranked(row: Mapping[str, Any]) -> bool:
    """Return False for a variant without finished runs that was left out or skipped."""
    return bool(row["runs"]) or not (row["left_out"] or row["skipped"])


def _rank(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Add the mean rank, from 1, among the variants that `_is_ranked` selects, to their rows.

    None for other variants, and if no pair of corpus and seed is finished for all ranked variants.
    """
    ranked = [row for row in rows if _is_ranked(row)]
    cells: dict[tuple[str, int], list[float]] = {}
    for row in ranked:
        for run in (run for run in row["runs"] if metric in run["metrics"]):
            cells.setdefault((run["corpus"], run["seed"]), []).append(run["metrics"][metric])
    complete = [np.asarray(values) for values in cells.values() if len(values) == len(ranked)]
    ranks = [1 + np.sum(values[None] > values[:, None], axis=-1) for values in complete]
    for row in rows:
        row["rank"] = None
    for k, row in enumerate(ranked):
        row["rank"] = float(np.mean([corpus_ranks[k] for corpus_ranks in ranks])) if ranks else None


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

    metric: str  # full name of the metric
    head: str
    published: bool
    corrected: bool

    @property
    def heads(self) -> list[str]:
        """The heads of the columns of the metric."""
        kinds = ["", *["published"] * self.published, *["corrected"] * self.corrected]
        return [f"{self.head} {kind}".strip() for kind in kinds]


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
    note = (
        f"Test split, best epoch by validation {table['select']}; mean ± standard deviation"
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
        rows = [["", *names], *([row["variant"], *_means(row, names)] for row in table["variants"])]
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


def _columns(table: Table, metrics: Sequence[str]) -> list[Column]:
    """Return the columns of some metrics, and of the last metric's change if there is any."""
    rows = [*table["variants"], *table["cited"]]
    names = [(metric, metric.partition("/")[2] if "=" in metric else metric) for metric in metrics]
    change = change_of(metrics[-1])
    if table["relative"] or any(change in row["published"] for row in rows):
        names.append((change, f"Δ {names[-1][1]}"))
    return [
        Column(
            name,
            head,
            any(name in row["published"] for row in rows),
            any(name in row["corrected"] for row in rows),
        )
        for name, head in names
    ]


def _figures(table: Table, row: Mapping[str, Any], columns: Sequence[Column]) -> list[str]:
    """Return the cells of some columns: measured, published and corrected figures of a row."""
    marks = {
        (note["name"], note["metric"]): _superscript(note["number"]) for note in table["footnotes"]
    }
    name = row["variant"] if "variant" in row else row["method"]
    cells = []
    for column in columns:
        metric, is_change = column.metric, column.head.startswith("Δ ")
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
        # A column exists if any of the parts has figures for it.
        merged = [_columns(table, [f"{part}/{metric}" for metric in shown]) for part in parts]
        widest = [
            (any(x.published for x in metric), any(x.corrected for x in metric))
            for metric in zip(*merged, strict=True)
        ]
        rows: list[list[str]] = []
        groups: tuple[int, ...] = ()
        for part, part_columns in zip(parts, merged, strict=True):
            wide = [
                column._replace(published=published, corrected=corrected)
                for column, (published, corrected) in zip(part_columns, widest, strict=True)
            ]
            if not rows:
                rows.append(["", *(head for column in wide for head in column.heads)])
                groups = tuple(len(column.heads) for column in wide)
            for row in table["variants"]:
                name = f"{part_label(part)}, {row['variant']}"
                rows.append([name, *_figures(table, row, wide)])
            for row in table["cited"]:
                if any(metric.startswith(f"{part}/") for metric in row["published"]):
                    name = f"{part_label(part)}, {row['method']} (cited)"
                    rows.append([name, *_figures(table, row, wide)])
        kinds = " and ".join(dict.fromkeys(part.partition("=")[0] for part in columns))
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


def _means(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_spread(name, row["mean"][name], row["std"][name]) for name in names]


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
    unranked = [row["variant"] for row in rows if table["corpora"] and not _is_ranked(row)]
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
        if any(name in row["published"] or name in row["corrected"] for row in rows_of_table)
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
        else:
            cells |= dict.fromkeys(("seeds", "failures", "skipped", "missing"))
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
        width = console.width if console.is_terminal else None
        for rows in _blocks(section, width):
            cli.print_table(rows[0], rows[1:], title)
            title = f"{section.title} (continued)"
        console.print(section.note, markup=False, highlight=False, soft_wrap=True)
    for note in notes(table):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _blocks(section: Section, width: int | None) -> list[list[list[str]]]:
    """Split a section's columns into tables of at most `width` characters; None: one table.

    Each table has the first column, and columns of a group stay together.
    """
    if width is None or not section.groups:
        return [section.rows]
    # A column takes two blanks beside its longest cell.
    widths = [2 + max(map(len, column)) for column in zip(*section.rows, strict=True)]
    blocks: list[list[int]] = [[]]
    used, start = widths[0], 1
    for size in section.groups:
        group = list(range(start, start + size))
        needed = sum(widths[k] for k in group)
        if blocks[-1] and used + needed > width:
            blocks.append([])
            used = widths[0]
        blocks[-1] += group
        used, start = used + needed, start + size
    return [[[row[0], *(row[k] for k in block)] for row in section.rows] for block in blocks]


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
