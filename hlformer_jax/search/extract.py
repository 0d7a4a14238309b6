"""A folder into an index: finds what is new, changed, moved and offline, and encodes what must be.

A path whose stamp is that of its record is left alone, once its vectors have been read through.
Otherwise the digest of its content decides: where the vectors of that content are on the disk and
whole, as after a move, a copy or a killed run, they are taken without decoding. The rest is decoded
and encoded, video by video, and the vectors of a complete one are written. So a run may be killed
at any moment: the next one takes every whole file, and computes the others to the same bits.

Videos are decoded in processes of their own, which import neither JAX nor the encoder, but for what
prepares a frame, and encoded in this one; or both on other machines (`cluster`). A process waits
with a batch in its hands until the main process takes it: so memory is flat. One that dies, for
which a damaged file may be enough, is replaced, and its video tried once more from the beginning;
if that ends so as well, the video alone fails. When the main process is killed, the others end.
"""

import contextlib
import dataclasses
import errno
import functools
import math
import multiprocessing
import os
import signal
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from hlformer_jax import command
from hlformer_jax.data.transforms import unit
from hlformer_jax.errors import (
    DamagedError,
    SearchError,
    UserError,
    command_line,
    optional,
    printable,
)
from hlformer_jax.files import OutputError, digest
from hlformer_jax.retrieval.localisation import segments
from hlformer_jax.search import said, transcripts
from hlformer_jax.search.index import Index, matches
from hlformer_jax.search.storage import Record, Stamp, VideoArrays, split_name

CHUNK = 32
"""Frames that are passed on, and encoded, together; always of one video, from its beginning on, so
that what is computed for a frame does not depend on the videos beside it."""


PULSE = 1.0
"""Seconds between two calls of what may stop a run, at most, while processes decode."""

LEAST_SECONDS, SLOWEST = 120.0, 10.0
"""Limit of decoding a video: so many seconds, plus so many times its stated length."""

_BYTES_A_SECOND = 2**20
"""Bytes of a video that count as a second of it where its length is not known."""

_MAX_LENGTH = 86_400.0
"""Seconds of a stated length that count for that limit, at most."""


class Video(NamedTuple):
    """The functions that read videos; those of `hlformer_jax.video`, or a test's."""

    find: Callable[[Path, Callable[[str], None]], Sequence[Path]]
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
    workers: int | None = None,
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
    most = default_workers() if workers is None else workers

    def read(tasks: Sequence[transcripts.SubtitleTask]) -> Iterator[transcripts.Subtitles]:
        count = min(most, math.ceil(len(tasks) / TASKS_OF_A_PROCESS))
        with contextlib.closing(decode(tasks, reading, count, pulse)) as events:
            for event in events:
                if isinstance(event, Failed):
                    task = cast(transcripts.SubtitleTask, event.path)
                    event = transcripts.Subtitles(task, (), event.reason, True)
                yield event

    transcripts.update(index, video.texts, read, report, retry, pulse)


def encode(encoder: Any, frames: Frames) -> Vectors:
    """The vectors of frames as an index keeps them."""
    vectors = unit(np.asarray(encoder.images(frames.images), np.float64))
    return Vectors(frames.path, frames.times, vectors.astype(np.float16))


class Progress(NamedTuple):
    """How far a run is; all times in seconds."""

    done: int  # videos that are decoded or failed
    total: int  # videos that must be decoded
    video: str  # the one that is under way
    position: float  # how much of it is encoded
    duration: float  # its length
    seconds: float  # of video encoded in this run
    elapsed: float  # since the first video was begun
    failed: int = 0  # in this run

    @property
    def speed(self) -> float:
        """Multiples of real time."""
        return _speed(self.seconds, self.elapsed)


