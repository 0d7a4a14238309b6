"""Match thresholds, calibrated on captions.

How far scores tell what an archive has from what it lacks is known of captions: with s(q, v) the
scores of q, own(q) its videos, and c(q) the median of the archive's products with q, or 0 where the
encoder has learned probabilities, so that its cosines have a level of their own,

    present   t(q) = max {s(q, v) : v in own(q)} − c(q)
    absent    u(q) = max {s(q, v) : v not in own(q)} − c(q)

as u is what q would have found without its videos. The AUC is the probability that t is above u,
of any two captions. A level for a rate α of false alarms is the least number above the
⌈(n + 1)(1 − α)⌉-th smallest u of n captions (split conformal prediction): of sentences on absent
things as like these as they are like each other, it calls α at most good, on average. What it does
to sentences that it was not made of is measured by leaving out each video's captions in turn.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.records import Threshold
from hlformer_jax.search.signals import rankers


class Separation(NamedTuple):
    """What tells captions' own videos from the others, for each of n captions; see the module."""

    present: Float[np.ndarray, " n"]  # t
    absent: Float[np.ndarray, " n"]  # u
    videos: tuple[str, ...]  # of the captions
    lacking: dict[str, Float[np.ndarray, " m"]]  # u of m captions that no video has, by kind


def auc(present: Float[np.ndarray, " n"], absent: Float[np.ndarray, " m"]) -> float:
    """The probability, in percent, that one of n numbers is above one of m; ties count half."""
    ordered = np.sort(absent)
    left, right = (np.searchsorted(ordered, present, side) for side in ("left", "right"))
    return float(50 * (left + right).mean() / len(absent))


RATES = (0.05, 0.1, 0.2)
"""Rates of false alarms that are reported."""

_RESAMPLED, _INTERVAL = 1000, (0.025, 0.975)
"""How often the videos are drawn again, and the quantiles of that which make an interval."""


def level(absent: Float[np.ndarray, " n"], rate: float) -> float | None:
    """The level for a rate of false alarms, as the module says.

    None of too few captions, or where one is right for every video, so that its u is not finite.
    """
    place = math.ceil((len(absent) + 1) * (1 - rate) - 1e-9)
    if not 0 < place <= len(absent) or not np.isfinite(absent).all():
        return None
    return float(np.nextafter(np.sort(absent.astype(np.float64))[place - 1], np.inf))


def trade_off(apart: Separation, rate: float) -> dict[str, Any] | None:
    """What the level for a rate does to captions of videos that it was not made of.

    Returns:
      "level"; in percent "false alarms" among the n captions, and "kept", the share of them that is
      called good for its own video, both with the 2.5 and 97.5 % quantiles of drawing the videos
      again; and "absent", the false alarms of each kind that no video has, which had no part in the
      level. None where there is no level, or none without the captions of a video.
    """
    names, inverse = np.unique(apart.videos, return_inverse=True)
    folds = [inverse == i for i in range(len(names))]
    whole, *bounds = (level(apart.absent[~own], rate) for own in (inverse < 0, *folds))
    if whole is None or None in bounds:
        return None
    good = np.stack([apart.absent, apart.present], -1) >= np.asarray(bounds)[inverse, None]
    counts = np.stack([[own.sum(), *good[own].sum(0)] for own in folds])
    drawn = np.random.default_rng(0).integers(len(names), size=(_RESAMPLED, len(names)))
    share = lambda some: 100 * some[..., 1:].sum(-2) / some[..., :1].sum(-2)
    quantiles = np.quantile(share(counts[drawn]), _INTERVAL, axis=0)
    alarms, kept = np.concatenate([share(counts)[None], quantiles]).T.tolist()
    lacking = {kind: 100 * float((own >= whole).mean()) for kind, own in apart.lacking.items()}
    return {"level": whole, "false alarms": alarms, "kept": kept, "absent": lacking}


def calibrate(index: Index, separations: Mapping[str, Separation], percent: float) -> None:
    """Keeps the levels for a rate of false alarms in an index, of its rankers without training.

    With a rate of 0 they are forgotten.

    Raises:
      SearchError: when the captions are too few for that rate, or another process writes.
    """
    frames, known = sum(one.frames for one in index.records().values()), {}
    for name in [name for name in rankers.LABELS if name in separations] if percent else ():
        absent = separations[name].absent
        if not np.isfinite(absent).all():
            raise SearchError("a caption is right for every video: what is absent is not known")
        above = level(absent, percent / 100)
        if above is None:
            raise SearchError(
                f"{len(absent)} captions do not tell what {percent:g} % are: give"
                f" {math.ceil(100 / percent) - 1} on what is seen, or a larger rate"
            )
        known[name] = Threshold(above, percent, len(absent), frames)
    if percent and not known:
        raise SearchError("no caption is one sentence on what is seen in a video")
    with index.writing() as writer:
        writer.set_thresholds(index.thresholds | known if percent else {})
