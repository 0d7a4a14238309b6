"""Localisation: how well the first moment that a model finds agrees with the annotated one.

    IoU 0.3, 0.5, 0.7    share of captions whose first moment has at least that intersection over
                         union with the annotated one, in percent
    mIoU                 the mean intersection over union, in percent

The moment is looked for in the caption's own video, wherever that was ranked: so the figures are of
the localisation alone. Captions without annotated times do not count.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.annotations import Span
from hlformer_jax.retrieval.moments import Moment, moments

OVERLAPS = (0.3, 0.5, 0.7)

METRICS = (*(f"IoU {overlap}" for overlap in OVERLAPS), "mIoU")
"""Names of the metrics."""


def intersection_over_union(moment: Moment, start: float, end: float) -> float:
    """How well a moment agrees with the one from `start` to `end`, from 0 to 1."""
    shared = max(min(moment.end, end) - max(moment.start, start), 0.0)
    return shared / (max(moment.end, end) - min(moment.start, start)) if shared else 0.0


def first_moments(scores: Float[np.ndarray, "captions F"], duration: float) -> list[Moment]:
    """The first moment of each caption in one video.

    Args:
      scores: scores of the captions over the frames, which stand at equal distances in time.
      duration: length of the video in seconds.
    """
    period = duration / scores.shape[-1]
    times = period * np.arange(scores.shape[-1])
    return [moments(times, row, period, count=1)[0] for row in scores]


def overlaps(
    scores: Float[np.ndarray, "captions F"], spans: Sequence[Span | None]
) -> Float[np.ndarray, " captions"]:
    """Intersection over union of first and annotated moment, for the captions of one video.

    Args:
      scores: scores of the captions over the frames.
      spans: the annotated moment of each caption; None where that is not known.

    Returns:
      From 0 to 1, float32; NaN for captions without times.
    """
    found = np.full(len(spans), np.nan, np.float32)
    for k, span in enumerate(spans):
        if span is not None:
            [moment] = first_moments(scores[k : k + 1], span.duration)
            found[k] = intersection_over_union(moment, span.start, span.end)
    return found


def metrics(overlaps: Float[np.ndarray, " Q"]) -> dict[str, float]:
    """The metrics of the captions that have times; empty where none has."""
    known = overlaps[~np.isnan(overlaps)]
    if not len(known):
        return {}
    values = [float(np.mean(known >= overlap)) for overlap in OVERLAPS]
    values.append(float(np.mean(known, dtype=np.float64)))
    return {name: 100.0 * value for name, value in zip(METRICS, values, strict=True)}
