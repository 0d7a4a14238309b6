"""Comparison of variants query by query: which differences are real, by a paired bootstrap.

What a query adds to SumR is 100 for each k of 1, 5, 10, 100 that its rank is within; the runs of
two variants on a corpus rank the same queries, so their difference is taken query by query. A draw
takes as many videos of each corpus as there are, with replacement, each with all its queries, since
they share the difficulty of their video; and as many runs of each variant, with
replacement, for another seed would have given another model. The difference of a draw is the mean
over the corpora of the mean over runs and queries.

With S runs, the variance of the draws is too small by (S - 1) / S: deviations from their mean are
stretched by the root of S / (S - 1). So few runs do not know their own spread either; as with
Student's t, what seeds add is stretched once more, by the ratio of the quantiles of t and of the
normal distribution, with as many degrees of freedom as both variants have runs beyond the first of
a corpus. A variant with single runs has no interval over seeds.

    difference       of SumR, first variant minus second: means of the finished runs of each, over
                     the corpora on which both have some
    queries          95 % interval of the draws of videos, with the runs as they are
    queries, seeds   95 % interval of the draws of both; a difference is real where 0 lies outside
                     (where none is, of runs that differ by normal seeds alone, 4 to 7 % of 300
                     are called real, with two, three or five runs, on one corpus or three)

Intervals are each of their own pair, not corrected for the number of pairs.

References: Efron and Tibshirani, An Introduction to the Bootstrap, 1993.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from hlformer_jax.retrieval.ranking import QUERIES_FILE, RECALLS
from hlformer_jax.sweep import Run

DRAWS = 10_000
LEVEL = 0.95

_DRAWS_AT_ONCE = 500
"""Draws that lie in memory together."""


class Scores(NamedTuple):
    """Contributions of a corpus' queries to SumR, by variant."""

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
    names = {name for pair in pairs for name in pair}
    corpora = list(dict.fromkeys(run.corpus for run in runs))
    read = [_read([run for run in runs if run.corpus == corpus], names, root) for corpus in corpora]
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
    freedom = [
        sum(draws.runs - 1 for draws in per_variant) for per_variant in zip(*pairs, strict=True)
    ]
    if not min(freedom):
        return {**result, "queries_seeds": None, "real": None}
    seeds = np.mean([a.seeds - b.seeds for a, b in pairs], axis=0)
    quantile = (1 + LEVEL) / 2
    stretch = stdtrit(sum(freedom), quantile) / ndtri(quantile)
    low, high = _interval(queries + stretch * seeds)
    return {**result, "queries_seeds": (low, high), "real": low > 0 or high < 0}


def contributions(ranks: np.ndarray) -> np.ndarray:
    """Return each query's contribution to SumR, times the number of queries."""
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
        by_video = np.bincount(videos, contributions(ranks))
        counts = np.bincount(videos).astype(np.float64)
        sums.setdefault(run.variant, []).append(by_video)
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
        indices = rng.integers(videos, size=(size, videos)) + videos * np.arange(size)[:, None]
        times = np.bincount(indices.ravel(), minlength=size * videos).reshape(size, videos)
        drawn.append(times @ stacked.T)
    totals = np.concatenate(drawn)
    runs = totals[:, :-1] / totals[:, -1:]
    draws, first = {}, 0
    for name, sums in scores.sums.items():
        run_values, first = runs[:, first : first + len(sums)], first + len(sums)
        value = float(np.mean(sums.sum(axis=-1) / scores.counts.sum()))
        means = run_values.mean(axis=-1)
        picked = rng.integers(len(sums), size=run_values.shape)
        stretch = np.sqrt(len(sums) / max(len(sums) - 1, 1))
        spread = np.take_along_axis(run_values, picked, axis=-1).mean(axis=-1) - means
        draws[name] = Draws(value, means, stretch * spread, len(sums))
    return draws


def _interval(differences: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """Return the interval of the middle `LEVEL` of the draws."""
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
