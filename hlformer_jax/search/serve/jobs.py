"""Changes of the index by the page: one job at a time, in a thread of the server.

A job runs what the commands `index`, `add` and `remove` run, with the encoder that answers queries,
and holds the lock of the index as they do. It is the server's and no connection's: a page that is
loaded again sees how far it is, as does any other. Queries see what it has indexed so far.

Who may watch the videos need not be one who may have any folder of the machine indexed and shown:
every address here first asks `Allowed`.
"""

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from hlformer_jax.errors import UserError
from hlformer_jax.files import jsonable
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.extract import Progress, counted, index_folder, resolve_additions
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.serve.guard import Answer, ParameterError
from hlformer_jax.search.serve.schemas import Job, Kind, Roots

PROXY_HEADERS = frozenset(
    "cdn-loop cf-connecting-ip client-ip do-connecting-ip fastly-client-ip fly-client-ip forwarded"
    " forwarded-for forwarded-host forwarded-proto true-client-ip via".split()
)
"""Headers of requests that a proxy passed on, maybe from another machine."""

PROXY_PREFIXES = (
    "cf-", "tailscale-", "x-amz-cf-", "x-appengine-", "x-azure-", "x-client-", "x-cluster-client-",
    "x-envoy-", "x-forwarded", "x-original-", "x-originating-", "x-proxy", "x-real-", "x-remote-",
)  # fmt: skip
"""Beginnings of further such headers."""

MAX_NOTES = 20
"""Lines on failed and damaged files that a job keeps, the last."""

POLL_SECONDS = 0.2  # between two looks at a job, for those who follow it
HEARTBEAT_SECONDS = 15.0  # after which a connection on which nothing was said is found closed
STOP_SECONDS = 5.0  # that a server that ends waits for its job

Ids = Annotated[tuple[Annotated[str, Query(max_length=100)], ...], Query(max_length=1000)]


class _Stopped(Exception):
    """A person has stopped the job."""


class Allowed:
    """Who may change the index of a server: all, nobody, or (None) who asks it directly."""

    def __init__(self, manage: bool | None) -> None:
        self._manage = manage

    def may(self, request: HTTPConnection) -> bool:
        """Whether a request may, which the guard has let in."""
        if self._manage is None:
            names = request.headers.keys()
            return not any(
                name in PROXY_HEADERS or name.startswith(PROXY_PREFIXES) for name in names
            )
        return self._manage

    def __call__(self, request: HTTPConnection) -> None:
        """Refuses a request that may not; 403."""
        if not self.may(request):
            line = "nobody may change the index by this address: start the server with --manage"
            raise HTTPException(403, line)


