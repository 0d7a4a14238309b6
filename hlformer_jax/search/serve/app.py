"""The application of the search page: its addresses.

docs/search/programs.md lists the addresses and their responses. Requests name videos by their ids
in the index, never by paths.
"""

import asyncio
import hashlib
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi import Query as Parameter
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hlformer_jax import __version__, video
from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.search import times
from hlformer_jax.search.index import tag_key
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.serve import guard, jobs, schemas
from hlformer_jax.search.serve.files import (
    MAX_CUT_SECONDS,
    OpenFileResponse,
    TemporaryFileResponse,
    find_indexed,
    open_video,
    unless_current,
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

MAX_TEXT_CHARACTERS = 500  # of a text of a query
MAX_PICTURE_BYTES = 32 * 2**20  # of a picture in a query
MAX_THUMBNAILS = 512  # thumbnails kept in memory
DISCONNECT_POLL_SECONDS = 0.1  # between checks that the client is still connected

T = TypeVar("T")
Sentences = Annotated[
    tuple[Annotated[str, Parameter(max_length=MAX_TEXT_CHARACTERS)], ...], Parameter(max_length=8)
]
Date = Annotated[str | None, Parameter(max_length=40)]
Folder = Annotated[str | None, Parameter(max_length=4096)]
Seconds = Annotated[float | None, Parameter(ge=0, allow_inf_nan=False)]


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


def build_app(
    library: Library,
    hosts: Collection[str] = guard.LOOPBACK,
    any_address: bool = False,
    token: str = "",
    manage: bool | None = False,
) -> FastAPI:
    """Return the ASGI application of a library.

    Args:
      library: the archive.
      hosts: accepted host names, without ports; see `guard.Guard`.
      any_address: whether to accept every IP address as a host; see `guard.Guard`.
      token: token that requests must present, or "" for none; see `guard.Guard`.
      manage: which requests may change the index; see `jobs.Permission`.
    """
    # Only one search runs at a time, because JAX uses all cores. Searches, thumbnails and cuts have
    # separate threads, so none of them waits for another kind.
    searches = BoundedExecutor("searches", workers=1, waiting=16)
    thumbnails = BoundedExecutor("thumbnails", workers=2, waiting=128)
    cuts = BoundedExecutor("cuts", workers=1, waiting=4)
    running, permission = jobs.Jobs(library), jobs.Permission(manage)
    clips = Path(tempfile.mkdtemp(prefix="hlformer-cuts-"))

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        for executor in (searches, thumbnails, cuts):
            executor.close()
        remove_clips()
        await run_in_threadpool(running.close)

    server = FastAPI(
        title="hlformer_jax.search", version=__version__, lifespan=life, docs_url=None,
        redoc_url=None, openapi_url="/api/openapi.json",
        dependencies=[Depends(guard.check_parameters)], responses=schemas.ERRORS,
    )  # fmt: skip
    # A server that could not start is only discarded.
    remove_clips = weakref.finalize(server, shutil.rmtree, clips, ignore_errors=True)
    server.add_middleware(guard.Guard, hosts=hosts, any_address=any_address, token=token)
    guard.install(server, library)
    for address, (name, media_type) in STATIC_FILES.items():
        both = server.api_route(address, methods=["GET", "HEAD"], include_in_schema=False)
        both(_static(name, media_type))
    server.include_router(_query_router(library, searches))
    server.include_router(_index_router(library, permission))
    server.include_router(_video_router(library, thumbnails, cuts, clips))
    server.include_router(jobs.build_router(library, running, permission))
    return server


def _query_router(library: Library, searches: BoundedExecutor) -> APIRouter:
    """Return the address that answers queries."""
    router = APIRouter()

    @router.post(
        "/api/query", response_model=schemas.Results,
        openapi_extra={"requestBody": {"content": {"image/*": {}}}},
    )  # fmt: skip
    @router.get("/api/query", response_model=schemas.Results)
    async def query(
        request: Request,
        q: Annotated[str, Parameter(max_length=MAX_TEXT_CHARACTERS)] = "",
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
            await run_in_threadpool(find_indexed, library, frame[0])
        started = time.perf_counter()

        def search() -> dict[str, Any]:
            return schemas.results(library, library.query(text_query))

        results = await searches.run(request, search)
        return Answer(results | {"seconds": round(time.perf_counter() - started, 4)})

    return router


def _index_router(library: Library, permission: jobs.Permission) -> APIRouter:
    """Return the addresses that show the index, and set tags.

    Their functions are short and not async: FastAPI runs them in its own threads, where they never
    wait for a search.
    """
    router = APIRouter()

    @router.get("/api/status", response_model=schemas.Status)
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

    @router.get("/api/folders", response_model=schemas.Folders)
    def folders() -> Response:
        """The folders, tags and signals that a query may name."""
        entries = library.videos()
        tags = sorted({tag_key(tag): tag for entry in entries for tag in entry.tags}.values())
        listed = schemas.folders(entries)
        return Answer({"folders": listed, "tags": tags, "signals": [*SIGNALS]})

    @router.post("/api/tag/{id}", response_model=schemas.Tags)
    def tag(id: str, add: Sentences = (), drop: Sentences = ()) -> Response:
        """Add tags to a video and remove others. `favourite` is the star of the page."""
        tags = library.tag(find_indexed(library, id).id, add, drop)
        return Answer({"tags": list(tags)})

    @router.get("/api/transcript/{id}", response_model=schemas.Transcript)
    def transcript(id: str) -> Response:
        """The transcript of a video."""
        cues = library.transcript(find_indexed(library, id).id)
        names = ("start", "end", "text")
        return Answer({"cues": [dict(zip(names, cue, strict=True)) for cue in cues]})

    return router


def _video_router(
    library: Library,
    thumbnails: BoundedExecutor,
    cuts: BoundedExecutor,
    clips: Path,
) -> APIRouter:
    """Return the addresses that open the files of videos.

    Args:
      library: the archive.
      thumbnails: threads that make thumbnails.
      cuts: threads that cut clips.
      clips: folder for clips.
    """
    router = APIRouter()
    cache: dict[tuple[str, float, float, int], bytes] = {}

    @router.get("/api/video/{id}", response_model=schemas.PlayableVideo)
    def playable_video(id: str) -> Response:
        """A video, and how a browser plays its file."""
        file = open_video(library, id)
        return Answer(schemas.playable(file.entry, file.apply(video.playback)))

    @router.head("/video/{id}", include_in_schema=False)
    @router.get("/video/{id}", response_class=FileResponse)
    def video_file(request: Request, id: str) -> Response:
        """The file of a video, or a range of it."""
        return unless_current(request, OpenFileResponse(open_video(library, id)))

    @router.get("/thumbnail/{id}", response_class=Response)
    async def thumbnail(
        request: Request,
        id: str,
        t: Annotated[float, Parameter(ge=0, le=times.MAX_SECONDS, allow_inf_nan=False)] = 0.0,
        width: Annotated[int, Parameter(ge=16, le=1920)] = 320,
    ) -> Response:
        """The frame at second t, as a JPEG."""
        file = await run_in_threadpool(open_video, library, id)
        key = file.entry.id, file.entry.modified, round(t, 3), width
        picture = cache.get(key)
        if picture is None:
            picture = await thumbnails.run(
                request,
                lambda: file.apply(lambda path: video.thumbnail(path, round(t, 3), width)),
            )
            cache[key] = picture
            if len(cache) > MAX_THUMBNAILS:
                del cache[next(iter(cache))]
        headers = {"cache-control": "private, max-age=3600"}
        return Response(picture, media_type="image/jpeg", headers=headers)

    @router.get("/cut/{id}", response_class=FileResponse)
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
        out = clips / f"{secrets.token_hex(8)}.mp4"
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                out.unlink(missing_ok=True)
                raise CancelledError

        def write(path: Path) -> None:
            video.cut(path, start, end, out, margin, pulse=check)
            check()

        try:
            await cuts.run(request, lambda: file.apply(write))
        except BaseException:  # also if the server ends
            stopped.set()
            out.unlink(missing_ok=True)
            raise
        title = legible(PurePosixPath(file.entry.video).stem)
        title = f"{title} {_clock(start)}-{_clock(end)}.mp4"
        return TemporaryFileResponse(out, media_type="video/mp4", filename=title)

    return router


def _static(name: str, media_type: str) -> Callable[[Request], Any]:
    content = (STATIC / name).read_bytes()
    headers = {"etag": f'"{hashlib.sha256(content).hexdigest()}"'}

    async def answer(request: Request) -> Response:
        return unless_current(request, Response(content, media_type=media_type, headers=headers))

    return answer


async def _picture(request: Request) -> bytes | None:
    """Return the body of a request; None if it is empty.

    Raises:
      Refusal: 413 if the body has more than `MAX_PICTURE_BYTES` bytes.
      HTTPException: 499 if the client disconnected.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_PICTURE_BYTES:
                raise Refusal("picture.large", size=MAX_PICTURE_BYTES // 2**20)
    except ClientDisconnect:
        raise HTTPException(499, "the request was closed") from None
    return bytes(body) or None


def _line(text: str) -> str:
    """Return a typed or pasted text as one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
