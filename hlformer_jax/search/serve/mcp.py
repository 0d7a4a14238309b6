"""Server of the Model Context Protocol, which offers tools to agents over stdin and stdout.

    search   return the videos and moments that match a text, as the JSON of `query --json`
    show     return the frame at a time of a video, as a JPEG
    cut      write a clip of a moment into the folder `clips`, if the server has one

Agents name videos by ids and cannot choose paths. Only indexed files are opened, in the same way as
for the page (`files.open_video`). Clips have generated names and never replace a file. Errors are
single lines without paths of this machine.
"""

import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anyio.from_thread import check_cancelled
from starlette.exceptions import HTTPException

from hlformer_jax import __version__, files, video
from hlformer_jax.errors import QueryError, SearchError, UserError, describe
from hlformer_jax.lazy import optional
from hlformer_jax.search.export import clip_name
from hlformer_jax.search.index.directory import find_enclosing_index
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.serve.files import MAX_CUT_SECONDS, open_video
from hlformer_jax.search.serve.redaction import summarise, without_paths
from hlformer_jax.search.times import MAX_SECONDS, SECONDS_AFTER_END
from hlformer_jax.text import legible, suggestion

MAX_RESULTS = 100
"""Largest number of results of one search, as over HTTP."""

MAX_MARGIN = 60.0
"""Largest margin of a clip, in seconds; as over HTTP."""

FRAME_WIDTH = 768
"""Width in pixels of the frames that `show` returns."""


def build_server(library: Library, clips: Path | None = None) -> Any:
    """Return a Model Context Protocol server with the tools of a library.

    Args:
      library: the archive.
      clips: folder for clips; None leaves out the tool `cut`.

    Raises:
      MissingExtra: if the package `mcp` is not installed.
      OutputError: if `clips` is a link or a file, or is inside an index.
      OSError: if `clips` cannot be made or written to.
    """
    mcp = optional("mcp.server.mcpserver", "mcp")
    tool_error = optional("mcp.server.mcpserver.exceptions", "mcp").ToolError
    if clips is not None:
        if (inside := find_enclosing_index(clips)) is not None:
            raise files.OutputError(f"{clips} is inside the index {inside}: choose another folder")
        clips = clips.absolute()  # `without_paths` finds it in errors
        files.check_directory(clips)
        files.check_writable(clips)
    tools = _Tools(library, clips, tool_error, mcp.Image)
    server = _server_class(mcp.MCPServer, tool_error)(
        "hlformer-search", version=__version__, log_level="ERROR"
    )
    server.add_tool(tools.search)
    server.add_tool(tools.show, structured_output=False)
    if clips is not None:
        server.add_tool(tools.cut)
    return server


def _server_class(base: Any, tool_error: type[Exception]) -> Any:
    """Return a subclass of `MCPServer` with errors of one line for wrong arguments of a tool."""

    class Server(base):
        """A server whose errors about unknown or invalid arguments of a tool have one line."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            """Call a tool by its name; see `MCPServer`."""
            for tool in await self.list_tools():
                properties = tool.input_schema["properties"]
                extra = sorted(arguments.keys() - properties.keys()) if tool.name == name else ()
                if extra:
                    hint = suggestion(extra[0], properties)
                    listed = ", ".join(properties)
                    raise tool_error(
                        f"{name} has no argument {extra[0][:100]!r}{hint}: it has {listed}"
                    )
            try:
                return await super().call_tool(name, arguments, context)
            except tool_error as error:
                cause: Any = error.__cause__
                if not hasattr(cause, "errors"):
                    raise
                [first, *_] = cause.errors()
                where = ".".join(map(str, first["loc"]))
                raise tool_error(f"{name}: {where}: {first['msg']}") from None

    return Server


class _Tools:
    """The tools; agents read the signatures and docstrings of the public methods.

    Args:
      library: the archive.
      clips: folder for clips.
      tool_error: the error that a server of `mcp` sends to its agent.
      image: the class of images of `mcp`.
    """

    def __init__(
        self, library: Library, clips: Path | None, tool_error: type[Exception], image: Any
    ) -> None:
        self._library, self._clips = library, clips
        self._tool_error, self._image = tool_error, image

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors that an agent or the operator can correct to one line for the agent."""
        try:
            yield
        except HTTPException as error:
            raise self._tool_error(_for_agents(error.detail)) from None
        except (UserError, OSError) as error:
            line = describe(error)
            if isinstance(error, QueryError):
                line = error.phrased(OPERATOR_FLAGS)
            line = without_paths(line, summarise(self._library, clips=self._clips))
            raise self._tool_error(_for_agents(line)) from None

    def search(
        self,
        text: str,
        k: int = 5,
        offset: int = 0,
        folder: str = "",
        since: str = "",
        until: str = "",
        longer: float | None = None,
        shorter: float | None = None,
        tags: list[str] | None = None,
        then: list[str] | None = None,
        within: float | None = None,
        without: list[str] | None = None,
        signals: list[str] | None = None,
        min_score: float | None = None,
    ) -> dict[str, Any]:
        """Find videos, and moments in them, whose pictures or transcript match a text.

        k is the maximum number of results, at most 100, and offset the number of best results to
        skip. Filters are folder, since and until (dates such as 2026 or 2026-01-10), longer and
        shorter (seconds) and tags. `then` has texts of events that must follow in this order, each
        at most `within` seconds (default: 60) after the previous event. `without` has texts of
        things that must not be visible. `signals` are the ways to search: visual, transcript; by
        default all that apply. If `good` is false, no result is a good match, and `verdict` says
        why.
        """
        with self._errors():
            if k > MAX_RESULTS:
                raise SearchError(f"k is {k}: give at most {MAX_RESULTS}, and skip some by offset")
            query = Query(
                text, k=k, offset=offset, folder=folder or None, since=since or None,
                until=until or None, longer=longer, shorter=shorter, tags=tags or (),
                then=then or (), within=within, without=without or (), signals=signals,
                min_score=min_score,
            )  # fmt: skip
            results = self._library.query(query)
            warnings = schemas.warnings(self._library, results)
            answer: dict[str, Any] = files.jsonable({
                "results": [result.as_json() for result in results],
                "good": results.good,
                "verdict": results.verdict,
                "warnings": [_for_agents(line) for line in warnings],
            })  # fmt: skip
            return answer

    def show(self, id: str, time: float) -> Any:
        """Return the frame at a time (in seconds) of a video, whose id `search` has returned."""
        with self._errors():
            _check_times(time=time)
            file = open_video(self._library, id)
            _check_end("time", time, file.entry.duration)
            picture = file.apply(lambda path: video.thumbnail(path, time, FRAME_WIDTH))
            return self._image(data=picture, format="jpeg")

    def cut(self, id: str, start: float, end: float, margin: float = 0.0) -> str:
        """Write the part of a video from start to end as a clip, and return the clip's name.

        start and end are in seconds. margin seconds are added at both ends.
        """
        assert self._clips is not None
        with self._errors():
            _check_times(start=start, end=end, margin=margin)
            if end <= start:
                raise SearchError(f"end: {end:g} s is not after start, {start:g} s")
            if end > start + MAX_CUT_SECONDS:
                raise SearchError(f"end: give at most {MAX_CUT_SECONDS:.0f} s after start")
            file = open_video(self._library, id)
            _check_end("end", end, file.entry.duration)
            name = file.entry.video
            out = self._clips / clip_name(name, max(start - margin, 0), end + margin)
            if os.path.lexists(out):
                raise SearchError(f"the clip {out.name!r} exists: use it, or cut at other times")
            file.apply(lambda path: video.cut(path, start, end, out, margin, pulse=check_cancelled))
            return out.name


