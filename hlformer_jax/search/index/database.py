"""The SQLite file of an index: its schema, transactions, checksum, copy and migration.

`directory` lists the files. SQLite has no checksums. Each transaction that changes something
increments the version in `settings`, and index.sums has the digest of the file at one version. If
the versions are equal and the digests differ, the file is damaged. At a newer version, after a run
was killed, the first opening compares the sum of all rows (`row_sums`) and renews index.sums. While
another process runs, an opening only checks the structure. SQLite itself reads the file for the
digest, because opening and closing it elsewhere would release the locks of this process.

With a rollback journal, the database is a single file between transactions, so it can be copied and
read on read-only disks. Readers fetch all rows at once, so that they do not block writers.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hlformer_jax import files
from hlformer_jax.errors import DamagedError, QueryError, SearchError, UnreadableError
from hlformer_jax.search.index import row_sums
from hlformer_jax.search.index.directory import (
    COPY,
    DAMAGED,
    DATABASE,
    MARK,
    MARKED,
    SUMS,
    check_exists,
    check_index,
    check_place,
    has_index_files,
    lock_index,
)
from hlformer_jax.search.index.disk import ReplacedIndexError, translate_errors

_T = TypeVar("_T")

FORMAT = 6
"""Version of the schema; newer versions are refused."""

_REPEATS = """
CREATE TABLE repeats (
    content TEXT PRIMARY KEY REFERENCES contents(hash) ON DELETE CASCADE,
    rows INTEGER NOT NULL CHECK (rows > 0), counts BLOB NOT NULL, times BLOB NOT NULL
) WITHOUT ROWID;
"""
"""Table of the contents with fewer rows than frames (`embeddings.Repeats`)."""


def _add_repeats(connection: sqlite3.Connection) -> None:
    connection.execute(_REPEATS)


def _add_stamps(connection: sqlite3.Connection) -> None:
    """Add the stamp of each removed file; 0, 0, 0 is unknown."""
    for column in ("size", "modified_ns", "changed_ns"):
        connection.execute(f"ALTER TABLE exclusions ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")


FIRST_FORMAT = 4
"""Version of `_SCHEMA`."""

MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {4: _add_repeats, 5: _add_stamps}
"""For each older format, the function that migrates a database from it to the next format."""

APPLICATION = 0x686C6678
"""SQLite's application id, which tells the database of an index from other databases."""

WAIT_SECONDS = 30.0
"""Longest wait of a transaction for another process, in seconds."""

_CONSTANT_SETTINGS = (
    "SELECT name, value FROM settings WHERE name IN ('encoder', 'fps', 'every_frame') ORDER BY name"
)
"""Query of the settings that never change, which an `Index` only reads when it is opened."""

