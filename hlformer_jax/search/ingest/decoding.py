"""Processes that decode videos and read subtitles, and the events that they send.

Videos are decoded in processes of their own, which import neither JAX nor the encoder, but for what
prepares a frame. A process waits with a batch in its hands until the main process takes it: so
memory is flat. One that dies, for which a damaged file may be enough, is replaced, and its video
tried once more from the beginning; if that ends so as well, the video alone fails. When the main
process is killed, the others end. Subtitles are read in the same processes: a file that crashes its
reader, or takes too long, costs that file alone.
"""

import contextlib
import errno
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from hlformer_jax.data.transforms import unit
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import SearchError, UserError
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.signals.transcript import transcripts

CHUNK = 32
"""Frames that are passed on, and encoded, together; always of one video, from its beginning on, so
that what is computed for a frame does not depend on the videos beside it."""


PULSE = 1.0
"""Seconds between two calls of what may stop a run, at most, while processes decode."""

LEAST_SECONDS, SLOWEST = 120.0, 10.0
"""Limit of decoding a video: so many seconds, plus so many times its stated length."""

TASKS_OF_A_PROCESS = 16
"""Files of subtitles for which one more process is started."""

_BYTES_A_SECOND = 2**20
"""Bytes of a video that count as a second of it where its length is not known."""

_MAX_LENGTH = 86_400.0
"""Seconds of a stated length that count for that limit, at most."""


class Video(NamedTuple):
    """The functions that read videos; those of `hlformer_jax.video`, or a test's."""

    find: Callable[[Path, Callable[[str], None], Callable[[], None]], Sequence[Path]]
    probe: Callable[[Path], Any]
    sample: Callable[[Path, float, int | None], Iterator[Any]]
    texts: transcripts.Reader | None = None  # None: no subtitles are read


class Job(NamedTuple):
    """How videos are decoded."""

    video: Video
    fps: float
    size: int | None  # the least length of a frame's shorter side in pixels; None for its own
    preprocess: Callable[[np.ndarray], np.ndarray]
    timeout: float | None = None  # seconds that decoding a video may take; None: by its length

    def limit(self, length: float = 0.0) -> float:
        """Seconds that decoding a video of that length in seconds may take."""
        return _limit(self.timeout, length)

    def first_limit(self, path: Path) -> float:
        """Return the seconds within which a process must have said the length of a video."""
        return self.limit()

    def events(self, path: Path) -> Iterator["Event"]:
        """Decode a video."""
        return _events(path, self)


class Reading(NamedTuple):
    """How subtitles are read, in the same processes as videos are decoded."""

    reader: transcripts.Reader
    timeout: float | None = None  # seconds that reading one file may take; None: by its size

    def limit(self, length: float = 0.0) -> float:
        """Return the seconds that reading the subtitles of a video of that length may take."""
        return _limit(self.timeout, length)

    def first_limit(self, task: transcripts.SubtitleTask) -> float:
        """Return the seconds that a task may take: tracks lie all over the file of a video."""
        size = 0
        with contextlib.suppress(OSError):
            size = task.path.stat().st_size
        return self.limit(size / _BYTES_A_SECOND)

    def events(self, task: transcripts.SubtitleTask) -> Iterator[transcripts.Subtitles]:
        """Read subtitles."""
        yield _read_subtitles(task, self.reader)


def _limit(timeout: float | None, length: float) -> float:
    if timeout is not None:
        return timeout
    return LEAST_SECONDS + SLOWEST * min(max(length, 0.0), _MAX_LENGTH)


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
    """A video has ended."""

    path: Path
    end: float = 0.0  # of its last frame, in seconds; 0 where that is not known
    warning: str = ""  # what of it could not be used, in one line


class Failed(NamedTuple):
    """A video could not be read, and why."""

    path: Path
    reason: str


Event = Opened | Frames | Vectors | Done | Failed

Source = Callable[[Sequence[Path], Job], Generator[Event, None, None]]
"""What yields the events of videos, as `decode` does; those that encode as well give `Vectors`."""


