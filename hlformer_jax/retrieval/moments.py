"""Moments of a video from its scores over time.

The threshold lies half-way between the median of the video's scores and their largest: what is as
good as the best, as far as the rest of the video tells good from bad. Frames at or above it that
follow one another make a moment; a gap in time, of more than two periods, ends one. So moments
never overlap, never span a gap, and there is always one, around the best frame.

A moment begins at its first frame and ends where the next frame begins, at a gap or at the end a
period after its last; it lasts a period at least. Its peak is its best frame, of several equal ones
that follow each other the middle.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

SHARE = 0.5
"""Where the threshold lies between the median and the largest score."""

GAP = 2.0
"""Periods between two frames beyond which nothing was seen between them."""


class Moment(NamedTuple):
    """A moment of a video.

    Attributes:
      start: seconds from the video's start.
      end: seconds.
      peak: time of the best frame, in seconds.
      score: score of that frame.
    """

    start: float
    end: float
    peak: float
    score: float


def moments(
    times: Float[np.ndarray, " F"],
    scores: Float[np.ndarray, " F"],
    period: float,
    count: int = 3,
) -> list[Moment]:
    """The best moments of a video.

    Args:
      times: seconds of F >= 1 frames, rising.
      scores: their scores, finite; higher is better.
      period: seconds between two frames, as they were asked for.
      count: how many moments at most.

    Returns:
      Moments, best first; of equally good ones the earlier first.
    """
    median = float(np.median(scores))
    largest = float(scores.max())
    # Never above the largest score, whatever is rounded.
    threshold = min(median + SHARE * (largest - median), largest)
    good = scores >= threshold
    apart = np.diff(times) > GAP * period
    begins = good & np.concatenate([[True], ~good[:-1] | apart])
    ends = good & np.concatenate([~good[1:] | apart, [True]])
    edges = np.append(np.where(apart, times[:-1] + period, times[1:]), times[-1] + period)
    found = []
    for first, last in zip(np.flatnonzero(begins), np.flatnonzero(ends), strict=True):
        peak = first + _peak(scores[first : last + 1])
        start = float(times[first])
        end = max(float(edges[last]), start + period)
        found.append(Moment(start, end, float(times[peak]), float(scores[peak])))
    found.sort(key=lambda moment: (-moment.score, moment.start))
    return found[:count]


def _peak(scores: Float[np.ndarray, " n"]) -> Int[np.ndarray, ""]:
    """The middle of the first row of largest scores."""
    first = int(np.argmax(scores))
    lower = np.flatnonzero(scores[first:] < scores[first])
    length = int(lower[0]) if len(lower) else len(scores) - first
    return np.asarray(first + (length - 1) // 2)
