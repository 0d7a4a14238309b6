"""What the page is told, in JSON: results, the state of the index. Every number is finite."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol, runtime_checkable

import numpy as np

POINTS = 600
"""Most points of a curve of scores: more than the page has columns for would only be slow."""

RECENT = 12
"""Newest videos that the page shows before anything is asked."""

FAILURES = 100
"""Most failed files that are listed with their reasons."""


@runtime_checkable
class Library(Protocol):
    """What the server needs of an index that can be searched.

    `query` is called by one thread at a time; the others by any, also meanwhile.
    """

    @property
    def encoder_name(self) -> str:
        """The name of the encoder."""

    def query(
        self,
        sentence: str,
        k: int = 10,
        folder: str | None = None,
        since: Any = None,
        until: Any = None,
        moments: int = 3,
    ) -> Sequence[Any]:
        """Hits, best first; `since` and `until` bound the files' times, in epoch seconds."""

    def videos(self) -> Sequence[Any]:
        """The entries of all videos."""

    def entry(self, id: str) -> Any:
        """The entry of an id."""

    def status(self) -> Mapping[str, Any]:
        """The state of the index."""


def hits(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Results as the page takes them.

    Args:
      found: the library's hits, best first.

    Returns:
      One mapping a hit; curves of scores have at most `POINTS` points.
    """
    told = []
    for hit in found:
        times, scores = thin(np.asarray(hit.times), np.asarray(hit.scores))
        moments = [
            {name: getattr(moment, name) for name in ("start", "end", "peak", "score")}
            for moment in hit.moments
        ]
        told.append(
            _video(hit) | {"score": hit.score, "moments": moments, "times": times, "scores": scores}
        )
    return finite(told)


def status(library: Library) -> dict[str, Any]:
    """The state of an index: its encoder, how much there is, what failed, and what is newest."""
    entries = library.videos()
    good = [entry for entry in entries if entry.state != "failed"]
    failed = [entry for entry in entries if entry.state == "failed"]
    recent = sorted(good, key=lambda entry: (-entry.modified, entry.video))[:RECENT]
    bare: dict[str, Any] = {"score": None, "moments": [], "times": [], "scores": []}
    return finite(
        {
            "encoder": library.encoder_name,
            "videos": len(good),
            "seconds": sum(entry.duration for entry in good),
            "failures": len(failed),
            "failed": [
                {"video": entry.video, "reason": entry.reason} for entry in failed[:FAILURES]
            ],
            "recent": [_video(entry) | bare for entry in recent],
            "index": dict(library.status()),
        }
    )


def folders(entries: Sequence[Any]) -> list[str]:
    """The folders that hold videos, themselves or below, sorted; without the indexed folder."""
    paths = (PurePosixPath(entry.video).parents for entry in entries)
    return sorted({str(path) for parents in paths for path in parents} - {".", "/"})


def thin(
    times: np.ndarray, scores: np.ndarray, points: int = POINTS
) -> tuple[list[float], list[float]]:
    """A curve with fewer points that keeps its peaks: of each stretch, the best score and its time.

    Args:
      times: instants in seconds, [F], ascending.
      scores: their scores, [F].
      points: most points.

    Returns:
      Times and scores, at most `points` of each.
    """
    count = len(times)
    if count > points:
        edges = np.linspace(0, count, points + 1).astype(np.int64)
        worth = np.where(np.isnan(scores), -np.inf, scores)
        best = [a + int(np.argmax(worth[a:b])) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        times, scores = times[best], scores[best]
    return times.tolist(), scores.tolist()


def finite(value: Any) -> Any:
    """A value as JSON holds it: NaN and infinities as null, NumPy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {str(key): finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [finite(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return finite(value.tolist())
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _video(one: Any) -> dict[str, Any]:
    """What hits and entries have in common."""
    return {name: getattr(one, name) for name in ("id", "video", "folder", "duration")}