class Jobs:
    """The jobs of a library, one at a time; `job` is the present or the last one."""

    def __init__(self, library: Library) -> None:
        self.job = Job()
        self._library = library
        self._changing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def index(self, retry: bool) -> Job:
        """Brings the index up to date with its folders; `retry`: with what failed before too."""
        kind: Kind = "retry" if retry else "index"
        return self._begin(kind, lambda index: self._extract(index, retry=retry))

    def retry(self, path: Path) -> Job:
        """Tries one file of the index again."""
        return self._begin("retry", lambda index: self._extract(index, [path], retry=True))

    def add(self, path: Path) -> Job:
        """Adds a folder or file, as the command `add` does."""

        def work(index: Index) -> str:
            only, further = resolve_additions(index, [path], self._note, self._pulse)
            return self._extract(index, only, further=further)

        return self._begin("add", work)

    def remove(self, videos: Collection[str]) -> Job:
        """Removes videos and further folders, as the command `remove` does; the files stay."""

        def work(index: Index) -> str:
            count = index.remove(videos)
            return f"removed {count} of {count + len(index.videos)} videos"

        return self._begin("remove", work)

    def stop(self) -> Job:
        """Stops the job, once the frames that are being encoded are; whole videos are kept."""
        self._stop.set()
        self._change(lambda job: {"state": "stopping"} if job.runs else {})
        return self.job

    def close(self) -> None:
        """Stops the job and waits for it, `STOP_SECONDS` at most."""
        self.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    async def events(self) -> AsyncIterator[str]:
        """The present state as a server-sent event, and every new one until the job has ended."""
        seen, said = None, time.monotonic()
        while seen is None or seen.runs:
            if (job := self.job) is not seen:
                yield f"data: {json.dumps(jsonable(job.model_dump()))}\n\n"
                seen, said = job, time.monotonic()
            elif time.monotonic() - said > HEARTBEAT_SECONDS:
                yield ":\n\n"
                said = time.monotonic()
            else:
                await asyncio.sleep(POLL_SECONDS)

    def _begin(self, kind: Kind, work: Callable[[Index], str]) -> Job:
        """Runs a work in a thread, whose result says what was done; 409 where another runs."""
        with self._changing:
            if self.job.runs:
                line = "the index is being changed: wait until that has ended, or stop it"
                raise HTTPException(409, line)
            self._stop.clear()
            self.job = Job(kind=kind, state="running")
            self._thread = threading.Thread(target=self._run, args=(work,), name="job", daemon=True)
            self._thread.start()
            return self.job

    def _run(self, work: Callable[[Index], str]) -> None:
        try:
            index = Index.open(self._library.directory)
            for note in index.notes:
                self._note(note)
            state, line = "done", work(index)
        except _Stopped:
            state, line = "stopped", "stopped: what is indexed is kept, the rest comes next time"
        except (UserError, OSError) as error:
            state, line = "failed", " ".join(str(error).split())
        except Exception as error:  # whatever it is, the page gets one line and the log the rest
            logging.getLogger(__name__).exception("%s", self.job.kind)
            state = "failed"
            line = f"the server failed ({type(error).__name__}): its terminal says where"
        self._change(lambda job: {"state": state, "line": line, "video": "", "left": None})

    def _extract(
        self,
        index: Index,
        only: Sequence[Path] | None = None,
        further: Sequence[Path] = (),
        retry: bool = False,
    ) -> str:
        report = index_folder(
            index, self._library.encoder, retry=retry, only=only, further=further,
            report=self._note, progress=self._show, pulse=self._pulse,
        )  # fmt: skip
        line = re.sub(r" \([^)]*\)", "", counted("the index", report.counts))
        self._change(lambda job: {"line": f"{line}; its rows are being read", "video": ""})
        if index.contents():
            self._library.ranked()  # so that the next question need not wait
        return line

    def _pulse(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _note(self, line: str) -> None:
        self._change(lambda job: {"notes": [*job.notes, line][-MAX_NOTES:]})

    def _show(self, progress: Progress) -> None:
        now = progress._asdict()
        each = progress.elapsed / progress.done if progress.done else None
        now["left"] = each and each * (progress.total - progress.done)
        now["speed"] = progress.speed
        self._change(lambda job: {name: now[name] for name in now.keys() & Job.model_fields.keys()})

    def _change(self, change: Callable[[Job], dict[str, Any]]) -> None:
        with self._changing:
            self.job = self.job.model_copy(update=change(self.job))


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


def addresses(library: Library, jobs: Jobs, allowed: Allowed) -> APIRouter:
    """The addresses by which those who are allowed to change an index."""
    wrong = {"model": schemas.Problem, "description": "refused, in one line"}
    router = APIRouter(dependencies=[Depends(allowed)], responses={403: wrong, 409: wrong})
    begun = lambda job: Answer(job.model_dump())

    def known(id: str) -> Any:
        try:
            return library.entry(id)
        except (LookupError, UserError):
            raise HTTPException(404, "there is no such video in this index") from None

    @router.get("/api/roots", responses=schemas.responses(Roots))
    def roots() -> Response:
        """The folders of the index and where they are, to those who may change it."""
        return Answer(schemas.roots(Index.open(library.directory)))

    @router.get("/api/job", responses=schemas.responses(Job))
    def job() -> Response:
        """The change of the index that is under way, or the last one."""
        return begun(jobs.job)

    @router.get("/api/job/events", response_class=EventStream, responses=schemas.responses(Job))
    async def events() -> Response:
        """That job as server-sent events, each all of it, from the present state to its end."""
        return EventStream(jobs.events(), headers={"x-accel-buffering": "no"})

    @router.post("/api/index", responses=schemas.responses(Job))
    def index(retry: bool = False) -> Response:
        """Begins to bring the index up to date; with retry, what failed is tried again too."""
        return begun(jobs.index(retry))

    @router.post("/api/retry/{id}", responses=schemas.responses(Job))
    def retry(id: str) -> Response:
        """Begins to try one file again that failed."""
        return begun(jobs.retry(known(id).path))

    @router.post("/api/add", responses=schemas.responses(Job))
    def add(path: Annotated[str, Query(min_length=1, max_length=4096)]) -> Response:
        """Begins to add a further folder, or a file, of the server's machine to the index."""
        try:
            place = Path(path).expanduser()
        except RuntimeError:  # ~name of nobody
            place = Path()
        if not place.is_absolute() or "\0" in path:
            raise ParameterError("path: give the whole path of a folder, such as /home/ann/Videos")
        return begun(jobs.add(place))

    @router.post("/api/remove", responses=schemas.responses(Job))
    def remove(
        id: Ids = (), folder: Annotated[str | None, Query(max_length=4096)] = None
    ) -> Response:
        """Begins to take videos, or a further folder by its name, out of the index.

        No file of a video is touched.
        """
        videos = [known(one).video for one in id]
        if folder is not None:
            further = {n: str(p) for n, p in Index.open(library.directory).roots.items() if n}
            if folder not in further:
                raise HTTPException(404, "there is no such further folder in this index")
            videos.append(further[folder])
        if not videos:
            raise ParameterError("id: name a video, or a further folder by folder=NAME")
        return begun(jobs.remove(videos))

    @router.post("/api/stop", responses=schemas.responses(Job))
    def stop() -> Response:
        """Stops the job; what is whole is kept, and the next one goes on from there."""
        return begun(jobs.stop())

    return router
