"""Moments of a video from its scores over time, and their agreement with annotated moments.

The threshold lies half-way between the median and the maximum of the video's scores. Successive
frames at or above it make a moment; a gap in time of more than two periods ends the moment. So
moments never overlap and never span a gap, and the best frame always lies in a moment.

A moment begins at its first frame. It ends at the time of the next frame; before a gap and at the
end of the video, a period after its last frame. It lasts at least a period. Its peak is its best
frame, or the middle of several successive frames with the same score. The metrics are

    IoU 0.3, 0.5, 0.7    percentage of captions whose first moment has at least that intersection
                         over union with the annotated moment
    mIoU                 mean intersection over union, in percent

They use the first moment in the caption's own video, whatever the rank of that video, and leave out
captions without annotated times.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.annotations.spans import Span

THRESHOLD_SHARE = 0.5
"""Place of the threshold between the median and the largest score, from 0 to 1."""

MAX_GAP_PERIODS = 2.0
"""Largest distance of neighbouring frames in periods; at a larger distance frames are missing."""

OVERLAPS = (0.3, 0.5, 0.7)
"""Smallest intersections over union that count as agreement."""

METRICS = (*(f"IoU {overlap}" for overlap in OVERLAPS), "mIoU")
"""Names of the metrics."""


def needs_moments(metric: str) -> bool:
    """Return whether a metric, by its name, depends on the annotated moments."""
    return metric in METRICS or metric.startswith("ratio=")


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
    """Find the best moments of a video, best first; of equally good moments, the earlier first.

    Args:
      times: seconds of F >= 1 frames, rising.
      scores: finite scores of the frames; higher is better.
      period: requested seconds between two frames.
      count: largest number of moments.

    Returns:
      At most ``count`` moments, at least one.

    Raises:
      ValueError: for no frames, times and scores of different shapes, and scores that are not
        finite.
    """
    times, scores = np.asarray(times), np.asarray(scores)
    if times.ndim != 1 or not times.size:
        raise ValueError(f"times must have shape [F] with F >= 1, got {times.shape}")
    if scores.shape != times.shape:
        raise ValueError(f"scores must have shape {times.shape}, got {scores.shape}")
    if not np.isfinite(scores).all():
        frame = int(np.argmin(np.isfinite(scores)))
        raise ValueError(f"scores must be finite, got {scores[frame]} for frame {frame}")
    median = float(np.median(scores))
    largest = float(scores.max())
    # Rounding must not lift the threshold above the largest score.
    threshold = min(median + THRESHOLD_SHARE * (largest - median), largest)
    good = scores >= threshold
    is_gap = np.diff(times) > MAX_GAP_PERIODS * period
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


def _peak(scores: Float[np.ndarray, " n"]) -> int:
    """Return the index of the largest score; of the first run of equal largest scores, the middle.

    If the run has an even length, it is the earlier of the two middle indices.
    """
    first = int(np.argmax(scores))
    lower = np.flatnonzero(scores[first:] < scores[first])
    length = int(lower[0]) if len(lower) else len(scores) - first
    return first + (length - 1) // 2


def intersection_over_union(moment: Moment, start: float, end: float) -> float:
    """Return the intersection over union, from 0 to 1, of a moment and an interval in seconds."""
    shared = max(min(moment.end, end) - max(moment.start, start), 0.0)
    return shared / (max(moment.end, end) - min(moment.start, start)) if shared else 0.0


def first_moments(scores: Float[np.ndarray, "captions F"], duration: float) -> list[Moment]:
    """Return the best moment of each caption in one video with equally spaced frames.

    Args:
      scores: the scores of the frames for each caption.
      duration: length of the video in seconds.

    Raises:
      ValueError: for scores of another shape, and scores that are not finite.
    """
    scores = np.asarray(scores)
    if scores.ndim != 2 or not scores.shape[-1]:
        raise ValueError(f"scores must have shape [captions, F] with F >= 1, got {scores.shape}")
    period = duration / scores.shape[-1]
    times = period * np.arange(scores.shape[-1])
    return [find_moments(times, row, period, count=1)[0] for row in scores]


def overlaps(
    scores: Iterable[Float[np.ndarray, " _"]], spans: Sequence[Span | None]
) -> Float[np.ndarray, " captions"]:
    """Return the intersection over union of each caption's first and annotated moment.

    Args:
      scores: for each caption the scores of the frames of its video.
      spans: the annotated moment of each caption; None if it is unknown.

    Returns:
      float32 numbers from 0 to 1; NaN for a caption without annotated times.

    Raises:
      ValueError: for another number of spans than captions, and scores that are not finite.
    """
    overlap = np.full(len(spans), np.nan, np.float32)
    for k, (row, span) in enumerate(zip(scores, spans, strict=True)):
        if span is not None:
            [moment] = first_moments(np.asarray(row)[None], span.duration)
            overlap[k] = intersection_over_union(moment, span.start, span.end)
    return overlap


def ratios(spans: Sequence[Span | None]) -> Float[np.ndarray, " captions"]:
    """Return the length of each annotated moment, divided by the length of its video.

    The ratios are rounded to six digits, because annotated times have two digits and 2.3 − 1.3
    should be 1. They are at most 1, although a moment may end a little after its video. NaN for a
    caption without annotated times.
    """
    shares = [np.nan if span is None else (span.end - span.start) / span.duration for span in spans]
    return np.minimum(np.round(shares, 6), 1)


def metrics(overlaps: Float[np.ndarray, " Q"]) -> dict[str, float]:
    """Return `METRICS` of the captions with annotated times, in percent; empty without any.

    Args:
      overlaps: intersection over union of each caption; NaN without annotated times.
    """
    overlaps = np.asarray(overlaps)
    timed = overlaps[~np.isnan(overlaps)]
    if not len(timed):
        return {}
    values = [float(np.mean(timed >= overlap)) for overlap in OVERLAPS]
    values.append(float(np.mean(timed, dtype=np.float64)))
    return {name: 100.0 * value for name, value in zip(METRICS, values, strict=True)}
