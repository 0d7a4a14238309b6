"""Match thresholds, calibrated on captions.

Let s(q, v) be the score of query q and video v, correct(q) the correct videos of q, and c(q) the
baseline of q: the median of the archive's products with q, or 0 if the encoder has learned
probabilities. The best scores among the correct videos and among the others are

    present   t(q) = max {s(q, v) : v in correct(q)} − c(q)
    absent    u(q) = max {s(q, v) : v not in correct(q)} − c(q)

The AUC is the probability that t is above u for two random captions. The threshold for a rate α of
false alarms is the smallest number above the ⌈(n + 1)(1 − α)⌉-th smallest u of n captions with
different sentences (split conformal prediction). For exchangeable queries about absent things, the
expected rate of false alarms is at most α. Error rates on new captions are estimated by leaving out
the captions of each video in turn.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.records import Threshold
from hlformer_jax.search.signals import rankers


class Separation(NamedTuple):
    """Best scores of n captions among their correct videos and among the others; see the module."""

    present: Float[np.ndarray, " n"]  # t
    absent: Float[np.ndarray, " n"]  # u
    videos: tuple[str, ...]  # the video of each caption
    without_video: dict[str, Float[np.ndarray, " m"]]  # u of captions without a video, by kind
    is_first: Bool[np.ndarray, " n"]  # whether no earlier caption has the same sentence


def auc(present: Float[np.ndarray, " n"], absent: Float[np.ndarray, " m"]) -> float:
    """Return the percentage of pairs with `present` above `absent`; ties count half."""
    ordered = np.sort(absent)
    lower, upper = (np.searchsorted(ordered, present, side) for side in ("left", "right"))
    return float(50 * (lower + upper).mean() / len(absent))


FALSE_ALARM_RATES = (0.05, 0.1, 0.2)
"""False-alarm rates for which a report has thresholds."""

_RESAMPLES, _INTERVAL = 1000, (0.025, 0.975)
"""Bootstrap samples of the videos, and the quantiles of a reported interval."""


def conformal_threshold(absent: Float[np.ndarray, " n"], rate: float) -> float | None:
    """Return the threshold for a false-alarm rate.

    Args:
      absent: best score of each caption among the videos that are not correct.
      rate: the false-alarm rate, between 0 and 1.

    Returns:
      The threshold; None if there are too few captions for this rate, or if a caption is correct
      for every video.
    """
    rank = math.ceil((len(absent) + 1) * (1 - rate) - 1e-9)
    if not 0 < rank <= len(absent) or not np.isfinite(absent).all():
        return None
    return float(np.nextafter(np.sort(absent.astype(np.float64))[rank - 1], np.inf))


def error_rates(separation: Separation, rate: float) -> dict[str, Any] | None:
    """Calibrate a threshold, and estimate its error rates on new captions.

    Args:
      separation: the scores of the captions.
      rate: the false-alarm rate, between 0 and 1.

    Returns:
      "threshold"; in percent "false alarms" and "recall" (captions with a correct video above the
      threshold), each with the 2.5 and 97.5 % quantiles of a bootstrap over videos; and "absent",
      the false alarms of each kind of caption without a video. None if `conformal_threshold` is
      None for all captions, or for the captions that remain when one video is left out.
    """
    names, inverse = np.unique(separation.videos, return_inverse=True)
    folds = [inverse == i for i in range(len(names))]
    absent, is_first = separation.absent, separation.is_first
    threshold = conformal_threshold(absent[is_first], rate)
    fold_thresholds = [conformal_threshold(absent[is_first & ~fold], rate) for fold in folds]
    if threshold is None or None in fold_thresholds:
        return None
    scores = np.stack([absent, separation.present], -1)
    is_match = scores >= np.asarray(fold_thresholds)[inverse, None]
    counts = np.stack([[fold.sum(), *is_match[fold].sum(0)] for fold in folds])
    resampled = np.random.default_rng(0).integers(len(names), size=(_RESAMPLES, len(names)))
    quantiles = np.quantile(_match_percent(counts[resampled]), _INTERVAL, axis=0)
    false_alarms, recall = np.concatenate([_match_percent(counts)[None], quantiles]).T.tolist()
    false_alarms_by_kind = {
        kind: 100 * float((scores >= threshold).mean())
        for kind, scores in separation.without_video.items()
    }
    return {
        "threshold": threshold, "false alarms": false_alarms, "recall": recall,
        "absent": false_alarms_by_kind,
    }  # fmt: skip


def _match_percent(counts: Int[np.ndarray, "*rows n 3"]) -> Float[np.ndarray, "*rows 2"]:
    """Return false alarms and correct matches in percent of the captions.

    Args:
      counts: the number of captions, of false alarms and of correct matches for each video.
    """
    return 100 * counts[..., 1:].sum(-2) / counts[..., :1].sum(-2)


def calibrate(index: Index, separations: Mapping[str, Separation], percent: float) -> None:
    """Store the match thresholds of rankers for a false-alarm rate in an index.

    Args:
      index: the index.
      separations: scores of captions, by the name of the ranker; trained models are left out.
      percent: the false-alarm rate in percent; 0 removes the thresholds of all rankers.

    Raises:
      SearchError: if the captions are too few for this rate, a caption is correct for every
        video, or another process is writing.
    """
    frames, thresholds = sum(record.frames for record in index.records().values()), {}
    for name in [name for name in rankers.LABELS if name in separations] if percent else ():
        absent = separations[name].absent[separations[name].is_first]
        if not np.isfinite(absent).all():
            raise SearchError("cannot calibrate: a caption lists every video as correct")
        threshold = conformal_threshold(absent, percent / 100)
        if threshold is None:
            raise SearchError(
                f"a rate of {percent:g} % needs at least {math.ceil(100 / percent) - 1} visual"
                f" captions with different sentences (got {len(absent)}): add captions or raise the"
                " rate"
            )
        thresholds[name] = Threshold(threshold, percent, len(absent), frames)
    if percent and not thresholds:
        raise SearchError("cannot calibrate: no caption is a single sentence about a picture")
    with index.writing() as writer:
        writer.set_thresholds(index.thresholds | thresholds if percent else {})
