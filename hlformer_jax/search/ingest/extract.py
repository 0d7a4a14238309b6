"""Indexing of folders: find new, changed, moved and offline videos, and encode new contents.

A file with an unchanged stamp and intact embeddings is skipped. Other files are hashed. If the
index already has embeddings of that content, for example after a move, the file is only recorded.
Otherwise it is decoded and encoded. The embeddings of a video are written in one transaction when
it is complete, so a run can be killed at any moment; the next run continues with the same results.

Videos are decoded in separate processes (`decoding`) and encoded in this process; or other machines
decode and encode them (`cluster`).
"""

import contextlib
import dataclasses
import functools
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax import cli, terminal
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError, UserError
from hlformer_jax.files import digest, is_gone
from hlformer_jax.lazy import optional
from hlformer_jax.search import signals
from hlformer_jax.search.index import Index, Record, Stamp, VideoArrays, Writer
from hlformer_jax.search.index.records import (
    MAX_FILE_BYTES,
    MAX_SECONDS,
    MAX_TIME_NS,
    UNKNOWN_STAMP,
    ArraysError,
)
from hlformer_jax.search.ingest.decoding import (
    Done,
    EncodedFrames,
    EventSource,
    Failed,
    Frames,
    Opened,
    VideoFunctions,
    VideoJob,
    decode,
    encode,
    update_transcripts,
)
from hlformer_jax.search.ingest.precision import resolve_precision, set_precision
from hlformer_jax.search.signals.transcript import transcripts
from hlformer_jax.text import caseless, counted


class Progress(NamedTuple):
    """The progress of a run; all times in seconds."""

    done: int  # number of videos that were decoded or failed
    total: int  # number of videos that must be decoded
    video: str  # path of the current video
    position: float  # end of the encoded part of the current video
    duration: float  # length of the current video
    seconds: float  # length of all video encoded in this run
    elapsed: float  # time since the first of these videos was started
    failed: int = 0  # number of paths that failed in this run

    @property
    def speed(self) -> float:
        """The seconds of video that were encoded per second."""
        return _speed(self.seconds, self.elapsed)