class Report(NamedTuple):
    """What a run did, in numbers of paths."""

    indexed: int = 0  # decoded and encoded
    known: int = 0  # recognised by their content: moved, renamed, copied, touched
    unchanged: int = 0  # left alone
    failed: int = 0  # in this run
    skipped: int = 0  # failed before, and not tried again
    offline: int = 0  # not there now; their vectors are kept
    unreadable: int = 0  # indexed, and not to be read now; their vectors are kept
    gone: int = 0  # failed before, and no longer there
    seconds: float = 0.0  # of video that were encoded
    elapsed: float = 0.0

    @property
    def speed(self) -> float:
        """Multiples of real time."""
        return _speed(self.seconds, self.elapsed)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of paths, each with its words."""
        return {
            "indexed": self.indexed,
            "found again by their content": self.known,
            "unchanged": self.unchanged,
            "offline (kept; prune drops what will not come back)": self.offline,
            "not to be read (kept)": self.unreadable,
            "gone": self.gone,
            "failed": self.failed,
            "failed before (--retry tries them again)": self.skipped,
        }


def counted(what: object, counts: Mapping[str, int]) -> str:
    """Numbers as a line, but for those that are 0."""
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{what}: {listed or 'no video'}"


def _speed(seconds: float, elapsed: float) -> float:
    return seconds / max(elapsed, 1e-9)


SAVE_SECONDS, SAVE_SHARE = 2.0, 0.05
"""Least time between two writings of the manifest, and the largest share of all time they take."""

TASKS_OF_A_PROCESS = 16
"""Files of subtitles for which one more process is started."""

BYTES_AT_ONCE = 2**34
"""Bytes of new files that are digested before the first of them are decoded."""

LARGER = 2
"""Frames are decoded to so many times the encoder's size, at least, where they are larger."""


def index_folder(
    index: Index,
    encoder: Any,
    *,
    workers: int | None = None,
    retry: bool = False,
    timeout: float | None = None,
    only: Iterable[Path] | None = None,
    further: Iterable[Path] = (),
    video: Video | None = None,
    source: Source | None = None,
    report: Callable[[str], None] = print,
    progress: Callable[[Progress], None] = lambda progress: None,
    pulse: Callable[[], None] = lambda: None,
) -> Report:
    """Brings an index up to date with its folders; one that is not there keeps all its videos.

    Args:
      index: the index.
      encoder: the encoder of the index.
      workers: number of processes that decode; 0 decodes in this one; None: half the cores.
      retry: whether to try again what failed and has not changed since.
      timeout: seconds that decoding a video may take; None: by its length (`Job.limit`).
      only: files of the folders to add; the rest is not looked at, and what was removed from the
        index comes back. None: the whole folder.
      further: folders that become further ones of the index before that (`to_add`).
      video: the functions that read videos; those of `hlformer_jax.video` by default.
      source: what decodes, and may encode as well (`cluster.source`); None: processes of this
        machine, `workers` of them.
      report: takes a line on every video that failed and every file that was damaged.
      progress: is called after every batch of frames.
      pulse: is called before every file that is read, and every second while processes decode;
        what it raises ends the run as Ctrl-C does: all whole files are kept.

    Raises:
      SearchError: when the encoder is another one, no folder is there, the disk is full, or another
        process writes.
    """
    index.check_encoder(encoder)
    with index.writing():
        for folder in further:
            name = index.add_root(folder)
            report(f"{folder} is a further folder of the index, {name!r}")
        if source is None:
            count = default_workers() if workers is None else workers
            source = functools.partial(decode, workers=count, pulse=pulse)
        run = _Run(
            index, encoder, video or real_video(), source, timeout, workers, report, progress, pulse
        )
        return run.perform(retry, only)


