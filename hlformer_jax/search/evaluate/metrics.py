"""Metrics of rankers on captions.

`evaluate` asks every caption that is seen and of one sentence over all indexed videos: its rank is
that of the best of its videos, as `retrieval.ranking` counts, and first moments of its own video
are held against its times (`retrieval.moments`). `by_kind` asks all of them as a person would.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hlformer_jax import cli
from hlformer_jax.errors import SearchError
from hlformer_jax.search.evaluate.captions import Caption
from hlformer_jax.search.evaluate.threshold import RATES, Separation, auc, trade_off
from hlformer_jax.search.index import Entry
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals import rankers
from hlformer_jax.text import suggestion


def evaluate(
    library: Library, captions: Sequence[Caption], progress: Callable[[], object] = lambda: None
) -> tuple[dict[str, float], Separation]:
    """Asks every caption that is single, one at least of a video; `progress` is called after each.

    Returns:
      R@1, R@5, R@10, R@100 and SumR of the videos, the metrics of localisation where a caption has
      times, and the AUC, all in percent; and what the last is made of. The AUC of a kind that no
      video has is that of what captions of videos find, anywhere. Where a caption is right for
      every video, what is absent is not known, and there is no AUC.

    Raises:
      SearchError: when a caption is of a video that is not indexed.
    """
    from hlformer_jax.retrieval import moments, ranking

    entries, examine = library.examiner()
    columns = _columns(entries, captions)
    contents = np.asarray([entry.content for entry in entries])
    best, others, centres, scores, overlaps = [], [], [], [], []
    lacking: dict[str, list[float]] = {}
    for caption in (one for one in captions if one.single):
        every, centre, result = examine(caption.sentence, columns.get(caption.video, 0))
        if caption.video:
            own = contents[[columns[video] for video in (caption.video, *caption.also)]]
            other = ~np.isin(contents, own)  # a copy of the same bytes is as right
            scores.append(every)
            others.append(other)
            centres.append(centre)
            best.append(every[~other].max())
            if caption.start is not None and caption.end is not None:
                of_own = result.moments[0], caption.start, caption.end
                overlaps.append(moments.intersection_over_union(*of_own))
        else:
            lacking.setdefault(caption.kind, []).append(float(every.max()) - centre)
        progress()
    every, other, own = np.stack(scores), np.stack(others), np.stack(best)
    metrics = ranking.metrics(np.asarray(ranking.rank_among(every, own[:, None], other)))
    metrics |= moments.metrics(np.asarray(overlaps, np.float32))
    present = own - np.asarray(centres)
    absent = np.where(other, every, -np.inf).max(-1) - np.asarray(centres)
    videos = tuple(one.video for one in captions if one.single and one.video)
    of_kinds = {kind: np.asarray(found) for kind, found in lacking.items()}
    if np.isfinite(absent).all():
        metrics["AUC"] = auc(present, absent)
    anywhere = np.maximum(present, absent)
    metrics |= {f"AUC {kind}": auc(anywhere, found) for kind, found in of_kinds.items()}
    return metrics, Separation(present, absent, videos, of_kinds)


def _columns(entries: Sequence[Entry], captions: Sequence[Caption]) -> dict[str, int]:
    """The places of the videos that are ranked; refuses captions of others."""
    columns = {entry.video: i for i, entry in enumerate(entries)}
    for video in (video for one in captions for video in (one.video, *one.also) if video):
        if video not in columns:
            raise SearchError(
                f"the captions name {video!r}, which the index lacks"
                f"{suggestion(video, columns)}: index the folder of the captions' videos"
            )
    return columns


WAYS = {"sight": "visual", "words": "transcript", "both": None}
"""Names of the ways in which a caption is asked, and their `signals` of `Library.query`."""


def by_kind(
    library: Library, captions: Sequence[Caption], progress: Callable[[], object] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Asks every caption as `Library.query` does, by sight alone and where it can by words.

    By words alone, and by both, it is asked of an index with subtitles and as a single sentence.

    Returns:
      By kind, and by the way of asking (`WAYS`): "queries", how many; in percent "R@1" and "R@5",
      whether one of its videos is the first, or among the first five; "mIoU", of the times with the
      first moment of the first of its videos among them, 0 where none is; and "good", how many have
      a result that is called a good match: of what no video has, the false alarms, and there is
      nothing else of it.
    """
    from hlformer_jax.retrieval import moments

    _columns(library.ranked(), captions)
    spoken = library.passage_count > 0
    kinds: dict[str, dict[str, list[dict[str, float]]]] = {}
    for caption in captions:
        alone = not (caption.then or caption.without)
        for way, signals in WAYS.items() if spoken and alone else [("sight", "visual")]:
            results = library.query(
                caption.sentence, k=5, moments=1, then=caption.then, without=caption.without,
                within=caption.within, signals=signals if alone else None,
            )  # fmt: skip
            row: dict[str, float] = {"queries": 1, "good": results.good}
            right = {caption.video, *caption.also}
            found = [i for i, one in enumerate(results) if right & {one.video, *one.copies}]
            if caption.video:
                row |= {"R@1": found[:1] == [0], "R@5": bool(found)}
            if caption.start is not None and caption.end is not None:
                times = caption.start, caption.end
                row["mIoU"] = bool(found) and moments.intersection_over_union(
                    results[found[0]].moments[0], *times
                )
            kinds.setdefault(caption.kind, {}).setdefault(way, []).append(row)
        progress()
    return {kind: {way: _means(rows) for way, rows in of.items()} for kind, of in kinds.items()}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means in percent, each of the rows that have the figure; the sum of "queries"."""
    names = dict.fromkeys(name for row in rows for name in row)
    of = {name: [float(row[name]) for row in rows if name in row] for name in names}
    means = {name: 100 * float(np.mean(values)) for name, values in of.items()}
    return means | {"queries": float(len(rows))}


def report(
    library: Library,
    done: Mapping[str, tuple[dict[str, float], Separation]],
    captions: Sequence[Caption],
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """All figures on captions, as `evaluate --json` writes them.

    `done` has what `evaluate` gives of each ranker, by its name; the library is asked by kind.
    """
    return {
        "captions": sum(one.single and bool(one.video) for one in captions),
        "videos": len(library.ranked()),
        "rankers": {name: metrics for name, (metrics, _) in done.items()},
        "levels": {
            name: {f"{rate}": trade_off(apart, rate) for rate in RATES}
            for name, (_, apart) in done.items()
        },
        "kinds": by_kind(library, captions, progress),
    }


def print_report(figures: Mapping[str, Any]) -> None:
    """Prints the tables of a report."""
    from hlformer_jax.retrieval import ranking

    table = figures["rankers"]
    shown = next((name for name in table if name in rankers.LABELS), rankers.DEFAULT)
    if table:
        title = f"{figures['captions']} captions, {figures['videos']} videos; percent"
        ranking.print_table(title, dict(zip(told_apart(list(table)), table.values(), strict=True)))
    span = lambda share, low, high: f"{share:.1f} ({low:.0f} to {high:.0f})"
    levels = {rate: own for rate, own in figures["levels"].get(shown, {}).items() if own}
    lines = [
        [f"{100 * float(rate):g} % false alarms", f"{own['level']:.4f}",
         span(*own["false alarms"]), span(*own["kept"]),
         *(f"{share:.1f}" for share in own["absent"].values())]
        for rate, own in levels.items()
    ]  # fmt: skip
    if levels:
        absent = next(iter(levels.values()))["absent"]
        head = ["level for", "score", "false alarms", "kept", *absent]
        cli.print_table(head, lines, f"good matches, {shown}; percent", width=200)
    columns = "R@1", "R@5", "mIoU", "good"
    lines = [
        [kind or "captions", way, f"{own['queries']:.0f}"]
        + [f"{own[one]:.1f}" if one in own else "" for one in columns]
        for kind, of in figures["kinds"].items()
        for way, own in of.items()
    ]
    head = ["kind", "by", "queries", *columns]
    cli.print_table(head, lines, f"by kind, {shown}; percent", ["by"], 200)


def told_apart(names: Sequence[str]) -> list[str]:
    """Names of rankers for a table; runs by what tells them apart, below the folder they share."""
    runs = [os.path.abspath(name) for name in names if name not in rankers.LABELS]
    shared = os.path.commonpath([os.path.dirname(run) for run in runs]) if runs else ""
    return [name if name in rankers.LABELS else os.path.relpath(name, shared) for name in names]
