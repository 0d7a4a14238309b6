"""The results of a sweep so far, as data: every variant's metrics over its finished runs.

The spread is the sample's standard deviation over seeds (n - 1), over several corpora the root of
the mean of its squares; one seed has none. A rank is that of a variant among all, by the last
metric, in the mean over the corpora and seeds that all have finished.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError
from hlformer_jax.retrieval import localisation
from hlformer_jax.sweep import comparison
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
    finished = {run.directory: runs_of.read(root / run.directory / runs_of.RESULT) for run in runs}
    known = [result["metrics"] for result in finished.values() if result is not None]
    localised = bool(known) and all(set(localisation.METRICS) <= set(own) for own in known)
    names = [*sweep.metrics, *(localisation.METRICS if localised else ())]
    for name in sweep.variants:
        results, failures, missing = [], [], []
        for run in (run for run in runs if run.variant == name):
            directory = root / run.directory
            result = finished[run.directory]
            if result is not None:
                place = {"directory": str(run.directory), "title": run.title}
                results.append({**result, **place})
                continue
            missing.append(run.seed)
            failure = runs_of.read(directory / runs_of.FAILURE)
            if failure is not None:
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
        "localisation": list(localisation.METRICS) if localised else [],
        "corpora": list(sweep.corpora),
        "comparisons": comparison.compare(sweep.pairs, runs, root),
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
        "std": {name: _deviation(results, x) for name, x in metrics.items()},
        "parameters": first.get("parameters"),
        "flops_video": first.get("flops_video"),
        "flops_caption": first.get("flops_caption"),
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
