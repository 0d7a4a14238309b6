"""Ranks and their metrics, and the results of a split.

Ranks: 1 + the number of candidates scored strictly higher + half the number of other candidates
scored equal, rounded up. Without ties this is the index in the sorted list, from 1; a model that
scores all candidates equal gets chance, not R@1 = 100.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from hlformer_jax import files
from hlformer_jax.errors import ConfigError
from hlformer_jax.ops.numerics import as_float, as_indices, check_shape
from hlformer_jax.text import suggestion
from hlformer_jax.typing import Array

RECALLS = (1, 5, 10, 100)

RATIOS = (0.2, 0.4)
"""Shares of a video by which the field groups moments: at most 0.2, at most 0.4, longer ones."""

METRICS_FILE, QUERIES_FILE = "test_metrics.json", "test_queries.npz"
"""Files of a run: metrics of the test split, and the rank and overlap of each of its queries."""

LAST = "last"
"""Value of `eval.select` that takes the last epoch for the best, without early stopping."""

MAX_LEAVES = 5
"""Action trees with this number of leaves or more are one group of queries."""

SHARES = ("MRR", "RadiusTau")
"""Metrics that are not in percent, and at most 1."""


def ranks(
    scores: Float[Array, "Q V"] | Sequence[Any],
    relevant: Integer[Array, " Q"] | Sequence[int],
) -> Int[Array, " Q"]:
    """Rank every query's relevant candidate, from 1.

    Args:
      scores: a score for every query and candidate; higher is better.
      relevant: column of each query's relevant candidate, any integer dtype.

    Returns:
      int32 ranks; the worst rank, the number of candidates, for a row with a NaN. Inside `jax.jit`,
      where values are not known, also for a column that does not exist.

    Raises:
      ValueError: for arrays of other shapes, indices that are not integers, and, outside of
        `jax.jit`, a column that does not exist.
    """
    scores = _as_scores(scores)
    width = scores.shape[-1]
    column = as_indices("relevant", relevant, width)
    check_shape("scores", scores, (len(column), width))
    exists = (column >= 0) & (column < width)
    score = jnp.take_along_axis(scores, jnp.where(exists, column, 0)[:, None], axis=-1)
    score = jnp.where(exists[:, None], score, jnp.nan)
    columns = jnp.arange(width, dtype=column.dtype)
    return rank_among(scores, score, columns[None] != column[:, None])


def rank_among(
    scores: Float[Array, "Q V"] | Sequence[Any],
    score: Float[Array, "Q 1"] | Sequence[Any],
    candidates: Bool[Array, "Q V"] | Sequence[Any],
) -> Int[Array, " Q"]:
    """Rank one candidate of each query among others.

    Args:
      scores: a score for every query and candidate; higher is better.
      score: the score of the candidate that is ranked.
      candidates: True for the candidates that it is ranked among.

    Returns:
      int32 ranks, from 1; the worst, the number of candidates, where a score of the row or `score`
      is NaN.

    Raises:
      ValueError: for arrays of other shapes.
    """
    scores = _as_scores(scores)
    score = jnp.asarray(score, scores.dtype)
    candidates = jnp.asarray(candidates, bool)
    check_shape("score", score, (*scores.shape[:-1], 1))
    check_shape("candidates", candidates, scores.shape)
    higher = jnp.sum(candidates & (scores > score), axis=-1, dtype=jnp.int32)
    equal = jnp.sum(candidates & (scores == score), axis=-1, dtype=jnp.int32)
    rank = 1 + higher + (equal + 1) // 2
    broken = jnp.any(jnp.isnan(scores), axis=-1) | jnp.isnan(score[..., 0])
    return jnp.where(broken, scores.shape[-1], rank)


def _as_scores(scores: Any) -> Float[Array, "Q V"]:
    """Return scores as a floating array of JAX, float32 at least; lists are taken too."""
    return as_float(np.asarray(scores) if isinstance(scores, list | tuple) else scores)


def recall_at_k(rank: Int[Array, " Q"] | np.ndarray, k: int) -> float:
    """Share of queries, in percent, whose candidate is among the first k."""
    return 100.0 * float(np.mean(np.asarray(rank) <= k))


def sum_recall(rank: Int[Array, " Q"] | np.ndarray) -> float:
    """SumR: the sum of R@1, R@5, R@10 and R@100, in percent."""
    return sum(recall_at_k(rank, k) for k in RECALLS)


def mean_reciprocal_rank(rank: Int[Array, " Q"] | np.ndarray) -> float:
    """Mean of 1 / rank, between 0 and 1."""
    return float(np.mean(1.0 / np.asarray(rank, np.float64)))


def metrics(rank: Int[Array, " Q"] | np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10, R@100 and SumR, in percent, by the names the field uses."""
    return {f"R@{k}": recall_at_k(rank, k) for k in RECALLS} | {"SumR": sum_recall(rank)}


