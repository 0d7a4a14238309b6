"""A folder into an index: finds what is new, changed, moved and offline, and encodes what must be.

A path whose stamp is that of its record is left alone, once its vectors have been read through.
Otherwise the digest of its content decides: where the vectors of that content are on the disk and
whole, as after a move, a copy or a killed run, they are taken without decoding. The rest is decoded
and encoded, video by video, and the vectors of a complete one are written. So a run may be killed
at any moment: the next one takes every whole file, and computes the others to the same bits.

Videos are decoded in processes of their own (`decoding`), and encoded in this one; or both on other
machines (`cluster`).
"""

import contextlib
import dataclasses
import functools
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax import cli
from hlformer_jax.cli import command_line
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.files import OutputError, check_replaced, digest, is_gone
from hlformer_jax.lazy import optional
from hlformer_jax.retrieval.segments import segments
from hlformer_jax.search import signals
from hlformer_jax.search.index.database import Index, matches
from hlformer_jax.search.index.storage import (
    MAX_BYTES,
    MAX_SECONDS,
    MAX_TIME_NS,
    Record,
    Stamp,
    VideoArrays,
    split_name,
)
from hlformer_jax.search.ingest.decoding import (
    Done,
    Failed,
    Frames,
    Job,
    Opened,
    Source,
    Vectors,
    Video,
    decode,
    encode,
    update_transcripts,
)
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.text import printable


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
    removed: int = 0  # taken out by a person, and left out
    unlisted: int = 0  # folders, and groups of files, that could not be looked into
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
            "removed (add brings them back)": self.removed,
            "not looked into": self.unlisted,
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

BYTES_AT_ONCE = 2**34
"""Bytes of new files that are digested before the first of them are decoded."""

LOCK_SECONDS = 1.0
"""How long a run waits for a short change of another writer, as of a tag."""

LARGER = 2
"""Frames are decoded to so many times the encoder's size, at least, where they are larger."""