class _Messages(io.RawIOBase):
    """Standard input as lines of JSON that the package `mcp` can read.

    A line that is not a JSON object is answered here with JSON-RPC's parse error, because `mcp`
    would not answer it. A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.

    Args:
      source: binary file with one message on each line.
      refuse: function that writes an error message to the client.
    """

    def __init__(self, source: Any, refuse: Callable[[bytes], object]) -> None:
        self._source, self._refuse, self._rest = source, refuse, b""

    def readable(self) -> bool:
        """Return True, as `io.BufferedReader` requires."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; return their number, 0 at the end of the input."""
        while not self._rest:
            line = self._source.readline()
            if not line:
                return 0
            self._rest = self._clean(line)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _clean(self, line: bytes) -> bytes:
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


def run(server: Any) -> None:
    """Serve over standard input and output until the input or a signal ends.

    Args:
      server: the server that `build_server` returns.
    """
    # `mcp` writes to another duplicate of standard output; both writers write complete lines.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    messages = io.BufferedReader(_Messages(sys.stdin.buffer, output.write))
    sys.stdin = io.TextIOWrapper(messages, encoding="utf-8")
    # KeyboardInterrupt would wait for the thread that reads standard input.
    files.discard_drafts_on_signals(signal.SIGINT)
    server.run("stdio")


OPERATOR_FLAGS = {
    name: f"--{name}" for name in ("ranker", "checkpoint", "normalise", "store", "encoder")
}
"""Flags of the fields that only the person who runs the server can change, for errors."""

OPERATOR_ADVICE = "ask the person who runs this server to change that"
"""Advice that replaces advice about options of a command line."""


def _for_agents(line: str) -> str:
    """Return an error as one line, without advice about options of a command line.

    Phrases of the message that name an option are left out, and `OPERATOR_ADVICE` is added.
    """
    parts = re.split(r"(: |; | \(|, or )", " ".join(line.split()))
    phrases = [parts[0]]
    for separator, part in zip(parts[1::2], parts[2::2], strict=True):
        if not _OPTION.search(part):
            phrases.append(separator + part)
    text = "".join(phrases)
    is_advice = len(phrases) < 1 + len(parts) // 2
    if _OPTION.search(text):
        text, is_advice = _OPTION.sub("an option", text), True
    return f"{text}: {OPERATOR_ADVICE}" if is_advice else text


_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*(?:=\S+)?|hlformer_jax\.\w+|hlformer-\w+ \w+")


def _check_end(name: str, second: float, duration: float) -> None:
    """Refuse a time after the end of a video."""
    if duration and second > duration + SECONDS_AFTER_END:
        raise SearchError(f"{name}: {second:g} s is after the end of the video, {duration:.1f} s")


def _check_times(**arguments: float) -> None:
    for name, seconds in arguments.items():
        limit = MAX_MARGIN if name == "margin" else MAX_SECONDS
        if not 0 <= seconds <= limit:
            raise SearchError(f"{name}: {seconds:g} s: give 0 to {limit:.0f} s")
