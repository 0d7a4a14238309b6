"""Results of a query: videos, their moments, and why they match."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, overload

import numpy as np
from jaxtyping import Float

from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search import times
from hlformer_jax.search.index.records import Threshold, equal_fields
from hlformer_jax.search.signals.rankers import ScoreKind
from hlformer_jax.search.signals.transcript.passages import Passage
from hlformer_jax.text import legible


class Result(NamedTuple):
    """One result of a query: a video, with its score and its moments.

    Attributes:
      id: id of the video in the index.
      video: path of the video, relative to the indexed folder.
      folder: the folder of `video`.
      path: absolute path of the video.
      score: score by the first signal of the query; None if that signal does not rank the video.
      score_kind: the meaning of the score; None if it only orders videos, or if the score is None.
        It is "probability" if an encoder that has learned probabilities (SigLIP) has converted the
        score from a cosine.
      moments: best moments, best first, by the first signal that matches the video.
      times: times of the frames, in seconds.
      scores: scores of the frames.
      duration: length of the video in seconds.
      date: time of the recording, or else of the file's last modification, in seconds since the
        epoch.
      date_of: the kind of `date`, "recording" or "file".
      is_match: True if the score by some signal reaches that signal's match threshold, False if
        none does. None if no signal has a threshold, as with a store or a trained model.
      signals: names of the signals that match.
      copies: paths of other videos of the same content, which are part of this result. A copy that
        matches differently, because of its own subtitles, is a separate result.
      passages: passages of the transcript that match, best first.
      tags: tags of the video (`Library.tag`).
    """

    id: str
    video: str
    folder: str
    path: Path
    score: float | None
    score_kind: ScoreKind | None
    moments: list[Moment]
    times: Float[np.ndarray, " F"]
    scores: Float[np.ndarray, " F"]
    duration: float
    date: float
    date_of: str
    is_match: bool | None = None
    signals: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    tags: tuple[str, ...] = ()

    def __eq__(self, value: object) -> bool:
        """Return whether all fields are equal, arrays element by element."""
        return equal_fields(self, value)

    def __ne__(self, value: object) -> bool:
        """Return whether a field differs."""
        return not self == value

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the JSON output: all but `path`, `times` and `scores`."""
        return {
            "id": self.id,
            "video": legible(self.video),
            "date": times.format_date(self.date),
            "date_of": self.date_of,
            "score": None if self.score is None else float(self.score),
            "score_kind": self.score_kind,
            "is_match": self.is_match,
            "signals": list(self.signals),
            "passages": [
                _round_times(passage, "start", "end") | {"text": passage.text}
                for passage in self.passages
            ],
            "copies": [legible(copy) for copy in self.copies],
            "tags": list(self.tags),
            "moments": [
                _round_times(moment, "start", "end", "peak") | {"score": float(moment.score)}
                for moment in self.moments
            ],
        }


def _round_times(interval: Moment | Passage, *names: str) -> dict[str, Any]:
    """Return the named times of an interval, rounded to milliseconds."""
    return {name: round(getattr(interval, name), 3) for name in names}


@dataclasses.dataclass(frozen=True)
class MatchThreshold:
    """Calibration of the match threshold of a query."""

    false_alarms: float
    """False-alarm rate: the percentage of absent things whose score reaches the threshold."""
    captions: int
    """Number of captions with which the threshold was calibrated."""

    @classmethod
    def from_index(cls, threshold: Threshold | None) -> "MatchThreshold | None":
        """Return the calibration of a threshold of the index; None if there is none."""
        if threshold is None:
            return None
        return cls(threshold.false_alarms, threshold.captions)


class Results(list[Result]):
    """Results, best first; slices keep the warnings and the match threshold.

    Attributes:
      warnings: lines about videos and files that could not be searched, and other warnings.
      match_threshold: the calibration of the match threshold; None if it is not calibrated.
      reason: why the list is empty; "" if it has results.
    """

    def __init__(
        self,
        results: Iterable[Result] = (),
        warnings: Sequence[str] = (),
        match_threshold: MatchThreshold | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(results)
        self.warnings, self.match_threshold = list(warnings), match_threshold
        self.reason = reason

    @overload
    def __getitem__(self, key: SupportsIndex) -> Result: ...

    @overload
    def __getitem__(self, key: slice) -> "Results": ...

    def __getitem__(self, key: SupportsIndex | slice) -> "Result | Results":
        """Return a result, or a slice that keeps the warnings and the match threshold."""
        if isinstance(key, slice):
            results = super().__getitem__(key)
            return Results(results, self.warnings, self.match_threshold, self.reason)
        return super().__getitem__(key)

    def copy(self) -> "Results":
        """Return a copy that keeps the warnings and the match threshold."""
        return self[:]

    @property
    def good(self) -> bool:
        """True if a result is a match or has no match threshold; False if the list is empty."""
        return any(result.is_match is not False for result in self)

    @property
    def verdict(self) -> str:
        """Message that no result is a match, or why there is none; "" if `good` is true."""
        if self.good or not self:
            return self.reason
        if (calibration := self.match_threshold) is None:
            return "no good match: these results are the nearest, but none stands out"
        return (
            "no good match: these results are the nearest, but none reaches the match"
            f" threshold, which {calibration.false_alarms:g} % of absent things reach"
            f" (calibrated with {calibration.captions} captions)"
        )