class Report(NamedTuple):
    """The results of a run, as numbers of paths."""

    indexed: int = 0  # decoded and encoded
    recognised: int = 0  # by their content: moved, renamed, copied or touched
    unchanged: int = 0  # not read again
    failed: int = 0  # failed in this run
    skipped: int = 0  # failed before and were not tried again
    offline: int = 0  # missing; their embeddings are kept
    unreadable: int = 0  # indexed before and unreadable now; their embeddings are kept
    forgotten: int = 0  # failed before and are missing now; their records are deleted
    removed: int = 0  # removed from the index by a user, and left out
    unlisted: int = 0  # folders and groups of files that could not be listed
    seconds: float = 0.0  # length of the encoded video, in seconds
    elapsed: float = 0.0  # duration of the run, in seconds
    frames: int = 0  # number of frames of the complete videos
    still: int = 0  # number of these frames that share the embedding of another frame

    @property
    def speed(self) -> float:
        """The seconds of video that were encoded per second."""
        return _speed(self.seconds, self.elapsed)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of paths by their descriptions for users."""
        return {
            "indexed": self.indexed,
            "found again by their content": self.recognised,
            "unchanged": self.unchanged,
            "offline (kept; prune drops them)": self.offline,
            "unreadable (kept)": self.unreadable,
            "missing (failed before)": self.forgotten,
            "removed (add brings them back)": self.removed,
            "folders not listed": self.unlisted,
            "failed": self.failed,
            "failed before (retry tries them again)": self.skipped,
        }


def format_counts(subject: object, counts: Mapping[str, int]) -> str:
    """Return a line with the counts that are not 0.

    Args:
      subject: the beginning of the line.
      counts: the counts by their descriptions.
    """
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{subject}: {listed or 'no video'}"


def remove_videos(index: Index, videos: Collection[str]) -> str:
    """Remove videos and further roots from an index (`Writer.remove`).

    Returns:
      A line with the numbers of removed videos, of videos before that, and of removed failed files.
    """
    with index.writing() as writer:
        before = index.videos
        writer.remove(videos)
        after = index.videos
    removed = [before[name].indexed for name in before.keys() - after.keys()]
    indexed, total = sum(removed), sum(record.indexed for record in before.values())
    failed = len(removed) - indexed
    counts = [f"{indexed} of {total} videos"] if indexed or not failed else []
    counts += [counted(failed, "failed file")] if failed else []
    return f"removed {' and '.join(counts)}"


def _speed(seconds: float, elapsed: float) -> float:
    return seconds / max(elapsed, 1e-9)


PATHS_AT_ONCE, SECONDS_AT_ONCE = 256, 1.0
"""Largest number of files, and longest time of hashing, of one transaction that records files."""

BYTES_AT_ONCE = 2**34
"""Number of bytes to hash before decoding begins, even if files are left to hash."""

LOCK_SECONDS = 1.0
"""Seconds to wait for another process to finish a short change, such as a tag."""

MAX_DAMAGE_LINES = 20
"""Largest number of damaged embeddings that one run reports; `verify` names them all."""

OVERSIZE = 2
"""Factor of the encoder's image size to which larger frames are scaled down while decoding."""


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
    video: VideoFunctions | None = None,
    source: EventSource | None = None,
    precision: str | None = None,
    report: Callable[[str], None] = terminal.show,
    progress: Callable[[Progress], None] = lambda progress: None,
    pulse: Callable[[], None] = lambda: None,
) -> Report:
    """Bring an index up to date with its folders; an offline folder keeps all its videos.

    Args:
      index: the index.
      encoder: the encoder of the index.
      workers: number of decoding processes; 0 decodes in this process; None: one for each core, at
        most 8.
      retry: whether to try unchanged files again that failed before.
      timeout: time limit for decoding one video, in seconds; None: a limit that depends on its
        length (`VideoJob.limit`).
      only: files to index; folders are not scanned. None: all files of all folders of the index.
      further: folders to add to the index as roots (see `resolve_additions`).
      restore: whether to index files of `only` again that a user has removed from the index.
      video: the functions that read videos; by default `hlformer_jax.video`.
      source: function that decodes videos, and may also encode them (`cluster.source`); by default
        `workers` processes of this machine decode.
      precision: precision in which images are encoded, one of `IMAGE_PRECISIONS`; None: see
        `resolve_precision`.
      report: receives lines about failed videos, damaged files, missing folders and the like.
      progress: called after every batch of frames.
      pulse: called for every listed folder and every megabyte read, and every second while
        processes decode. If it raises, the run ends as with Ctrl-C: complete videos are kept.

    Returns:
      The numbers of paths by result.

    Raises:
      QueryError: if `precision` is given, but the encoder offers no choice.
      SearchError: if the index is of another encoder, all folders are offline, the disk is full, or
        another process is writing.
    """
    index.check_encoder(encoder)
    with index.running(wait=LOCK_SECONDS):
        for folder in further:
            with index.writing() as writer:
                name = writer.add_root(folder)
            report(f"{folder} is a further folder of the index, {name!r}")
        count = default_workers() if workers is None else workers
        if source is None:
            source = functools.partial(decode, workers=count, pulse=pulse)
        run = _Run(
            index, encoder, video or real_video(), source, timeout, count,
            resolve_precision(index, encoder, precision), report, progress, pulse,
        )  # fmt: skip
        return run.perform(retry, only, restore)


def find_in_roots(
    roots: Iterable[Path],
    video: VideoFunctions,
    skip: Callable[[str], None],
    pulse: Callable[[], None] = lambda: None,
) -> tuple[list[Path], list[UserError]]:
    """Find the videos of several roots. A root that cannot be listed does not stop the others.

    Args:
      roots: the folders.
      video: the functions that read videos.
      skip: receives a line for each folder below a root, and group of files, that cannot be listed.
      pulse: called for every folder; it may raise an exception to stop the search for videos.

    Returns:
      The videos, and an error for each root that cannot be listed.
    """
    paths: list[Path] = []
    errors: list[UserError] = []
    for root in roots:
        try:
            paths += video.find(root, skip, pulse)
        except UserError as error:
            errors.append(error)
    return paths, errors


