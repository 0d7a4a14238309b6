"""Metrics of rankers on captions."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hlformer_jax import cli
from hlformer_jax.errors import SearchError
from hlformer_jax.search.evaluate.captions import Caption
from hlformer_jax.search.evaluate.threshold import (
    FALSE_ALARM_RATES,
    Separation,
    auc,
    error_rates,
)
from hlformer_jax.search.index import Entry
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.transcript.words import normalise
from hlformer_jax.text import suggestion


def evaluate(
    library: Library, captions: Sequence[Caption], progress: Callable[[], object] = lambda: None
) -> tuple[dict[str, float], Separation]:
    """Rank all videos for every visual caption; videos of the same content count once.

    Args:
      library: the archive, with the ranker to evaluate.
      captions: the captions; at least one visual caption must have a video.
      progress: called after each visual caption.

    Returns:
      The metrics in percent, and the scores from which the AUCs are computed. The metrics are
        R@1, R@5, R@10, R@100 and SumR;
        metrics of the first moment, if captions have times;
        "AUC", of present against absent things, unless a caption is correct for every video;
        "AUC KIND" for each kind of caption without a video: the AUC of the best scores of captions
        with a video against the best scores of this kind.

    Raises:
      SearchError: if a caption names a video that is not indexed.
    """
    from hlformer_jax.retrieval import moments, ranking

    entries, examine = library.examiner()
    columns = _columns(entries, captions)
    contents = np.asarray([entry.content for entry in entries])
    is_first = _are_first(contents)  # of each content, one video competes
    correct_rows, wrong_rows, centres, score_rows, overlaps = [], [], [], [], []
    without_video: dict[str, list[float]] = {}
    for caption in (caption for caption in captions if caption.is_visual):
        scores, centre, result = examine(caption.sentence, columns.get(caption.video, 0))
        if caption.video:
            correct = contents[[columns[video] for video in caption.videos]]
            is_correct = np.isin(contents, correct)  # copies of the same bytes are correct
            score_rows.append(scores)
            wrong_rows.append(~is_correct & is_first)
            centres.append(centre)
            correct_rows.append(scores[is_correct].max())
            if caption.start is not None and caption.end is not None:
                span = caption.start, caption.end
                overlaps.append(moments.intersection_over_union(result.moments[0], *span))
        else:
            without_video.setdefault(caption.kind, []).append(float(scores.max()) - centre)
        progress()
    scores, is_wrong, correct = np.stack(score_rows), np.stack(wrong_rows), np.stack(correct_rows)
    metrics = ranking.metrics(np.asarray(ranking.rank_among(scores, correct[:, None], is_wrong)))
    metrics |= moments.metrics(np.asarray(overlaps, np.float32))
    present = correct - np.asarray(centres)
    absent = np.where(is_wrong, scores, -np.inf).max(-1) - np.asarray(centres)
    videos = tuple(caption.video for caption in captions if caption.is_visual and caption.video)
    absent_by_kind = {kind: np.asarray(scores) for kind, scores in without_video.items()}
    if np.isfinite(absent).all():
        metrics["AUC"] = auc(present, absent)
    best = np.maximum(present, absent)
    metrics |= {f"AUC {kind}": auc(best, scores) for kind, scores in absent_by_kind.items()}
    queries = [x.sentence for x in captions if x.is_visual and x.video]
    sentences = np.asarray([" ".join(normalise(query).split()) for query in queries])
    return metrics, Separation(present, absent, videos, absent_by_kind, _are_first(sentences))


def _are_first(values: np.ndarray) -> np.ndarray:
    """Return which values differ from all before them."""
    are_first = np.zeros(len(values), bool)
    are_first[np.unique(values, return_index=True)[1]] = True
    return are_first


def _columns(entries: Sequence[Entry], captions: Sequence[Caption]) -> dict[str, int]:
    """Return the position of each ranked video.

    Raises:
      SearchError: if a caption names a video that is not ranked.
    """
    columns = {entry.video: i for i, entry in enumerate(entries)}
    for video in (video for caption in captions for video in caption.videos):
        if video not in columns:
            raise SearchError(
                f"the captions name {video!r}, which is not"
                f" indexed{suggestion(video, columns)}: index the folder of the captions'"
                " videos"
            )
    return columns


SIGNALS = {"visual": "visual", "transcript": "transcript", "both": None}
"""Name of each row of a kind in the report, and the `signals` that its queries search by."""


def by_kind(
    library: Library, captions: Sequence[Caption], progress: Callable[[], object] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Query every caption as a user would, and return figures for each kind and signal.

    A caption that is a single sentence is searched by the visual signal, and if the archive has a
    transcript, also by the transcript and by both. A caption with several parts is searched once,
    by all signals that accept it; this counts as "visual". Only the ranker "best_frame" can search
    for it; for others it is left out.

    Args:
      library: the archive.
      captions: the captions.
      progress: called after each caption.

    Returns:
      For each kind and signal (`SIGNALS`): "queries", their number; and in percent
        "R@1" and "R@5", the queries with a correct video among the first 1 and 5 results;
        "mIoU", the intersection over union of the caption's times and the first moment of the
        first correct result, 0 if none of the five is correct;
        "matches", the queries for which `Results.good` is true: a result matches, or has no match
        threshold. For captions without a video, matches are false alarms.
      Captions without a video have no R@1 and R@5, and captions without times no mIoU.

    Raises:
      SearchError: if a caption names a video that is not indexed.
    """
    from hlformer_jax.retrieval import moments

    _columns(library.ranked(), captions)
    has_transcript = library.passage_count > 0
    kinds: dict[str, dict[str, list[dict[str, float]]]] = {}
    for caption in captions:
        is_single = not (caption.following or caption.without)
        rows = SIGNALS if has_transcript and is_single else {"visual": "visual"}
        if not is_single and library.ranker_name != rankers.DEFAULT:
            rows = {}
        for signal, signals in rows.items():
            results = library.query(
                caption.sentence, k=5, moments=1, then=caption.following, without=caption.without,
                within=caption.within, signals=signals if is_single else None,
            )  # fmt: skip
            row: dict[str, float] = {"queries": 1, "matches": results.good}
            correct = {caption.video, *caption.duplicates}
            ranks = [
                i for i, result in enumerate(results) if correct & {result.video, *result.copies}
            ]
            if caption.video:
                row |= {"R@1": ranks[:1] == [0], "R@5": bool(ranks)}
            if caption.start is not None and caption.end is not None:
                span = caption.start, caption.end
                row["mIoU"] = bool(ranks) and moments.intersection_over_union(
                    results[ranks[0]].moments[0], *span
                )
            kinds.setdefault(caption.kind, {}).setdefault(signal, []).append(row)
        progress()
    return {
        kind: {signal: _means(rows) for signal, rows in by_signal.items()}
        for kind, by_signal in kinds.items()
    }


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure in percent, over the rows that have it, and "queries"."""
    names = dict.fromkeys(name for row in rows for name in row)
    means = {
        name: 100 * float(np.mean([float(row[name]) for row in rows if name in row]))
        for name in names
    }
    return means | {"queries": float(len(rows))}


def report(
    library: Library,
    evaluated: Mapping[str, tuple[dict[str, float], Separation]],
    captions: Sequence[Caption],
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Return all figures on captions, in the JSON form of the command `evaluate`.

    Args:
      library: the archive, which is queried for the figures of each kind.
      evaluated: the result of `evaluate` for each ranker, by its name.
      captions: the captions.
      progress: called after each caption.

    Raises:
      SearchError: if a caption names a video that is not indexed.
    """
    return {
        "captions": sum(caption.is_visual and bool(caption.video) for caption in captions),
        "videos": len(library.ranked()),
        "rankers": {name: metrics for name, (metrics, _) in evaluated.items()},
        "thresholds": {
            name: {f"{rate}": error_rates(separation, rate) for rate in FALSE_ALARM_RATES}
            for name, (_, separation) in evaluated.items()
        },
        "kinds": by_kind(library, captions, progress),
    }


