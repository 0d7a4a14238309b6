"""Decoding of videos and reading of subtitles in processes, which send events.

The processes import neither JAX nor the encoder, only the function that preprocesses a frame. A
process blocks until the main process takes its batch, which bounds memory. A process that crashes,
for example on a damaged file, is replaced, and its video is tried once more from the beginning. If
that crashes too, only this video fails. When the main process is killed, the other processes end.
Subtitles are read in the same way: if a file crashes its reader or takes too long, only that file
fails.
"""

import contextlib
import dataclasses
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
from hlformer_jax.encoders.protocol import Encoder, Preprocess
from hlformer_jax.errors import SearchError, UserError, is_of_disk
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.stills import is_still
from hlformer_jax.search.signals.transcript import sidecars, transcripts

MAX_IMAGES_OF_BATCH = 32
"""Largest number of images in a batch. A batch has images of one video only, so that an embedding
does not depend on other videos."""

MAX_FRAMES_OF_BATCH = 8 * MAX_IMAGES_OF_BATCH
"""Largest number of frames in a batch, with still frames, so that a still video shows progress."""

PULSE_SECONDS = 1.0
"""Longest time between two calls of `pulse` while processes decode, in seconds."""

BASE_SECONDS, SECONDS_PER_SECOND = 120.0, 10.0
"""Time limit for decoding a video: a base, and more for each second of its stated length."""

TASKS_OF_A_PROCESS = 16
"""Number of subtitle files per process."""

_BYTES_PER_SECOND = 2**20
"""Bytes of a file that count as one second of its length for the time limit of subtitles."""

_MAX_LENGTH = 86_400.0
"""Largest stated length that extends the time limit, in seconds."""


class VideoFunctions(NamedTuple):
    """The functions that read videos: those of `hlformer_jax.video`, or a test's."""

    find: Callable[[Path, Callable[[str], None], Callable[[], None]], Sequence[Path]]
    probe: Callable[[Path], Any]
    sample: Callable[[Path, float, int | None], Iterator[Any]]
    texts: transcripts.SubtitleReader | None = None  # None: no subtitles are read


class VideoJob(NamedTuple):
    """The settings with which videos are decoded."""

    video: VideoFunctions
    fps: float
    size: int | None  # pixels of the shorter side to which frames are scaled down; None: not scaled
    preprocess: Preprocess
    timeout: float | None = None  # seconds that decoding a video may take; None: by its length
    every_frame: bool = False  # whether still frames are encoded too

    def limit(self, length: float = 0.0) -> float:
        """Return the seconds that decoding a video may take, by its length in seconds."""
        return _limit(self.timeout, length)

    def first_limit(self, path: Path) -> float:
        """Return the seconds within which a process must report the length of a video."""
        return self.limit()

    def events(self, path: Path) -> Iterator["Event"]:
        """Decode a video in this process; yield its events."""
        return _events(path, self)


class SubtitleJob(NamedTuple):
    """The settings with which subtitles are read."""

    reader: transcripts.SubtitleReader
    timeout: float | None = None  # seconds that reading one file may take; None: by its size

    def limit(self, length: float = 0.0) -> float:
        """Return the seconds that reading subtitles may take, by a length in seconds."""
        return _limit(self.timeout, length)

    def first_limit(self, task: transcripts.SubtitleTask) -> float:
        """Return the seconds that a task may take.

        They depend on the size of the file, because subtitle tracks are spread over all of it.
        """
        size = 0
        with contextlib.suppress(OSError):
            size = task.path.stat().st_size
        return self.limit(size / _BYTES_PER_SECOND)

    def events(self, task: transcripts.SubtitleTask) -> Iterator[transcripts.SubtitleResult]:
        """Read subtitles in this process; yield the result."""
        yield _read_subtitles(task, self.reader)


def _limit(timeout: float | None, length: float) -> float:
    if timeout is not None:
        return timeout
    return BASE_SECONDS + SECONDS_PER_SECOND * min(max(length, 0.0), _MAX_LENGTH)


class Opened(NamedTuple):
    """Event: a video was opened."""

    path: Path
    duration: float  # length in seconds
    recorded: float = 0.0  # time of recording, seconds since the epoch; 0 if unknown


class Frames(NamedTuple):
    """Event: the next frames of a video.

    Attributes:
      path: the video.
      times: seconds of the frames [n].
      images: preprocessed images [m, S, S, 3], uint8; still frames share an image (`stills`).
      places: position in `images` of the image of each frame [n].
    """

    path: Path
    times: np.ndarray
    images: np.ndarray
    places: np.ndarray


class EncodedFrames(NamedTuple):
    """Event: the embeddings of the next frames of a video.

    Attributes:
      path: the video.
      times: seconds of the frames [n].
      vectors: unit vectors [m, d], float16; still frames share a vector.
      places: position in `vectors` of the vector of each frame [n].
    """

    path: Path
    times: np.ndarray
    vectors: np.ndarray
    places: np.ndarray


class Done(NamedTuple):
    """Event: all frames of a video have been sent."""

    path: Path
    end: float = 0.0  # second at which its last frame ends; 0 if unknown
    warning: str = ""  # one line on parts that could not be used