def resolve_additions(
    index: Index,
    paths: Iterable[Path],
    report: Callable[[str], None] = terminal.show,
    pulse: Callable[[], None] = lambda: None,
) -> tuple[list[Path], list[Path]]:
    """Find the videos of files and folders that a user adds to an index.

    Args:
      index: the index.
      paths: files below the roots of the index, and folders.
      report: receives a line for each folder that cannot be listed.
      pulse: called for every folder; it may raise an exception to stop the search for videos.

    Returns:
      The videos, and the folders to add to the index as roots.

    Raises:
      SearchError: if a path does not exist, a file is not below a root, or a new folder has no
        videos, contains a root, or is inside a root.
    """
    video, roots = real_video(), index.roots
    videos: list[Path] = []
    new_roots: list[Path] = []
    for path in paths:
        # The last part is not resolved: a link in a folder is a path of that folder.
        has_name = path.name not in ("", "..")
        absolute = path.parent.resolve() / path.name if has_name else path.resolve()
        given_path = Path(os.path.abspath(path))
        if roots.name_below(absolute) is None and roots.name_below(given_path) is not None:
            absolute = given_path  # in a root by a link that leads out of it
        if not absolute.exists():
            raise SearchError(f"{path} does not exist: give files of {index.root}, or a folder")
        is_outside = roots.name_below(absolute) is None
        if is_outside:
            if not absolute.is_dir():
                raise SearchError(
                    f"{path} is not in {index.root}, the folder of this index: move it there, or"
                    " add the folder that contains it"
                )
            absolute = absolute.resolve()
            roots.check_apart(absolute)
            new_roots.append(absolute)
        files = video.find(absolute, report, pulse) if absolute.is_dir() else [absolute]
        if is_outside and not files:
            raise SearchError(f"{path} holds no video that FFmpeg can read")
        videos += files if is_outside else _as_listed(files, index, video, pulse)
    return list(dict.fromkeys(videos)), new_roots


def _as_listed(
    paths: Sequence[Path], index: Index, video: VideoFunctions, pulse: Callable[[], None]
) -> list[Path]:
    """Return the paths under which a scan of the roots lists videos, as links may lead to them."""
    real_path = _real_paths()
    given_paths = {real_path(path): path for path in paths}
    if all(real == str(path) for real, path in given_paths.items()):
        return list(paths)
    listed, _ = find_in_roots(index.roots.values(), video, lambda line: None, pulse)
    listed_paths = {real_path(path): path for path in listed}
    return [listed_paths.get(real, path) for real, path in given_paths.items()]


def _real_paths() -> Callable[[Path], str]:
    """Return a function that resolves links to folders, each folder once; links to files stay."""
    resolve = functools.cache(os.path.realpath)
    return lambda path: os.path.join(resolve(path.parent), path.name)


def forget_deleted(index: Index, present: Collection[str] = ()) -> int:
    """Drop the records of videos that failed and whose files no longer exist.

    Args:
      index: the index.
      present: names of videos whose files exist, which are not checked again.

    Returns:
      The number of records.
    """
    roots = index.roots
    names = [
        name
        for name, record in index.videos.items()
        if not record.indexed and name not in present and roots.is_deleted(name)
    ]
    if names:
        with index.writing() as writer:
            for name in names:
                writer.drop(name)
    return len(names)


def default_workers() -> int:
    """Return the number of cores that this process may use, at most 8."""
    return min(cli.cores(), 8)


def real_video() -> VideoFunctions:
    """Return the functions of `hlformer_jax.video`."""
    module = optional("hlformer_jax.video", "search")
    subtitles = optional("hlformer_jax.video.subtitles", "search")
    suffixes = optional("hlformer_jax.video.listing", "search").VIDEO_SUFFIXES
    reader = transcripts.SubtitleReader(
        subtitles.SUFFIXES, subtitles.read_tracks, subtitles.read_file, suffixes
    )
    return VideoFunctions(module.find, module.probe, module.sample, reader)


class _File(NamedTuple):
    """An existing file: its path below a root, and its stamp."""

    name: str
    stamp: Stamp


