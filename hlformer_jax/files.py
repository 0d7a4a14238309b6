"""Atomic writes of files, the files that they may replace, and a lock on a directory.

An output at a path that the user chose replaces an existing file only if the user permits it.
An output in a directory of the program (tables, figures, metrics of a run) also replaces a file
that the program wrote and that has not changed since: the list `.hlformer-written` in the directory
has the digest of each such file. Links, directories, pipes and devices are never replaced.
"""

import contextlib
import enum
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hlformer_jax.errors import UserError, is_memory_error
from hlformer_jax.text import legible

WRITTEN = ".hlformer-written"
"""Name of a directory's list of written files, in the format of sha256sum."""

READ_BYTES = 2**20
"""Size of the blocks in which a file is read for its digest."""


class Replace(enum.Flag):
    """Which regular file an output may replace.

    Attributes:
      NOTHING: no file.
      OWN: a file of the directory's list that is unchanged; the output is added to the list.
      ANY: any file.
    """

    NOTHING = 0
    OWN = enum.auto()
    ANY = enum.auto()


class OutputError(UserError, OSError):
    """Error for an output that must not replace what is at its path, or cannot be written there."""


_drafts: set[Path] = set()  # of the writes of this process that have not ended
os.register_at_fork(after_in_child=_drafts.clear)  # they are still those of the parent

_DRAFT = re.compile(r"\.(.+)\.hlformer-[0-9a-f]{16}\.part", re.DOTALL)


def replacing(overwrite: bool, listed: bool = False) -> Replace:
    """Return which files an output may replace.

    Args:
      overwrite: whether the user permits to replace any file.
      listed: whether the output belongs to the list of its directory.
    """
    replace = Replace.ANY if overwrite else Replace.NOTHING
    return replace | Replace.OWN if listed else replace


def check_output(path: Path, replace: Replace = Replace.NOTHING) -> None:
    """Check that a file can be written at a path.

    Commands call it before their long work; `atomic_write` checks again when that has ended. The
    folder of the path is made if necessary.

    Args:
      path: the path of the output.
      replace: the files that the output may replace.

    Raises:
      OutputError: if something at the path must not be replaced.
      OSError: if the folder cannot be made or written to.
    """
    check_replaced(path, replace)
    path.parent.mkdir(parents=True, exist_ok=True)
    check_writable(path.parent)


def check_writable(directory: Path) -> None:
    """Check that files can be written in a directory; of a missing one, in the folder above it.

    Nothing is made. Commands call it before their long work.

    Raises:
      OSError: if they cannot; it names the directory.
    """
    place = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))  # a block, which a full disk lacks
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(directory)) from None


def check_directory(path: Path) -> None:
    """Check that a path is a directory or missing.

    Raises:
      OutputError: if the path is a link, a file, a pipe or a device.
    """
    mode = _mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        if stat.S_ISLNK(mode):
            raise OutputError(f"{path} is a link: give its target, or another name")
        raise OutputError(f"{path} is not a directory: give another name")