_DECODING_ERRORS = ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error
"""Errors of functions that decode damaged rows."""

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE roots (name BLOB PRIMARY KEY, path BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (
    hash TEXT PRIMARY KEY CHECK (length(hash) = 64),
    duration REAL NOT NULL, recorded REAL NOT NULL, warning TEXT NOT NULL,
    first_row INTEGER NOT NULL UNIQUE, frames INTEGER NOT NULL CHECK (frames > 0),
    checksum TEXT NOT NULL, rounded_checksum TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE paths (
    root BLOB NOT NULL REFERENCES roots(name), path BLOB NOT NULL,
    id TEXT NOT NULL UNIQUE,
    content TEXT NOT NULL, size INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL, changed_ns INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('indexed', 'failed')), reason TEXT NOT NULL,
    embedded TEXT GENERATED ALWAYS AS (CASE state WHEN 'indexed' THEN content END) VIRTUAL
        REFERENCES contents(hash),
    PRIMARY KEY (root, path)
) WITHOUT ROWID;
CREATE INDEX paths_content ON paths(content);
CREATE TABLE exclusions (
    root BLOB NOT NULL REFERENCES roots(name), path BLOB NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (root, path)
) WITHOUT ROWID;
CREATE INDEX exclusions_content ON exclusions(content);
CREATE TABLE tags (
    content TEXT NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (content, key)
) WITHOUT ROWID;
CREATE TABLE thresholds (
    ranker TEXT PRIMARY KEY, above REAL NOT NULL, false_alarms REAL NOT NULL,
    captions INTEGER NOT NULL, frames INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE cues (
    content TEXT NOT NULL REFERENCES contents(hash) ON DELETE CASCADE, position INTEGER NOT NULL,
    source TEXT NOT NULL, facts TEXT NOT NULL, cues BLOB NOT NULL, PRIMARY KEY (content, position)
) WITHOUT ROWID;
CREATE TABLE partial_recognitions (
    content TEXT PRIMARY KEY REFERENCES contents(hash) ON DELETE CASCADE,
    model TEXT NOT NULL, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE subtitle_problems (file BLOB NOT NULL, reason TEXT NOT NULL, video BLOB NOT NULL);
"""


class Database:
    """The database of an index, or its copy if the database is damaged."""

    def __init__(self, directory: Path, is_locked: bool = False) -> None:
        """Open the database, or its copy if the database is damaged.

        Args:
          directory: the directory of the index.
          is_locked: whether this process has locked the index.

        Raises:
          SearchError: if there is no index, or it has another format.
          DamagedError: if both files are damaged or missing.
          UnreadableError: if both files cannot be read at the moment.
        """
        self.directory, self._path = directory, directory / DATABASE
        self._damage: DamagedError | None = None  # of the database, if the copy is used
        self._sums_note = ""  # a line about index.sums, if the database could not be compared
        self._connection: sqlite3.Connection | None = None
        self._changes: row_sums.Changes | None = None  # of the connection, once it writes
        self._file: tuple[int, ...] = ()  # identity of the database file when it was opened
        self._connections = 0  # number of database files that were opened
        self._constants: list[Any] | None = None  # rows of `_CONSTANT_SETTINGS`
        self._lock = threading.RLock()
        check_index(directory)
        self._connect_any(is_trusted=not is_locked and files.is_locked(directory))

    @classmethod
    def create(cls, directory: Path, settings: dict[str, Any], root: Path) -> "Database":
        """Create the database of an index without videos; an existing damaged one is renamed.

        Args:
          directory: a new or empty directory, or an index whose database and copy are damaged.
          settings: values of the table `settings`.
          root: the first root of the index.

        Raises:
          LockedError: if another process is creating or writing an index there.
          SearchError: if the directory is an index, or has other files.
          UnreadableError: if it has an index whose files cannot be read at the moment.
          OSError: if it cannot be written.
        """
        check_place(directory)
        if has_index_files(directory):
            check_index(directory)
        with contextlib.ExitStack() as stack:
            lock_index(stack, directory, 0.0)
            with translate_errors(directory / DATABASE):
                cls._create_files(directory, settings, root)
        database = cls(directory)
        database.finish()
        return database

    @classmethod
    def _create_files(cls, directory: Path, settings: dict[str, Any], root: Path) -> None:
        """Write the mark and the database of an index; see `create`."""
        if has_index_files(directory):
            try:
                cls(directory, is_locked=True)
            except UnreadableError:
                raise
            except DamagedError:  # both files are damaged, so the index is lost
                pass
            else:
                raise QueryError(
                    "{directory} is an index: open it, or choose another {index}",
                    field="index",
                    directory=directory,
                )
        files.write_bytes(directory / MARK, MARKED + b"format 4 or later\n")
        connection = sqlite3.connect(":memory:", isolation_level=None)
        with contextlib.closing(connection):
            connection.executescript(_SCHEMA)
            for step in range(FIRST_FORMAT, FORMAT):
                MIGRATIONS[step](connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
            counters = {"version": 1, "generation": 1, "rows_end": 0, "transcripts": ""}
            connection.executemany("INSERT INTO settings VALUES (?, ?)", counters.items())
            connection.execute("INSERT INTO roots VALUES (x'', ?)", [os.fsencode(root)])
            _replace_database(directory, connection.serialize())

    @property
    def notes(self) -> list[str]:
        """Lines about damaged or unreadable files."""
        return [str(note) for note in (self._damage, self._sums_note) if note]

    def _connect_any(self, is_trusted: bool = False) -> None:
        """Open the database, or its copy if it is damaged; see `_connect`."""
        try:
            self._connect(DATABASE, is_trusted)
        except DamagedError as error:
            self._connect_copy(error)

    def _connect_copy(self, error: DamagedError) -> None:
        """Open the copy of the database, because of an error; raise it if the copy is damaged."""
        try:
            self._connect(COPY)
        except UnreadableError as copy_error:  # the index is not lost
            raise UnreadableError(f"{error}; {copy_error}") from None
        except DamagedError:
            raise type(error)(f"{error}, and its copy is damaged or missing") from None
        line = f"{error}: its copy of {_modified(self.directory / COPY)} is used"
        if not isinstance(error, UnreadableError):
            line += "; index the folder again to repair it, and repeat later transcriptions"
        self._damage = type(error)(line)

    def _connect(self, name: str, is_trusted: bool = False) -> None:
        """Open the database or its copy, and verify its checksum.

        Args:
          name: the name of the file.
          is_trusted: whether its structure is checked instead of its rows (`_check_sum`).

        Raises:
          DamagedError: if it is damaged.
          ReplacedIndexError: if it belongs to another index than the one that was opened.
        """
        path, file = self.directory / name, _identity(self._path)
        with translate_errors(path):
            connection = _open(path, is_copy=name == COPY)
            try:
                user_version = _value(connection, "PRAGMA user_version")
                if _value(connection, "PRAGMA application_id") != APPLICATION:
                    raise sqlite3.DatabaseError("it belongs to another program")
                if user_version > FORMAT:
                    raise SearchError(
                        f"{path} has format {user_version}, and this version reads {FORMAT}:"
                        " update hlformer-jax, or index again into another directory"
                    )
                sums_note = _check_sum(self.directory, name, connection, is_trusted)
                if user_version < FORMAT:
                    connection = _migrated(connection, is_copy=name == COPY)
                constants = connection.execute(_CONSTANT_SETTINGS).fetchall()
                if self._constants not in (None, constants):
                    raise ReplacedIndexError.from_directory(self.directory)
            except BaseException as error:
                with contextlib.closing(connection):
                    # An OperationalError names the disk or the lock itself.
                    if isinstance(error, sqlite3.DatabaseError) and not isinstance(
                        error, sqlite3.OperationalError
                    ):
                        _check_readable(connection)
                raise
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._file, self._damage = file, None
            self._connections += 1
            # SQLite closes the last connection with this object. A finalizer in Python would
            # swallow a Ctrl-C that comes while it runs.
            self._connection, self._changes, self._sums_note = connection, None, sums_note

    def select(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query; see `decode`."""
        return self.decode(list, statement, values)

    def decode(
        self, decoder: Callable[[list[Any]], _T], statement: str, values: Sequence[Any] = ()
    ) -> _T:
        """Return the result of a function of all rows of a query.

        Args:
          decoder: the function. An error of it means that a row is damaged.
          statement: the SQL query.
          values: values of its parameters.

        Raises:
          DamagedError: if the database and its copy are damaged.
        """
        with self._lock:
            for is_first in (True, False):
                try:
                    return self._fetch(decoder, statement, values)
                except DamagedError as error:
                    if self.in_transaction or self._damage is not None:
                        raise
                    if is_first:  # it was damaged after it was opened
                        self._connect_any()
                    else:  # it has no checksum of its version
                        self._connect_copy(error)
            return self._fetch(decoder, statement, values)

    def _fetch(
        self, decoder: Callable[[list[Any]], _T], statement: str, values: Sequence[Any]
    ) -> _T:
        """Return the result of a function of the rows that the current connection reads."""
        with translate_errors(self._path):
            rows = self._current().execute(statement, values).fetchall()
        try:
            return decoder(rows)
        except _DECODING_ERRORS as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise DamagedError(f"{self._path} is damaged (in a row, {reason})") from None

    def settings(self, decoder: Callable[[list[Any]], _T]) -> _T:
        """Return the result of a function of all settings.

        From then on, a database with other constant settings raises a `ReplacedIndexError`.
        """
        settings = self.decode(decoder, "SELECT name, value FROM settings")
        self._constants = self.select(_CONSTANT_SETTINGS)
        return settings

    def setting(self, name: str) -> Any:
        """Return the value of a setting."""
        return self.decode(only_value, "SELECT value FROM settings WHERE name = ?", [name])

    @property
    def state(self) -> tuple[int, int]:
        """A value that differs after every change of the database, by any process."""
        version = self.setting("version")
        return self._connections, version  # a later file may have the inode of an earlier one

    @property
    def in_transaction(self) -> bool:
        """True in the block of `transaction`, whose changes `state` does not show yet."""
        with self._lock:  # another thread waits for the end of the block
            assert self._connection is not None
            return self._connection.in_transaction

    @contextlib.contextmanager
    def transaction(self, wait: float = WAIT_SECONDS) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, which is rolled back if it raises an error.

        Args:
          wait: seconds to wait for another process.

        Raises:
          LockedError: if another process is still writing after that time.
          SearchError: if the disk is full or read-only.
          UnreadableError: if the database cannot be read at the moment.
        """
        self._repair()
        with self._lock, translate_errors(self._path, is_writing=True):
            connection = self._current()
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * wait)}")
            if self._changes is None:
                self._changes = row_sums.Changes(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._changes.begin()
                before = connection.total_changes
                yield connection
                if connection.total_changes != before:
                    self._changes.store()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def running(self, wait: float = 0.0) -> Iterator[None]:
        """Lock the index against other indexing processes; short transactions remain possible.

        Args:
          wait: seconds to wait for another process.

        Raises:
          LockedError: if another process is still indexing after that time.
          SearchError: if the disk is full or read-only.
          UnreadableError: if the database cannot be read at the moment.
        """
        check_exists(self.directory)  # locking would create it
        with contextlib.ExitStack() as stack:
            lock_index(stack, self.directory, wait)
            self._repair(is_locked=True)
            files.discard_drafts(self.directory, {MARK, DATABASE, COPY, SUMS}.__contains__)
            try:
                with translate_errors(self._path):
                    yield
            except BaseException:
                with contextlib.suppress(SearchError):  # the first error says what to do
                    self.finish()
                raise
            self.finish()

    def finish(self) -> None:
        """Copy the database and store its checksum, unless both are up to date.

        If index.sums cannot be read, the copy and the checksum stay as they are, because the
        database could not be verified.

        Raises:
          SearchError: if they cannot be written, such as to a full disk.
        """
        with self._lock, translate_errors(self._path):
            try:
                sums = _read_sums(self.directory)
            except UnreadableError as error:
                self._sums_note = _sums_note(error)
                return
            except DamagedError:
                sums = {}
            version = self.setting("version")
            if {version} == {number for number, _ in sums.values()} and _has_digest(
                self.directory / COPY, sums[COPY][1]
            ):
                return
            version, content = _snapshot(self._current())
            entry = [version, hashlib.sha256(content).hexdigest()]
            try:
                files.write_bytes(self.directory / COPY, content)
                _write_sums(self.directory, {DATABASE: entry, COPY: entry})
            except FileNotFoundError:  # a run that has begun deleted the draft, and renews both
                return
            except OSError as error:
                raise SearchError(
                    f"the change is stored, but {self.directory / COPY}, the copy of the database,"
                    f" cannot be renewed ({error.strerror or error}): make room or check the disk,"
                    " and the next change renews it"
                ) from None
            self._sums_note = ""

    def find_damaged(self) -> dict[str, str]:
        """Read all files; return a line for each damaged or unreadable file, by its name."""
        lines = {} if self._damage is None else {DATABASE: str(self._damage)}
        for name in [COPY] if lines else [DATABASE, COPY]:
            try:
                with translate_errors(self.directory / name):
                    connection = _open(self.directory / name, is_copy=name == COPY)
                    with contextlib.closing(connection):
                        _check_readable(connection)
                        if sums_note := _check_sum(self.directory, name, connection):
                            lines[SUMS] = sums_note
                        row_sums.verify(connection)  # the checksum may be that of damaged rows
            except DamagedError as error:
                lines[name] = f"{error}: index the folder again to write it anew"
        return lines

    def _current(self) -> sqlite3.Connection:
        """Return a connection to the current database file.

        Raises:
          MissingIndexError: if the directory of the index was deleted or moved.
          ReplacedIndexError: if it has another index now.
        """
        assert self._connection is not None
        if self._connection.in_transaction:
            return self._connection
        file = _identity(self._path)
        if not file:
            check_exists(self.directory)
        if self._damage is not None:  # another process may have repaired it
            if isinstance(self._damage, UnreadableError) or file != self._file:
                try:
                    self._connect(DATABASE)
                except ReplacedIndexError:
                    raise
                except SearchError:
                    pass
        elif file and file[:1] != self._file[:1]:
            self._connect(DATABASE)
        return self._connection

    def _repair(self, is_locked: bool = False) -> None:
        """Replace a damaged database by its copy before a change.

        Raises:
          UnreadableError: if the database cannot be read at the moment. It may be intact, and newer
            than its copy.
        """
        if self._damage is not None:
            with self._lock:
                self._current()
        if self._damage is None:
            if _identity(self._path):
                return
            is_lost = files.is_gone(self._path, follow=True)
        else:
            is_lost = not isinstance(self._damage, UnreadableError)
        if not is_lost:
            raise UnreadableError(f"{self._path} cannot be read: nothing is changed, try again")
        check_exists(self.directory)
        with contextlib.ExitStack() as stack, self._lock:
            if not is_locked:
                lock_index(stack, self.directory, 0.0)
            assert self._connection is not None
            with translate_errors(self._path):
                _replace_database(self.directory, _content(self._connection))
            self._connect(DATABASE)


def _open(path: Path, is_copy: bool) -> sqlite3.Connection:
    """Connect to an existing database file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise UnreadableError.from_error(path, error) from None
    if not stat.S_ISREG(mode):
        raise DamagedError(f"{path} is not a file")
    access = "ro&immutable=1" if is_copy else "rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={access}", uri=True, isolation_level=None,
        check_same_thread=False,
    )  # fmt: skip
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * WAIT_SECONDS)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_spill = OFF")  # spilling would lock out readers early
    return connection


def _check_sum(
    directory: Path, name: str, connection: sqlite3.Connection, is_trusted: bool = False
) -> str:
    """Verify the checksum of a file, or its rows if index.sums has another version.

    Args:
      directory: the directory of the index.
      name: the name of the file.
      connection: a connection to it.
      is_trusted: whether its structure is checked instead of its rows.

    Returns:
      A line if index.sums is damaged or cannot be read, or else "".

    Raises:
      sqlite3.DatabaseError: if the file is damaged.
    """
    sums, note = {}, ""
    try:
        sums = _read_sums(directory)
    except DamagedError as error:
        note = _sums_note(error)
    # It is written with the copy, which a new index does not have yet.
    if name == DATABASE and files.is_gone(directory / SUMS) and not files.is_gone(directory / COPY):
        note = _sums_note(DamagedError(f"{directory / SUMS} is missing"))
    with _reading(connection):
        version, (stored_version, stored_digest) = _version(connection), sums.get(name, (0, ""))
        if version == stored_version:
            if _digest(connection) != stored_digest:
                raise sqlite3.DatabaseError("its checksum does not match")
        elif is_trusted:
            row_sums.check_structure(connection, "quick_check")
        elif row_sums.verify(connection) and name == DATABASE and sums:
            with contextlib.suppress(OSError):
                _write_sums(directory, sums | {DATABASE: [version, _digest(connection)]})
    return note


def _sums_note(error: DamagedError) -> str:
    """Return the line that an unusable index.sums means that the database is not verified."""
    if isinstance(error, UnreadableError):
        return (
            f"{error}: the checksum of {DATABASE} is not verified, and its copy is not updated;"
            " check the disk, or move the file away"
        )
    return (
        f"{error}: the checksum of {DATABASE} is not verified; index the folder again to write it"
        " anew"
    )


def _snapshot(connection: sqlite3.Connection) -> tuple[int, bytes]:
    """Return the version of a database and the matching content of its file."""
    with _reading(connection):
        return _version(connection), _content(connection)


@contextlib.contextmanager
def _reading(connection: sqlite3.Connection) -> Iterator[None]:
    """Give all queries of the block the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    # The cast makes a number of damaged text, too.
    statement = "SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'version'"
    return int(_value(connection, statement))


def _read_sums(directory: Path) -> dict[str, Any]:
    """Return the version and digest of both files; {} if index.sums is missing.

    Raises:
      DamagedError: if index.sums is damaged.
      UnreadableError: if index.sums cannot be read.
    """
    path = directory / SUMS
    try:
        start, comma, rest = files.read_bytes(path).partition(b",")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UnreadableError.from_error(path, error) from None
    if start + comma != _start_of_sums(rest):
        raise DamagedError(f"{path} is damaged (its digest does not match)")
    sums: dict[str, Any] = json.loads(b"{" + rest)
    return sums


def _write_sums(directory: Path, sums: dict[str, Any]) -> None:
    rest = json.dumps(sums, indent=2).encode()[1:] + b"\n"
    files.write_bytes(directory / SUMS, _start_of_sums(rest) + rest)


def _start_of_sums(rest: bytes) -> bytes:
    """Return the first field of index.sums, the digest of the rest of the file."""
    return b'{\n  "digest": "%s",' % hashlib.sha256(rest).hexdigest().encode()


def _digest(connection: sqlite3.Connection) -> str:
    """Return the digest of the file of a database."""
    return hashlib.sha256(_content(connection)).hexdigest()


def _content(connection: sqlite3.Connection) -> bytes:
    """Return the content of the file of a database.

    Raises:
      sqlite3.OperationalError: if it cannot be read at the moment.
    """
    content = connection.serialize()  # a page that cannot be read is zero
    pages = np.frombuffer(content, np.uint8).reshape(-1, _value(connection, "PRAGMA page_size"))
    if not pages.any(1).all():
        _check_readable(connection)
    return content


def _check_readable(connection: sqlite3.Connection) -> None:
    """Read all pages of a database. SQLite names the disk's errors as damage in other queries.

    Raises:
      sqlite3.OperationalError: if a page cannot be read at the moment, or another process keeps the
        database locked for longer than the time limit of the connection.
    """

    def check_unlocked(status: int, remaining: int, total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):  # `backup` would wait for ever
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = status
            raise error

    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        connection.backup(memory, progress=check_unlocked)


def _has_digest(path: Path, digest: str) -> bool:
    """Return whether a file has a digest."""
    try:
        return hashlib.sha256(files.read_bytes(path)).hexdigest() == digest
    except OSError:
        return False


def _migrated(connection: sqlite3.Connection, is_copy: bool) -> sqlite3.Connection:
    """Migrate an older database; the copy, and one on a read-only disk, in memory."""
    if not is_copy:
        try:
            _migrate(connection)
            return connection
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    memory.deserialize(_content(connection))
    connection.close()
    memory.execute("PRAGMA foreign_keys = ON")
    _migrate(memory)
    memory.execute("PRAGMA query_only = ON")
    return memory


def _migrate(connection: sqlite3.Connection) -> None:
    """Migrate an older database to the current format."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in range(_value(connection, "PRAGMA user_version"), FORMAT):
            if step not in MIGRATIONS:
                raise sqlite3.DatabaseError(f"its format {step} is unknown")
            MIGRATIONS[step](connection)
        connection.execute("UPDATE settings SET value = value + 1 WHERE name = 'version'")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _replace_database(directory: Path, content: bytes) -> None:
    """Write the database file; an existing one is renamed."""
    path = directory / DATABASE
    if os.path.isfile(path):
        os.replace(path, directory / DAMAGED)
    # SQLite would replay a journal of the old file into the new one.
    (directory / f"{DATABASE}-journal").unlink(missing_ok=True)
    files.write_bytes(path, content)


def _identity(path: Path) -> tuple[int, ...]:
    """Return values that change if a file is replaced or modified; () if they are unknown."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _modified(path: Path) -> str:
    """Return the local time of the last modification of a file."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    except (OSError, ValueError, OverflowError):  # a year that the system cannot represent
        return "unknown date"


def only_value(rows: Sequence[Any]) -> Any:
    """Return the value of rows that must be one row with one value."""
    [[value]] = rows
    return value


def _value(connection: sqlite3.Connection, statement: str) -> Any:
    """Return the only value of a query."""
    row = connection.execute(statement).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("a row is missing")
    return row[0]
