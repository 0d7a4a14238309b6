"""Threads for what takes long, so that a busy server answers others."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

Answer = TypeVar("Answer")

LOOK_AGAIN = 0.1
"""Seconds between two looks at whether the person who asked is still there."""


class Lane:
    """Threads that take work in turn, of which only so much may wait.

    Attributes:
      name: what is done in it, for the line that refuses more.
      most: number of works that may be in it, running or waiting.
    """

    def __init__(self, name: str, workers: int, waiting: int) -> None:
        self.name = name
        self.most = workers + waiting
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._inside = 0
        self._counting = threading.Lock()

    async def run(self, request: Request, work: Callable[[], Answer]) -> Answer:
        """The answer of a work, done in a thread when its turn comes.

        What still waits is dropped when the browser has closed the request: a search that is typed
        asks anew with every word.

        Args:
          request: the request that asks for it.
          work: what to do; what it raises is raised here.

        Raises:
          HTTPException: 503 where too much is waiting; 499 where nobody waits for the answer.
        """
        with self._counting:
            if self._inside >= self.most:
                line = f"too many {self.name} are waiting: try again in a moment"
                raise HTTPException(503, line, {"Retry-After": "1"})
            self._inside += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._leave)
        answer = asyncio.ensure_future(asyncio.wrap_future(future))
        while not answer.done():
            await asyncio.wait({answer}, timeout=LOOK_AGAIN)
            if not answer.done() and await request.is_disconnected() and future.cancel():
                raise HTTPException(499, "the request was closed")
        return answer.result()

    def close(self) -> None:
        """Drops what waits; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: "Future[Any]") -> None:
        with self._counting:
            self._inside -= 1
