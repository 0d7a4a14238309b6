"""How good a search is: recall of videos, and recall of moments by their overlap."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RANKS = (1, 5, 10, 100)
"""K of the recalls of videos."""

OVERLAPS = (0.3, 0.5, 0.7)
"""Intersections over union from which on a moment counts as found."""


class Span(NamedTuple):
    """A part of a video.

    Attributes:
      video: its name.
      start: seconds.
      end: seconds, not before `start`.
    """

    video: str
    start: float
    end: float


class Answer(NamedTuple):
    """What a search answered to a sentence, and what is true.

    Attributes:
      found: the first moment of each video, best video first; a video stands there once.
      true: the moments that the sentence describes, in one video or several; at least one.
    """

    found: Sequence[Span]
    true: Sequence[Span]


def overlap(one: Span, other: Span) -> float:
    """Intersection over union of two parts in time; 0 in different videos, and of empty parts."""
    if one.video != other.video:
        return 0.0
    shared = min(one.end, other.end) - max(one.start, other.start)
    whole = max(one.end, other.end) - min(one.start, other.start)
    return max(shared, 0.0) / whole if whole > 0 else 0.0


def rank(answer: Answer) -> int:
    """The place of the first true video among those found, from 1; one past the last if none is."""
    true = {span.video for span in answer.true}
    places = (place for place, span in enumerate(answer.found, 1) if span.video in true)
    return next(places, len(answer.found) + 1)


def metrics(answers: Sequence[Answer]) -> dict[str, float]:
    """Recalls of videos and of moments, in percent of the sentences.

    Args:
      answers: at least one. A video that is not among those found counts as not found at any rank.

    Returns:
      `R@K`: a true video is among the first K. `R1@IoU=x`: the first moment of the first video
      overlaps a true one so far. `moment@IoU=x`: the first moment of the first true video that was
      found does, wherever that video stands. `mIoU`: the mean overlap of that moment.

    Raises:
      ValueError: when there are no answers, one has no true moment, or a video stands twice.
    """
    if not answers:
        raise ValueError("there is nothing to evaluate: no sentence was asked")
    for answer in answers:
        if not answer.true or len({span.video for span in answer.found}) < len(answer.found):
            raise ValueError(f"not one true moment and every video once: {answer}")
    ranks = np.asarray([rank(answer) for answer in answers])
    missing = ranks > np.asarray([len(answer.found) for answer in answers])
    first = np.asarray([_best(answer, 1) for answer in answers])
    inside = np.asarray(
        [_best(answer, place) for answer, place in zip(answers, ranks, strict=True)]
    )
    percent = lambda hit: 100.0 * float(np.mean(hit))
    return (
        {f"R@{k}": percent((ranks <= k) & ~missing) for k in RANKS}
        | {f"R1@IoU={least}": percent(first >= least) for least in OVERLAPS}
        | {f"moment@IoU={least}": percent(inside >= least) for least in OVERLAPS}
        | {"mIoU": percent(inside)}
    )


def _best(answer: Answer, place: int) -> float:
    """The largest overlap of the moment at a place, from 1, with a true one; 0 past the last."""
    spans = answer.found[place - 1 : place]
    return max((overlap(span, true) for span in spans for true in answer.true), default=0.0)
