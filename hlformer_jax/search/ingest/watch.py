"""Keeping an index up to date with its folders, until the process is stopped.

All folders are scanned at the start, after the system has reported changes, and after
`RESCAN_SECONDS`. A scan compares the stamps of all files with their records, so it also finds
changes from before watching began, or on a disk that reports none. A file is read once its stamp
has stayed the same for some seconds, so that a file is not read while it is being copied. All files
that are ready are indexed together.

The index is locked only while it is written, so other processes can write in between.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hlformer_jax import terminal
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import Index, LockedError, Record, Stamp, find_missing, split_name
from hlformer_jax.search.index.directory import DATABASE, check_exists
from hlformer_jax.search.ingest.decoding import VideoFunctions
from hlformer_jax.search.ingest.extract import (
    find_in_roots,
    forget_deleted,
    index_folder,
    real_video,
)
from hlformer_jax.text import counted

SETTLE_SECONDS = 5.0
"""Seconds for which a file must not have changed before it is read."""

RESCAN_SECONDS = 600.0
"""Longest time between two scans of the folders, in seconds."""

POLL_MILLISECONDS = 10_000
"""Milliseconds between two checks of all files if the system cannot report changes."""

TICK_MILLISECONDS = 1000
"""Milliseconds between two checks of the time, and of whether roots have appeared or vanished."""


def watch_changes(
    directory: Path, report: Callable[[str], None] = lambda line: None
) -> Iterator[Collection[str]]:
    """Yield, every second, the paths that have changed in the folders of an index.

    Often no path has changed; then an empty collection is yielded.

    Args:
      directory: the directory of the index.
      report: receives a line if the system has no watches left; then all files are polled every
        `POLL_MILLISECONDS`.

    Raises:
      MissingExtra: if the package `watchfiles` is not installed.
      SearchError: if the index is deleted.
    """
    watchfiles = optional("watchfiles", "search")
    index_path = directory.resolve()
    check_exists(directory)
    index = Index.open(directory)
    must_poll = False

    def is_outside(change: object, path: str) -> bool:
        return index_path not in Path(path).parents

    while True:
        check_exists(directory)
        roots = _online_roots(index)
        if not roots:  # the system does not report that a root appears
            yield [str(directory)]
            time.sleep(TICK_MILLISECONDS / 1000)
            continue
        batches = watchfiles.watch(
            *roots.values(), watch_filter=is_outside, rust_timeout=TICK_MILLISECONDS,
            yield_on_timeout=True, ignore_permission_denied=True,
            force_polling=must_poll or None, poll_delay_ms=POLL_MILLISECONDS,
        )  # fmt: skip
        is_first = True
        while True:
            try:
                changes = next(batches)
            except FileNotFoundError:  # a root disappeared meanwhile
                break
            except (OSError, RuntimeError) as error:  # watchfiles raises a RuntimeError
                if must_poll or not is_first:
                    raise
                must_poll = True
                reason = " ".join(str(error).split())
                report(
                    f"the system has no watches left ({reason}): files are polled every"
                    f" {POLL_MILLISECONDS / 1000:g} s; raise fs.inotify.max_user_instances and"
                    " max_user_watches"
                )
                break
            # The system does not report changes from before the watch began, so the first batch
            # is never empty: it makes the caller scan.
            yield [path for _, path in changes] or ([str(directory)] if is_first else [])
            is_first = False
            check_exists(directory)
            if _online_roots(index) != roots:
                break


def follow(
    directory: Path,
    encoder: Encoder,
    settle: float = SETTLE_SECONDS,
    report: Callable[[str], None] = terminal.show,
    video: VideoFunctions | None = None,
    changes: Iterable[Collection[str]] | None = None,
    **options: Any,
) -> None:
    """Keep an index up to date until `changes` ends; by default, until an exception is raised.

    Args:
      directory: the directory of the index.
      encoder: the encoder of the index.
      settle: seconds for which a file must not have changed before it is read.
      report: receives a line for each video that was indexed or moved, disappeared, came back or
        could not be read, and when another process is writing.
      video: the functions that read videos; by default `hlformer_jax.video`.
      changes: batches of changed paths, which may be empty; by default `watch_changes`.
      **options: further options of `extract.index_folder`.

    Raises:
      MissingExtra: if `changes` is None and the package `watchfiles` is not installed.
      SearchError: if the index is of another encoder or is deleted, or the disk is full.
      DamagedError: if the index is damaged.
    """
    follower = Follower(directory, encoder, settle, report, video or real_video(), options)
    for changed in watch_changes(directory, report) if changes is None else changes:
        follower.step(changed)


class Follower:
    """The state of `follow` between two batches of changes."""

    def __init__(
        self,
        directory: Path,
        encoder: Encoder,
        settle: float,
        report: Callable[[str], None],
        video: VideoFunctions,
        options: Mapping[str, Any],
    ) -> None:
        """Take the arguments of `follow`."""
        self._directory, self._encoder, self._settle = directory, encoder, settle
        self._report, self._video, self._options = report, video, options
        self._suffixes = frozenset(video.texts.suffixes if video.texts else ())
        # Files that differ from their records, with the time when their stamp was first seen.
        self._changed_files: dict[tuple[str, Stamp], float] = {}
        # Files tried in the last `RESCAN_SECONDS`, without a record that says so.
        self._attempted: dict[str, Stamp] = {}
        self._database = 0  # inode of the database; a copy of the index has another
        self._unlisted: list[str] = []  # lines about folders or files that could not be listed
        self._changed_subtitles: set[str] = set()
        self._offline: set[str] | None = None  # None until all files have settled once
        self._offline_roots: set[str] = set()
        self._next_scan = self._next_attempts = 0.0
        self._has_indexed = self._is_waiting = False

    def step(self, changed: Collection[str]) -> None:
        """Note a batch of changed paths, and scan the folders and index files if it is time.

        Args:
          changed: the changed paths.
        """
        second = time.monotonic()
        self._changed_subtitles |= {
            path for path in changed if Path(path).suffix.lower() in self._suffixes
        }
        if changed:
            self._next_scan = min(self._next_scan, second + self._settle)
        with contextlib.suppress(OSError):  # opening the index explains it
            database = (self._directory / DATABASE).stat().st_ino
            if database != self._database:  # an older copy lacks some files
                self._database, self._next_scan = database, second
        if second < self._next_scan:
            return
        if second >= self._next_attempts:  # a disk may have come back
            self._attempted, self._next_attempts = {}, second + RESCAN_SECONDS
        index = Index.open(self._directory)
        self._scan(index, second)
        ready = self._settled_files(second)
        if ready or self._changed_subtitles or not self._has_indexed:
            if not self._index_files(index, ready):
                self._next_scan = second + self._settle
                return
        self._has_indexed, self._is_waiting = True, False
        records = index.videos
        self._attempted |= {
            path: stamp
            for path, stamp in ready.items()
            if path not in records or records[path].stamp != stamp
        }
        self._changed_subtitles.clear()
        all_settled = len(ready) == len(self._changed_files)
        self._next_scan = second + (RESCAN_SECONDS if all_settled else self._settle)
        roots_before = set(index.roots.offline())
        missing = _missing_videos(index, roots_before) if all_settled else set()
        roots_after = set(index.roots.offline())
        self._report_roots(index, roots_after)
        if all_settled:  # until then, an offline video may have moved
            with contextlib.suppress(LockedError):  # or after the next scan
                forget_deleted(index)
            # If a root went offline or came back during the scan, its videos are not reported.
            self._report_offline(index, missing, roots_before | roots_after)

    def _scan(self, index: Index, second: float) -> None:
        """Find the files that differ from their records, and when their stamps were first seen."""
        unlisted: list[str] = []
        stamps = _changed_stamps(index, self._video, self._attempted, unlisted.append)
        self._note_unlisted(index, unlisted)
        self._changed_files = {
            file: self._changed_files.get(file, second) for file in stamps.items()
        }

    def _note_unlisted(self, index: Index, lines: list[str]) -> None:
        """Report new lines about what could not be listed, and record all in the index."""
        for line in lines:
            if line not in self._unlisted:
                self._report(line)
        self._unlisted = lines
        if tuple(lines) != index.unlisted:
            with contextlib.suppress(LockedError), index.writing() as writer:  # or the next scan
                writer.set_unlisted(lines)

    def _settled_files(self, second: float) -> dict[str, Stamp]:
        """Return the files that have not changed for long enough, by their dates or this clock."""
        latest = time.time() - self._settle
        return {
            path: stamp
            for (path, stamp), since in self._changed_files.items()
            if stamp.changed_ns / 1e9 <= latest or second - since >= self._settle
        }

    def _index_files(self, index: Index, ready: Collection[str]) -> bool:
        """Index files and subtitles; return False if another process is writing."""
        before = index.videos
        try:
            index_folder(
                index, self._encoder, only=[*map(index.roots.path, ready)], restore=False,
                video=self._video, report=self._report, **self._options,
            )  # fmt: skip
        except LockedError as error:
            if not self._is_waiting:
                self._report(f"{error}; waiting for it")
            self._is_waiting = True
            return False
        for line in _describe_changes(before, index.videos):
            self._report(line)
        for path in sorted(self._changed_subtitles):
            self._report(f"subtitles {path}")
        return True

    def _report_roots(self, index: Index, offline: set[str]) -> None:
        """Report the roots that went offline or came back."""
        for name in sorted(offline ^ self._offline_roots):
            state = "is offline: its videos are kept" if name in offline else "is online again"
            self._report(f"{index.roots.get(name, name)} {state}")
        self._offline_roots = offline

    def _report_offline(self, index: Index, missing: set[str], offline_roots: set[str]) -> None:
        """Report the videos that disappeared or came back, below roots that stayed online."""
        offline = {path for path in missing if split_name(path)[0] not in offline_roots}
        if self._offline is None:
            self._offline = offline
            if offline:
                self._report(f"offline: {counted(len(offline), 'video')} (kept until prune)")
        for path in sorted(offline - self._offline):
            self._report(f"offline {path} (kept until prune)")
        returned = {
            path for path in self._offline - offline if split_name(path)[0] not in offline_roots
        }
        for path in sorted(returned & index.videos.keys()):
            self._report(f"online again {path}")
        self._offline = (self._offline | offline) - returned


def _online_roots(index: Index) -> dict[str, Path]:
    roots = index.roots
    return {name: root for name, root in roots.items() if roots.is_available(name)}


def _changed_stamps(
    index: Index, video: VideoFunctions, attempted: Mapping[str, Stamp], skip: Callable[[str], None]
) -> dict[str, Stamp]:
    """Return the stamps of files that differ from their records and were not attempted.

    Args:
      index: the index.
      video: the functions that read videos.
      attempted: stamps of files that were attempted.
      skip: receives a line for each folder and group of files that cannot be listed.
    """
    index_path, excluded, records = index.directory.resolve(), index.exclusions(), index.videos
    stamps = {}
    paths, errors = find_in_roots(_online_roots(index).values(), video, skip)
    for error in errors:
        skip(str(error))
    name_below = index.roots.name_below
    for file in paths:
        path = name_below(file)
        if path is None or index_path in file.parents:
            continue
        with contextlib.suppress(OSError):
            stamp = Stamp.from_status(file.stat())
            if path in excluded and excluded[path].covers(stamp):
                continue
            record = records.get(path)
            if stamp != attempted.get(path) and (record is None or record.stamp != stamp):
                stamps[path] = stamp
    return stamps


def _missing_videos(index: Index, offline_roots: Collection[str]) -> set[str]:
    """Return the indexed videos that are not at their paths, below roots that are online."""
    paths = [
        path
        for path, record in index.videos.items()
        if record.indexed and split_name(path)[0] not in offline_roots
    ]
    locate = index.roots.path
    return find_missing({path: locate(path) for path in paths})


def _describe_changes(before: Mapping[str, Record], after: Mapping[str, Record]) -> Iterator[str]:
    """Yield a line for each video that was indexed or moved."""
    removed = {record.id: path for path, record in before.items() if path not in after}
    for path, record in sorted(after.items()):
        old = before.get(path)
        if record.indexed and (old is None or not old.indexed or old.content != record.content):
            if record.id in removed:
                yield f"moved {removed[record.id]} to {path}"
            else:
                yield f"indexed {path} ({record.duration:.0f} s)"
