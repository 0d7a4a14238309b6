"""Ranks and their metrics, and the results of a split.

A rank is 1 + the number of candidates with a higher score + half the number of other candidates
with the same score, rounded up. Without ties it is the place in the sorted list, from 1. A model
that gives all candidates the same score gets the metrics of chance instead of R@1 = 100.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Real

from hlformer_jax import files
from hlformer_jax.errors import ConfigError, UserError
from hlformer_jax.ops.arguments import as_float, as_indices, check_shape
from hlformer_jax.text import suggestion
from hlformer_jax.typing import Array

RECALLS = (1, 5, 10, 100)
"""Values of k in R@k."""

RATIOS = (0.2, 0.4)
"""Bounds of the groups of moments by their share of the video, as in the papers.

The groups are shares up to 0.2, shares above 0.2 and up to 0.4, and larger shares.
"""

METRICS_FILE, QUERIES_FILE = "test_metrics.json", "test_queries.npz"
"""Files of a run: metrics of the test split, and arrays with a value for each test query."""

LAST = "last"
"""Value of `eval.select` that uses the last epoch as the best, without early stopping."""

MAX_LEAVES = 5
"""Action trees with this number of leaves or more form one group of queries."""

SHARES = ("MRR", "RadiusTau")
"""Metrics that are at most 1 and not in percent."""

LOWER_IS_BETTER = ("MedR", "MnR")
"""Metrics of which a lower value is better; `eval.select` takes the highest value."""


EMPTY = "–"
"""A cell of a table without a value, such as a metric that the split has nothing to measure on."""


class ScoreError(UserError, ArithmeticError):
    """Scores of a model are NaN or infinite; the message gives the number of captions."""


def check_finite(is_finite: Bool[np.ndarray, " Q"], queries: str = "captions") -> None:
    """Check that the scores of every query are finite.

    Args:
      is_finite: for each query, whether all its scores are finite.
      queries: the word for the queries in the message.

    Raises:
      ScoreError: if the scores of a query are not finite.
    """
    if broken := int(np.sum(~is_finite)):
        raise ScoreError(
            f"{broken} of {len(is_finite)} {queries} have scores that are not finite, because"
            " parameters or features are too large: use another checkpoint, or train again with a"
            " lower config.optim.learning_rate"
        )


def ranks(
    scores: Real[Array, "Q V"] | Sequence[Any],
    relevant: Integer[Array, " Q"] | Sequence[int],
) -> Int[Array, " Q"]:
    """Rank every query's relevant candidate, from 1.

    Args:
      scores: a score for every query and candidate; higher is better. Lists and arrays of NumPy are
        compared in their own dtype, arrays of JAX in at least float32.
      relevant: column of each query's relevant candidate, any integer dtype.

    Returns:
      int32 ranks. A row with a NaN has the worst rank, the number of candidates. So has, inside
      `jax.jit`, where values are not known, a query whose relevant column does not exist.

    Raises:
      ValueError: for arrays of other shapes, indices that are not integers, and, outside of
        `jax.jit`, a column that does not exist.
    """
    score_table: Any = _as_scores(scores)
    if score_table.ndim != 2:
        raise ValueError(f"scores must have shape [Q, V], got {score_table.shape}")
    height, width = score_table.shape
    column = as_indices("relevant", relevant, width)
    check_shape("relevant", column, (height,))
    if isinstance(score_table, np.ndarray) and not isinstance(column, jax.core.Tracer):
        places = np.asarray(column)[:, None]
        own_score = np.take_along_axis(score_table, places, axis=-1)
        return rank_among(score_table, own_score, np.arange(width)[None] != places)
    score_table = as_float(score_table)
    exists = (column >= 0) & (column < width)
    score = jnp.take_along_axis(score_table, jnp.where(exists, column, 0)[:, None], axis=-1)
    score = jnp.where(exists[:, None], score, jnp.nan)
    columns = jnp.arange(width, dtype=column.dtype)
    return rank_among(score_table, score, columns[None] != column[:, None])


def rank_among(
    scores: Real[Array, "Q V"] | Sequence[Any],
    score: Real[Array, "Q 1"] | Sequence[Any],
    candidates: Bool[Array, "Q V"] | Sequence[Any],
) -> Int[Array, " Q"]:
    """Rank one candidate of each query among other candidates.

    Args:
      scores: a score for every query and candidate; higher is better. Lists and arrays of NumPy are
        compared in their own dtype, arrays of JAX in at least float32.
      score: the score of the candidate to rank.
      candidates: True for the candidates to compare it with.

    Returns:
      int32 ranks, from 1. If ``score`` or a score of the row is NaN, the rank is the number of
      columns.

    Raises:
      ValueError: for arrays of other shapes.
    """
    score_table: Any = _as_scores(scores)
    own_score: Any = score
    xp: Any = np
    if not isinstance(score_table, np.ndarray) or any(
        isinstance(x, jax.core.Tracer) for x in (score, candidates)
    ):
        xp, score_table = jnp, as_float(score_table)
        own_score = jnp.asarray(score, score_table.dtype)
    own_score, is_candidate = xp.asarray(own_score), xp.asarray(candidates, bool)
    check_shape("score", own_score, (*score_table.shape[:-1], 1))
    check_shape("candidates", is_candidate, score_table.shape)
    higher = xp.sum(is_candidate & (score_table > own_score), axis=-1, dtype=np.int32)
    equal = xp.sum(is_candidate & (score_table == own_score), axis=-1, dtype=np.int32)
    rank = 1 + higher + (equal + 1) // 2
    broken = xp.any(xp.isnan(score_table), axis=-1) | xp.isnan(own_score[..., 0])
    return jnp.asarray(xp.where(broken, score_table.shape[-1], rank), jnp.int32)


def _as_scores(scores: Any) -> Array | np.ndarray:
    """Return scores as an array: real numbers of NumPy and lists unchanged, others as floats."""
    if isinstance(scores, list | tuple):
        scores = np.asarray(scores)
    if isinstance(scores, np.ndarray) and scores.dtype.kind in "biuf":
        return scores
    return as_float(scores)


def recall_at_k(rank: Int[Array, " Q"] | np.ndarray, k: int) -> float:
    """Return R@k: the percentage of queries with a rank of at most k.

    Raises:
      ValueError: for no ranks, and for ranks below 1 or NaN; the other metrics too.
    """
    return 100.0 * float(np.mean(_check_ranks(rank) <= k))


def sum_recall(rank: Int[Array, " Q"] | np.ndarray) -> float:
    """Return SumR: the sum of R@1, R@5, R@10 and R@100, in percent.

    It is computed from the number of hits, so that rankings with equally many are equal.
    """
    hits = sum(_check_ranks(rank) <= k for k in RECALLS)
    return 100.0 * float(np.mean(hits))


def mean_reciprocal_rank(rank: Int[Array, " Q"] | np.ndarray) -> float:
    """Return MRR: the mean of 1 / rank, between 0 and 1."""
    return float(np.mean(1.0 / _check_ranks(rank).astype(np.float64)))


def _check_ranks(rank: Any) -> np.ndarray:
    """Return ranks as an array; refuse none, and values that are not ranks."""
    rank = np.asarray(rank)
    if not rank.size:
        raise ValueError("metrics need at least one rank, got none")
    if wrong := rank[~(rank >= 1)].tolist():
        raise ValueError(f"ranks start at 1, got {wrong[0]}")
    return rank


def metrics(rank: Int[Array, " Q"] | np.ndarray) -> dict[str, float]:
    """Return R@1, R@5, R@10, R@100 and SumR, in percent, by these names."""
    return {f"R@{k}": recall_at_k(rank, k) for k in RECALLS} | {"SumR": sum_recall(rank)}


def chance(name: str, result: "Result") -> float | None:
    """Return the expected value of a metric for a random ranking; None for an unsupported metric.

    Args:
      name: name of a recall, SumR or MRR, for HOVER with its direction, such as "t2v/R@1".
      result: a result of the split, which determines the number of candidates.
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
    """Return `metrics` of groups of queries, by the ratio of the lengths of moment and video.

    The names of a group's metrics are "ratio=0-0.2/R@1" and so on, see `RATIOS`. Queries with a
    ratio of NaN and groups without queries are left out.

    Args:
      rank: the rank of each query.
      ratio: length of each query's annotated moment, divided by the length of its video.

    Raises:
      ValueError: for another number of ratios than ranks, a ratio that is not from 0 to 1, and for
        ranks below 1 or NaN.
    """
    rank, ratio = np.asarray(rank), np.asarray(ratio)
    check_shape("ratio", ratio, rank.shape)
    if np.any(wrong := (ratio < 0) | (ratio > 1)):
        raise ValueError(f"ratio must be from 0 to 1, got {ratio[wrong][0]:g}")
    bounds = (0.0, *RATIOS, 1.0)
    group = np.where(np.isnan(ratio), -1, np.searchsorted(RATIOS, ratio))
    return {
        f"ratio={bounds[k]:g}-{bounds[k + 1]:g}/{name}": value
        for k in range(len(RATIOS) + 1)
        if np.any(group == k)
        for name, value in metrics(rank[group == k]).items()
    }