def index_folder(
    index: Index,
    encoder: Encoder,
    *,
    workers: int | None = None,
    retry: bool = False,
    timeout: float | None = None,
    only: Iterable[Path] | None = None,
    further: Iterable[Path] = (),
    restore: bool = True,
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
      only: files of the folders to add; the rest is not looked at. None: the whole folder.
      further: folders that become further ones of the index before that (`to_add`).
      restore: whether those of `only` that were removed from the index come back.
      video: the functions that read videos; those of `hlformer_jax.video` by default.
      source: what decodes, and may encode as well (`cluster.source`); None: processes of this
        machine, `workers` of them.
      report: takes a line on every video that failed and every file that was damaged.
      progress: is called after every batch of frames.
      pulse: is called for every folder that is listed and every megabyte that is read, and every
        second while processes decode; what it raises ends the run as Ctrl-C does: all whole files
        are kept.

    Raises:
      SearchError: when the encoder is another one, no folder is there, the disk is full, or another
        process writes.
    """
    index.check_encoder(encoder)
    with index.writing(partial=True, wait=LOCK_SECONDS):
        for folder in further:
            name = index.add_root(folder)
            report(f"{folder} is a further folder of the index, {name!r}")
        count = default_workers() if workers is None else workers
        if source is None:
            source = functools.partial(decode, workers=count, pulse=pulse)
        run = _Run(
            index, encoder, video or real_video(), source, timeout, count, report, progress, pulse
        )
        return run.perform(retry, only, restore)


def to_add(
    index: Index,
    given: Iterable[Path],
    report: Callable[[str], None] = print,
    pulse: Callable[[], None] = lambda: None,
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
        found = video.find(place, report, pulse) if place.is_dir() else [place]
        if outside and not found:
            raise SearchError(f"{one} holds no video that FFmpeg reads")
        chosen += found
    return chosen, further


def default_workers() -> int:
    """Half of the cores this process may use, at least 1 and at most 8."""
    return min(max(cli.cores() // 2, 1), 8)


def real_video() -> Video:
    """The functions of `hlformer_jax.video`."""
    module = optional("hlformer_jax.video", "search")
    subtitles = optional("hlformer_jax.video.subtitles", "search")
    suffixes = optional("hlformer_jax.video.listing", "search").VIDEO_SUFFIXES
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
    encoder: Encoder
    video: Video
    source: Source
    timeout: float | None
    workers: int
    report: Callable[[str], None]
    progress: Callable[[Progress], None]
    pulse: Callable[[], None]

    def __post_init__(self) -> None:
        self._count: dict[str, Any] = dict.fromkeys(Report._fields, 0)
        self._next_save = time.monotonic() + SAVE_SECONDS
        self._there: set[str] = set()
        self._read: dict[str, dict[str, Any] | None] = {}

    def perform(self, retry: bool, only: Iterable[Path] | None, restore: bool) -> Report:
        started = time.monotonic()
        root, known = self.index.root, self.index.manifest
        if not known.root:
            raise SearchError(
                f"{self.index.directory} does not know its folder any more:"
                f" {command_line('search', 'index', 'FOLDER', f'--index={self.index.directory}')}"
            )
        roots = [one for one in self.index.roots.values() if os.path.isdir(one)]
        if not roots:
            raise SearchError(f"{root} is not there: is its disk mounted? Its videos are kept")
        for missing in sorted({*self.index.roots.values()} - {*roots}) if only is None else ():
            self.report(f"{missing} is not there: its videos are kept, until it is")
        found = (path for one in roots for path in self.video.find(one, self._skip, self.pulse))
        inside = self.index.directory.resolve()
        paths = (path for path in (found if only is None else only) if inside not in path.parents)
        names = sorted({_name(path, self.index) for path in paths})
        self._there = set(names)
        restore = restore and only is not None
        for name in known.excluded & set(names) if restore else ():
            self.index.include(name)
        waiting = [name for name in names if name not in known.excluded]
        self._count["removed"] += len(names) - len(waiting)
        while waiting:
            tasks = self._plan(waiting, retry, restore)
            if tasks:
                self._decode(tasks)
        if only is None:
            self._keep_offline()
            self.index.discard_unused()
        if self.video.texts is not None:
            update_transcripts(
                self.index, self.video, self.report, retry, self.workers, self.timeout, self.pulse
            )
            signals.update_all(self.index, self.encoder, self.report, self.pulse)
        self._count["elapsed"] = time.monotonic() - started
        return Report(**self._count)

    def _skip(self, line: str) -> None:
        """Reports, and counts, what could not be looked into."""
        self._count["unlisted"] += 1
        self.report(line)

    def _keep_offline(self) -> None:
        """Counts what is not there; its vectors stay. Of what failed, nothing is there to keep."""
        for name, record in sorted(self.index.manifest.videos.items()):
            self.pulse()
            if name in self._there:
                continue
            if not record.indexed:
                there = self.index.is_there(split_name(name)[0])
                if not there or not is_gone(self.index.path(name)):  # its folder was not listed
                    continue
                self.index.drop(name)
                self._count["gone"] += 1
                continue
            self._count["offline"] += 1
            if self._load(record.content) is None:
                self.report(f"{printable(name)}: its vectors are damaged, and it is not there")

    def _plan(self, names: list[str], retry: bool, restore: bool) -> dict[str, list[_File]]:
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
                    # An older version left records without a reason where its run was interrupted.
                    if not record.indexed and not retry and record.reason:
                        self._count["skipped"] += 1
                        continue
                if not stat.S_ISREG(status.st_mode):  # to open a pipe is to wait for its writer
                    self._fail(file, "", "is a pipe, socket or device")
                    continue
                if status.st_size > MAX_BYTES:
                    self._fail(_File(name, _UNSEEN), "", f"has more than {MAX_BYTES} bytes")
                    continue
                if max(status.st_mtime_ns, status.st_ctime_ns) > MAX_TIME_NS:
                    self.report(f"{printable(name)}: its date is after 2262: kept as 2262-04-11")
                content = digest(path, self.pulse)
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
            if restore:
                index.include(name, content)
            elif index.is_removed(name, content):
                self._count["removed"] += 1
                self.report(f"{printable(name)} was removed under another name, and stays out")
                continue
            self._recognise(name, content)
            if (about := self._load(content)) is not None:
                index.record(name, content, file.stamp, about)
                self._count["known"] += 1
            elif content in tasks or not (reason := _blocked(index.file(content))):
                tasks.setdefault(content, []).append(file)
            else:  # not of the video: the next run tries again
                self._fail(file._replace(stamp=_UNSEEN), content, reason)
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
                if not away and is_gone(self.index.path(other)):
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
        job = Job(self.video, fps, size, encoder.preprocess, self.timeout)
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
        reason, again = "", False
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
                reason, again = str(error), True
            except SearchError as error:  # arrays that no index holds
                reason = str(error)
        if reason:
            # What changed or went away meanwhile is tried again by the next run.
            again = again or _changed(event.path, files[0])
            for file in files:
                self._fail(file._replace(stamp=_UNSEEN) if again else file, content, reason)
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
        duration = next((length for length in lengths if 0 < length < MAX_SECONDS), np.nan)
        seconds = np.asarray(duration, np.float64)
        recorded = self.recorded if abs(self.recorded) < MAX_SECONDS else 0.0
        return VideoArrays(times, vectors, spans, rows, seconds, done.warning, recorded)


def _name(path: Path, index: Index) -> str:
    """A path as a record names it."""
    name = index.name_below(Path(os.path.abspath(path)))
    if name is None:
        raise SearchError(f"{path} is not in {index.root}, the folder of this index: move it there")
    return name


def _blocked(path: Path) -> str:
    """Why no file can be written at a place: a link or directory, say; "" where one can."""
    try:
        check_replaced(path)
    except OutputError as error:
        return str(error)
    return ""


def _changed(path: Path, file: _File) -> bool:
    try:
        return Stamp.of(path.stat()) != file.stamp
    except OSError:
        return True
