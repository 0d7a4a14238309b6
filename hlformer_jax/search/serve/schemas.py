"""JSON that the server answers, and its forms, on which a program may rely.

Fields are added, and none is renamed or removed within a version of the package. Times are seconds
from a video's start.
"""

import html
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from hlformer_jax.search import times
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import split_name
from hlformer_jax.search.query import library as archive
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve.redaction import base_name, without_paths
from hlformer_jax.text import legible

MAX_POINTS = 600
"""Points of a curve of scores: more than the page has columns for would only be slow."""

MAX_RECENT = 12
"""Newest videos that the page shows before anything is asked."""

MAX_FAILURES = 100
"""Failed files that are listed with their reasons."""


def hits(library: Library, best: archive.Hits) -> dict[str, Any]:
    """`Hit.as_json` of each, with a curve of scores of `MAX_POINTS` points at most."""
    shown = []
    for hit in best:
        times, scores = thin(np.asarray(hit.times), np.asarray(hit.scores))
        more = {"folder": hit.folder, "duration": hit.duration, "times": times, "scores": scores}
        shown.append(hit.as_json() | more)
    verdict = {"good": best.good, "verdict": best.verdict}
    return {"hits": shown, **verdict, "warnings": warnings(library, best)}


def warnings(library: Library, best: archive.Hits) -> list[str]:
    """The warnings of a query, without paths."""
    summary = library.status() if best.warnings else {}
    return [without_paths(line, summary) for line in best.warnings]


def status(library: Library, manage: bool) -> dict[str, Any]:
    """The state of an index: its encoder, how much there is, what failed, and what is newest."""
    entries = library.videos()
    good = [entry for entry in entries if entry.state == "indexed"]
    failed = [entry for entry in entries if entry.state == "failed"]
    recent = sorted(good, key=lambda entry: (-entry.date, entry.video))[:MAX_RECENT]
    names = ("id", "video", "folder", "duration", "date_of", "tags")
    bare: dict[str, Any] = {"score": None, "moments": [], "times": [], "scores": []}
    video = lambda one: bare | {name: getattr(one, name) for name in names}
    summary = library.status()
    listed = [
        {"id": entry.id, "video": entry.video, "reason": without_paths(entry.reason, summary)}
        for entry in failed[:MAX_FAILURES]
    ]
    subtitles = [
        {"file": one.file, "reason": without_paths(one.reason, summary)}
        for one in library.subtitle_problems()[:MAX_FAILURES]
    ]
    return {
        "encoder": library.encoder_name,
        "videos": len(good),
        "seconds": sum(entry.duration for entry in good),
        "failures": len(failed),
        "failed": listed,
        "subtitles": subtitles,
        "recent": [video(entry) | {"date": times.format_date(entry.date)} for entry in recent],
        "index": {
            key: [*value] if key == "folders" else base_name(value)
            for key, value in summary.items()
        },
        "manage": manage,
    }


def roots(index: Index) -> dict[str, Any]:
    """The folders of an index, with their paths; only for those who may change it."""
    counts = {name: {"videos": 0, "failed": 0} for name in index.roots}
    for video, record in index.manifest.videos.items():
        if own := counts.get(split_name(video)[0]):
            own["videos" if record.indexed else "failed"] += 1
    return {
        "roots": [
            {"name": name, "path": str(root), "there": index.is_there(name)} | counts[name]
            for name, root in index.roots.items()
        ]
    }


def folders(entries: Sequence[Any]) -> list[str]:
    """The folders that hold videos, themselves or below, sorted; without the indexed folder."""
    paths = (PurePosixPath(legible(entry.video)).parents for entry in entries)
    return sorted({str(path) for parents in paths for path in parents} - {".", "/"})