def check_select(select: str, names: Sequence[str]) -> None:
    """Check that a validation computes the metric that `eval.select` names.

    Args:
      select: the value of `eval.select`.
      names: names of the metrics of a validation.

    Raises:
      ConfigError: if it is neither "last" nor a metric of which a higher value is better.
    """
    names = [name for name in names if name.rpartition("/")[2] not in LOWER_IS_BETTER]
    if select != LAST and select not in names:
        shown = ", ".join(name for name in names if "=" not in name)
        raise ConfigError(
            f"config.eval.select is {select!r}: use {shown}, or {LAST} for the last"
            f" epoch{suggestion(select, names)}"
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """Results of a split.

    Attributes:
      metrics: values of the metrics by name; recalls are in percent.
      queries: number of queries.
      videos: number of videos.
      per_query: arrays with a value for each query, to compare models query by query: "ranks",
        "videos" (the index of the query's own video), and "overlaps" if the times of the moments
        are known. HOVER has none.
      unfinished: how far the run had come, such as "epoch 3 of 100", if it was not finished.
    """

    metrics: dict[str, float]
    queries: int
    videos: int
    per_query: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)
    unfinished: str = ""

    @property
    def timed_queries(self) -> int | None:
        """Number of queries with annotated times; None if no metric depends on times."""
        overlaps = self.per_query.get("overlaps")
        return None if overlaps is None else int(np.sum(~np.isnan(overlaps)))

    def counts(self) -> str:
        """Return the numbers of queries and videos, for a title."""
        timed = self.timed_queries
        part = "" if timed in (None, self.queries) else f" ({timed} with times of moments)"
        return f"{self.queries} queries{part}, {self.videos} videos"

    def as_json(self) -> dict[str, float | int | str]:
        """Return the content of test_metrics.json: metrics, and numbers of queries and videos."""
        more = {"timed_queries": self.timed_queries, "unfinished": self.unfinished or None}
        content = {**self.metrics, "queries": self.queries, "videos": self.videos}
        return content | {name: value for name, value in more.items() if value is not None}


