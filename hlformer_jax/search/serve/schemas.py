"""JSON responses of the server and their schemas.

Within a version of the package, fields may be added, but none is renamed or removed. Times are
seconds from the start of a video.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from hlformer_jax.search import times
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.index.records import split_name
from hlformer_jax.search.query import filters
from hlformer_jax.search.query import results as archive
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.serve.redaction import base_name, summarise, without_paths
from hlformer_jax.search.signals.rankers import ScoreKind
from hlformer_jax.text import legible
from hlformer_jax.video import Playback

PARAMETERS = {"text": "q", "image": "the picture", "without": "not", "tags": "tag"}
"""Parameters of a query whose names are not those of the fields of `Query`."""

MAX_POINTS = 600
"""Maximum number of points of a curve of scores; the page has no room for more."""

MAX_RECENT = 12
"""Number of newest videos that the page shows before the first query."""

MAX_FAILURES = 100
"""Maximum number of failed files, and of subtitle problems, that are listed with reasons."""


def results(library: Library, best: archive.Results) -> dict[str, Any]:
    """Return the response to a query (`Results`, without `seconds`).

    Args:
      library: the archive, whose paths are removed from warnings.
      best: the results of the query. Their curves are reduced to at most `MAX_POINTS` points.
    """
    shown = []
    for result in best:
        times, scores = thin(np.asarray(result.times), np.asarray(result.scores))
        facts = {"folder": result.folder, "duration": result.duration}
        shown.append(result.as_json() | facts | {"times": times, "scores": scores})
    calibration = best.match_threshold
    verdict = {
        "good": best.good,
        "verdict": best.verdict,
        "match_threshold": calibration and dataclasses.asdict(calibration),
    }
    return {"results": shown, **verdict, "warnings": warnings(library, best)}


def warnings(library: Library, best: archive.Results) -> list[str]:
    """Return the warnings of a query, without paths of this machine."""
    summary = summarise(library) if best.warnings else {}
    return [without_paths(line, summary) for line in best.warnings]


def status(library: Library, manage: bool, query: Query) -> dict[str, Any]:
    """Return the state of an index: encoder, counts, failures and newest videos (`Status`).

    Args:
      library: the archive.
      manage: whether the request may change the index.
      query: its filters choose among the newest videos.

    Raises:
      QueryError: if no video of the index is in the folder or has one of the tags.
    """
    entries = library.videos()
    indexed = [entry for entry in entries if entry.state == "indexed"]
    failed = [entry for entry in entries if entry.state == "failed"]
    recent = _newest([entry for entry in entries if entry.state != "failed"], query)
    summary = library.status()
    listed = [
        {"id": entry.id, "video": entry.video, "reason": without_paths(entry.reason, summary)}
        for entry in failed[:MAX_FAILURES]
    ]
    subtitles = [
        {"file": problem.file, "reason": without_paths(problem.reason, summary)}
        for problem in library.subtitle_problems()[:MAX_FAILURES]
    ]
    return {
        "encoder": library.encoder_name,
        "demo_encoder": library.has_demo_encoder,
        "videos": len(indexed),
        "seconds": sum(entry.duration for entry in indexed),
        "failures": len(failed),
        "failed": listed,
        "subtitles": subtitles,
        "recent": [_described(entry) for entry in recent],
        "index": {
            key: [*value] if key == "folders" else base_name(key, value)
            for key, value in summary.items()
        },
        "manage": manage,
    }


def playable(entry: Entry, playback: Playback) -> dict[str, Any]:
    """Return a video and how the page plays it (`PlayableVideo`)."""
    facts = {"start": playback.start, "needs_preview": not playback.is_same_track}
    return _described(entry) | facts


def _described(entry: Entry) -> dict[str, Any]:
    """Return a video without score, moments or curve (`Video`)."""
    names = ("id", "video", "folder", "duration", "date_of", "tags")
    no_match: dict[str, Any] = {"score": None, "moments": [], "times": [], "scores": []}
    facts = {name: getattr(entry, name) for name in names}
    return facts | no_match | {"date": times.format_date(entry.date)}


def _newest(videos: Sequence[Entry], query: Query) -> list[Entry]:
    """Return the newest videos that pass the filters of a query, and are not offline."""
    passing = filters.passing(videos, query)
    listed = [video for video, passes in zip(videos, passing, strict=True) if passes]
    listed = [video for video in listed if video.state == "indexed"]
    return sorted(listed, key=lambda video: (-video.date, video.video))[:MAX_RECENT]


def roots(index: Index) -> dict[str, Any]:
    """Return the folders of an index with their paths (`Roots`), for people who may change it."""
    roots = index.roots
    counts = {name: {"videos": 0, "failed": 0} for name in roots}
    for video, record in index.videos.items():
        if count := counts.get(split_name(video)[0]):
            count["videos" if record.indexed else "failed"] += 1
    return {
        "roots": [
            {"name": name, "path": str(root), "available": roots.is_available(name)} | counts[name]
            for name, root in roots.items()
        ]
    }


def folders(entries: Sequence[Any]) -> list[str]:
    """Return the folders that contain videos, directly or in a folder below, in sorted order.

    Args:
      entries: entries of the index (`Entry`).

    Returns:
      Paths relative to the indexed folder. The indexed folder itself is left out.
    """
    paths = (PurePosixPath(legible(entry.video)).parents for entry in entries)
    return sorted({str(path) for parents in paths for path in parents} - {".", "/"})


def thin(
    times: np.ndarray, scores: np.ndarray, points: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """Reduce a curve to at most `points` points: the best score of each interval, and its time.

    Args:
      times: seconds [T].
      scores: scores [T]; NaN counts as the lowest score.
      points: maximum number of points.

    Returns:
      Times and scores as lists of equal length.
    """
    count = len(times)
    if count > points:
        edges = np.linspace(0, count, points + 1).astype(np.int64)
        worth = np.where(np.isnan(scores), -np.inf, scores)
        best = [a + int(np.argmax(worth[a:b])) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        times, scores = times[best], scores[best]
    return times.tolist(), scores.tolist()


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Moment(_Schema):
    """A moment of a video. `peak` is the time of its best frame."""

    start: float
    end: float
    peak: float
    score: float | None


class Passage(_Schema):
    """A passage of the transcript of a video."""

    start: float
    end: float
    text: str


class Video(_Schema):
    """A video of the index, without score, moments or curve."""

    id: str
    video: str
    folder: str
    duration: float
    date: str
    date_of: Literal["recording", "file"]
    tags: list[str]
    score: float | None
    moments: list[Moment]
    times: list[float]
    scores: list[float | None]


class PlayableVideo(Video):
    """A video of the index, and how a browser plays its file.

    `start`: the player's time at second 0 of the video. `needs_preview`: whether browsers may play
    another video track than the indexed one.
    """

    start: float
    needs_preview: bool


class Result(Video):
    """A video that matches a query; `times` and `scores` are a curve of at most 600 points."""

    score_kind: ScoreKind | None
    is_match: bool | None
    signals: list[str]
    passages: list[Passage]
    copies: list[str]


class MatchThreshold(_Schema):
    """The calibration of the match threshold.

    `false_alarms`: percentage of queries for absent things that reach the threshold. `captions`:
    number of captions that it was calibrated with.
    """

    false_alarms: float
    captions: int


class Results(_Schema):
    """Results, best first.

    `good`: whether at least one result may be a match. `verdict`: a line that says why no result is
    a match or why there is none, or "". `seconds`: time of the search.
    """

    results: list[Result]
    good: bool
    verdict: str
    match_threshold: MatchThreshold | None
    warnings: list[str]
    seconds: float


class Failure(_Schema):
    """A file that could not be indexed."""

    id: str
    video: str
    reason: str


class SubtitleProblem(_Schema):
    """A subtitle file that is not searched, or only in part."""

    file: str
    reason: str


class Status(_Schema):
    """Contents of the index. `manage`: whether this request may change it.

    `demo_encoder`: whether the encoder belongs to a demo; it recognises only the demo's videos.
    """

    encoder: str
    demo_encoder: bool
    videos: int
    seconds: float
    failures: int
    failed: list[Failure]
    subtitles: list[SubtitleProblem]
    recent: list[Video]
    index: dict[str, Any]
    manage: bool


class Folders(_Schema):
    """Folders with videos, directly or in a folder below; tags of videos; and all signals."""

    folders: list[str]
    tags: list[str]
    signals: list[str]


class Tags(_Schema):
    """All tags of a video."""

    tags: list[str]


class Root(_Schema):
    """A folder of the index; the name of the first is "".

    `available`: whether the folder exists and is not empty. `videos` and `failed` count its indexed
    videos and its failed files.
    """

    name: str
    path: str
    available: bool
    videos: int
    failed: int


class Roots(_Schema):
    """The folders of the index in their order."""

    roots: list[Root]


Kind = Literal["", "index", "retry", "add", "remove"]


class Job(_Schema):
    """A change of the index. `line` is its result or its error.

    `total` videos must be decoded; `done` of them were decoded or failed. `failed` counts the files
    that failed in this run. `position` and `duration` are seconds of the current `video`. `speed`
    is a multiple of real time. `seconds_left` is an estimate.
    """

    kind: Kind = ""
    state: Literal["none", "running", "stopping", "done", "stopped", "failed"] = "none"
    line: str = ""
    done: int = 0
    total: int = 0
    failed: int = 0
    video: str = ""
    position: float = 0.0
    duration: float = 0.0
    speed: float = 0.0
    seconds_left: float | None = None
    notes: list[str] = []

    @property
    def runs(self) -> bool:
        """True until the job has ended."""
        return self.state in ("running", "stopping")


class Transcript(_Schema):
    """The transcript of a video."""

    cues: list[Passage]


class Problem(_Schema):
    """An error, in one line. Errors that the page translates also have `code` and `values`."""

    error: str
    code: str | None = None
    values: dict[str, str | int] | None = None


ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": Problem, "description": "refused, in one line"}
}
"""The argument `responses` of a FastAPI application whose errors are `Problem`s."""
