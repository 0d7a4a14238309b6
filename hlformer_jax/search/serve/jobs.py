"""Changes of the index that the page starts: one job at a time, in a thread of the server.

A job does the same as the commands `index`, `add` and `remove`. It takes the same lock and uses the
encoder that serves queries. The job belongs to the server, not to a connection, so every open page
shows its progress. Queries see the videos that the job has indexed so far.

Not everyone who may watch the videos may also index folders of this machine, so every address here
checks `Permission`.
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
from starlette.requests import HTTPConnection
from starlette.responses import Response

from hlformer_jax import files
from hlformer_jax.errors import UserError, describe
from hlformer_jax.files import jsonable
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.extract import (
    Progress,
    format_counts,
    index_folder,
    remove_videos,
    resolve_additions,
)
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.serve.files import find_entry
from hlformer_jax.search.serve.guard import Answer, ParameterError
from hlformer_jax.search.serve.refusals import Refusal
from hlformer_jax.search.serve.schemas import Job, Kind, Roots

PROXY_HEADERS = frozenset(
    "cdn-loop cf-connecting-ip client-ip do-connecting-ip fastly-client-ip fly-client-ip forwarded"
    " forwarded-for forwarded-host forwarded-proto true-client-ip via".split()
)
"""Headers that proxies add. A request that has one may come from another machine."""

PROXY_PREFIXES = (
    "cf-", "tailscale-", "x-amz-cf-", "x-appengine-", "x-azure-", "x-client-", "x-cluster-client-",
    "x-envoy-", "x-forwarded", "x-original-", "x-originating-", "x-proxy", "x-real-", "x-remote-",
)  # fmt: skip
"""Prefixes of further headers that proxies add."""

MAX_NOTES = 20
"""Maximum number of lines about failed and damaged files in a job; older lines are dropped."""

POLL_SECONDS = 0.2  # between checks of a job's progress
HEARTBEAT_SECONDS = 15.0  # without an event, after which a comment detects a closed connection
STOP_SECONDS = 5.0  # for which the server waits for a job when it ends

Ids = Annotated[tuple[Annotated[str, Query(max_length=100)], ...], Query(max_length=1000)]


class _Stopped(Exception):
    """The job was stopped."""


class Permission:
    """Permission to change the index.

    Args:
      manage: True: every request that passed the guard has it; False: none; None: only requests
        that did not come through a proxy.
    """

    def __init__(self, manage: bool | None) -> None:
        self._manage = manage

    def is_granted(self, request: HTTPConnection) -> bool:
        """Return whether a request that passed the guard may change the index."""
        if self._manage is None:
            names = request.headers.keys()
            return not any(
                name in PROXY_HEADERS or name.startswith(PROXY_PREFIXES) for name in names
            )
        return self._manage

    def __call__(self, request: HTTPConnection) -> None:
        """Refuse a request without permission (403)."""
        if not self.is_granted(request):
            raise Refusal("manage")


class Jobs:
    """Jobs that change the index of a library, one at a time.

    The methods that start a job return at once. They raise a `Refusal` (409) if a job is running.

    Attributes:
      job: the state of the current job, or else of the last one.
    """

    def __init__(self, library: Library) -> None:
        self.job = Job()
        self._library = library
        self._changing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def index(self, retry: bool) -> Job:
        """Start to update the index with its folders.

        Args:
          retry: whether to try failed files again.
        """
        kind: Kind = "retry" if retry else "index"
        return self._start(kind, lambda index: self._extract(index, retry=retry))

    def retry(self, path: Path) -> Job:
        """Start to try one file of the index again."""
        return self._start("retry", lambda index: self._extract(index, [path], retry=True))

    def add(self, path: Path) -> Job:
        """Start to add a folder or a file, as the command `add` does."""

        def work(index: Index) -> str:
            videos, roots = resolve_additions(index, [path], self._note, self._pulse)
            return self._extract(index, videos, further=roots)

        return self._start("add", work)

    def remove(self, videos: Collection[str]) -> Job:
        """Start to remove videos and added folders, as the command `remove` does.

        The files stay.

        Args:
          videos: paths of videos in the index, and paths of added folders.
        """
        return self._start("remove", lambda index: remove_videos(index, videos))

    def stop(self) -> Job:
        """Ask the job to stop after the current frames. Complete videos stay indexed."""
        self._stop.set()
        self._change(lambda job: {"state": "stopping"} if job.runs else {})
        return self.job

    def close(self) -> None:
        """Stop the job and wait for it, at most `STOP_SECONDS`."""
        self.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    async def events(self) -> AsyncIterator[str]:
        """Yield the state of the job as server-sent events, until the job ends.

        The first event comes at once, the others after each change.
        """
        sent, sent_at = None, time.monotonic()
        while sent is None or sent.runs:
            if (job := self.job) is not sent:
                yield f"data: {json.dumps(jsonable(job.model_dump()))}\n\n"
                sent, sent_at = job, time.monotonic()
            elif time.monotonic() - sent_at > HEARTBEAT_SECONDS:
                yield ":\n\n"
                sent_at = time.monotonic()
            else:
                await asyncio.sleep(POLL_SECONDS)

    def _start(self, kind: Kind, work: Callable[[Index], str]) -> Job:
        """Start a job in a thread.

        Args:
          kind: the kind of the job.
          work: function that changes the index and returns the line with the job's result.

        Raises:
          Refusal: 409 if a job is running.
        """
        with self._changing:
            if self.job.runs:
                raise Refusal("job.running")
            self._stop.clear()
            self.job = Job(kind=kind, state="running")
            self._thread = threading.Thread(target=self._run, args=(work,), name="job", daemon=True)
            self._thread.start()
            return self.job

    def _run(self, work: Callable[[Index], str]) -> None:
        try:
            index = self._library.open_index()
            for note in index.notes:
                self._note(note)
            state, line = "done", work(index)
        except _Stopped:
            state, line = (
                "stopped",
                "stopped: the indexed videos are kept; the others will be indexed next time",
            )
        except (UserError, OSError) as error:
            state, line = "failed", " ".join(describe(error).split())
        except Exception as error:  # the page shows one line, the log the traceback
            logging.getLogger(__name__).exception("%s", self.job.kind)
            state = "failed"
            line = f"the server failed ({type(error).__name__}): see its terminal"
        self._change(lambda job: {"state": state, "line": line, "video": "", "seconds_left": None})

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
        line = re.sub(r" \([^)]*\)", "", format_counts("the index", report.counts))
        self._change(lambda job: {"line": f"{line}; loading the new index", "video": ""})
        if index.contents():
            self._library.ranked()  # prepare for the next query
        return line

    def _pulse(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _note(self, line: str) -> None:
        self._change(lambda job: {"notes": [*job.notes, line][-MAX_NOTES:]})

    def _show(self, progress: Progress) -> None:
        state = progress._asdict()
        seconds = progress.elapsed / progress.done if progress.done else None
        state["seconds_left"] = seconds and seconds * (progress.total - progress.done)
        state["speed"] = progress.speed
        names = state.keys() & Job.model_fields.keys()
        self._change(lambda job: {name: state[name] for name in names})

    def _change(self, change: Callable[[Job], dict[str, Any]]) -> None:
        with self._changing:
            self.job = self.job.model_copy(update=change(self.job))


def build_router(library: Library, jobs: Jobs, permission: Permission) -> APIRouter:
    """Return the addresses that change an index and show its folders and jobs.

    Args:
      library: the archive.
      jobs: its jobs.
      permission: checks every request to these addresses.
    """
    router = APIRouter(dependencies=[Depends(permission)])

    def answer(job: Job) -> Response:
        return Answer(job.model_dump())

    @router.get("/api/roots", response_model=Roots)
    def roots() -> Response:
        """The folders of the index, with their paths."""
        return Answer(schemas.roots(library.open_index()))

    @router.get("/api/job", response_model=Job)
    def job() -> Response:
        """The current change of the index, or the last one."""
        return answer(jobs.job)

    @router.get("/api/job/events", response_class=StreamingResponse)
    async def events() -> Response:
        """The states of the job (`Job`) as server-sent events, from now to its end."""
        headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
        return StreamingResponse(jobs.events(), headers=headers)

    @router.post("/api/index", response_model=Job)
    def index(retry: bool = False) -> Response:
        """Start to update the index; with retry, also try failed files again."""
        return answer(jobs.index(retry))

    @router.post("/api/retry/{id}", response_model=Job)
    def retry(id: str) -> Response:
        """Start to try a failed file again."""
        return answer(jobs.retry(find_entry(library, id).path))

    @router.post("/api/add", response_model=Job)
    def add(path: Annotated[str, Query(min_length=1, max_length=4096)]) -> Response:
        """Start to add a folder or a file of the server's machine to the index."""
        place = files.expand(path)  # ~NAME of an unknown user stays relative
        if not place.is_absolute() or "\0" in path:
            raise Refusal("path.relative")
        return answer(jobs.add(place))

    @router.post("/api/remove", response_model=Job)
    def remove(
        id: Ids = (), folder: Annotated[str | None, Query(max_length=4096)] = None
    ) -> Response:
        """Start to remove videos, or an added folder by its name. The files stay."""
        videos = [find_entry(library, video).video for video in id]
        if folder is not None:
            roots = {name: str(root) for name, root in library.open_index().roots.items()}
            roots.pop("", None)
            if folder not in roots:
                raise Refusal("folder.unknown")
            videos.append(roots[folder])
        if not videos:
            raise ParameterError("id: name a video, or an added folder with folder=NAME")
        return answer(jobs.remove(videos))

    @router.post("/api/stop", response_model=Job)
    def stop() -> Response:
        """Stop the job. Complete videos stay indexed, and the next job continues."""
        return answer(jobs.stop())

    return router