def chance(name: str, result: "Result") -> float | None:
    """Return the expected value of a metric for a random ranking; None where it is not known.

    Args:
      name: name of a recall, of SumR or of MRR, also of a direction of HOVER, "t2v/R@1".
      result: a result of the split, for the number of its candidates.
    """
    part, _, metric = name.rpartition("/")
    candidates = {"": result.videos, "t2v": result.queries, "v2t": result.queries}.get(part)
    if candidates is None:
        return None
    recalls = {f"R@{k}": 100.0 * min(k / candidates, 1.0) for k in RECALLS}
    mean_reciprocal = float(np.mean(1.0 / np.arange(1, candidates + 1)))
    return (recalls | {"SumR": sum(recalls.values()), "MRR": mean_reciprocal}).get(metric)


def metrics_by_ratio(
    rank: Int[np.ndarray, " Q"], ratio: Float[np.ndarray, " Q"]
) -> dict[str, float]:
    """Return `metrics` of groups of queries, by the share of the video that the moment lasts.

    A group's metrics are "ratio=0-0.2/R@1" and so on; the groups are the field's: (0, 0.2],
    (0.2, 0.4] and longer. Queries with NaN and groups without queries are left out.
    """
    bounds = (0.0, *RATIOS, 1.0)
    group = np.where(np.isnan(ratio), -1, np.searchsorted(RATIOS, ratio))
    return {
        f"ratio={bounds[k]:g}-{bounds[k + 1]:g}/{name}": value
        for k in range(len(RATIOS) + 1)
        if np.any(group == k)
        for name, value in metrics(rank[group == k]).items()
    }


def check_select(select: str, names: Sequence[str]) -> None:
    """Refuse an `eval.select` that no validation gives.

    Raises:
      ConfigError: naming it and the metrics that there are.
    """
    if select != LAST and select not in names:
        shown = ", ".join(name for name in names if "=" not in name)
        raise ConfigError(
            f"config.eval.select is {select!r}: use {shown}, or {LAST} for the last"
            f" epoch{suggestion(select, names)}"
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """Metrics of a split by the names that the field uses, recalls in percent.

    `per_query` is what they are made of, an array [queries] each, for comparing models query by
    query: "ranks", "videos" (the index of its own), and where times are known "overlaps".
    """

    metrics: dict[str, float]
    queries: int
    videos: int
    per_query: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, float | int]:
        """The form in which test metrics are written."""
        return {**self.metrics, "queries": self.queries, "videos": self.videos}


def check_place(directory: Path, replace: files.Replace = files.Replace.OWN) -> None:
    """Refuses (an OSError) a directory whose files `write_result` must not replace."""
    for name in (METRICS_FILE, QUERIES_FILE):
        files.check_output(directory / name, replace)


def write_result(
    result: Result, directory: Path, replace: files.Replace = files.Replace.OWN
) -> None:
    """Writes test_metrics.json, and test_queries.npz where the family knows its `per_query`."""
    files.write_json(directory / METRICS_FILE, result.as_json(), replace)
    if result.per_query:
        files.write_npz(directory / QUERIES_FILE, result.per_query, replace)


def print_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints metrics, one row a name, to standard output.

    A metric may be of a part, which then stands before its last slash: "leaves=2/t2v/MRR" is the
    column MRR in a row of its own, "leaves = 2/t2v". Parts of the same metrics share a table.
    """
    from hlformer_jax import cli  # here, since metrics load no configuration

    for columns, parts in _tables(next(iter(rows.values()))).items():
        lines = []
        for part in parts:
            for name, metrics in rows.items():
                prefix = f"{part}/" if part else ""
                cells = [_cell(metrics, f"{prefix}{column}") for column in columns]
                if any(cells):  # chance, say, knows no parts
                    lines.append([" ".join(filter(None, (name, part_label(part)))), *cells])
        cli.print_table(["", *columns], lines, title)
        title = ""


def part_label(part: str) -> str:
    """Return a part of the test split as people write it: "leaves ≥ 5/t2v" of "leaves=5/t2v"."""
    group, slash, direction = part.partition("/")
    kind, _, value = group.partition("=")
    if kind != "leaves":
        return part
    sign = "≥" if value == str(MAX_LEAVES) else "="
    return f"leaves {sign} {value}{slash}{direction}"


def format_metric(name: str, value: float) -> str:
    """A metric as tables have it: with two decimals, three where it lies between -1 and 1."""
    return f"{value:.{3 if name.rpartition('/')[2] in SHARES else 2}f}"


def _cell(metrics: Mapping[str, float], name: str) -> str:
    return format_metric(name, metrics[name]) if name in metrics else ""


def _tables(metrics: Mapping[str, float]) -> dict[tuple[str, ...], list[str]]:
    """The parts that metrics are of, by the metrics of each."""
    columns: dict[str, list[str]] = {}
    for name in metrics:
        part, _, column = name.rpartition("/")
        columns.setdefault(part, []).append(column)
    tables: dict[tuple[str, ...], list[str]] = {}
    for part, names in columns.items():
        tables.setdefault(tuple(names), []).append(part)
    return tables