def to_add(
    index: Index, given: Iterable[Path], report: Callable[[str], None] = print
) -> tuple[list[Path], list[Path]]:
    """The files of what a person adds, files or folders, and the folders that are further ones.

    Raises:
      SearchError: when one is not there, a file of no folder of the index, a folder without videos,
        or one that holds a folder of the index or lies in one.
    """
    video = real_video()
    chosen: list[Path] = []
    further: list[Path] = []
    for one in given:
        # Not resolved at its end: a link in the folder is a path of the folder.
        named = one.name not in ("", "..")
        place = one.parent.resolve() / one.name if named else one.resolve()
        if not place.exists():
            raise SearchError(f"{one} is not there: give files of {index.root}, or a folder")
        outside = index.name_below(place) is None
        if outside:
            if not place.is_dir():
                raise SearchError(
                    f"{one} is not in {index.root}, the folder of this index: move it there, or"
                    " add its own folder"
                )
            place = place.resolve()
            index.check_root(place)
            further.append(place)
        found = video.find(place, report) if place.is_dir() else [place]
        if outside and not found:
            raise SearchError(f"{one} holds no video that FFmpeg reads")
        chosen += found
    return chosen, further


def default_workers() -> int:
    """Half of the cores this process may use, at least 1 and at most 8."""
    return min(max(command.cores() // 2, 1), 8)


def real_video() -> Video:
    """The functions of `hlformer_jax.video`."""
    module = optional("hlformer_jax.video", "search")
    subtitles = optional("hlformer_jax.video.subtitles", "search")
    suffixes = optional("hlformer_jax.video.read", "search").VIDEO_SUFFIXES
    reader = transcripts.Reader(
        subtitles.SUFFIXES, subtitles.read_tracks, subtitles.read_file, suffixes
    )
    return Video(module.find, module.probe, module.sample, reader)


class _File(NamedTuple):
    """A path that is there: relative to the folder, and the stamp of its file."""

    name: str
    stamp: Stamp


_UNSEEN = Stamp(0, 0, 0)


@dataclasses.dataclass
class _Run:
    """One run; the index is held for writing."""

    index: Index
    encoder: Any
    video: Video
    source: Source
    timeout: float | None
    workers: int | None
    report: Callable[[str], None]
    progress: Callable[[Progress], None]
    pulse: Callable[[], None]

    def __post_init__(self) -> None:
        self._count: dict[str, Any] = dict.fromkeys(Report._fields, 0)
        self._next_save = time.monotonic() + SAVE_SECONDS
        self._there: set[str] = set()
        self._read: dict[str, dict[str, Any] | None] = {}

    def perform(self, retry: bool, only: Iterable[Path] | None) -> Report:
        started = time.monotonic()
        root, known = self.index.root, self.index.manifest
        if not known.root:
            raise SearchError(
                f"{self.index.directory} does not know its folder any more:"
                f" {command_line('search', 'index', 'FOLDER', f'--index={self.index.directory}')}"
            )
        roots = [one for one in self.index.roots.values() if one.is_dir()]
        if not roots:
            raise SearchError(f"{root} is not there: is its disk mounted? Its videos are kept")
        for missing in sorted({*self.index.roots.values()} - {*roots}) if only is None else ():
            self.report(f"{missing} is not there: its videos are kept, until it is")
        found = (path for one in roots for path in self.video.find(one, self.report))
        inside = self.index.directory.resolve()
        paths = (path for path in (found if only is None else only) if inside not in path.parents)
        names = sorted({_name(path, self.index) for path in paths})
        self._there = set(names)
        if only is not None:
            known.excluded -= set(names)
        waiting = [name for name in names if name not in known.excluded]
        while waiting:
            tasks = self._plan(waiting, retry)
            if tasks:
                self._decode(tasks)
        if only is None:
            self._keep_offline()
            self.index.discard_unused()
        if self.video.texts is not None:
            update_transcripts(
                self.index, self.video, self.report, retry, self.workers, self.timeout, self.pulse
            )
            said.embed(self.index, self.encoder, self.report, self.pulse)
        self._count["elapsed"] = time.monotonic() - started
        return Report(**self._count)

    def _keep_offline(self) -> None:
        """Counts what is not there; its vectors stay. Of what failed, nothing is there to keep."""
        for name, record in sorted(self.index.manifest.videos.items()):
            if name in self._there:
                continue
            if not record.indexed:
                if not self.index.is_there(split_name(name)[0]):
                    continue
                self.index.drop(name)
                self._count["gone"] += 1
                continue
            self._count["offline"] += 1
            if self._load(record.content) is None:
                self.report(f"{printable(name)}: its vectors are damaged, and it is not there")

    def _plan(self, names: list[str], retry: bool) -> dict[str, list[_File]]:
        """The paths to decode by their content; what needs no decoding is recorded here.

        Takes names from the list, until as many bytes were read as are worth a start of the
        decoders: so that a large archive is not read twice over before its first video is done.
        """
        tasks: dict[str, list[_File]] = {}
        index, read = self.index, 0
        names.reverse()
        while names and read < BYTES_AT_ONCE:
            self.pulse()
            name = names.pop()
            record = index.manifest.videos.get(name)
            try:
                path = index.path(name)
                status = path.stat()
                file = _File(name, Stamp.of(status))
                if record and record.stamp == file.stamp:
                    if record.indexed and self._is_whole(name, record):
                        self._count["unchanged"] += 1
                        continue
                    if not record.indexed and not retry:
                        self._count["skipped"] += 1
                        continue
                if not stat.S_ISREG(status.st_mode):  # to open a pipe is to wait for its writer
                    self._fail(file, "", "is a pipe, socket or device")
                    continue
                content = digest(path)
                read += status.st_size
            except FileNotFoundError:
                if record and record.indexed or not path.is_symlink():
                    self._there.discard(name)
                else:
                    self._fail_unseen(name, record, "is a link to what is not there", retry)
                continue
            except OSError as error:
                self._fail_unseen(name, record, error.strerror or str(error), retry)
                continue
            self._recognise(name, content)
            if (about := self._load(content)) is not None:
                index.record(name, content, file.stamp, about)
                self._count["known"] += 1
            else:
                tasks.setdefault(content, []).append(file)
        names.reverse()
        return tasks

    def _recognise(self, name: str, content: str) -> None:
        """Records a move, where a path is new and one of its content is not there any more."""
        known = self.index.manifest.videos
        if name in known and known[name].content == content:
            return
        for other in sorted(self.index.paths(content)):
            if other not in self._there and known[other].indexed:
                away = not self.index.is_there(split_name(other)[0])  # it may come back
                if not away and not os.path.lexists(self.index.path(other)):
                    self.index.move(other, name)
                    return

    def _is_whole(self, name: str, record: Record) -> bool:
        """Whether the vectors are whole; a record that says otherwise of them is mended."""
        about = self._load(record.content)
        if about is not None and not matches(record, about):
            self.index.record(name, record.content, record.stamp, about)
        return about is not None

    def _load(self, content: str) -> dict[str, Any] | None:
        """What a content's vectors are; None where there are none, or damaged ones (reported)."""
        if content not in self._read:
            self._read[content] = None
            if self.index.file(content).exists():
                try:
                    self._read[content] = self.index.load(content).about
                except DamagedError as error:
                    self.report(f"{str(error).partition(': index')[0]}: it is made anew")
        return self._read[content]

    def _decode(self, tasks: dict[str, list[_File]]) -> None:
        encoder = self.encoder
        size, fps = LARGER * encoder.image_size, self.index.manifest.fps
        job = Job(self.video, fps, size, encoder.preparation.apply, self.timeout)
        of_path = {self.index.path(files[0].name): content for content, files in tasks.items()}
        under_way: dict[Path, _Encoded] = {}
        began = time.monotonic()
        done = 0
        with contextlib.closing(self.source(list(of_path), job)) as events:
            for event in events:
                path, content = event.path, of_path[event.path]
                files = tasks[content]
                if isinstance(event, Opened):
                    before = under_way.pop(path, _Encoded())  # by a process that died
                    self._count["seconds"] -= sum(map(len, before.times)) * self.index.period
                    under_way[path] = _Encoded(event.duration, event.recorded)
                elif isinstance(event, Frames | Vectors):
                    if isinstance(event, Frames):
                        event = encode(encoder, event)
                    under_way[path].times.append(event.times)
                    under_way[path].vectors.append(event.vectors)
                    self._count["seconds"] += len(event.times) * self.index.period
                else:
                    done += 1
                    self._finish(event, content, files, under_way.pop(path, _Encoded()))
                now = under_way.get(path, _Encoded())
                self.progress(Progress(
                    done, len(tasks), files[0].name,
                    position=float(now.times[-1][-1]) if now.times else 0.0,
                    duration=now.duration,
                    seconds=self._count["seconds"],
                    elapsed=time.monotonic() - began,
                    failed=self._count["failed"],
                ))  # fmt: skip

    def _finish(
        self, event: Done | Failed, content: str, files: list[_File], encoded: "_Encoded"
    ) -> None:
        reason = ""
        if isinstance(event, Failed):
            reason = event.reason
        elif not all(np.isfinite(part).all() for part in encoded.vectors):
            reason = "the encoder gave numbers that are not finite"
        elif _changed(event.path, files[0]):
            reason = "it changed while it was read"
        else:
            try:
                self._keep(encoded.finish(self.index.period, event), content, files)
            except OutputError as error:  # a link, say, in the place of the vectors
                reason = str(error)
        if reason:
            # What changed or went away meanwhile is tried again by the next run.
            gone = _changed(event.path, files[0])
            for file in files:
                self._fail(file._replace(stamp=_UNSEEN) if gone else file, content, reason)
        if (now := time.monotonic()) > self._next_save:
            self.index.save()
            took = time.monotonic() - now
            self._next_save = time.monotonic() + max(SAVE_SECONDS, took / SAVE_SHARE)

    def _keep(self, whole: VideoArrays, content: str, files: list[_File]) -> None:
        self.index.keep(content, whole, {file.name: file.stamp for file in files})
        self._read.pop(content, None)
        if whole.warning:
            self.report(f"{printable(files[0].name)}: {whole.warning}")
        self._count["indexed"] += 1
        self._count["known"] += len(files) - 1

    def _fail_unseen(self, name: str, record: Record | None, reason: str, retry: bool) -> None:
        """Fails a path whose content cannot be read; once for the same reason."""
        if record and record.indexed:
            self.report(f"{printable(name)}: {reason}; its vectors are kept")
            self._count["unreadable"] += 1
        elif record and record.reason == reason and not retry:
            self._count["skipped"] += 1
        else:
            self._fail(_File(name, _UNSEEN), "", reason)

    def _fail(self, file: _File, content: str, reason: str) -> None:
        self.index.record_failure(file.name, content, file.stamp, reason)
        self._count["failed"] += 1
        self.report(f"{printable(file.name)}: {reason}")


@dataclasses.dataclass
class _Encoded:
    """The frames of a video that are encoded so far."""

    duration: float = 0.0
    recorded: float = 0.0
    times: list[np.ndarray] = dataclasses.field(default_factory=list)
    vectors: list[np.ndarray] = dataclasses.field(default_factory=list)

    def finish(self, period: float, done: Done) -> VideoArrays:
        times, vectors = np.concatenate(self.times), np.concatenate(self.vectors)
        # Of the vectors as they are kept, so that they can be made again of the file alone.
        spans, rows = segments(vectors, times, period)
        lengths = (done.end, self.duration, times[-1] + period)
        duration = next(length for length in lengths if np.isfinite(length) and length > 0)
        seconds = np.asarray(duration, np.float64)
        return VideoArrays(times, vectors, spans, rows, seconds, done.warning, self.recorded)


def _name(path: Path, index: Index) -> str:
    """A path as a record names it."""
    name = index.name_below(path)
    if name is None:
        raise SearchError(f"{path} is not in {index.root}, the folder of this index: move it there")
    return name


def _changed(path: Path, file: _File) -> bool:
    try:
        return Stamp.of(path.stat()) != file.stamp
    except OSError:
        return True
