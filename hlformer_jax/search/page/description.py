"""The forms of the JSON that the server answers, and the page that describes its addresses.

The forms are what a program may rely on: fields are added, none is renamed or removed within a
version of the package. Times are seconds from a video's start.
"""

import html
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict


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
    """Best first; `good` says whether one may be what was asked for."""

    hits: list[Hit]
    good: bool
    warnings: list[str]
    seconds: float


class Failure(_Form):
    """A file that could not be indexed."""

    id: str
    video: str
    reason: str


class Status(_Form):
    """What the index holds."""

    encoder: str
    videos: int
    seconds: float
    failures: int
    failed: list[Failure]
    recent: list[Video]
    index: dict[str, Any]


class Folders(_Form):
    """Folders that hold videos, themselves or below, and tags that videos have."""

    folders: list[str]
    tags: list[str]


class Tags(_Form):
    """All tags of a video."""

    tags: list[str]


class Transcript(_Form):
    """What is said in a video, in its order."""

    cues: list[Passage]


class Problem(_Form):
    """What is wrong, in one line."""

    error: str


def answers(form: type[_Form]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an address."""
    wrong = {"model": Problem, "description": "refused, in one line"}
    return {200: {"model": form}, 400: wrong, 422: wrong}


def page(server: FastAPI) -> str:
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
            of = one["responses"]["200"].get("content", {}).get("application/json", {})
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