def decode(
    paths: Sequence[Any],
    job: Job | Reading,
    workers: int,
    pulse: Callable[[], None] = lambda: None,
) -> Generator[Any, None, None]:
    """Decodes videos in processes; with no workers in this one. Calls `pulse` every second.

    Yields for each video `Opened`, `Frames` any number of times, and `Done`, or `Failed` at any
    point; those of one video in order, those of several mixed. A second `Opened` of a video begins
    it again: what came before is void. A job of `Reading` takes tasks in the place of paths, and
    yields `Subtitles` or `Failed` for each.

    Raises:
      SearchError: when no process can be started.
    """
    if workers == 0:
        for path in paths:
            for own in job.events(path):
                pulse()
                yield own
        return
    waiting = list(reversed(paths))
    twice: set[Any] = set()
    pool = [_Worker(job) for _ in range(min(workers, len(paths)))]
    try:
        while pool:
            pulse()
            left = min(PULSE, *(worker.left() for worker in pool))
            ready = connection.wait([worker.pipe for worker in pool], left)
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
    """A process that decodes one video after the other."""

    def __init__(self, job: Job | Reading) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.path: Any = None  # of the video that it decodes, or its task
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

    def give(self, path: Any) -> None:
        """Sends it a video to decode."""
        self.path = path
        self._limit, self._since = self._job.first_limit(path), time.monotonic()
        with contextlib.suppress(OSError):  # it has died: `receive` finds out
            self.pipe.send(path)

    def receive(self) -> Any:
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
        if isinstance(event, Done | Failed | transcripts.Subtitles):
            self.path = None
        return event

    def left(self) -> float:
        """Seconds until it must have sent an event; infinite where it has no video."""
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


def _work(pipe: connection.Connection, job: Job | Reading) -> None:
    """The loop of a process: decodes the videos whose paths it receives."""
    with contextlib.suppress(EOFError, OSError):  # the main process has ended
        pipe.send(None)
        while True:
            for event in job.events(pipe.recv()):
                pipe.send(event)


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


_DISK_ERRORS = frozenset(errno.errorcode) - {errno.EINVAL}
"""Error numbers after which a file may be read another time; EINVAL is FFmpeg's, of formats."""


def _read_subtitles(
    task: transcripts.SubtitleTask, reader: transcripts.Reader
) -> transcripts.Subtitles:
    path, video = task

    def failed(reason: str, is_final: bool) -> transcripts.Subtitles:
        return transcripts.Subtitles(task, (), " ".join(reason.split()), is_final)

    try:
        if video is None:
            read = reader.tracks(path)
        elif os.path.realpath(path) != str(path):
            return failed("it has become a link: not followed", False)
        else:
            read = reader.file(path, video)
        cues = [(cue[0], cue[1], cue[2]) for cue in read]
    except UserError as error:
        number = getattr(error.__cause__, "errno", None)
        return failed(_unnamed(str(error), path), number not in _DISK_ERRORS)
    except OSError as error:
        return failed(error.strerror or _line(error), False)
    except MemoryError:
        return failed("its subtitles do not fit into memory", True)
    except Exception as error:  # decoders raise nearly anything on a damaged file
        return failed(f"{type(error).__name__}: {_line(error)}", True)
    problem = "; ".join(map(str, getattr(read, "warnings", ())))
    if video is not None and not cues:
        problem = problem or "it holds no cue"
    return transcripts.Subtitles(task, cues, problem, True)


def update_transcripts(
    index: Index,
    video: Video,
    report: Callable[[str], None],
    retry: bool = False,
    workers: int = 1,
    timeout: float | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Read the subtitles that are new or changed, in processes; under the lock of the index.

    Args:
      index: the index.
      video: the functions that read videos and subtitles.
      report: takes a line for each subtitle file that gives nothing.
      retry: reads again what failed before.
      workers: how many processes read at most; 0: this one reads.
      timeout: seconds that reading one file may take; None: by its size.
      pulse: is called at least every second; when it raises, whole transcripts are kept.
    """
    if video.texts is None:
        return
    reading = Reading(video.texts, timeout)

    def read(tasks: Sequence[transcripts.SubtitleTask]) -> Iterator[transcripts.Subtitles]:
        count = min(workers, math.ceil(len(tasks) / TASKS_OF_A_PROCESS))
        with contextlib.closing(decode(tasks, reading, count, pulse)) as events:
            for event in events:
                if isinstance(event, Failed):
                    task = cast(transcripts.SubtitleTask, event.path)
                    event = transcripts.Subtitles(task, (), event.reason, True)
                yield event

    transcripts.update(index, video.texts, read, report, retry, pulse)


def encode(encoder: Encoder, frames: Frames) -> Vectors:
    """The vectors of frames as an index keeps them."""
    vectors = unit(np.asarray(encoder.encode_images(frames.images), np.float64))
    return Vectors(frames.path, frames.times, vectors.astype(np.float16))
