"""Server of the search page: its addresses, and the function `serve`, which runs the server.

docs/search/programs.md lists the addresses and their responses. Requests name videos by their ids
in the index, never by paths.
"""

import asyncio
import errno
import ipaddress
import os
import re
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import publicsuffixlist
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi import Query as Parameter
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hlformer_jax import __version__, terminal, video
from hlformer_jax.errors import QueryError, SearchError, UserError
from hlformer_jax.search import times
from hlformer_jax.search.index import tag_key
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.serve import guard, jobs, schemas
from hlformer_jax.search.serve.files import (
    MAX_CUT_SECONDS,
    OpenFileResponse,
    TemporaryFileResponse,
    indexed,
    open_video,
    reading,
)
from hlformer_jax.search.serve.guard import Answer, ParameterError
from hlformer_jax.search.serve.refusals import Refusal
from hlformer_jax.search.signals import SIGNALS
from hlformer_jax.text import legible

STATIC = Path(__file__).parent / "static"

STATIC_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/texts.js": ("texts.js", "text/javascript; charset=utf-8"),
    "/manage.js": ("manage.js", "text/javascript; charset=utf-8"),
}

MAX_SENTENCE = 500  # characters of a text of a query
MAX_PICTURE = 32 * 2**20  # bytes of a picture in a query
MAX_THUMBNAILS = 512  # thumbnails kept in memory
DISCONNECT_POLL_SECONDS = 0.1  # between checks that the client is still connected

TOKEN = re.compile(r"[0-9A-Za-z_.~-]{16,200}")
"""Form of a token: too long to be guessed, with characters that need no quoting in addresses and
cookies."""

HOME_DOMAIN = "home.arpa"
"""Domain of home networks (RFC 8375). It counts as private, although lists of public suffixes
contain it."""

HOST_NAME = re.compile(r"(\*\.)?[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")

T = TypeVar("T")
Sentences = Annotated[
    tuple[Annotated[str, Parameter(max_length=MAX_SENTENCE)], ...], Parameter(max_length=8)
]
Date = Annotated[str | None, Parameter(max_length=40)]
Folder = Annotated[str | None, Parameter(max_length=4096)]
Seconds = Annotated[float | None, Parameter(ge=0, allow_inf_nan=False)]


class ServeError(UserError, OSError):
    """Error if the server cannot listen on its address."""


