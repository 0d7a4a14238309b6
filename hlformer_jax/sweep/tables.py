"""The results of a sweep so far: every variant's metrics over its finished runs, and their views.

The spread is the sample's standard deviation over seeds (n - 1), over several corpora the root of
the mean of its squares; one seed has none. A rank is that of a variant among all, by the last
metric, in the mean over the corpora and seeds that all have finished. table.json, .md, .csv, the
plot and what is printed are views of one `Table`.

Which differences between variants are real, a paired bootstrap over the test queries says. What a
query adds to SumR is 100 for each k of 1, 5, 10, 100 that its rank is within; the runs of two
variants on a corpus rank the same queries, so their difference is taken query by query. A draw
takes as many videos of each corpus as there are, with replacement, each with all its queries, since
those share what is easy or hard about their video; and as many runs of each variant, with
replacement, for another seed would have given another model. The difference of a draw is the mean
over the corpora of the mean over runs and queries.

Of S runs, the draws vary by (S - 1) / S of what they should: deviations from their mean are
stretched by the root of S / (S - 1). So few runs do not know their own spread either; as with
Student's t, what seeds add is stretched once more, by the ratio of the quantiles of t and of the
normal distribution, with as many degrees of freedom as both variants have runs beyond the first of
a corpus. A variant with single runs says nothing of its seeds: there is no such interval.

    difference       of SumR, first variant minus second: means of the finished runs of each, over
                     the corpora on which both have some
    queries          95 % interval of the draws of videos, with the runs as they are
    queries, seeds   95 % interval of the draws of both; a difference is real where 0 lies outside
                     (where none is, of runs that differ by normal seeds alone, 4 to 7 % of 300
                     are called real, with two, three or five runs, on one corpus or three)

Intervals are each of their own pair, not corrected for the number of pairs.

References: Efron and Tibshirani, An Introduction to the Bootstrap, 1993.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rich.console
from jaxtyping import Float
from ml_collections import ConfigDict
from scipy.special import ndtri, stdtrit

from hlformer_jax import command, files
from hlformer_jax.config import ConfigError
from hlformer_jax.figures import curves
from hlformer_jax.retrieval import localisation, ranking
from hlformer_jax.retrieval.ranking import QUERIES_FILE, RECALLS
from hlformer_jax.sweep import Run, changed_fields
from hlformer_jax.sweep.runs import FAILURE, RESULT, read_result

Table = dict[str, Any]
"""The content of table.json."""

NAMES = ("table.json", "table.md", "table.csv", "sweep.png", "sweep.svg")
"""The files of a sweep's results."""

LOCATIONS = ("data.manual_dir", "data.data_dir")
"""Fields that say where data lies, and nothing of the result."""

COSTS: Mapping[str, tuple[str, str, float]] = {
    "parameters": ("parameters", ",d", 1),
    "flops_video": ("GFLOPs/video", ".3f", 1e9),
    "flops_caption": ("MFLOPs/caption", ".2f", 1e6),
    "seconds_per_epoch": ("s/epoch", "", 1),
    "seconds_query": ("ms/query", "", 1e-3),
    "bytes_corpus": ("MB of 2,500 videos", ".1f", 1e6),
}
"""What a variant costs: head, format ("": three digits) and unit of its column.

The last two are of sweeps that are `timed`.
"""


def check_place(root: Path, replace: files.Replace) -> None:
    """Refuses a directory whose tables or plot must not be replaced."""
    for name in NAMES:
        files.check_output(root / name, replace)


def publish(
    sweep: ConfigDict, runs: Sequence[Run], root: Path, replace: files.Replace = "own"
) -> Table:
    """Writes the tables and the plot of a sweep, of all its runs and not only this task's.

    Of several tasks, each writes when a run of its own ends. One that was overtaken while it wrote
    writes again, so that what the last leaves is complete.
    """
    table = collect(sweep, runs, root)
    while True:
        write(table, root, replace)
        newest = collect(sweep, runs, root)
        if newest == table:
            return table
        table = newest


