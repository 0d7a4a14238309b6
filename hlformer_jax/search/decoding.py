"""Decoding in processes of their own: paths in, batches of small frames out.

Each process has a pipe to the main one. It decodes a video, and waits with a batch in its hands
until the main process takes it: so memory is flat however long a video is and however many there
are. A process that dies, for which a damaged file may be enough, is replaced, and its video tried
once more from the beginning; if that ends so as well, the video alone fails. When the main process
is killed, the pipe breaks and the others end.

The processes are spawned and import neither JAX nor the encoder, but for what prepares a frame.
"""

import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax.errors import UserError
from hlformer_jax.search.errors import SearchError

CHUNK = 32
"""Frames that are passed on, and encoded, together; always of one video, from its beginning on, so
that what is computed for a frame does not depend on the videos beside it."""


LEAST_SECONDS, SLOWEST = 120.0, 10.0
"""What decoding a video may take: so long, and so many times its length as it states it."""

_MAX_LENGTH = 86_400.0
"""Seconds of a stated length that count for that."""


class Video(NamedTuple):
    """The functions that read videos; those of `hlformer_jax.video`, or a test's.

    Attributes:
      find: all video files of a folder; tells a line on each folder that it cannot list.
      probe: facts of a file, with its `duration` in seconds.
      sample: its frames, each with `time` and `image`, at a rate and of a least size.
    """

    find: Callable[[Path, Callable[[str], None]], Sequence[Path]]
    probe: Callable[[Path], Any]
    sample: Callable[[Path, float, int | None], Iterator[Any]]


class Job(NamedTuple):
    """How videos are decoded.

    Attributes:
      video: the functions that read them.
      fps: frames a second.
      size: the least length of a frame's shorter side in pixels; None for its own.
      preprocess: brings a frame to the encoder's size.
      timeout: seconds that decoding a video may take; None: by its length.
    """

    video: Video
    fps: float
    size: int | None
    preprocess: Callable[[np.ndarray], np.ndarray]
    timeout: float | None = None

    def limit(self, length: float = 0.0) -> float:
        """Seconds that decoding may take.

        Args:
          length: the video's in seconds; 0 before it is known.
        """
        if self.timeout is not None:
            return self.timeout
        return LEAST_SECONDS + SLOWEST * min(max(length, 0.0), _MAX_LENGTH)


def preprocessing(encoder: Any) -> Callable[[np.ndarray], np.ndarray]:
    """What brings a frame to an encoder's size, without the encoder's weights where they part."""
    preparation = getattr(encoder, "preparation", None)
    found: Callable[[np.ndarray], np.ndarray] = getattr(preparation, "apply", encoder.preprocess)
    return found


class Opened(NamedTuple):
    """A video was opened: its length in seconds, and when it was recorded (`video.Info`)."""

    path: Path
    duration: float
    recorded: float = 0.0


class Frames(NamedTuple):
    """The next frames of a video: times in seconds [n], images [n, S, S, 3] of 8 bit."""

    path: Path
    times: np.ndarray
    images: np.ndarray


class Vectors(NamedTuple):
    """The next frames, encoded: times in seconds [n], unit vectors [n, d] of float16."""

    path: Path
    times: np.ndarray
    vectors: np.ndarray


class Done(NamedTuple):
    """A video has ended.

    Attributes:
      path: the file.
      end: when its last frame ends, in seconds; 0 where that is not known.
      warning: what of it could not be used, in one line; or "".
    """

    path: Path
    end: float = 0.0
    warning: str = ""


class Failed(NamedTuple):
    """A video could not be read, and why."""

    path: Path
    reason: str


Event = Opened | Frames | Vectors | Done | Failed

Source = Callable[[Sequence[Path], Job], Generator[Event, None, None]]
"""What yields the events of videos, as `decode` does; those that encode as well give `Vectors`."""


def decode(paths: Sequence[Path], job: Job, workers: int) -> Generator[Event, None, None]:
    """Decodes videos.

    Args:
      paths: the files.
      job: how they are decoded.
      workers: number of processes; 0 decodes in this one.

    Yields:
      For each video `Opened`, `Frames` any number of times, and `Done`, or `Failed` at any point;
      those of one video in order, those of several mixed. A second `Opened` of a video begins it
      again: what came before is void.

    Raises:
      SearchError: when no process can be started.
    """
    if workers == 0:
        for path in paths:
            yield from _events(path, job)
        return
    waiting = list(reversed(paths))
    twice: set[Path] = set()
    pool = [_Worker(job) for _ in range(min(workers, len(paths)))]
    try:
        while pool:
            left = min(worker.left() for worker in pool)
            pipes = [worker.pipe for worker in pool]
            ready = connection.wait(pipes, None if math.isinf(left) else left)
            for worker in list(pool):
                silent = worker.pipe not in ready
                if not silent:
                    event = worker.receive()
                elif worker.left() == 0.0:
                    event = worker.give_up()
                else:
                    continue
                killed = worker.ended and not silent
                if killed and isinstance(event, Failed) and event.path not in twice:
                    twice.add(event.path)
                    waiting.append(event.path)
                elif event is not None:
                    yield event
                if worker.path is not None:
                    continue
                if not waiting:
                    worker.close()
                    pool.remove(worker)
                    continue
                if worker.ended:
                    worker.close()
                    pool[pool.index(worker)] = worker = _Worker(job)
                worker.give(waiting.pop())
    finally:
        for worker in pool:
            worker.close()


