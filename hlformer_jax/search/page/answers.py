"""What the page is told, in JSON: results, the state of the index. Every number is finite."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

POINTS = 600
"""Most points of a curve of scores: more than the page has columns for would only be slow."""

RECENT = 12
"""Newest videos that the page shows before anything is asked."""

FAILURES = 100
"""Most failed files that are listed with their reasons."""


class Library(Protocol):
    """What the server needs of an index that can be searched.

    `query` is called by one thread at a time; the others by any, also meanwhile.
    """

    encoder_name: str

    def query(
        self,
        sentence: str,
        k: int = 10,
        folder: str | None = None,
        since: float | None = None,
        until: float | None = None,
        moments: int = 3,
    ) -> Sequence[Any]:
        """Hits, best first; `since` and `until` bound the files' times, in epoch seconds."""

    def videos(self) -> Sequence[Any]:
        """The entries of all videos."""

    def entry(self, id: str) -> Any:
        """The entry of an id."""

    def status(self) -> Mapping[str, Any]:
        """The state of the index."""


def hits(found: Sequence[Any], entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Results as the page takes them.

    Args:
      found: the library's hits, best first.
      entries: the library's entries, which know ids and folders; a hit without one, of a video that
        was removed meanwhile, is left out.

    Returns:
      One mapping a hit; curves of scores have at most `POINTS` points.
    """
    known = {entry.video: entry for entry in entries}
    told = []
    for hit in found:
        if (entry := known.get(hit.video)) is None:
            continue
        times, scores = thin(np.asarray(hit.times), np.asarray(hit.scores))
        moments = [
            {name: getattr(moment, name) for name in ("start", "end", "peak", "score")}
            for moment in hit.moments
        ]
        told.append(
            _video(entry)
            | {
                "score": hit.score,
                "duration": hit.duration,
                "moments": moments,
                "times": times,
                "scores": scores,
            }
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
            "recent": [_video(entry) | {"duration": entry.duration} | bare for entry in recent],
            "index": dict(library.status()),
        }
    )


def folders(entries: Sequence[Any]) -> list[str]:
    """The folders that hold videos, sorted."""
    return sorted({entry.folder for entry in entries})


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


def _video(entry: Any) -> dict[str, Any]:
    return {"id": entry.id, "video": entry.video, "folder": entry.folder}
