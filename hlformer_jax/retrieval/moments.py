"""Moments of a video from its scores over time, and how well the first agrees with the annotated.

The threshold lies half-way between the median and the maximum of the video's scores. Successive
frames at or above it make a moment; a gap in time of more than two periods ends it. So moments
never overlap, never span a gap, and the best frame always lies in one.

A moment begins at its first frame and ends where the next frame begins; before a gap and at the end
of the video it ends a period after its last frame. It lasts at least a period. Its peak is its best
frame, or the middle one of several equal successive frames.

    IoU 0.3, 0.5, 0.7    share of captions whose first moment has at least that intersection over
                         union with the annotated one, in percent
    mIoU                 the mean intersection over union, in percent

The first moment is found in the caption's own video, at any rank of it. Captions without annotated
times do not count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.data.annotations import Span

SHARE = 0.5
"""Place of the threshold between the median and the largest score, from 0 to 1."""

GAP = 2.0
"""Largest distance of neighbouring frames in periods; beyond it, frames are missing."""

OVERLAPS = (0.3, 0.5, 0.7)

METRICS = (*(f"IoU {overlap}" for overlap in OVERLAPS), "mIoU")
"""Names of the metrics."""


class Moment(NamedTuple):
    """A moment of a video, in seconds from its start, with the time and score of its best frame."""

    start: float
    end: float
    peak: float
    score: float


def find_moments(
    times: Float[np.ndarray, " F"],
    scores: Float[np.ndarray, " F"],
    period: float,
    count: int = 3,
) -> list[Moment]:
    """Find the best moments of a video, best first; of equally good moments the earlier first.

    Args:
      times: seconds of F >= 1 frames, rising.
      scores: their scores, finite; higher is better.
      period: seconds between two frames, as they were asked for.
      count: how many moments at most.
    """
    median = float(np.median(scores))
    largest = float(scores.max())
    # Rounding must not lift it above the largest score.
    threshold = min(median + SHARE * (largest - median), largest)
    good = scores >= threshold
    is_gap = np.diff(times) > GAP * period
    begins = good & np.concatenate([[True], ~good[:-1] | is_gap])
    ends = good & np.concatenate([~good[1:] | is_gap, [True]])
    edges = np.append(np.where(is_gap, times[:-1] + period, times[1:]), times[-1] + period)
    runs = np.stack([np.flatnonzero(begins), np.flatnonzero(ends)], axis=-1)
    maxima = np.maximum.reduceat(scores, runs[:, 0])  # scores between two runs are smaller
    best = []
    for first, last in runs[np.argsort(-maxima, kind="stable")[:count]]:
        peak = first + _peak(scores[first : last + 1])
        start = float(times[first])
        end = max(float(edges[last]), start + period)
        best.append(Moment(start, end, float(times[peak]), float(scores[peak])))
    return best


def _peak(scores: Float[np.ndarray, " n"]) -> Int[np.ndarray, ""]:
    """The middle of the first row of largest scores."""
    first = int(np.argmax(scores))
    lower = np.flatnonzero(scores[first:] < scores[first])
    length = int(lower[0]) if len(lower) else len(scores) - first
    return np.asarray(first + (length - 1) // 2)


def intersection_over_union(moment: Moment, start: float, end: float) -> float:
    """Return the overlap of a moment with the interval from `start` to `end`, from 0 to 1."""
    shared = max(min(moment.end, end) - max(moment.start, start), 0.0)
    return shared / (max(moment.end, end) - min(moment.start, start)) if shared else 0.0


def first_moments(scores: Float[np.ndarray, "captions F"], duration: float) -> list[Moment]:
    """The first moment of each caption in one video, whose frames have equal distances."""
    period = duration / scores.shape[-1]
    times = period * np.arange(scores.shape[-1])
    return [find_moments(times, row, period, count=1)[0] for row in scores]


def overlaps(
    scores: Float[np.ndarray, "captions F"], spans: Sequence[Span | None]
) -> Float[np.ndarray, " captions"]:
    """IoU of first and annotated moment of each caption of a video; NaN without times."""
    overlap = np.full(len(spans), np.nan, np.float32)
    for k, span in enumerate(spans):
        if span is not None:
            [moment] = first_moments(scores[k : k + 1], span.duration)
            overlap[k] = intersection_over_union(moment, span.start, span.end)
    return overlap


def ratios(spans: Sequence[Span | None]) -> Float[np.ndarray, " captions"]:
    """The share of its video that each annotated moment lasts; NaN without times.

    Rounded to six digits: times have two, and 2.3 − 1.3 is to be 1.
    """
    shares = [np.nan if span is None else (span.end - span.start) / span.duration for span in spans]
    return np.round(shares, 6)


def metrics(overlaps: Float[np.ndarray, " Q"]) -> dict[str, float]:
    """The metrics of the captions that have times; empty where none has."""
    timed = overlaps[~np.isnan(overlaps)]
    if not len(timed):
        return {}
    values = [float(np.mean(timed >= overlap)) for overlap in OVERLAPS]
    values.append(float(np.mean(timed, dtype=np.float64)))
    return {name: 100.0 * value for name, value in zip(METRICS, values, strict=True)}