def expand(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ and ~NAME replaced by the user's home; a path without one stays.

    `Path.expanduser` raises an error of its own for an unknown user.
    """
    return Path(os.path.expanduser(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
      OSError: if the file cannot be read, or is a folder, pipe, socket or device: reading one of
        those might never end.
    """
    with open(open_regular(path), "rb") as file:
        return file.read()


def open_regular(path: Path) -> int:
    """Open a regular file for reading; return its descriptor, which the caller closes.

    Raises:
      OSError: if the file cannot be read, or is a folder, pipe, socket or device: reading one of
        those might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "folder" if stat.S_ISDIR(mode) else "pipe, socket or device"
        raise OSError(errno.EINVAL, f"it is a {kind}, not a file", str(path))
    return descriptor


def digest(path: Path, pulse: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits.

    Args:
      path: a regular file.
      pulse: called for every block; an exception that it raises ends the reading.

    Raises:
      OSError: if the file cannot be read, or is not a regular file.
    """
    digest, block = hashlib.sha256(), bytearray(READ_BYTES)
    with open(open_regular(path), "rb", buffering=0) as file:
        while count := file.readinto(block):  # None if reading would block, as in /proc and /sys
            pulse()
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def is_gone(path: Path, follow: bool = False) -> bool:
    """Return whether a path is missing; False for a path that cannot be examined.

    Args:
      path: a path.
      follow: whether to follow a link, so that a link without a target counts as missing.
    """
    try:
        os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def discard(path: Path) -> None:
    """Remove a regular file; leave a link, a directory, a pipe or a device."""
    mode = _mode(path)
    if mode is not None and stat.S_ISREG(mode):
        path.unlink(missing_ok=True)


def discard_drafts(directory: Path, is_own: Callable[[str], object]) -> None:
    """Delete the drafts that killed processes left behind, if the directory can be listed.

    Args:
      directory: the directory of the files.
      is_own: takes the name of a file; returns whether the program writes such a file there.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            target = draft_target(name)
            if target is not None and is_own(target):
                discard(directory / name)


def jsonable(value: Any) -> Any:
    """Convert a value for JSON: NaN to null, NumPy's numbers to Python's, texts to legible ones."""
    if isinstance(value, Mapping):
        return {legible(str(key)): jsonable(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < 1 else round(value, 6)  # as a probability
    return value if value is None or isinstance(value, bool | int) else legible(str(value))


def write_json(path: Path, content: Mapping[str, Any], replace: Replace = Replace.ANY) -> None:
    """Write a JSON file atomically, with null for NaN.

    Raises:
      ValueError: if the content has an infinite number.
      OSError: as `atomic_write`.
    """
    text = json.dumps(_without_nan(content), indent=2, allow_nan=False)
    write_bytes(path, f"{text}\n".encode(), replace)


def parse_json(text: str | bytes, finite: bool = False) -> Any:
    """Parse a JSON text.

    Args:
      text: the text.
      finite: refuse NaN and infinite numbers.

    Raises:
      ValueError: if the text is not JSON, is nested too deeply, or holds a refused number.
    """
    options: dict[str, Any] = dict(parse_constant=_finite, parse_float=_finite) if finite else {}
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the JSON contains {text[:20]}: only finite numbers are allowed")
    return value


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(child) for child in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_bytes(path: Path, content: bytes, replace: Replace = Replace.ANY) -> None:
    """Write a file atomically; raises as `atomic_write`."""
    with atomic_write(path, replace) as draft:
        draft.write_bytes(content)


def write_npz(path: Path, arrays: Mapping[str, Any], replace: Replace = Replace.ANY) -> None:
    """Write an .npz file of arrays by name, atomically; unlike NumPy, add no suffix to the path."""
    with atomic_write(path, replace) as draft, draft.open("wb") as file:
        content: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
        np.savez(file, **content)


_ZIP = b"PK"
"""First bytes of an .npz file; NumPy takes any file without them for a pickle."""


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file.

    Args:
      path: the file.
      names: the names of the arrays; None for all arrays of the file.

    Returns:
      The arrays by name.

    Raises:
      ValueError: if the file is not an .npz file, is damaged, or has no array of a name. The
        message is one line with the reason, without the path.
      OSError: if the file cannot be read, or is not a regular file.
    """
    with open(open_regular(path), "rb") as file:
        try:
            if file.read(len(_ZIP)) != _ZIP:
                raise ValueError("it is not an .npz file")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            arrays = {
                name: archive[name] for name in archive.files if names is None or name in names
            }
        except Exception as error:  # a damaged file fails in many ways
            if is_memory_error(error) or isinstance(error, OSError) and error.errno is not None:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            if "allow_pickle" in reason:  # NumPy's advice would execute code in the file
                reason = "one of its arrays has Python objects, not numbers or texts"
            raise ValueError(reason) from None
    if missing := [name for name in names or () if name not in arrays]:
        raise ValueError(f"it has no array {missing[0]!r}")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy returns the bytes of another file
            raise ValueError(f"its {name!r} is not an array")
    return arrays


def discard_own(path: Path) -> None:
    """Remove a file of its directory's list if it is unchanged; leave any other file."""
    mode = _mode(path)
    if mode is not None and stat.S_ISREG(mode) and _is_own(path):
        path.unlink()


@contextlib.contextmanager
def atomic_write(path: Path, replace: Replace = Replace.ANY) -> Iterator[Path]:
    """Yield the path of a draft that replaces the file when the block ends without an error.

    The draft is in the same folder, which is made if necessary. After an error the draft is
    removed and the file is as before.

    Args:
      path: the path of the file.
      replace: the files that may be replaced; with `Replace.OWN` the file is also added to the list
        of its directory.

    Yields:
      The path of the draft, which the block has to write.

    Raises:
      OutputError: if something at the path must not be replaced.
      OSError: if the file cannot be written; it names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.hlformer-{secrets.token_hex(8)}.part")
    _drafts.add(draft)
    try:
        with naming(path):
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            is_listed = Replace.OWN in replace
            with _register_draft(path, draft) if is_listed else contextlib.nullcontext():
                check_replaced(path, replace)
                draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
        _drafts.discard(draft)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path that the block writes to an OSError that names no file, as one of a write."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def discard_drafts_on_signals(*numbers: signal.Signals) -> None:
    """Let signals, by default SIGTERM and SIGHUP, delete the drafts before they end the process."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers or (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _end_without_drafts)


def _end_without_drafts(number: int, frame: Any) -> None:
    for draft in list(_drafts):
        with contextlib.suppress(OSError):
            draft.unlink()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def draft_target(name: str) -> str | None:
    """Return the name of the file that a draft would replace; None if `name` is not a draft's."""
    match = _DRAFT.fullmatch(name)
    return match and match[1]


def check_replaced(path: Path, replace: Replace = Replace.ANY) -> None:
    """Check that a write may replace the thing at a path.

    Raises:
      OutputError: if it must not be replaced; the message says what it is.
    """
    mode = _mode(path)
    if mode is None:
        return
    if stat.S_ISLNK(mode):
        raise OutputError(f"{path} is a link: give its target, or another name")
    if stat.S_ISDIR(mode):
        raise OutputError(f"{path} is a directory: give the name of a file")
    if not stat.S_ISREG(mode):
        raise OutputError(f"{path} is a pipe, socket or device: give the name of a file")
    if Replace.ANY in replace:
        return
    if Replace.OWN not in replace:
        raise OutputError(f"{path} exists: give another name, or `overwrite`")
    if not _is_own(path):
        raise OutputError(
            f"{path} was not written by this program, or was changed since: move it away, or give"
            " `overwrite`"
        )


def _mode(path: Path) -> int | None:
    """Return the mode of the thing at a path, without following a link; None if it is missing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _is_own(path: Path) -> bool:
    """Return whether the directory's list has the file with its current content.

    Raises:
      OSError: if the list or the file cannot be read.
    """
    mode = _mode(path.parent / WRITTEN)
    if mode is None or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return False
    line = f"{digest(path)}  {path.name}"  # before the list, which has each file before it is there
    try:
        return line in read_bytes(path.parent / WRITTEN).decode().split("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        return False


@contextlib.contextmanager
def _register_draft(path: Path, draft: Path) -> Iterator[None]:
    """Add a draft to the directory's list before it replaces the file.

    A program that is killed in between leaves one line too many in the list, never a new file that
    the list lacks.
    """
    line = f"{digest(draft)}  {path.name}\n".encode()
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path.parent / WRITTEN, flags, 0o666), "r+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # on a disk without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if line[:-1] not in file.read().split(b"\n"):
            file.write(line)
        yield


@contextlib.contextmanager
def lock(directory: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Lock a directory until the block or the process ends.

    Args:
      directory: the directory, which is made if necessary; it keeps a file `.lock`.
      waiting: called before waiting for another process that holds the lock; None to fail instead.

    Yields:
      Whether the directory is locked. It is False on a disk without locks, such as some network
      disks: there, other processes are not excluded.

    Raises:
      BlockingIOError: if another process holds the lock and `waiting` is None.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # O_NOFOLLOW: do not create the target of a link. O_RDWR: do not wait for a pipe's other end.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(directory / ".lock", flags, 0o666), "rb", buffering=0) as file:
        is_locked = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            is_locked = False
        yield is_locked


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of a directory; False if that cannot be told."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(directory / ".lock", flags), "rb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
