"""The directory of an index: its files, mark and lock, and checks before a command uses it.

    .hlformer-index    marks a directory as an index
    index.db           all data except embeddings
    index.db.bak       a copy of index.db, made after each run that changed it
    index.sums         version and SHA-256 of both; it begins with its own checksum
    index.db.damaged   a damaged index.db that its copy has replaced
    .lock              held by the process that indexes

`database` reads and writes the files of SQLite and their checksums.
"""

import contextlib
import errno
import os
import time
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.errors import QueryError, UnreadableError
from hlformer_jax.search.index.disk import LockedError, MissingIndexError, translate_errors

MARK, DATABASE, COPY, SUMS = ".hlformer-index", "index.db", "index.db.bak", "index.sums"
DAMAGED, LOCK = "index.db.damaged", ".lock"
OLDER = "manifest.json", "manifest.previous.json"
"""Files of the index format before SQLite."""

MARKED = b"The index of a video search by hlformer_jax; its files are its own.\n"
"""Beginning of the file `MARK`."""

LOCK_POLL_SECONDS = 0.02
"""Seconds between two attempts to take a lock."""


def check_place(directory: Path) -> None:
    """Check that a directory is missing, empty, or an index.

    Raises:
      SearchError: if it is not a directory, or has other files; the error names one.
      OSError: if it cannot be listed.
    """
    try:
        children = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise QueryError(
            "{directory} is not a directory: choose another {index}",
            field="index",
            directory=directory,
        ) from None
    foreign = [name for name in children if not _is_leftover(directory, name)]
    if foreign and not is_marked(directory):
        raise QueryError(
            "{directory} has other files ({name}) and is not an index: choose another {index}",
            field="index",
            directory=directory,
            name=foreign[0],
        )


def check_writable(directory: Path) -> None:
    """Check that an index can be created in a directory, or changed there, before long work.

    Raises:
      SearchError: if its files may not be written, or the disk is read-only or full.
      OSError: for another error of the disk.
    """
    with translate_errors(directory / DATABASE):
        files.check_writable(directory)
        for name in (LOCK, DATABASE):
            if (directory / name).exists() and not os.access(directory / name, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable", str(directory / name))


def check_unlocked(directory: Path) -> None:
    """Check that no other process is indexing, before an encoder loads.

    Raises:
      LockedError: if another process is indexing.
    """
    with contextlib.ExitStack() as stack:
        lock_index(stack, directory, 0.0)


def check_exists(directory: Path) -> None:
    """Check that the directory of an open index still has an index.

    Raises:
      MissingIndexError: if it was deleted or moved. An unmounted disk may leave an empty directory.
    """
    if all(files.is_gone(directory / name) for name in (MARK, DATABASE, COPY)):
        raise MissingIndexError.from_directory(directory)


def check_index(directory: Path) -> None:
    """Check that a directory has an index of a supported format.

    Raises:
      QueryError: if it has none, or one of the format before SQLite.
    """
    if any(os.path.lexists(directory / name) for name in (DATABASE, COPY)):
        return
    if any(os.path.lexists(directory / name) for name in OLDER):
        raise QueryError(
            "{directory} holds an index of an older format: index the folder again into another"
            " {index}; this one stays as it is",
            field="index",
            directory=directory,
        )
    if not is_marked(directory):
        raise QueryError(
            "{directory} holds no index: index a folder into it, or give another {index}",
            field="index",
            directory=directory,
        )


def is_marked(directory: Path) -> bool:
    """Return whether a directory has the mark of an index.

    Raises:
      UnreadableError: if it has a mark that cannot be read.
    """
    mark = directory / MARK
    try:
        return files.read_bytes(mark).startswith(MARKED)
    except OSError as error:
        if error.errno in _NO_MARK:
            return False
        raise UnreadableError.from_error(mark, error) from None


_NO_MARK = errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL
"""Errors for a path that has no regular file; `files.read_bytes` raises EINVAL for pipes."""


def has_index_files(directory: Path) -> bool:
    """Return whether a directory has any of the files that identify an index."""
    names = (MARK, DATABASE, COPY, *OLDER)
    return any(os.path.lexists(directory / name) for name in names)


def has_only_mark(directory: Path) -> bool:
    """Return whether a directory was marked for an index, but has no complete file of it."""
    names = os.listdir(directory)
    return all(name in (MARK, LOCK) or files.draft_target(name) for name in names)


def find_enclosing_index(path: Path) -> Path | None:
    """Return the directory of the index that contains a path, with links resolved, or None.

    Raises:
      UnreadableError: if the path or a folder above it has a mark that cannot be read.
    """
    real = Path(os.path.realpath(path))
    marked = (place for place in (real, *real.parents) if is_marked(place))
    return next(marked, None)


def _is_leftover(directory: Path, name: str) -> bool:
    """Return whether a process that was killed before it wrote the mark has left this file."""
    if name == LOCK:
        return (directory / name).is_file() and not (directory / name).stat().st_size
    return files.draft_target(name) == MARK


def lock_index(stack: contextlib.ExitStack, directory: Path, wait: float) -> None:
    """Lock an index until the stack is closed.

    Raises:
      LockedError: if another process still holds it after `wait` seconds.
    """
    # A process that opens the index holds the lock for a moment (`files.is_locked`).
    deadline = time.monotonic() + max(wait, LOCK_POLL_SECONDS)
    while True:
        try:
            with translate_errors(directory / DATABASE):
                stack.enter_context(files.lock(directory))
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockedError.from_directory(directory) from None
        time.sleep(LOCK_POLL_SECONDS)
