"""The server of the page: its addresses, and `serve`, which runs it.

Nothing in a request names a file: videos are asked for by ids, which the index knows.
"""

import functools
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import anyio.to_thread
import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response

import hlformer_jax.video
from hlformer_jax.errors import UserError
from hlformer_jax.search.page import answers, files, guard, refusals
from hlformer_jax.search.page.answers import Library
from hlformer_jax.search.page.lanes import Lane

STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}

LONGEST_SENTENCE = 500
"""Most characters of a sentence."""

LONGEST_CUT = 1800.0
"""Most seconds of a clip that is cut, margins aside."""

KEPT_THUMBNAILS = 512
"""Most thumbnails that stay in memory."""

Answer = TypeVar("Answer")
Day = Annotated[date | None, Query(ge=date(1970, 1, 2), le=date(9000, 1, 1))]


class ServeError(UserError, OSError):
    """A server that cannot be started."""


def app(
    library: Library,
    video: Any = None,
    hosts: frozenset[str] = guard.LOOPBACK,
    addresses: bool = False,
) -> FastAPI:
    """The server of a library.

    Args:
      library: an index that can be searched.
      video: what has `thumbnail(path, time, width)` and `cut(path, start, end, out, margin)`;
        None: the package `hlformer_jax.video`.
      hosts: names under which it is reached, without ports.
      addresses: whether every IP address is one of them.

    Returns:
      An ASGI application; its addresses stand in the docstring of `hlformer_jax.search.page`.
    """
    video = hlformer_jax.video if video is None else video
    # The encoder is one, and JAX uses every core. Searches and pictures do not wait for each other.
    searching = Lane("searches", workers=1, waiting=16)
    drawing = Lane("thumbnails", workers=2, waiting=128)
    cutting = Lane("cuts", workers=1, waiting=4)
    clips = tempfile.TemporaryDirectory(prefix="hlformer-cuts-")

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        for lane in (searching, drawing, cutting):
            lane.close()
        clips.cleanup()

    @functools.lru_cache(KEPT_THUMBNAILS)
    def thumbnail_of(path: Path, changed: int, at: float, width: int) -> bytes:
        return bytes(video.thumbnail(path, at, width))

    server = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    server.add_middleware(guard.Guard, hosts=hosts, addresses=addresses)
    refusals.install(server)
    for address, (name, media_type) in STATIC.items():
        server.get(address)(_static(Path(__file__).with_name(name), media_type))

    @server.get("/api/query")
    async def query(
        request: Request,
        q: Annotated[str, Query(max_length=LONGEST_SENTENCE)],
        k: Annotated[int, Query(ge=1, le=100)] = 10,
        folder: Annotated[str | None, Query(max_length=4096)] = None,
        since: Day = None,
        until: Day = None,
        moments: Annotated[int, Query(ge=1, le=20)] = 5,
    ) -> JSONResponse:
        sentence = " ".join("".join(c if c.isprintable() else " " for c in q).split())
        if not sentence:
            raise refusals.PageError("q: the sentence is empty: say what happens in the video")
        first = None if since is None else _midnight(since)
        # The whole of the last day counts.
        last = None if until is None else _midnight(until + timedelta(days=1)) - 1e-3

        def search() -> list[dict[str, Any]]:
            found = library.query(sentence, k, folder or None, first, last, moments)
            return answers.hits(found)

        begun = time.perf_counter()
        hits = await searching.run(request, search)
        return JSONResponse({"hits": hits, "seconds": round(time.perf_counter() - begun, 4)})

    @server.get("/api/status")
    async def status() -> JSONResponse:
        return JSONResponse(await _at_once(lambda: answers.status(library)))

    @server.get("/api/folders")
    async def folders() -> JSONResponse:
        return JSONResponse({"folders": await _at_once(lambda: answers.folders(library.videos()))})

    @server.api_route("/video/{id}", methods=["GET", "HEAD"])
    async def whole(id: str) -> FileResponse:
        entry, found = await _at_once(lambda: files.find(library, id))
        media_type = files.media_type(entry.video)
        return FileResponse(entry.path, media_type=media_type, stat_result=found)

    @server.get("/thumbnail/{id}")
    async def thumbnail(
        request: Request,
        id: str,
        t: Annotated[float, Query(ge=0, le=1e7, allow_inf_nan=False)] = 0.0,
        width: Annotated[int, Query(ge=16, le=1920)] = 320,
    ) -> Response:
        entry, found = await _at_once(lambda: files.find(library, id))
        draw = lambda: thumbnail_of(Path(entry.path), found.st_mtime_ns, round(t, 2), width)
        picture = await drawing.run(request, draw)
        return Response(
            picture, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"}
        )

    @server.get("/cut/{id}")
    async def cut(
        request: Request,
        id: str,
        start: Annotated[float, Query(ge=0, allow_inf_nan=False)],
        end: Annotated[float, Query(ge=0, allow_inf_nan=False)],
        margin: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
    ) -> FileResponse:
        entry, _ = await _at_once(lambda: files.find(library, id))
        if not start < end <= start + LONGEST_CUT:
            raise refusals.PageError(
                f"end: a cut goes from start to a later end, {LONGEST_CUT:.0f} seconds at most"
            )
        out = Path(clips.name, f"{secrets.token_hex(8)}.mp4")
        try:
            work = lambda: video.cut(Path(entry.path), start, end, out, margin=margin)
            await cutting.run(request, work)
        except BaseException:
            out.unlink(missing_ok=True)
            raise
        title = f"{PurePosixPath(entry.video).stem} {_clock(start)}-{_clock(end)}.mp4"
        return files.Passing(out, media_type="video/mp4", filename=title)

    return server


