"""An archive for programs that speak the Model Context Protocol, over stdin and stdout.

    search   sentences to videos and moments, the JSON of `query --json`
    show     the frame at a second of a video, as a JPEG
    cut      a clip of a moment, written into the folder that --out names

A program names videos by their ids and chooses no path: only files that are indexed are opened, by
the rule of the page (`files.open_video`), and clips have names of their own that replace nothing.
Without --out there is no `cut`. Errors are lines without paths of this machine.
"""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from hlformer_jax import __version__, files, video
from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.lazy import optional
from hlformer_jax.search.export import clip_name
from hlformer_jax.search.index import storage
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.serve.files import MAX_CUT_SECONDS, open_video, reading
from hlformer_jax.search.serve.redaction import without_paths
from hlformer_jax.text import legible, suggestion

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
    base: Any = mcp.MCPServer

    class Server(base):
        """A server that refuses arguments that a tool does not have, in one line."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            """Call a tool by its name; see `MCPServer`."""
            for tool in await self.list_tools():
                known = tool.input_schema["properties"]
                unknown = sorted(arguments.keys() - known.keys()) if tool.name == name else ()
                if unknown:
                    near = suggestion(unknown[0], known)
                    listed = ", ".join(known)
                    raise failure(
                        f"{name} has no argument {unknown[0][:100]!r}{near}: it has {listed}"
                    )
            try:
                return await super().call_tool(name, arguments, context)
            except failure as error:
                if not hasattr(error.__cause__, "errors"):
                    raise
                [first, *_] = error.__cause__.errors()
                where = ".".join(map(str, first["loc"]))
                raise failure(f"{name}: {where}: {first['msg']}") from None

    made = Server("hlformer-search", version=__version__, log_level="ERROR")

    @contextlib.contextmanager
    def lines() -> Iterator[None]:
        """Errors that a program can mend, as lines."""
        try:
            yield
        except HTTPException as error:
            raise failure(_for_agents(error.detail)) from None
        except (UserError, OSError) as error:
            line = without_paths(str(error), library.status())
            raise failure(_for_agents(line)) from None

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
            warnings = [_for_agents(line) for line in schemas.warnings(library, hits)]
            shown: dict[str, Any] = files.jsonable(
                {"hits": listed, "good": hits.good, "verdict": hits.verdict, "warnings": warnings}
            )
            return shown

    def show(id: str, time: float) -> Any:
        """The frame at a second of a video, which is named by the id that search gives."""
        with lines():
            _check_times(time)
            file = open_video(library, id)
            draw = lambda path: video.thumbnail(path, time, SHOWN)
            return mcp.Image(data=reading(file, draw), format="jpeg")

    def cut(id: str, start: float, end: float, margin: float = 0.0) -> str:
        """Write the part of a video between two seconds as a clip; returns the clip's name."""
        assert clips is not None
        with lines():
            _check_times(start, end, margin)
            longest = MAX_CUT_SECONDS
            if end <= start:
                raise SearchError(f"end: {end:g} s is not after the start, {start:g} s")
            if end > start + longest or margin > 60:
                raise SearchError(f"a clip has {longest:.0f} s at most, its margins 60")
            file = open_video(library, id)
            name = file.entry.video
            out = clips / clip_name(name, max(start - margin, 0), end + margin)
            if os.path.lexists(out):
                raise SearchError(
                    f"the clip {out.name!r} was written before: use it, or cut at other times"
                )
            reading(file, lambda path: video.cut(path, start, end, out, margin))
            return out.name

    made.add_tool(search)
    made.add_tool(show, structured_output=False)
    if clips is not None:
        if (inside := storage.index_around(clips)) is not None:
            raise files.OutputError(f"{clips} lies in the index {inside}: choose another folder")
        files.check_directory(clips)
        made.add_tool(cut)
    return made


class _Messages(io.RawIOBase):
    """Standard input in lines of JSON that the package `mcp` can read.

    A line that is not a JSON-RPC message is answered as that protocol says, where `mcp` is silent,
    and a lone surrogate, which no UTF-8 has, becomes U+FFFD.
    """

    def __init__(self, source: Any, refuse: Callable[[bytes], object]) -> None:
        self._source, self._refuse, self._left = source, refuse, b""

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of a message into a buffer."""
        while not self._left:
            line = self._source.readline()
            if not line:
                return 0
            self._left = self._cleaned(line)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _cleaned(self, line: bytes) -> bytes:
        if not line.strip():
            return b""
        try:
            line = line.decode(errors="replace").encode()
            message = files.parse_json(line)
            if not isinstance(message, dict):
                raise ValueError
        except ValueError:
            self._refuse(_PARSE_ERROR)
            return b""
        if b"\\ud" not in line.lower():
            return line
        return legible(json.dumps(message, ensure_ascii=False)).encode() + b"\n"


_PARSE_ERROR = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: send one JSON-RPC'
    b' message a line"}}\n'
)


def run(made: Any) -> None:
    """Serve over standard input and output until the input ends."""
    # `mcp` writes through a duplicate of standard output, in whole lines, as this does.
    answers_to = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    messages = io.BufferedReader(_Messages(sys.stdin.buffer, answers_to.write))
    sys.stdin = io.TextIOWrapper(messages, encoding="utf-8")
    made.run("stdio")


ASK = "the person who runs this server can change that"
"""What stands for advice that only a command line can follow."""


def _for_agents(line: str) -> str:
    """Return an error in one line, without the advice that names options of a command."""
    parts = re.split(r"(: |; | \(|, or )", " ".join(line.split()))
    kept = [parts[0]]
    for separator, part in zip(parts[1::2], parts[2::2], strict=True):
        if not _OPTION.search(part):
            kept.append(separator + part)
    text = "".join(kept)
    advised = len(kept) < 1 + len(parts) // 2
    if _OPTION.search(text):
        text, advised = _OPTION.sub("an option", text), True
    return f"{text}: {ASK}" if advised else text


_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*(?:=\S+)?|hlformer_jax\.\w+|hlformer-\w+ \w+")


def _check_times(*seconds: float) -> None:
    if not all(0 <= one < 1e7 for one in seconds):
        raise SearchError("times are seconds from 0 on")