def write(table: Table, root: Path, replace: files.Replace = "own") -> None:
    """Writes table.json, table.md, table.csv and the plot into the sweep's directory."""
    files.write_json(root / "table.json", table, replace)
    files.write_bytes(root / "table.md", markdown(table).encode(), replace)
    files.write_bytes(root / "table.csv", as_csv(table).encode(), replace)
    curves.draw_sweep(table, root, replace)


def collect(sweep: ConfigDict, runs: Sequence[Run], root: Path) -> Table:
    """Collects the results of a sweep's runs so far."""
    rows = []
    finished = {run.directory: read_result(root / run.directory / RESULT) for run in runs}
    known = [result["metrics"] for result in finished.values() if result is not None]
    common = [name for name in known[0] if all(name in own for own in known)] if known else []
    localised = set(localisation.METRICS) <= set(common)
    # Of parts of the test split by the ratio of moment to video, where all know the moments.
    parts = [name for name in common if name.startswith("ratio=") and name not in sweep.metrics]
    names = [*sweep.metrics, *parts, *(localisation.METRICS if localised else ())]
    for name in sweep.variants:
        results, failures, missing = [], [], []
        for run in (run for run in runs if run.variant == name):
            if (result := finished[run.directory]) is not None:
                place = {"directory": str(run.directory), "title": run.title}
                results.append({**result, **place})
                continue
            missing.append(run.seed)
            if failure := read_result(root / run.directory / FAILURE):
                failures.append({"title": run.title, "reason": failure["reason"]})
        value = sweep["values"].get(name)
        rows.append(
            {
                "variant": name,
                # JSON has no infinity; Python's float takes this word for it.
                "value": "inf" if value is not None and math.isinf(value) else value,
                "series": sweep.series.get(name, ""),
                "published": dict(sweep.published.get(name, {})),
                **_summary(results, names),
                "seeds": [result["seed"] for result in results],
                "missing_seeds": missing,
                "failures": failures,
                "runs": results,
            }
        )
    if sweep.corpora:
        _rank(rows, sweep.metrics[-1])
    return {
        "title": sweep.title,
        "quantity": sweep.quantity,
        "metrics": list(sweep.metrics),
        "parts": parts,
        "relative": dict(sweep.relative),
        "localisation": list(localisation.METRICS) if localised else [],
        "corpora": list(sweep.corpora),
        "comparisons": compare(sweep.pairs, runs, root),
        "select": " or ".join(sorted({run.config.eval.select for run in runs})),
        "changed": {
            name: value for name, value in changed_fields(sweep).items() if name not in LOCATIONS
        },
        "cited": [{"method": name, "published": dict(own)} for name, own in sweep.cited.items()],
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
        "std": {name: _deviation(results, x) for name, x in metrics.items()},
        **{name: first.get(name) for name in COSTS},
        "seconds_per_epoch": float(np.mean(seconds)) if seconds else None,
    }


def _deviation(results: Sequence[Mapping[str, Any]], values: Sequence[float]) -> float | None:
    """Standard deviation over seeds, of several corpora the root of the mean of its squares."""
    corpora: dict[str, list[float]] = {}
    for result, value in zip(results, values, strict=True):
        corpora.setdefault(result.get("corpus", ""), []).append(value)
    squares = [np.var(own, ddof=1) for own in corpora.values() if len(own) > 1]
    return float(np.sqrt(np.mean(squares))) if squares else None