class _Worker:
    """A process that decodes one video after the other.

    Attributes:
      pipe: what it sends comes out of it.
      path: the video it decodes; None while it has none.
      ended: whether it has died.
    """

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.path: Path | None = None
        self.ended = False
        self._ready = False
        self._job, self._limit, self._since = job, job.limit(), time.monotonic()
        self._process = context.Process(target=_work, args=(theirs, job), daemon=True)
        # Ctrl-C reaches every process of a terminal. The main one ends the others; inherited from
        # here, the signal is blocked from their first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def give(self, path: Path) -> None:
        """Has a video decoded."""
        self.path = path
        self._limit, self._since = self._job.limit(), time.monotonic()
        try:
            self.pipe.send(path)
        except OSError:
            pass  # it has died: `receive` finds out

    def receive(self) -> Event | None:
        """The next event; None where the process has only said that it is ready."""
        try:
            event = self.pipe.recv()
        except (EOFError, OSError):
            return self._died()
        self._since = time.monotonic()
        if not self._ready:
            self._ready = True
            return None
        if isinstance(event, Opened):
            self._limit = self._job.limit(event.duration)
        if isinstance(event, Done | Failed):
            self.path = None
        found: Event = event
        return found

    def left(self) -> float:
        """Seconds that it may go on without a word; infinite where it has no video."""
        if self.path is None or not self._ready:
            return math.inf
        return max(self._since + self._limit - time.monotonic(), 0.0)

    def give_up(self) -> Event:
        """Ends the process, which hangs in its video."""
        assert self.path is not None
        path, self.path, self.ended = self.path, None, True
        self._process.kill()
        return Failed(path, _too_slow(self._limit))

    def _died(self) -> Event | None:
        self._process.join()
        code, path = self._process.exitcode, self.path
        self.ended, self.path = True, None
        if not self._ready:
            raise SearchError(
                f"a process that decodes could not start (exit status {code}): a program that calls"
                " this needs `if __name__ == '__main__':`, or workers=0"
            )
        return None if path is None else Failed(path, f"its decoding process died (status {code})")

    def close(self) -> None:
        """Ends the process."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()
        self._process.close()


def _work(pipe: connection.Connection, job: Job) -> None:
    """What a process does."""
    try:
        pipe.send(None)
        while True:
            for event in _events(pipe.recv(), job):
                pipe.send(event)
    except (EOFError, OSError):
        pass  # the main process has ended


def _events(path: Path, job: Job) -> Iterator[Event]:
    """The events of a video, as long as they take no more time than there is."""
    spent, limit, reading = 0.0, job.limit(), _read(path, job)
    while True:
        began = time.monotonic()
        event = next(reading, None)
        spent += time.monotonic() - began
        if event is None:
            return
        if isinstance(event, Opened):
            limit = job.limit(event.duration)
        if spent > limit and not isinstance(event, Done | Failed):
            reading.close()
            event = Failed(path, _too_slow(limit))
        yield event
        if isinstance(event, Done | Failed):
            return


def _too_slow(limit: float) -> str:
    return f"decoding it takes more than {limit:g} s: convert it, or give it more by --timeout"


def _read(path: Path, job: Job) -> Generator[Event, None, None]:
    try:
        info = job.video.probe(path)
        yield Opened(path, float(info.duration), getattr(info, "recorded", 0.0))
        times: list[float] = []
        images: list[np.ndarray] = []
        last = -np.inf
        frames = job.video.sample(path, job.fps, job.size)
        for frame in frames:
            # Times rise; a frame that came at the time of another could not be told from it.
            time = max(float(frame.time), 0.0)
            if not time > last:
                continue
            last = time
            times.append(time)
            images.append(job.preprocess(frame.image))
            if len(times) == CHUNK:
                yield Frames(path, np.asarray(times), np.stack(images))
                times, images = [], []
        if times:
            yield Frames(path, np.asarray(times), np.stack(images))
        if last < 0:
            yield Failed(path, "it has no frame that can be decoded")
            return
        end, warning = getattr(frames, "end", 0.0), getattr(frames, "warning", "")
        yield Done(path, float(end), _line(_unnamed(warning, path)) if warning else "")
    except UserError as error:
        yield Failed(path, " ".join(_unnamed(str(error), path).split()))
    except OSError as error:
        yield Failed(path, error.strerror or _line(error))
    except MemoryError:
        yield Failed(path, "its frames do not fit into memory")
    except Exception as error:  # decoders raise nearly anything on a damaged file
        yield Failed(path, f"{type(error).__name__}: {_line(error)}")


def _unnamed(text: str, path: Path) -> str:
    """An error's text without the name of its file, which the report has already."""
    return text.removeprefix(f"{str(path)!r} ").removeprefix(f"{path}: ")


def _line(error: BaseException | str) -> str:
    """The first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