def check_place(
    directory: str | os.PathLike[str], replace: files.Replace = files.Replace.OWN
) -> None:
    """Check that `write_result` may write its files into a directory.

    Raises:
      OSError: if an existing file must not be replaced.
    """
    for name in (METRICS_FILE, QUERIES_FILE):
        files.check_output(Path(directory) / name, replace)


def write_result(
    result: Result,
    directory: str | os.PathLike[str],
    replace: files.Replace = files.Replace.OWN,
) -> None:
    """Write test_metrics.json, and test_queries.npz if the result has `per_query`."""
    files.write_json(Path(directory) / METRICS_FILE, result.as_json(), replace)
    if result.per_query:
        files.write_npz(Path(directory) / QUERIES_FILE, result.per_query, replace)


def print_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics to standard output, with a row for each name.

    The text before the last slash of a metric's name is its part of the split: "leaves=2/t2v/MRR"
    is printed in the column MRR and in a row "leaves = 2/t2v". Parts with the same metrics share a
    table.

    Args:
      title: title of the first table.
      rows: metrics by the names of the rows.
    """
    from hlformer_jax import cli  # imported here, because computing metrics needs no configuration

    for columns, parts in _tables(next(iter(rows.values()))).items():
        lines = []
        for part in parts:
            for name, metrics in rows.items():
                prefix = f"{part}/" if part else ""
                cells = [_cell(metrics, f"{prefix}{column}") for column in columns]
                if any(cells):  # some rows, such as chance, have no parts
                    lines.append([" ".join(filter(None, (name, part_label(part)))), *cells])
        cli.print_table(["", *columns], lines, title)
        title = ""
    if any(math.isnan(value) for metrics in rows.values() for value in metrics.values()):
        print(f"{EMPTY}: the split has no pairs or trees to measure this on")


def part_label(part: str) -> str:
    """Return the readable name of a part of a split: "leaves ≥ 5/t2v" for "leaves=5/t2v"."""
    group, slash, direction = part.partition("/")
    kind, _, value = group.partition("=")
    if kind != "leaves":
        return part
    sign = "≥" if value == str(MAX_LEAVES) else "="
    return f"leaves {sign} {value}{slash}{direction}"


def format_metric(name: str, value: float) -> str:
    """Format a metric for a table: with three decimals if it is one of `SHARES`, otherwise two.

    NaN is `EMPTY`.
    """
    if math.isnan(value):
        return EMPTY
    return f"{value:.{3 if name.rpartition('/')[2] in SHARES else 2}f}"


def _cell(metrics: Mapping[str, float], name: str) -> str:
    return format_metric(name, metrics[name]) if name in metrics else ""


def _tables(metrics: Mapping[str, float]) -> dict[tuple[str, ...], list[str]]:
    """Return the parts of a split, grouped by the names of their metrics."""
    columns: dict[str, list[str]] = {}
    for name in metrics:
        part, _, column = name.rpartition("/")
        columns.setdefault(part, []).append(column)
    tables: dict[tuple[str, ...], list[str]] = {}
    for part, names in columns.items():
        tables.setdefault(tuple(names), []).append(part)
    return tables
