"""Comparison of variants query by query: a paired bootstrap tells which differences are real.

A query contributes 100 to SumR for each k of 1, 5, 10 and 100 that is at least its rank. The runs
of two variants on a corpus rank the same queries, so the variants are compared query by query. A
bootstrap draw resamples, with replacement, the videos of each corpus, each with all its queries,
because the queries of a video are equally difficult; and the runs of each variant, because another
seed gives another model. The difference of a draw is the mean over corpora of the mean over runs
and queries.

    difference       of SumR, first variant minus second: means over finished runs and over the
                     corpora on which both variants have finished runs
    queries          95 % interval when only videos are resampled
    queries, seeds   95 % interval when videos and runs are resampled (`_compare` describes its
                     correction for few runs); a difference is real if 0 lies outside

In simulations without a difference (300 comparisons of runs with normally distributed effects of
the seed; two, three or five runs, one or three corpora) 4 to 7 % were called real. With unequal
numbers of runs it can be more, up to 10 % with two and five runs. Intervals are not corrected for
the number of pairs.

References: Efron and Tibshirani, An Introduction to the Bootstrap, 1993. Welch, The generalization
of "Student's" problem, Biometrika, 1947.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval.ranking import QUERIES_FILE, RECALLS
from hlformer_jax.sweep import Run

DRAWS = 10_000
"""Number of bootstrap draws."""

LEVEL = 0.95
"""Level of the intervals."""

_DRAWS_AT_ONCE = 500
"""Number of draws that are in memory together."""


class Scores(NamedTuple):
    """Contributions of the queries of a corpus to SumR.

    Attributes:
      sums: for each variant, sums over the queries of each of V videos, for each of S runs.
      counts: number of queries of each video.
    """

    sums: Mapping[str, Float[np.ndarray, "S V"]]
    counts: Float[np.ndarray, " V"]


def compare(
    pairs: Sequence[tuple[str, str]], runs: Sequence[Run], root: Path
) -> list[dict[str, Any]]:
    """Compare pairs of variants that have finished runs on a common corpus.

    Args:
      pairs: names of the variants to compare.
      runs: the finished runs of the sweep.
      root: the directory of the sweep.

    Returns:
      For each pair the names "first" and "second", the "difference", the intervals "queries" and
      "queries_seeds", and whether the difference is "real". The last two are None if one of the
      variants has a single run on one of these corpora, which does not show the effect of seeds.

    Raises:
      UserError: if a run's file of ranks is damaged, or two runs ranked other queries.
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


def describe_left_out(
    pairs: Sequence[tuple[str, str]], runs: Sequence[Run], root: Path
) -> list[str]:
    """Return a line that names finished runs that `compare` leaves out; none without such a run."""
    names = {name for pair in pairs for name in pair}
    left_out = [
        run.title
        for run in runs
        if run.variant in names and not (root / run.directory / QUERIES_FILE).exists()
    ]
    if not left_out:
        return []
    return [f"not in the comparisons, because {QUERIES_FILE} is missing: {'; '.join(left_out)}"]


def _compare(first: str, second: str, common: Sequence[Mapping[str, "Draws"]]) -> dict[str, Any]:
    """Compare two variants by their draws on each corpus on which both have finished runs.

    The draws of few runs vary too little. `_draw` has corrected the variance for S runs. As with
    Student's t, the effect of the seeds is stretched once more, by the ratio of the quantiles of
    the t and the normal distribution.
    """
    pairs = [(draws[first], draws[second]) for draws in common]
    difference = float(np.mean([a.value - b.value for a, b in pairs]))
    queries = np.mean([a.queries - b.queries for a, b in pairs], axis=0)
    result: dict[str, Any] = {"difference": difference, "queries": _interval(queries)}
    variants = [variant for pair in pairs for variant in pair]
    if any(variant.runs == 1 for variant in variants):
        return {**result, "queries_seeds": None, "real": None}
    seeds = np.mean([a.seeds - b.seeds for a, b in pairs], axis=0)
    quantile = (1 + LEVEL) / 2
    stretch = stdtrit(_degrees_of_freedom(variants), quantile) / ndtri(quantile)
    low, high = _interval(queries + stretch * seeds)
    return {**result, "queries_seeds": (low, high), "real": low > 0 or high < 0}


def _degrees_of_freedom(variants: Sequence["Draws"]) -> float:
    """Return the degrees of freedom of the effect of the seeds.

    With equal numbers of runs, they are the numbers of runs minus 1, added up. Otherwise variants
    with few runs contribute more variance, and the formula of Welch and Satterthwaite gives less.
    """
    freedom = np.asarray([variant.runs - 1 for variant in variants])
    variances = np.asarray([np.var(variant.seeds) for variant in variants])
    if len({*freedom}) == 1 or not variances.any():
        return float(freedom.sum())
    return float(variances.sum() ** 2 / np.sum(variances**2 / freedom))


def contributions(ranks: np.ndarray) -> np.ndarray:
    """Return each query's contribution to SumR, times the number of queries."""
    added: np.ndarray = 100.0 * np.sum(ranks[:, None] <= np.asarray(RECALLS), axis=-1)
    return added


def _read(runs: Sequence[Run], variants: set[str], root: Path) -> Scores | None:
    """Return the contributions of the runs on a corpus; None if no run has a file of ranks.

    Raises:
      UserError: if a file is damaged, or two runs ranked other queries.
    """
    sums: dict[str, list[np.ndarray]] = {}
    counts, first = None, None
    for run in runs:
        path = root / run.directory / QUERIES_FILE
        if run.variant not in variants or not path.exists():
            continue
        try:
            arrays = files.read_npz(path, ["ranks", "videos"])
        except ValueError as error:
            raise UserError(
                f"{path} is damaged ({error}): remove it and write it again by `mode`=evaluate"
                f" `workdir`={path.parent}"
            ) from None
        ranks, videos = arrays["ranks"], arrays["videos"]
        if first is None:
            first = path.parent, videos
        elif not np.array_equal(first[1], videos):
            raise UserError(
                f"{first[0]} and {path.parent} ranked the queries of other test videos"
                f" ({len(first[1])} and {len(videos)} queries), so they cannot be compared: leave"
                " their pair out of `pairs`, or train both on the same data"
            )
        by_video = np.bincount(videos, contributions(ranks))
        counts = np.bincount(videos).astype(np.float64)
        sums.setdefault(run.variant, []).append(by_video)
    return None if counts is None else Scores({k: np.stack(v) for k, v in sums.items()}, counts)


class Draws(NamedTuple):
    """SumR of a variant on a corpus.

    Attributes:
      value: mean over the finished runs.
      queries: mean over the finished runs for each draw of videos.
      seeds: difference that a draw of runs makes to ``queries``.
      runs: number of finished runs.
    """

    value: float
    queries: Float[np.ndarray, " draws"]
    seeds: Float[np.ndarray, " draws"]
    runs: int


def _draw(scores: Scores, rng: np.random.Generator) -> dict[str, Draws]:
    """Return the draws of each variant from its runs on a corpus.

    The variance of draws from S runs is too small by (S - 1) / S, so the differences that a draw of
    runs makes are stretched by the root of S / (S - 1).
    """
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
    """Return the interval that contains the middle share `LEVEL` of the draws."""
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