def thin(
    times: np.ndarray, scores: np.ndarray, points: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """A curve with fewer points, [F] to `points`: of each stretch, the best score and its time."""
    count = len(times)
    if count > points:
        edges = np.linspace(0, count, points + 1).astype(np.int64)
        worth = np.where(np.isnan(scores), -np.inf, scores)
        best = [a + int(np.argmax(worth[a:b])) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        times, scores = times[best], scores[best]
    return times.tolist(), scores.tolist()


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Moment(_Form):
    """A moment of a video, and its best frame."""

    start: float
    end: float
    peak: float
    score: float | None


class Passage(_Form):
    """What is said in a video."""

    start: float
    end: float
    text: str


class Video(_Form):
    """A video of the index, with no score, moment or curve."""

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


class Hit(Video):
    """A video that answers a query; `times` and `scores` are a curve of 600 points at most."""

    seen: bool | None
    said: list[Passage]
    copies: list[str]


class Hits(_Form):
    """Best first; `good` says whether one may be what was asked for, `verdict` why none is."""

    hits: list[Hit]
    good: bool
    verdict: str
    warnings: list[str]
    seconds: float


class Failure(_Form):
    """A file that could not be indexed."""

    id: str
    video: str
    reason: str


class SubtitleProblem(_Form):
    """A subtitle file of which nothing, or not all, is searched."""

    file: str
    reason: str


class Status(_Form):
    """What the index holds; `manage` says whether who asks may change it."""

    encoder: str
    videos: int
    seconds: float
    failures: int
    failed: list[Failure]
    subtitles: list[SubtitleProblem]
    recent: list[Video]
    index: dict[str, Any]
    manage: bool


class Folders(_Form):
    """Folders that hold videos, themselves or below, and tags that videos have."""

    folders: list[str]
    tags: list[str]


class Tags(_Form):
    """All tags of a video."""

    tags: list[str]


class Root(_Form):
    """A folder of the index; the first has no name."""

    name: str
    path: str
    there: bool
    videos: int
    failed: int


class Roots(_Form):
    """The folders of the index, the first one first."""

    roots: list[Root]


Kind = Literal["", "index", "retry", "add", "remove"]


class Job(_Form):
    """A change of the index: how far it is, and what it did or what was wrong, in one line.

    `done` and `failed` are of `total` videos that must be encoded; `position` and `duration` those
    of `video`, which is under way; `speed` is in multiples of real time; `left` an estimate.
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
    left: float | None = None
    notes: list[str] = []

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("running", "stopping")


class Transcript(_Form):
    """What is said in a video, in its order."""

    cues: list[Passage]


class Problem(_Form):
    """What is wrong, in one line."""

    error: str


def responses(form: type[_Form]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an address."""
    wrong = {"model": Problem, "description": "refused, in one line"}
    return {200: {"model": form}, 400: wrong, 422: wrong}


def describe(server: FastAPI) -> str:
    """HTML that describes all addresses of a server and the forms of their answers."""
    schema = server.openapi()
    lines = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Addresses</title>'
        '<link rel="stylesheet" href="/page.css"><main><h1>Addresses for programs</h1>'
        '<p>As <a href="/api/openapi.json">OpenAPI</a>.</p>'
    ]
    for address, methods in schema["paths"].items():
        for method, one in methods.items():
            lines.append(f"<h2>{method.upper()} {_text(address)}</h2>")
            lines.append(f"<p>{_text(one.get('description', ''))}</p>")
            given = {own["name"]: own["schema"] for own in one.get("parameters", ())}
            of: dict[str, Any] = next(iter(one["responses"]["200"].get("content", {}).values()), {})
            lines += [_list(given), f"<p>Answers {_text(_type(of.get('schema', {})))}.</p>"]
    lines.append("<h1>Forms of answers</h1>")
    for name, form in schema["components"]["schemas"].items():
        lines += [f"<h2>{_text(name)}</h2>", f"<p>{_text(form.get('description', ''))}</p>"]
        lines.append(_list(form.get("properties", {})))
    return "\n".join([*lines, "</main></html>"])


def _list(fields: dict[str, Any]) -> str:
    rows = [
        f"<li><b>{_text(name)}</b> {_text(_type(one))}"
        + (f", else {_text(one['default'])}" if "default" in one else "")
        for name, one in fields.items()
    ]
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def _type(schema: dict[str, Any]) -> str:
    """The name of a type of JSON Schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "a file"))


def _text(value: object) -> str:
    return html.escape(str(value))