@dataclasses.dataclass
class _Run:
    """One run of `index_folder`, while this process has locked the index for writing."""

    index: Index
    encoder: Encoder
    video: VideoFunctions
    source: EventSource
    timeout: float | None
    workers: int
    precision: str  # of images; "" if the encoder offers no choice
    report: Callable[[str], None]
    progress: Callable[[Progress], None]
    pulse: Callable[[], None]

    def __post_init__(self) -> None:
        self._count: dict[str, Any] = dict.fromkeys(Report._fields, 0)
        self._excluded: dict[str, str] = {}  # content hashes of removed paths, by name
        self._kept: dict[str, int] = {}  # numbers of paths of their contents before the run
        self._present: set[str] = set()  # names of the videos whose files exist
        self._intact: dict[str, bool] = {}  # whether the embeddings of a content are intact
        self._faults: dict[str, str] = {}  # of contents with damaged embeddings, until reported
        self._damaged = 0  # number of lines on damaged embeddings
        self._unlisted: list[str] = []  # lines about folders or files that could not be listed

    def perform(self, retry: bool, only: Iterable[Path] | None, restore: bool) -> Report:
        """Index the files, and return the counts; see `index_folder`."""
        started = time.monotonic()
        root, excluded = self.index.root, self.index.exclusions()
        roots = [folder for folder in self.index.roots.values() if os.path.isdir(folder)]
        if not roots:
            raise SearchError(f"{root} is missing: is its disk mounted? Its videos are kept")
        for missing in sorted({*self.index.roots.values()} - {*roots}) if only is None else ():
            self.report(f"{missing} is missing: its videos are kept")
        inside = f"{self.index.directory.resolve()}{os.sep}"
        candidates = self._find(roots) if only is None else only
        paths = (path for path in candidates if not str(path).startswith(inside))
        name_below = self.index.roots.name_below
        names = sorted({_name(path, name_below, root) for path in paths})
        self._present = set(names)
        self._count["unlisted"] = len(self._unlisted)
        if only is None and tuple(self._unlisted) != self.index.unlisted:
            with self.index.writing() as writer:
                writer.set_unlisted(self._unlisted)
        restore = restore and only is not None
        if restore and (restored := excluded.keys() & set(names)):
            with self.index.writing() as writer:
                for name in restored:
                    writer.include(name)
            excluded = self.index.exclusions()
        self._excluded = {name: exclusion.content for name, exclusion in excluded.items()}
        contents = {content for content in self._excluded.values() if content}
        self._kept = {content: len(self.index.paths(content)) for content in contents}
        locate = self.index.roots.path
        pending = [
            name
            for name in names
            if name not in excluded
            or (stamp := _stamp(locate(name))) is not None
            and not excluded[name].covers(stamp)
        ]
        self._count["removed"] += len(names) - len(pending)
        while pending:
            tasks = self._plan(pending, retry, restore)
            if tasks:
                self._decode(tasks)
        if only is None:
            self._keep_offline()
            with self.index.writing() as writer:
                writer.discard_unused()
            self.index.mend_rounded([key for key, is_intact in self._intact.items() if is_intact])
        if self.video.texts is not None:
            update_transcripts(
                self.index, self.video, self.report, retry, self.workers, self.timeout, self.pulse
            )
            signals.update_all(self.index, self.encoder, self.report, self.pulse)
        if (more := self._damaged - MAX_DAMAGE_LINES) > 0:
            self.report(f"the embeddings of {more} more videos were damaged or missing")
        self._count["elapsed"] = time.monotonic() - started
        return Report(**self._count)

    def _find(self, roots: Sequence[Path]) -> list[Path]:
        """Return the videos of roots, of which at least one must be listed."""
        paths, errors = find_in_roots(roots, self.video, self._skip, self.pulse)
        if len(errors) == len(roots):
            raise errors[0]
        for error in errors:
            self._skip(str(error))
        return paths

    def _skip(self, line: str) -> None:
        """Report and note a folder or files that could not be listed."""
        self._unlisted.append(line)
        self.report(line)

    def _keep_offline(self) -> None:
        """Count videos that cannot be reached; forget missing files that had failed."""
        self._count["forgotten"] += forget_deleted(self.index, self._present)
        locate, real_path = self.index.roots.path, _real_paths()
        names: dict[tuple[str, int], str] = {}  # names of the present videos by their files

        def identify(video: str) -> tuple[str, int]:
            """Return the folder and inode: a disk may ignore case and Unicode forms in names."""
            path = locate(video)
            with contextlib.suppress(OSError):
                return os.path.dirname(real_path(path)), os.lstat(path).st_ino
            return real_path(path), 0

        for name, record in sorted(self.index.videos.items()):
            self.pulse()
            if name in self._present:
                continue
            is_offline = is_gone(locate(name), follow=True)
            if not is_offline:
                names = names or {identify(video): video for video in self._present}
                if listed_name := names.get(identify(name)):
                    self.report(f"{name} is {listed_name}: kept by that name only")
                    with self.index.writing() as writer:
                        writer.drop(name)
                    continue
            if not record.indexed:  # the folder could not be listed
                continue
            self._count["offline" if is_offline else "unreadable"] += 1
            if not self._has_embeddings(record.content):
                self._faults.pop(record.content, None)
                self._report_damage(
                    f"{name}: its embeddings are damaged, and its file cannot be read"
                )

    def _plan(self, names: list[str], retry: bool, restore: bool) -> dict[str, list[_File]]:
        """Hash files, record those that need no decoding, and return the others by content.

        The names of hashed files are removed from `names`. Planning ends after `BYTES_AT_ONCE`, so
        that a large archive is not read completely before its first video is decoded.
        """
        tasks: dict[str, list[_File]] = {}
        read = 0
        names.reverse()
        while names and read < BYTES_AT_ONCE:
            digested: list[tuple[_File, str]] = []
            until = time.monotonic() + SECONDS_AT_ONCE
            locate = self.index.roots.path
            while names and read < BYTES_AT_ONCE and len(digested) < PATHS_AT_ONCE:
                self.pulse()
                name = names.pop()
                if (hashed := self._hash(name, locate(name), retry)) is not None:
                    digested.append(hashed)
                    read += hashed[0].stamp.size
                if time.monotonic() > until:
                    break
            if digested:
                with self.index.writing() as writer:
                    for file, content in digested:
                        self._record(writer, file, content, tasks, restore)
        names.reverse()
        return tasks

    def _hash(self, name: str, path: Path, retry: bool) -> "tuple[_File, str] | None":
        """Return a file and its content hash; None, and count the file, if it is not indexed."""
        record = self.index.record(name)
        try:
            status = path.stat()
            file = _File(name, Stamp.from_status(status))
            if record and record.stamp == file.stamp:
                if record.indexed and self._has_embeddings(record.content):
                    self._count["unchanged"] += 1
                    return None
                if not record.indexed and not retry:
                    self._count["skipped"] += 1
                    return None
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
                self._fail(file, "", "is a pipe, socket or device")
                return None
            if status.st_size > MAX_FILE_BYTES:
                self._fail(_File(name, UNKNOWN_STAMP), "", f"has more than {MAX_FILE_BYTES} bytes")
                return None
            if status.st_mtime_ns > MAX_TIME_NS:
                self.report(f"{name}: its date is after 2262: stored as 2262-04-11")
            return file, digest(path, self.pulse)
        except FileNotFoundError:
            if record and record.indexed or not path.is_symlink():
                self._present.discard(name)
            else:
                self._fail_unseen(name, record, "is a link to a missing file", retry)
        except OSError as error:
            self._fail_unseen(name, record, error.strerror or str(error), retry)
        return None

    def _record(
        self,
        writer: Writer,
        file: _File,
        content: str,
        tasks: dict[str, list[_File]],
        restore: bool,
    ) -> None:
        """Record a path if its content has embeddings, otherwise add it to the tasks."""
        name = file.name
        if restore:
            writer.include(name, content)
        elif writer.keeps_out(name, content, file.stamp, self._kept.get(content, 0)):
            self._count["removed"] += 1
            if self._excluded.get(name) != content:
                self.report(f"{name} was removed under another name, and stays removed")
            return
        self._record_move(writer, name, content)
        if self._has_embeddings(content):
            writer.record(name, content, file.stamp)
            self._count["recognised"] += 1
        else:
            if fault := self._faults.pop(content, ""):
                self._report_damage(f"{fault}: they are computed anew")
            tasks.setdefault(content, []).append(file)

    def _record_move(self, writer: Writer, name: str, content: str) -> None:
        """Record a move if a path is new and another path of its content is missing."""
        old_record = self.index.record(name)
        if old_record is not None and old_record.content == content:
            return
        for old_name in sorted(self.index.paths(content)):
            record = self.index.record(old_name)
            if old_name not in self._present and record is not None and record.indexed:
                if self.index.roots.is_deleted(old_name) or self._is_same_name(old_name, name):
                    writer.move(old_name, name)
                    return

    def _is_same_name(self, old_name: str, name: str) -> bool:
        """Return whether two names are one file, on a disk that ignores case and Unicode forms."""
        if caseless(old_name) != caseless(name):
            return False
        locate = self.index.roots.path
        with contextlib.suppress(OSError):
            return os.path.samefile(locate(old_name), locate(name))
        return False

    def _has_embeddings(self, content: str) -> bool:
        """Return whether a content has intact embeddings; note the fault of damaged ones.

        Raises:
          SearchError: if they cannot be read at the moment, and no others can be written.
        """
        if not self.index.has_embeddings(content):  # another process may have removed it
            return False
        if content not in self._intact:
            self._intact[content] = True
            try:
                self.index.read(content)
            except DamagedError as error:
                if isinstance(error, UnreadableError):
                    self.index.check_embeddings_writable()
                self._faults[content], _, _ = str(error).rpartition(": ")
                self._intact[content] = False
        return self._intact[content]

    def _report_damage(self, line: str) -> None:
        """Report damaged embeddings, up to `MAX_DAMAGE_LINES` lines."""
        self._damaged += 1
        if self._damaged <= MAX_DAMAGE_LINES:
            self.report(line)

    def _choose_precision(self) -> None:
        """Set the precision of the encoder and record it; report a change of precision."""
        if not self.precision:
            return
        set_precision(self.encoder, self.precision)
        recorded = self.index.precisions
        if recorded[-1:] == (self.precision,):
            return
        before = recorded or ("float32",) * bool(self.index.contents())
        if before and before[-1] != self.precision:
            self.report(
                f"earlier images of the index were encoded in {before[-1]}, new images are encoded"
                f" in {self.precision}"
            )
        with self.index.writing() as writer:
            earlier = [precision for precision in before if precision != self.precision]
            writer.set_precisions([*earlier, self.precision])

    def _decode(self, tasks: dict[str, list[_File]]) -> None:
        """Decode and encode the files of each content, and write their embeddings."""
        self._choose_precision()
        encoder = self.encoder
        size, fps = OVERSIZE * encoder.image_size, self.index.fps
        every_frame = self.index.every_frame
        job = VideoJob(self.video, fps, size, encoder.preprocess, self.timeout, every_frame)
        locate = self.index.roots.path
        contents = {locate(files[0].name): content for content, files in tasks.items()}
        encoded_by_path: dict[Path, _Encoded] = {}
        started = time.monotonic()
        done = 0
        with contextlib.closing(self.source(list(contents), job)) as events:
            for event in events:
                path, content = event.path, contents[event.path]
                files = tasks[content]
                if isinstance(event, Opened):
                    # A second `Opened`: the first process crashed, and the video begins again.
                    encoded_by_path[path] = _Encoded(event.duration, event.recorded)
                elif isinstance(event, Frames | EncodedFrames):
                    if isinstance(event, Frames):
                        event = encode(encoder, event)
                    encoded = encoded_by_path[path]
                    encoded.times.append(event.times)
                    encoded.vectors.append(event.vectors[event.places])
                    encoded.encoded += len(event.vectors)
                else:
                    done += 1
                    self._finish(event, content, files, encoded_by_path.pop(path, _Encoded()))
                current = encoded_by_path.get(path, _Encoded())
                unfinished = sum(x.seconds(self.index.period) for x in encoded_by_path.values())
                self.progress(Progress(
                    done, len(tasks), files[0].name,
                    position=float(current.times[-1][-1]) if current.times else 0.0,
                    duration=current.duration,
                    seconds=self._count["seconds"] + unfinished,
                    elapsed=time.monotonic() - started,
                    failed=self._count["failed"],
                ))  # fmt: skip

    def _finish(
        self, event: Done | Failed, content: str, files: list[_File], encoded: "_Encoded"
    ) -> None:
        """Write the embeddings of a complete video, or record why it failed."""
        reason, is_final = "", True
        seconds = encoded.seconds(self.index.period)
        if isinstance(event, Failed):
            reason, is_final = event.reason, event.is_final
        elif not all(np.isfinite(part).all() for part in encoded.vectors):
            reason = "the encoder returned values that are not finite"
        elif _stamp(event.path) != files[0].stamp:
            reason = "it changed while it was read"
        else:
            try:
                arrays = encoded.finish(self.index.period, event)
                self._keep(arrays, content, files)
                seconds = arrays.duration
                self._count["frames"] += len(arrays.times)
                self._count["still"] += len(arrays.times) - encoded.encoded
            except ArraysError as error:
                reason = str(error)
        self._count["seconds"] += seconds
        if reason:
            # The next run tries a file again that has changed meanwhile, or was not readable.
            is_final = is_final and _stamp(event.path) == files[0].stamp
            for file in files:
                record = self.index.record(file.name)
                if record and record.indexed and record.content == content:
                    # Its embeddings are damaged. The record keeps its transcript.
                    self._fail_unseen(file.name, record, reason, False)
                    continue
                failed = file if is_final else file._replace(stamp=UNKNOWN_STAMP)
                self._fail(failed, content, reason)

    def _keep(self, arrays: VideoArrays, content: str, files: list[_File]) -> None:
        with self.index.writing() as writer:
            excluded = self.index.excluded  # another process may have removed a path meanwhile
            paths = {
                file: stamp for file, stamp in files if excluded.get(file) not in ("", content)
            }
            writer.keep(content, arrays, paths)
        self._intact[content] = True
        if arrays.warning:
            self.report(f"{files[0].name}: {arrays.warning}")
        self._count["indexed"] += 1
        self._count["recognised"] += len(files) - 1

    def _fail_unseen(self, name: str, record: Record | None, reason: str, retry: bool) -> None:
        """Record that a path cannot be read; count a repeated reason as skipped."""
        if record is None and name in self._excluded:
            self._count["removed"] += 1
        elif record and record.indexed:
            state = "kept" if self._has_embeddings(record.content) else "damaged"
            self._faults.pop(record.content, None)
            self.report(f"{name}: {reason}; its embeddings are {state}")
            self._count["unreadable"] += 1
        elif record and record.reason == reason and not retry:
            self._count["skipped"] += 1
        else:
            self._fail(_File(name, UNKNOWN_STAMP), "", reason)

    def _fail(self, file: _File, content: str, reason: str) -> None:
        with self.index.writing() as writer:
            writer.record_failure(file.name, content, file.stamp, reason)
        self._count["failed"] += 1
        self.report(f"{file.name}: {reason}")