class Failed(NamedTuple):
    """Event: a video could not be read, with the reason."""

    path: Path
    reason: str
    is_final: bool = True  # False: the disk may be the reason, and the next run tries again


Event = Opened | Frames | EncodedFrames | Done | Failed

EventSource = Callable[[Sequence[Path], VideoJob], Generator[Event, None, None]]
"""Function that yields the events of videos, as `decode` does.

If it also encodes the frames, it yields `EncodedFrames` instead of `Frames`.
"""


def decode(
    paths: Sequence[Any],
    job: VideoJob | SubtitleJob,
    workers: int,
    pulse: Callable[[], None] = lambda: None,
) -> Generator[Any, None, None]:
    """Decode videos, or read subtitles, in processes.

    Args:
      paths: videos for a `VideoJob`, tasks for a `SubtitleJob`.
      job: the settings.
      workers: number of processes; 0 decodes in this process.
      pulse: called at least every second, or with `workers` 0 at every event.

    Yields:
      For each video `Opened`, `Frames` any number of times, and `Done`, or `Failed` at any point.
      Events of one video come in order, between events of other videos. A second `Opened` begins
      the video again: its earlier events must be discarded. For each task, `SubtitleResult` or
      `Failed`.

    Raises:
      SearchError: if no process can be started.
    """
    if workers == 0:
        for path in paths:
            for event in job.events(path):
                pulse()
                yield event
        return
    waiting = list(reversed(paths))
    retried: set[Any] = set()
    pool = [_Worker(job) for _ in range(min(workers, len(paths)))]
    try:
        while pool:
            pulse()
            timeout = min(PULSE_SECONDS, *(worker.remaining() for worker in pool))
            ready = connection.wait([worker.pipe for worker in pool], timeout)
            for worker in list(pool):
                if worker.pipe in ready:
                    event = worker.receive()
                    has_crashed = worker.ended and isinstance(event, Failed)
                    if has_crashed and event.path not in retried:
                        retried.add(event.path)
                        waiting.append(event.path)
                    elif event is not None:
                        yield event
                elif worker.remaining() == 0.0:
                    yield worker.give_up()
                else:
                    continue
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
    """A process that decodes one video after another."""

    def __init__(self, job: VideoJob | SubtitleJob) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        self.path: Any = None  # the video or the task in progress
        self.ended = False
        self._ready = False
        self._job, self._limit, self._since = job, job.limit(), time.monotonic()
        self._process = context.Process(target=_work, args=(worker_pipe, job), daemon=True)
        # Ctrl-C is sent to every process of a terminal, but the main process ends the others. They
        # inherit a mask that blocks the signal from their first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            worker_pipe.close()

    def give(self, path: Any) -> None:
        """Send the process a video to decode, or a task."""
        self.path = path
        self._limit, self._since = self._job.first_limit(path), time.monotonic()
        with contextlib.suppress(OSError):  # the process has crashed, which `receive` notices
            self.pipe.send(path)

    def receive(self) -> Any:
        """Return the next event; None if the process is ready, or has crashed without a video."""
        try:
            event = self.pipe.recv()
        except (EOFError, OSError):
            return self._handle_crash()
        self._since = time.monotonic()
        if not self._ready:
            self._ready = True
            return None
        if isinstance(event, Opened):
            self._limit = self._job.limit(event.duration)
        if isinstance(event, Done | Failed | transcripts.SubtitleResult):
            self.path = None
        return event

    def remaining(self) -> float:
        """Return the seconds until the process must send an event; infinity without a video."""
        if self.path is None or not self._ready:
            return math.inf
        return max(self._since + self._limit - time.monotonic(), 0.0)

    def give_up(self) -> Event:
        """Kill the process, which has exceeded the time limit of its video; return `Failed`."""
        assert self.path is not None
        path, self.path, self.ended = self.path, None, True
        self._process.kill()
        return Failed(path, _too_slow(self._limit))

    def _handle_crash(self) -> Event | None:
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
        """End the process."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()
        self._process.close()


def _work(pipe: connection.Connection, job: VideoJob | SubtitleJob) -> None:
    """Decode the videos whose paths are received from a pipe, until the pipe is closed."""
    with contextlib.suppress(EOFError, OSError):  # raised when the main process has ended
        pipe.send(None)
        while True:
            for event in job.events(pipe.recv()):
                pipe.send(event)


def _events(path: Path, job: VideoJob) -> Iterator[Event]:
    """Yield the events of a video, within its time limit."""
    spent, limit, reading = 0.0, job.limit(), _read(path, job)
    while True:
        start = time.monotonic()
        event = next(reading, None)
        spent += time.monotonic() - start
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
    return f"decoding takes more than {limit:g} s: convert the video, or raise the timeout"


def _read(path: Path, job: VideoJob) -> Generator[Event, None, None]:
    try:
        info = job.video.probe(path)
        yield Opened(path, float(info.duration), getattr(info, "recorded", 0.0))
        batch = _Batch(path)
        last = -np.inf
        frames = job.video.sample(path, job.fps, job.size)
        for frame in frames:
            # Times must rise, because moments identify frames by their times.
            second = max(float(frame.time), 0.0)
            if not second > last:
                continue
            last = second
            image = job.preprocess(frame.image)
            is_shared = bool(batch.images) and not job.every_frame
            is_shared = is_shared and is_still(batch.images[-1], image)
            if len(batch.images) == MAX_IMAGES_OF_BATCH and not is_shared:
                yield batch.frames()
                batch = _Batch(path)
            batch.add(second, image, is_shared)
            if len(batch.times) == MAX_FRAMES_OF_BATCH:
                yield batch.frames()
                batch = _Batch(path)
        if batch.times:
            yield batch.frames()
        if last < 0:
            yield Failed(path, "no frame of it can be decoded")
            return
        end, warning = getattr(frames, "end", 0.0), getattr(frames, "warning", "")
        yield Done(path, float(end), _line(_unnamed(warning, path)) if warning else "")
    except Exception as error:  # on a damaged file, decoders raise nearly anything
        yield Failed(path, *_describe_failure(error, path, "frames"))


@dataclasses.dataclass
class _Batch:
    """Frames of a video that are sent together."""

    path: Path
    times: list[float] = dataclasses.field(default_factory=list)
    images: list[np.ndarray] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)

    def add(self, second: float, image: np.ndarray, is_shared: bool) -> None:
        """Add a frame, which shares the last image or has a new one."""
        if not is_shared:
            self.images.append(image)
        self.times.append(second)
        self.places.append(len(self.images) - 1)

    def frames(self) -> Frames:
        places = np.asarray(self.places)
        return Frames(self.path, np.asarray(self.times), np.stack(self.images), places)


def _describe_failure(error: Exception, path: Path, parts: str) -> tuple[str, bool]:
    """Return why a file cannot be read, in one line, and whether that is final.

    Args:
      error: the error.
      path: the path of the file.
      parts: the parts that are read, such as "frames".
    """
    if isinstance(error, UserError):
        return " ".join(_unnamed(str(error), path).split()), not is_of_disk(error.__cause__)
    if isinstance(error, OSError):
        return error.strerror or _line(error), False
    if isinstance(error, MemoryError):
        return f"its {parts} do not fit into memory", True
    return f"{type(error).__name__}: {_line(error)}", True


def _unnamed(text: str, path: Path) -> str:
    """Return the text of an error without the path of the file, which the report adds."""
    return text.removeprefix(f"{str(path)!r} ").removeprefix(f"{path}: ")


def _line(error: BaseException | str) -> str:
    """Return the first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _read_subtitles(
    task: transcripts.SubtitleTask, reader: transcripts.SubtitleReader
) -> transcripts.SubtitleResult:
    path, video = task
    try:
        if video is None:
            read = reader.tracks(path)
        elif os.path.realpath(path) != str(path):
            problem = "it is now a link, which is not followed"
            return transcripts.SubtitleResult(task, (), problem, is_final=False)
        else:
            read = reader.file(path, video)
        cues = [(cue[0], cue[1], cue[2]) for cue in read]
    except Exception as error:  # on a damaged file, decoders raise nearly anything
        return transcripts.SubtitleResult(task, (), *_describe_failure(error, path, "subtitles"))
    problem = "; ".join(map(str, getattr(read, "warnings", ())))
    is_ambiguous = path.suffix.lower() in sidecars.AMBIGUOUS_SUFFIXES
    if video is not None and not cues and not is_ambiguous:
        problem = problem or "it has no cues"
    return transcripts.SubtitleResult(task, cues, problem, is_final=True)