def serve(
    library: Library,
    port: int = 8000,
    host: str = "127.0.0.1",
    open_browser: bool = False,
    tell: Callable[[str], None] = print,
    video: Any = None,
) -> None:
    """Serves the page until Ctrl-C or SIGTERM.

    Args:
      library: an index that can be searched.
      port: the port to listen on; 0: one that is free.
      host: the address to listen on. By default this machine alone reaches it; "0.0.0.0" lets
        everybody who reaches the machine watch the videos.
      open_browser: whether to open the page in the person's browser.
      tell: is given the lines for the person.
      video: as for `app`.

    Raises:
      ServeError: when the address or port cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ServeError(
                f"cannot listen on port {port} of {host} ({why}): give another by --port"
            ) from None
        listener.listen(128)  # from now on a browser is answered, if a moment later
        port = listener.getsockname()[1]
        everywhere = host in ("0.0.0.0", "::")
        name = "127.0.0.1" if everywhere else f"[{host}]" if family == socket.AF_INET6 else host
        address = f"http://{name}:{port}/"
        tell(f"the page is at {address} (Ctrl-C ends it)")
        hosts = guard.LOOPBACK
        if host not in hosts:
            tell(f"whoever reaches this machine as {host} can watch the indexed videos")
            hosts |= {host, socket.gethostname()}
        config = uvicorn.Config(
            app(library, video, hosts, everywhere),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,  # a video that plays keeps its connection
        )
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            tell("stopped")


def _static(path: Path, media_type: str) -> Callable[[], Any]:
    content = path.read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=media_type)

    return answer


async def _at_once(work: Callable[[], Answer]) -> Answer:
    """What takes no time but that of a disk, in a thread of its own: never behind a search."""
    return await anyio.to_thread.run_sync(work)


def _midnight(day: date) -> float:
    """The epoch seconds at which a day begins where the server stands."""
    return datetime.combine(day, datetime.min.time()).timestamp()


def _clock(seconds: float) -> str:
    """Minutes and seconds as a file's name holds them, 1m05s."""
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
