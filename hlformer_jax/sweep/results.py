"""Collection of a sweep's results so far: metrics of every variant over its finished runs.

The spread is the sample standard deviation over seeds (n - 1). Over several corpora, a mean is the
mean over corpora of the mean over seeds, and the spread is the root of the mean of the variances. A
single seed has no spread. With several corpora, the variants are ranked by the last metric; the
rank is a mean over the pairs of corpus and seed for which all variants are finished, apart from
variants without runs that were left out or skipped.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.stats import rankdata

from hlformer_jax.config import describe_data
from hlformer_jax.retrieval import moments
from hlformer_jax.retrieval.ranking import EMPTY, part_label
from hlformer_jax.sweep import Run, changed_fields
from hlformer_jax.sweep.comparison import compare, describe_left_out
from hlformer_jax.sweep.provenance import (
    check_same_data,
    describe_environments,
    describe_unrecorded,
    name_data,
)
from hlformer_jax.sweep.runs import FAILURE, RESULT, read_result

Table = dict[str, Any]
"""The content of table.json."""

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
    rows = [
        _describe_variant(sweep, name, runs, finished, root, names, left_out=name not in trained)
        for name in sweep.variants
    ]
    if sweep.corpora:
        _rank(rows, sweep.metrics[-1])
    data, variants = _describe_data(runs, finished)
    return {
        "title": f"{sweep.title}: {' and '.join(dict.fromkeys(x['title'] for x in data))}",
        "about": _about(sweep, data, variants),
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


def _describe_variant(
    sweep: ConfigDict,
    name: str,
    runs: Sequence[Run],
    finished: Mapping[Path, Mapping[str, Any] | None],
    root: Path,
    names: Sequence[str],
    left_out: bool,
) -> dict[str, Any]:
    """Return the row of a variant: its settings, its published figures and its results.

    Args:
      sweep: the sweep.
      name: the name of the variant.
      runs: the runs of the sweep.
      finished: the result of each run, by its directory; None if it is not finished.
      root: the directory of the sweep.
      names: the metrics.
      left_out: whether the variant was not selected.
    """
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
    return {
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
        "left_out": left_out,
        "runs": results,
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
            measured = name_data(run.config), metrics
            for _, corpora in same_features:
                name, values = corpora.setdefault(run.corpus, measured)
                if name == measured[0] or values == metrics:  # a teacher changes no reference
                    break
            else:
                same_features.append((run.variant, {run.corpus: measured}))
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
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Return the distinct descriptions of the runs' data, and for each the names of its variants.

    A description has split sizes if one of its runs is finished. A description without sizes is
    left out if another one differs from it only by its sizes.
    """
    measured = {
        (run.variant, run.corpus): result["data"]
        for run in runs
        if (result := finished[run.directory]) is not None and "data" in result
    }
    described: dict[str, dict[str, Any]] = {}
    variants: dict[str, list[str]] = {}
    with_sizes: set[str] = set()
    for run in runs:
        description = measured.get((run.variant, run.corpus)) or describe_data(run.config)
        data = {"corpus": run.corpus, **description}
        key = repr(sorted(data.items()))
        described.setdefault(key, data)
        names = variants.setdefault(key, [])
        names += [run.variant] if run.variant not in names else []
        if "splits" in data:
            with_sizes.add(_without_sizes(data))
    shown = [
        key
        for key, data in described.items()
        if "splits" in data or _without_sizes(data) not in with_sizes
    ]
    return [described[key] for key in shown], [variants[key] for key in shown]


def _without_sizes(data: Mapping[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in data.items() if name != "splits"))


def _about(
    sweep: ConfigDict, data: Sequence[Mapping[str, Any]], variants: Sequence[Sequence[str]]
) -> list[str]:
    """Return lines that name the data of the measured and of the published figures.

    A line names its variants if a corpus has variants with different data.
    """
    lines = []
    differ = len(data) > len({corpus_data["corpus"] for corpus_data in data})
    for corpus_data, names in zip(data, variants, strict=True):
        corpus = f"corpus {corpus_data['corpus']}, " if corpus_data.get("corpus") else ""
        who = f"{', '.join(names)} measured" if differ else "Measured"
        lines.append(f"{who} on: {corpus}{_data_line(corpus_data)}")
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
    reasons: dict[str, list[str]] = {}
    for name in names:
        lacking = [run["title"] for run in runs if name not in run["metrics"]]
        if not lacking:
            continue
        part = name.partition("/")[0] if "=" in name else ""
        what = f"the test split has no query of {part_label(part)}" if part else f"no {name}"
        if any(name in run.get("undefined", ()) for run in runs):
            what = f"the test split has no pairs or trees to measure {name} on"
        titles = reasons.setdefault(what, [])
        titles += [title for title in lacking if title not in titles]
    lines = []
    for what, titles in reasons.items():
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
    for name, variant_corpora in measured.items():
        missing = [corpus for corpus in corpora if corpus not in variant_corpora]
        if variant_corpora and missing:
            lines.append(
                f"{name} has no finished run on {', '.join(missing)}: its means are over fewer"
                " corpora, so do not compare them with those of other variants"
            )
    return lines


def is_ranked(row: Mapping[str, Any]) -> bool:
    """Return False for a variant without finished runs that was left out or skipped."""
    return bool(row["runs"]) or not (row["left_out"] or row["skipped"])


def _rank(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Add the mean rank, from 1, among the variants that `is_ranked` selects, to their rows.

    Equal values share the mean of their ranks. None for other variants, and if no pair of corpus
    and seed is finished for all ranked variants.
    """
    ranked = [row for row in rows if is_ranked(row)]
    cells: dict[tuple[str, int], list[float]] = {}
    for row in ranked:
        for run in (run for run in row["runs"] if metric in run["metrics"]):
            cells.setdefault((run["corpus"], run["seed"]), []).append(run["metrics"][metric])
    complete = [values for values in cells.values() if len(values) == len(ranked)]
    for row in rows:
        row["rank"] = None
    if complete:
        means = rankdata(-np.array(complete), axis=1).mean(axis=0)
        for row, rank in zip(ranked, means, strict=True):
            row["rank"] = float(rank)
