"""Errors of SQLite and of the disk, as lines that name the index."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError


class LockedError(SearchError):
    """Error for an index to which another process is writing."""

    @classmethod
    def from_directory(cls, directory: Path) -> "LockedError":
        """Return the error for the directory of an index."""
        return cls(f"another process is writing to {directory}: wait until it has ended")


class MissingIndexError(SearchError):
    """Error for an open index whose directory was deleted or moved."""

    @classmethod
    def from_directory(cls, directory: Path) -> "MissingIndexError":
        """Return the error for the directory that the index had."""
        return cls(
            f"the index {directory} is no longer there: it was deleted or moved; move it back, or"
            " open it at its new path"
        )


class ReplacedIndexError(SearchError):
    """Error for an open index in whose directory another index was made."""

    @classmethod
    def from_directory(cls, directory: Path) -> "ReplacedIndexError":
        """Return the error for the directory of both indexes."""
        return cls(
            f"the index {directory} was replaced by one with another encoder or rate: open it again"
        )


@contextlib.contextmanager
def translate_errors(path: Path, is_writing: bool = False) -> Iterator[None]:
    """Translate errors of SQLite and of the disk into errors that name the index.

    Args:
      path: the path of the database.
      is_writing: whether the database is being changed.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        translated = _to_search_error(path, error)
        # SQLite does not say why it could not create its journal.
        if is_writing and isinstance(translated, UnreadableError):
            if (line := find_disk_problem(path.parent)) is not None:
                translated = SearchError(line)
        raise translated from None
    except OSError as error:
        if (line := _disk_problem(path.parent, error)) is None:
            raise
        raise SearchError(line) from None


def _disk_problem(directory: Path, error: OSError) -> str | None:
    """Return a line about a full, read-only or forbidden disk; None for any other error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _full(directory)
    path = Path(error.filename or directory)
    if error.errno in (errno.EACCES, errno.EPERM) and path.is_relative_to(directory):
        return _forbidden(path)
    return _read_only(directory) if error.errno == errno.EROFS else None


def find_disk_problem(directory: Path) -> str | None:
    """Return a line about a disk that is full, read-only or forbidden at the moment; else None."""
    try:
        files.check_writable(directory)
    except OSError as error:
        return _disk_problem(directory, error)
    return None


def _full(directory: Path) -> str:
    return f"the disk of {directory} is full: make room, and repeat the command"


def _read_only(directory: Path) -> str:
    return (
        f"the disk of {directory} is read-only: make it writable, or copy the index to another disk"
    )


def _forbidden(path: Path) -> str:
    return (
        f"{path} may not be read or written by this user: ask its owner for the rights, or use an"
        " index of your own"
    )


def _is_forbidden(path: Path) -> bool:
    """Return whether a path may not be written, on a disk that is not read-only."""
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return True
    return not is_read_only and not os.access(path, os.W_OK)


def _to_search_error(path: Path, error: sqlite3.Error) -> SearchError:
    """Translate an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    reason = " ".join(str(error).split())
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LockedError.from_directory(path.parent)
    if code == sqlite3.SQLITE_FULL:
        return SearchError(_full(path.parent))
    if code == sqlite3.SQLITE_READONLY:
        # SQLite also needs to write to the directory, where it creates its journal.
        for place in (path, path.parent):
            if _is_forbidden(place):
                return SearchError(_forbidden(place))
        return SearchError(_read_only(path.parent))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return UnreadableError(f"{path} cannot be read ({reason})")
    if code == sqlite3.SQLITE_CONSTRAINT:  # changes are checked before they are written
        return DamagedError(
            f"{path} is damaged ({reason}): restore it and its copy from a backup, or index the"
            " folder again into another directory"
        )
    return DamagedError(f"{path} is damaged ({reason})")
