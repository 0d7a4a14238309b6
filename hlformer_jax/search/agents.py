"""An archive for programs that speak the Model Context Protocol, over stdin and stdout.

    search   sentences to videos and moments, the JSON of `query --json`
    show     the frame at a second of a video, as a JPEG
    cut      a clip of a moment, written into the folder that --out names

A program names videos by their ids and chooses no path: only files that are indexed are opened, by
the rule of the page (`answers.open_video`), and clips have names of their own that replace nothing.
Without --out there is no `cut`. Errors are lines without paths of this machine.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from hlformer_jax import __version__, files, video
from hlformer_jax.errors import SearchError, UserError, optional
from hlformer_jax.search import exports
from hlformer_jax.search.library import Library
from hlformer_jax.search.page import answers

SHOWN = 768
"""Pixels of a frame's width."""


def server(library: Library, clips: Path | None = None) -> Any:
    """The server of a library; `clips` is the folder for clips, or None to cut none.

    Raises:
      MissingExtra: without the package `mcp`.
      OutputError: when `clips` is a link, or no directory.
    """
    mcp = optional("mcp.server.mcpserver", "mcp")
    failure = optional("mcp.server.mcpserver.exceptions", "mcp").ToolError
    made = mcp.MCPServer("hlformer-search", version=__version__, log_level="ERROR")

    @contextlib.contextmanager
    def lines() -> Iterator[None]:
        """Errors that a program can mend, as lines."""
        try:
            yield
        except HTTPException as error:
            raise failure(error.detail) from None
        except (UserError, OSError) as error:
            line = answers.without_paths(str(error), library.status())
            raise failure(" ".join(line.split())) from None

    def search(
        sentence: str,
        k: int = 5,
        folder: str = "",
        since: str = "",
        until: str = "",
        longer: float | None = None,
        shorter: float | None = None,
        tags: list[str] | None = None,
        then: list[str] | None = None,
        without: list[str] | None = None,
    ) -> dict[str, Any]:
        """Find videos, and moments in them, that show or say what a sentence describes.

        folder, since and until (2026, 2026-01-10 …), longer and shorter (seconds) and tags narrow
        the search; `then` are sentences of what is seen after it, `without` of what is not to be
        seen. `good` false: nothing is a good match, and `verdict` says how that is known.
        """
        with lines():
            hits = library.query(
                sentence, min(k, 100), folder or None, since or None, until or None,
                then=then or (), without=without or (), longer=longer, shorter=shorter,
                tags=tags or (),
            )  # fmt: skip
            listed = [hit.as_json() for hit in hits]
            warnings = answers.warnings(library, hits)
            shown: dict[str, Any] = files.jsonable(
                {"hits": listed, "good": hits.good, "verdict": hits.verdict, "warnings": warnings}
            )
            return shown

    def show(id: str, time: float) -> Any:
        """The frame at a second of a video, which is named by the id that search gives."""
        with lines():
            _check_times(time)
            file = answers.open_video(library, id)
            draw = lambda path: video.thumbnail(path, time, SHOWN)
            return mcp.Image(data=answers.reading(file, draw), format="jpeg")

    def cut(id: str, start: float, end: float, margin: float = 0.0) -> str:
        """Write the part of a video between two seconds as a clip; returns the clip's name."""
        assert clips is not None
        with lines():
            _check_times(start, end, margin)
            longest = answers.MAX_CUT_SECONDS
            if end <= start:
                raise SearchError(f"end: {end:g} s is not after the start, {start:g} s")
            if end > start + longest or margin > 60:
                raise SearchError(f"a clip has {longest:.0f} s at most, its margins 60")
            file = answers.open_video(library, id)
            name = file.entry.video
            out = clips / exports.clip_name(name, max(start - margin, 0), end + margin)
            answers.reading(file, lambda path: video.cut(path, start, end, out, margin))
            return out.name

    made.add_tool(search)
    made.add_tool(show, structured_output=False)
    if clips is not None:
        files.check_directory(clips)
        made.add_tool(cut)
    return made


def _check_times(*seconds: float) -> None:
    if not all(0 <= one < 1e7 for one in seconds):
        raise SearchError("times are seconds from 0 on")