class BoundedExecutor:
    """Threads with a bounded queue.

    Args:
      name: name of the work, as in the code `busy.NAME` of a refusal.
      workers: number of threads.
      waiting: maximum number of functions that wait for a thread.
    """

    def __init__(self, name: str, workers: int, waiting: int) -> None:
        self._name, self._limit = name, workers + waiting
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._inside = 0
        self._counting = threading.Lock()

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        """Run a function in a thread and return its result.

        If the client disconnects, a function that is still waiting is dropped: the page sends a new
        query with every word that is typed. The result of a running function is dropped.

        Args:
          request: the request that needs the result.
          work: the function.

        Raises:
          Refusal: 503 if the queue is full.
          HTTPException: 499 if the client disconnected.
        """
        with self._counting:
            if self._inside >= self._limit:
                raise Refusal(f"busy.{self._name}", {"Retry-After": "1"})
            self._inside += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._leave)
        result = asyncio.wrap_future(future)
        while not result.done():
            await asyncio.wait({result}, timeout=DISCONNECT_POLL_SECONDS)
            if not result.done() and await request.is_disconnected():
                result.cancel()
                raise HTTPException(499, "the request was closed")
        return result.result()

    def close(self) -> None:
        """Drop waiting functions; do not wait for running functions."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: "Future[Any]") -> None:
        with self._counting:
            self._inside -= 1


def app(
    library: Library,
    hosts: Collection[str] = guard.LOOPBACK,
    addresses: bool = False,
    token: str = "",
    manage: bool | None = False,
) -> FastAPI:
    """Return the ASGI application of a library.

    Args:
      library: the archive.
      hosts: accepted host names, without ports; see `guard.Guard`.
      addresses: whether to accept every IP address as a host; see `guard.Guard`.
      token: token that requests must present, or "" for none; see `guard.Guard`.
      manage: which requests may change the index; see `jobs.Permission`.
    """
    # Only one search runs at a time, because JAX uses all cores. Searches, thumbnails and cuts have
    # separate threads, so none of them waits for another kind.
    searching = BoundedExecutor("searches", workers=1, waiting=16)
    drawing = BoundedExecutor("thumbnails", workers=2, waiting=128)
    cutting = BoundedExecutor("cuts", workers=1, waiting=4)
    running, permission = jobs.Jobs(library), jobs.Permission(manage)
    clips = tempfile.TemporaryDirectory(prefix="hlformer-cuts-")
    thumbnails: dict[tuple[str, float, float, int], bytes] = {}

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        for executor in (searching, drawing, cutting):
            executor.close()
        clips.cleanup()
        await run_in_threadpool(running.close)

    server = FastAPI(
        title="hlformer_jax.search", version=__version__, lifespan=life, docs_url=None,
        redoc_url=None, openapi_url="/api/openapi.json",
        dependencies=[Depends(guard.check_parameters)],
    )  # fmt: skip
    server.add_middleware(guard.Guard, hosts=hosts, addresses=addresses, token=token)
    guard.install(server, library)
    for address, (name, media_type) in STATIC_FILES.items():
        both = server.api_route(address, methods=["GET", "HEAD"], include_in_schema=False)
        both(_static(name, media_type))

    @server.post("/api/query", responses=schemas.responses(schemas.Results))
    @server.get("/api/query", responses=schemas.responses(schemas.Results))
    async def query(
        request: Request,
        q: Annotated[str, Parameter(max_length=MAX_SENTENCE)] = "",
        k: Annotated[int, Parameter(ge=1, le=100)] = 10,
        folder: Folder = None,
        since: Date = None,
        until: Date = None,
        moments: Annotated[int, Parameter(ge=1, le=20)] = 5,
        like: Annotated[str, Parameter(max_length=100)] = "",
        then: Sentences = (),
        within: Annotated[float | None, Parameter(gt=0, le=1e6)] = None,
        without: Annotated[Sentences, Parameter(alias="not")] = (),
        min_score: Annotated[float | None, Parameter(allow_inf_nan=False)] = None,
        offset: Annotated[int, Parameter(ge=0, le=10**6)] = 0,
        signals: Annotated[str, Parameter(max_length=200)] = "",
        longer: Seconds = None,
        shorter: Seconds = None,
        tag: Sentences = (),
    ) -> Response:
        """Videos and moments that match a text, a picture, or both.

        A picture is like=ID@SECONDS, or the bytes of an image as the body of a POST.
        """
        picture = await _picture(request)
        try:
            frame = times.parse_moment(like) if like else None
        except SearchError as error:
            raise ParameterError(f"like: {error}") from None
        try:
            text_query = Query(
                _line(q), k=k, folder=folder or None, since=since or None, until=until or None,
                moments=moments, image=picture, like=frame,
                then=[_line(text) for text in then], within=within,
                without=[_line(text) for text in without], min_score=min_score, offset=offset,
                signals=signals or None, longer=longer, shorter=shorter, tags=tag,
            )  # fmt: skip
        except QueryError as error:
            raise ParameterError(error.phrased(schemas.PARAMETERS)) from None
        if frame is not None:
            await run_in_threadpool(indexed, library, frame[0])
        started = time.perf_counter()

        def search() -> dict[str, Any]:
            return schemas.results(library, library.query(text_query))

        results = await searching.run(request, search)
        return Answer(results | {"seconds": round(time.perf_counter() - started, 4)})

    # These functions are short and not async: FastAPI runs them in its own threads, where they
    # never wait for a search.

    @server.get("/api/status", responses=schemas.responses(schemas.Status))
    def status(
        request: Request,
        folder: Folder = None,
        since: Date = None,
        until: Date = None,
        longer: Seconds = None,
        shorter: Seconds = None,
        tag: Sentences = (),
    ) -> Response:
        """Contents of the index, failed files, and the newest videos that pass the filters."""
        try:  # a query needs a text, which the filters ignore
            query = Query(
                "newest", folder=folder or None, since=since or None, until=until or None,
                longer=longer, shorter=shorter, tags=tag,
            )  # fmt: skip
        except QueryError as error:
            raise ParameterError(error.phrased(schemas.PARAMETERS)) from None
        return Answer(schemas.status(library, permission.is_granted(request), query))

    @server.get("/api/folders", responses=schemas.responses(schemas.Folders))
    def folders() -> Response:
        """The folders, tags and signals that a query may name."""
        entries = library.videos()
        tags = sorted({tag_key(tag): tag for entry in entries for tag in entry.tags}.values())
        listed = schemas.folders(entries)
        return Answer({"folders": listed, "tags": tags, "signals": [*SIGNALS]})

    @server.post("/api/tag/{id}", responses=schemas.responses(schemas.Tags))
    def tag(id: str, add: Sentences = (), drop: Sentences = ()) -> Response:
        """Add tags to a video and remove others. `favourite` is the star of the page."""
        tags = library.tag(indexed(library, id).id, add, drop)
        return Answer({"tags": list(tags)})

    @server.get("/api/transcript/{id}", responses=schemas.responses(schemas.Transcript))
    def transcript(id: str) -> Response:
        """The transcript of a video."""
        cues = library.transcript(indexed(library, id).id)
        names = ("start", "end", "text")
        return Answer({"cues": [dict(zip(names, cue, strict=True)) for cue in cues]})

    @server.get("/api/video/{id}", responses=schemas.responses(schemas.PlayableVideo))
    def playable_video(id: str) -> Response:
        """A video, and how a browser plays its file."""
        file = open_video(library, id)
        return Answer(schemas.playable(file.entry, reading(file, video.playback)))

    @server.head("/video/{id}", include_in_schema=False)
    @server.get("/video/{id}")
    def video_file(id: str) -> FileResponse:
        """The file of a video, or a range of it."""
        return OpenFileResponse(open_video(library, id))

    @server.get("/thumbnail/{id}")
    async def thumbnail(
        request: Request,
        id: str,
        t: Annotated[float, Parameter(ge=0, le=times.MAX_SECONDS, allow_inf_nan=False)] = 0.0,
        width: Annotated[int, Parameter(ge=16, le=1920)] = 320,
    ) -> Response:
        """The frame at second t, as a JPEG."""
        file = await run_in_threadpool(open_video, library, id)
        key = file.entry.id, file.entry.modified, round(t, 3), width
        picture = thumbnails.get(key)
        if picture is None:
            picture = await drawing.run(
                request,
                lambda: reading(file, lambda path: video.thumbnail(path, round(t, 3), width)),
            )
            thumbnails[key] = picture
            if len(thumbnails) > MAX_THUMBNAILS:
                del thumbnails[next(iter(thumbnails))]
        headers = {"cache-control": "private, max-age=3600"}
        return Response(picture, media_type="image/jpeg", headers=headers)

    @server.get("/cut/{id}")
    async def cut(
        request: Request,
        id: str,
        start: Annotated[float, Parameter(ge=0, le=times.MAX_SECONDS)],
        end: Annotated[float, Parameter(ge=0, le=times.MAX_SECONDS)],
        margin: Annotated[float, Parameter(ge=0, le=60, allow_inf_nan=False)] = 0.0,
    ) -> FileResponse:
        """A clip of a video, to download. The cut ends early if the client disconnects."""
        file = await run_in_threadpool(open_video, library, id)
        if end <= start:
            raise ParameterError(f"end: {end:g} s is not after start, {start:g} s")
        if end > start + MAX_CUT_SECONDS:
            raise ParameterError(f"end: give at most {MAX_CUT_SECONDS:.0f} s after start")
        out = Path(clips.name, f"{secrets.token_hex(8)}.mp4")
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                out.unlink(missing_ok=True)
                raise CancelledError

        def write(path: Path) -> None:
            video.cut(path, start, end, out, margin, pulse=check)
            check()

        try:
            await cutting.run(request, lambda: reading(file, write))
        except BaseException:  # also if the server ends
            stopped.set()
            out.unlink(missing_ok=True)
            raise
        title = legible(PurePosixPath(file.entry.video).stem)
        title = f"{title} {_clock(start)}-{_clock(end)}.mp4"
        return TemporaryFileResponse(out, media_type="video/mp4", filename=title)

    server.include_router(jobs.addresses(library, running, permission))
    return server


def serve(
    library: Library,
    port: int = 8000,
    host: str = "127.0.0.1",
    open_browser: bool = False,
    token_file: Path | None = None,
    no_token: bool = False,
    allow_hosts: Collection[str] = (),
    manage: bool | None = None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
      library: the archive.
      port: port to listen on; 0 chooses a free port.
      host: address to listen on. By default only this machine can connect. With "0.0.0.0" every
        machine of the network can connect if it presents the token.
      open_browser: whether to open the page in a browser.
      token_file: file with the token. By default the token is random if other machines can connect,
        and there is no token otherwise.
      no_token: whether everyone who can connect has access without a token.
      allow_hosts: further host names of the server, without ports; "*.NAME" allows all names below.
      manage: whether everyone with access may change the index and add any folder of this machine.
        By default this is allowed only if no other machine can connect, `allow_hosts` is empty, and
        the request did not come through a proxy.

    Raises:
      QueryError: if `host`, the token or a name of `allow_hosts` is invalid, or `no_token` is given
        together with `token_file` or `manage`.
      ServeError: if the server cannot listen on the port of the address.
    """
    for name in allow_hosts:
        if not HOST_NAME.fullmatch(name):
            raise QueryError(
                "{allow_hosts}={value}: give a name such as nas.local, without a port",
                field="allow_hosts", value=name,
            )  # fmt: skip
        if name.startswith("*.") and _is_public(name[2:]):
            raise QueryError(
                "{allow_hosts}={value} allows names that anyone can register: give a whole name,"
                " or * below your own domain",
                field="allow_hosts", value=name,
            )  # fmt: skip
    if no_token and token_file is not None:
        raise QueryError(
            "{no_token} and {token_file} exclude each other: give one of them", field="no_token"
        )
    if no_token and manage:
        raise QueryError(
            "{manage} with {no_token} would let everyone index and watch any folder of this"
            " machine: leave out one of them",
            field="manage",
        )
    token = "" if token_file is None else _read_token(token_file)
    if not host:
        raise QueryError(
            "{host} is empty: give an address, such as 0.0.0.0 for all networks", field="host"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError, TypeError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            advice = _advise(error)
            raise ServeError(f"cannot listen on port {port} of {host} ({why}): {advice}") from None
        listener.listen(128)  # from now on connections wait until the server answers them
        address, port = listener.getsockname()[:2]
        bound = ipaddress.ip_address(address)
        name = host if family == socket.AF_INET else f"[{host}]"
        hosts = guard.LOOPBACK | {name, *allow_hosts}
        if not bound.is_loopback:
            token = "" if no_token else token or secrets.token_urlsafe(32)
            hosts |= {socket.gethostname(), f"{socket.gethostname()}.local"}
        if manage is None and (allow_hosts or not bound.is_loopback):
            manage = False
        name = "127.0.0.1" if bound.is_unspecified else name
        address = f"http://{name}:{port}/" + (f"?token={token}" if token else "")
        terminal.show(f"the page is at {address} (Ctrl-C ends it)")
        if not bound.is_loopback:
            who = "with this token" if token else "without a token"
            what = "watch the videos" + (", and index any folder of this machine" if manage else "")
            terminal.show(f"anyone who can reach {host} {who} can {what}")
        config = uvicorn.Config(
            app(library, hosts, bound.is_unspecified, token, manage), http=guard.Protocol,
            ws="none", log_level="critical", access_log=False, server_header=False,
            log_config=None,  # another would close the logging handlers of this process
            timeout_graceful_shutdown=1,  # seconds; a playing video never closes its connection
        )  # fmt: skip
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            terminal.show("stopped")


def _advise(error: Exception) -> str:
    """Return the advice for a server that cannot listen on its address."""
    number = getattr(error, "errno", None)
    # A name that cannot be encoded raises a TypeError or UnicodeError.
    is_unknown_name = isinstance(error, socket.gaierror | TypeError | UnicodeError)
    if is_unknown_name or number in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
        return "choose another host, such as 127.0.0.1"
    if number in (errno.EACCES, errno.EPERM):
        return "choose a port from 1024 on, or ask for the rights"
    return "choose another port"


def _is_public(domain: str) -> bool:
    """Return whether anyone can register names directly below a domain, such as com or co.uk."""
    domain = domain.lower().rstrip(".")
    suffixes = publicsuffixlist.PublicSuffixList(accept_unknown=True)
    return suffixes.privatesuffix(domain) is None and domain != HOME_DOMAIN


def _read_token(file: Path) -> str:
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            token = opened.read(1000).decode(errors="replace").strip()
            if os.fstat(opened.fileno()).st_mode & 0o077:
                line = f"the token file {file} can be read by other users: run chmod 600 {file}"
                terminal.warn(line)
    except OSError as error:
        raise QueryError(
            "{token_file}={path} cannot be read ({reason})",
            field="token_file", path=file, reason=error.strerror,
        ) from None  # fmt: skip
    if not TOKEN.fullmatch(token):
        raise QueryError(
            "{token_file}={path} has no valid token: give one line of 16 to 200 letters, digits or"
            " characters of -_.~",
            field="token_file", path=file,
        )  # fmt: skip
    return token


def _static(name: str, media_type: str) -> Callable[[], Any]:
    content = (STATIC / name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=media_type)

    return answer


async def _picture(request: Request) -> bytes | None:
    """Return the body of a request; None if it is empty.

    Raises:
      Refusal: 413 if the body has more than `MAX_PICTURE` bytes.
      HTTPException: 499 if the client disconnected.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_PICTURE:
                raise Refusal("picture.large", size=MAX_PICTURE // 2**20)
    except ClientDisconnect:
        raise HTTPException(499, "the request was closed") from None
    return bytes(body) or None


def _line(text: str) -> str:
    """Return a typed or pasted text as one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
