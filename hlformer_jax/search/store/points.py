"""Videos as points of a store: ids, payloads, rows; and what a filter asks of them."""

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from hlformer_jax.search import filters
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.errors import legible
from hlformer_jax.search.filters import When
from hlformer_jax.search.index import Entry
from hlformer_jax.search.store import maxsim
from hlformer_jax.search.store.maxsim import MaxSim

MOST = 2**20
"""Numbers of a point, which Qdrant bounds, and of a request."""


def identity(id: str, part: int) -> str:
    """The id of the point of an entry's part; the entry's is made of its content."""
    return str(uuid.UUID(hashlib.sha256(f"{id} {part}".encode()).hexdigest()[:32]))


def payload(entry: Entry, content: str) -> dict[str, Any]:
    """The payload that all rows of a video share."""
    above = PurePosixPath(entry.folder).parts
    return {
        "id": entry.id,
        "content": content,
        "video": legible(entry.video),
        "folder": legible(entry.folder),
        "folders": [legible("/".join(above[: i + 1])) for i in range(len(above))],
        "date": entry.date,
        "date_of": entry.date_of,
        "duration": entry.duration,
    }


def make(
    id: str, facts: Mapping[str, Any], form: MaxSim, number: int, arrays: VideoArrays
) -> Iterator[dict[str, Any]]:
    """The points of a video.

    Args:
      id: the id of its entry.
      facts: its `payload`.
      form: how the ranker's score is one MaxSim.
      number: number of its content.
      arrays: its vectors.
    """
    rows, times = form.rows(number, arrays), form.times(arrays)
    cuts = maxsim.parts(len(rows), form.width, MOST) if form.divisible else [slice(None)]
    for part, cut in enumerate(cuts):
        own = {"part": part, "parts": len(cuts), "times": times[cut].tolist()}
        yield {"id": identity(id, part), "vector": rows[cut].tolist(), "payload": {**facts, **own}}


def known(there: Mapping[str, dict[str, Any]], id: str, content: str) -> list[str]:
    """The points of a video, where all of them are there; or none."""
    count = there.get(identity(id, 0), {}).get("parts", 0)
    own = [identity(id, part) for part in range(count)]
    return own if all(there.get(one, {}).get("content") == content for one in own) else []


def conditions(folder: str | None, since: When, until: When) -> list[dict[str, Any]]:
    """The filters of a search, as the store has them.

    Args:
      folder: as for `filters.mask`, also the next two.
      since: the earliest date.
      until: the latest.

    Raises:
      SearchError: when a text is no date.
    """
    found: list[dict[str, Any]] = []
    if folder and (parts := PurePosixPath(folder.strip("/")).parts):
        found.append({"key": "folders", "match": {"value": legible("/".join(parts))}})
    if since is not None:
        found.append({"key": "date", "range": {"gte": filters.span(since)[0]}})
    if until is not None:
        found.append({"key": "date", "range": {"lt": filters.span(until)[1]}})
    return found