def _rank(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Adds the mean rank of each variant, from 1; None while no seed of a corpus is complete."""
    cells: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for run in row["runs"]:
            cells.setdefault((run["corpus"], run["seed"]), []).append(run["metrics"][metric])
    complete = [np.asarray(values) for values in cells.values() if len(values) == len(rows)]
    ranks = [1 + np.sum(values[None] > values[:, None], axis=-1) for values in complete]
    for k, row in enumerate(rows):
        row["rank"] = float(np.mean([own[k] for own in ranks])) if ranks else None


class Section(NamedTuple):
    """A part of what is printed and of table.md: cells, first those of the head, and a note."""

    title: str
    rows: list[list[str]]
    note: str


def sections(table: Table) -> list[Section]:
    """The table, those of its parts and of first moments where they are known, the comparisons."""
    ranked = bool(table["corpora"])
    metrics = [name for name in table["metrics"] if "=" not in name]
    over = "corpora and seeds" if ranked else "seeds"
    timed = any(row["seconds_query"] is not None for row in table["variants"])
    costs = list(COSTS)[: None if timed else -2]
    change = [f"Δ {metrics[-1]}", "published Δ"] if table["relative"] else []
    head = ["", *metrics, *(["rank"] if ranked else []), f"published {metrics[-1]}", *change]
    rows = [[*head, "runs" if ranked else "seeds", *(COSTS[name][0] for name in costs)]]
    for row in table["variants"]:
        cells = [row["variant"], *_means(row, metrics)]
        cells += [_formatted(row["rank"], ".1f")] if ranked else []
        cells += [_published(metrics[-1], row["published"].get(metrics[-1]))]
        cells += _changes(table, row, metrics[-1])
        seeds, all_seeds = len(row["seeds"]), len(row["seeds"]) + len(row["missing_seeds"])
        cells += [f"{seeds}" if seeds == all_seeds else f"{seeds} of {all_seeds}"]
        rows.append(cells + [_cost(name, row[name]) for name in costs])
    for row in table["cited"]:
        figures = [_published(name, row["published"].get(name)) for name in metrics]
        cells = [f"{row['method']} (published)", *figures]
        rows.append(cells + ["-"] * (len(rows[0]) - len(cells)))
    note = (
        f"Test split, best epoch by validation {table['select']}; mean ± standard deviation over"
        f" seeds{' within a corpus' if ranked else ''}, where there are several."
    )
    parts = [Section(table["title"], rows, note), *_parts(table, change)]
    if table["localisation"]:
        names = table["localisation"]
        rows = [["", *names], *([row["variant"], *_means(row, names)] for row in table["variants"])]
        note = f"The first moment in the caption's own video, in percent; over {over} as above."
        parts.append(Section("Localisation", rows, note))
    if table["comparisons"]:
        head = ["", "difference", "queries", "queries, seeds", "real"]
        rows = [head, *map(_compared, table["comparisons"])]
        note = (
            f"Differences of SumR with {LEVEL:.0%} intervals of a paired bootstrap over"
            " queries, and over queries and seeds; real is what does not hold 0 in the latter."
        )
        parts.append(Section("Comparisons", rows, note))
    return parts


def _parts(table: Table, change: Sequence[str]) -> list[Section]:
    """A table of the parts of the test split, each with the metrics that it has."""
    columns: dict[str, list[str]] = {}
    names = [name for name in table["metrics"] if "=" in name] + table["parts"]
    for part, _, metric in (name.partition("/") for name in names):
        columns.setdefault(part, []).append(metric)
    sections = []
    for shown in dict.fromkeys(map(tuple, columns.values())):
        rows = [["", *shown, f"published {shown[-1]}", *change]]
        for part in (part for part, own in columns.items() if tuple(own) == shown):
            names = [f"{part}/{metric}" for metric in shown]
            for row in table["variants"]:
                published = _published(names[-1], row["published"].get(names[-1]))
                cells = [f"{part}, {row['variant']}", *_means(row, names), published]
                rows.append([*cells, *_changes(table, row, names[-1])])
        kinds = " and ".join(dict.fromkeys(part.partition("=")[0] for part in columns))
        sections.append(Section(f"By {kinds}", rows, "Of the queries of each part; as above."))
    return sections


def _changes(table: Table, row: Mapping[str, Any], name: str) -> list[str]:
    """By how much a metric differs from that of the variant it is held against, and published."""
    if not table["relative"]:
        return []
    other = table["relative"].get(row["variant"])
    rows = [one for one in table["variants"] if one["variant"] == other]
    kinds = ("mean", "published")
    pairs = [(row[kind].get(name), one[kind].get(name)) for one in rows for kind in kinds]
    shown = [f"{100 * (x / y - 1):+.2f} %" if x is not None and y else "-" for x, y in pairs]
    return shown or ["", ""]


def _cost(name: str, value: float | None) -> str:
    _, form, unit = COSTS[name]
    if value is None or form:
        return _formatted(value, form, unit)
    return command.three_digits(value / unit)


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
    for section in sections(table):
        head, *rows = section.rows
        lines += (
            ["", f"## {_escaped(section.title)}"] if lines else [f"# {_escaped(section.title)}"]
        )
        lines += ["", line(head), line(["---", *["---:"] * (len(head) - 1)]), *map(line, rows)]
        lines += ["", section.note]
    if remarks := notes(table):
        lines += ["", *(f"- {_escaped(remark)}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """The table as CSV: a column for every mean, deviation and published metric; None is empty."""
    rows = []
    for row in table["variants"]:
        cells = {name: row[name] for name in ("variant", "series", "value")}
        cells |= {"seeds": len(row["seeds"]), "missing": len(row["missing_seeds"])}
        cells["failed"] = len(row["failures"])
        if table["corpora"]:
            cells["rank"] = row["rank"]
        for name in (*table["metrics"], *table["parts"], *table["localisation"]):
            cells |= {
                f"{name}_{kind}": row[kind].get(name) for kind in ("mean", "std", "published")
            }
        rows.append(cells | {name: row[name] for name in COSTS})
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def show(table: Table) -> None:
    """Prints the tables and their notes to standard output."""
    for section in sections(table):
        head, *rows = section.rows
        command.print_table(head, rows, section.title)
    for note in notes(table):
        rich.console.Console().print(note, markup=False, highlight=False, soft_wrap=True)


def _spread(metric: str, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    values = [value for value in (mean, deviation) if value is not None]
    return " ± ".join(ranking.format_metric(metric, value) for value in values)


def _published(metric: str, value: float | None) -> str:
    """A published figure, with the decimals that papers give: of percentages one."""
    share = metric.rpartition("/")[2] in ranking.SHARES
    return _formatted(value, ".3f" if share else ".1f")


def _formatted(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else format(value if unit == 1 else value / unit, form)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: nothing of it is a column, emphasis or a tag."""
    for character in "\\|*_`<>[]":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


# Comparison


DRAWS = 10_000
LEVEL = 0.95

_DRAWS_AT_ONCE = 500
"""Draws that lie in memory together."""


class Scores(NamedTuple):
    """What the queries of a corpus add to SumR, by variant."""

    sums: Mapping[str, Float[np.ndarray, "S V"]]  # over the queries of each video, for each run
    counts: Float[np.ndarray, " V"]  # queries of each video


def compare(
    pairs: Sequence[tuple[str, str]], runs: Sequence[Run], root: Path
) -> list[dict[str, Any]]:
    """Compares the pairs of variants that have finished runs on a common corpus.

    Each has the names "first" and "second", the "difference", the intervals "queries" and
    "queries_seeds", and whether it is "real"; the last two are None where one of the two has no
    more than a run on each corpus.
    """
    named = {name for pair in pairs for name in pair}
    corpora = list(dict.fromkeys(run.corpus for run in runs))
    read = [_read([run for run in runs if run.corpus == corpus], named, root) for corpus in corpora]
    drawn = [_draw(scores, np.random.default_rng(k)) for k, scores in enumerate(read) if scores]
    compared = []
    for first, second in pairs:
        common = [draws for draws in drawn if first in draws and second in draws]
        if common:
            compared.append({"first": first, "second": second, **_compare(first, second, common)})
    return compared


def _compare(first: str, second: str, common: Sequence[Mapping[str, "Draws"]]) -> dict[str, Any]:
    """The comparison of two variants by their draws on each corpus that both have runs on."""
    pairs = [(draws[first], draws[second]) for draws in common]
    difference = float(np.mean([a.value - b.value for a, b in pairs]))
    queries = np.mean([a.queries - b.queries for a, b in pairs], axis=0)
    result: dict[str, Any] = {"difference": difference, "queries": _interval(queries)}
    freedom = [sum(draws.runs - 1 for draws in own) for own in zip(*pairs, strict=True)]
    if not min(freedom):
        return {**result, "queries_seeds": None, "real": None}
    seeds = np.mean([a.seeds - b.seeds for a, b in pairs], axis=0)
    quantile = (1 + LEVEL) / 2
    stretch = stdtrit(sum(freedom), quantile) / ndtri(quantile)
    low, high = _interval(queries + stretch * seeds)
    return {**result, "queries_seeds": (low, high), "real": low > 0 or high < 0}


def contributions(ranks: np.ndarray) -> np.ndarray:
    """What each query adds to SumR, times the number of queries."""
    added: np.ndarray = 100.0 * np.sum(ranks[:, None] <= np.asarray(RECALLS), axis=-1)
    return added


def _read(runs: Sequence[Run], variants: set[str], root: Path) -> Scores | None:
    """The contributions of the finished runs on a corpus; None where none is finished."""
    sums: dict[str, list[np.ndarray]] = {}
    counts = None
    for run in runs:
        path = root / run.directory / QUERIES_FILE
        if run.variant not in variants or not path.exists():
            continue
        with np.load(path) as arrays:
            ranks, videos = arrays["ranks"], arrays["videos"]
        own = np.bincount(videos, contributions(ranks))
        counts = np.bincount(videos).astype(np.float64)
        sums.setdefault(run.variant, []).append(own)
    return None if counts is None else Scores({k: np.stack(v) for k, v in sums.items()}, counts)


class Draws(NamedTuple):
    """SumR of a variant on a corpus."""

    value: float
    queries: Float[np.ndarray, " draws"]  # for each draw of videos, with the runs as they are
    seeds: Float[np.ndarray, " draws"]  # what a draw of runs adds to that
    runs: int


def _draw(scores: Scores, rng: np.random.Generator) -> dict[str, Draws]:
    """Draws of each variant from its runs on a corpus."""
    videos = len(scores.counts)
    stacked = np.concatenate([*scores.sums.values(), scores.counts[None]])
    drawn = []
    for start in range(0, DRAWS, _DRAWS_AT_ONCE):
        size = min(_DRAWS_AT_ONCE, DRAWS - start)
        chosen = rng.integers(videos, size=(size, videos)) + videos * np.arange(size)[:, None]
        times = np.bincount(chosen.ravel(), minlength=size * videos).reshape(size, videos)
        drawn.append(times @ stacked.T)
    totals = np.concatenate(drawn)
    runs = totals[:, :-1] / totals[:, -1:]
    draws, first = {}, 0
    for name, sums in scores.sums.items():
        own, first = runs[:, first : first + len(sums)], first + len(sums)
        value = float(np.mean(sums.sum(axis=-1) / scores.counts.sum()))
        means = own.mean(axis=-1)
        picked = rng.integers(len(sums), size=own.shape)
        stretch = np.sqrt(len(sums) / max(len(sums) - 1, 1))
        spread = np.take_along_axis(own, picked, axis=-1).mean(axis=-1) - means
        draws[name] = Draws(value, means, stretch * spread, len(sums))
    return draws


def _interval(differences: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """What holds the middle `LEVEL` of the draws."""
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