def print_report(figures: Mapping[str, Any]) -> None:
    """Print the tables of a report."""
    from hlformer_jax.retrieval import ranking

    table = figures["rankers"]
    ranker = next((name for name in table if name in rankers.LABELS), rankers.DEFAULT)
    if table:
        title = f"{figures['captions']} captions, {figures['videos']} videos; percent"
        rows = dict(zip(shorten_runs(list(table)), table.values(), strict=True))
        ranking.print_table(title, rows)
    _print_thresholds(ranker, figures["thresholds"].get(ranker, {}))
    columns = "R@1", "R@5", "mIoU", "matches"
    lines = [
        [kind or "captions", signal, f"{means['queries']:.0f}"]
        + [f"{means[column]:.1f}" if column in means else "" for column in columns]
        for kind, by_signal in figures["kinds"].items()
        for signal, means in by_signal.items()
    ]
    head = ["kind", "signal", "queries", *columns]
    cli.print_table(head, lines, f"by kind, {ranker}; percent", ["signal"])


def _print_thresholds(ranker: str, thresholds: Mapping[str, Any]) -> None:
    """Print the error rates of a ranker's thresholds, if there are any."""
    thresholds = {rate: errors for rate, errors in thresholds.items() if errors}
    if not thresholds:
        return
    lines = [
        [f"{100 * float(rate):g} % false alarms", f"{errors['threshold']:.4f}",
         _format_interval(*errors["false alarms"]), _format_interval(*errors["recall"]),
         *(f"{percent:.1f}" for percent in errors["absent"].values())]
        for rate, errors in thresholds.items()
    ]  # fmt: skip
    kinds = next(iter(thresholds.values()))["absent"]
    head = ["threshold for", "score", "false alarms", "recall", *kinds]
    cli.print_table(head, lines, f"match thresholds, {ranker}; percent")


def _format_interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.1f} ({low:.0f} to {high:.0f})"


def shorten_runs(names: Sequence[str]) -> list[str]:
    """Shorten the paths of runs to the part below their common folder; keep rankers' names."""
    runs = [os.path.abspath(name) for name in names if name not in rankers.LABELS]
    common = os.path.commonpath([os.path.dirname(run) for run in runs]) if runs else ""
    return [name if name in rankers.LABELS else os.path.relpath(name, common) for name in names]