def update_transcripts(
    index: Index,
    video: VideoFunctions,
    report: Callable[[str], None],
    retry: bool = False,
    workers: int = 1,
    timeout: float | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Read new and changed subtitles in processes. The caller holds the index's lock.

    Args:
      index: the index.
      video: the functions that read videos and subtitles.
      report: takes a line for each new problem with a subtitle file.
      retry: whether to read files again that failed before.
      workers: largest number of processes; 0 reads in this process.
      timeout: seconds that reading one file may take; None: by its size.
      pulse: called at least every second; if it raises, complete transcripts are kept.
    """
    if video.texts is None:
        return
    job = SubtitleJob(video.texts, timeout)

    def read(tasks: Sequence[transcripts.SubtitleTask]) -> Iterator[transcripts.SubtitleResult]:
        count = min(workers, math.ceil(len(tasks) / TASKS_OF_A_PROCESS))
        with contextlib.closing(decode(tasks, job, count, pulse)) as events:
            for event in events:
                if isinstance(event, Failed):
                    task = cast(transcripts.SubtitleTask, event.path)
                    event = transcripts.SubtitleResult(task, (), event.reason, is_final=True)
                yield event

    transcripts.update(index, video.texts, read, report, retry, pulse)


def encode(encoder: Encoder, frames: Frames) -> EncodedFrames:
    """Return the embeddings of frames as unit vectors of float16, as an index stores them."""
    vectors = unit(np.asarray(encoder.encode_images(frames.images), np.float64))
    return EncodedFrames(frames.path, frames.times, vectors.astype(np.float16), frames.places)