@dataclasses.dataclass
class _Encoded:
    """The frames of a video that have been encoded so far."""

    duration: float = 0.0
    recorded: float = 0.0
    times: list[np.ndarray] = dataclasses.field(default_factory=list)
    vectors: list[np.ndarray] = dataclasses.field(default_factory=list)
    encoded: int = 0  # number of the frames, without still frames

    def seconds(self, period: float) -> float:
        """Return the length of the encoded part: an estimate until the video is complete."""
        seconds = sum(map(len, self.times)) * period
        return min(seconds, self.duration) if self.duration > 0 else seconds

    def finish(self, period: float, done: Done) -> VideoArrays:
        times, vectors = np.concatenate(self.times), np.concatenate(self.vectors)
        lengths = (done.end, self.duration, times[-1] + period)
        duration = next((length for length in lengths if 0 < length < MAX_SECONDS), np.nan)
        recorded = self.recorded if abs(self.recorded) < MAX_SECONDS else 0.0
        return VideoArrays(times, vectors, duration, done.warning, recorded)


def _name(path: Path, name_below: Callable[[Path], str | None], root: Path) -> str:
    """Return the name of a video by the path of its file; see `split_name`."""
    name = name_below(Path(os.path.abspath(path)))
    if name is None:
        raise SearchError(f"{path} is not in {root}, the folder of this index: move it there")
    return name


def _stamp(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if it is missing or cannot be examined."""
    try:
        return Stamp.from_status(path.stat())
    except OSError:
        return None
