"""Files that are written whole or not at all, what they may replace, and a lock on a directory.

What a command writes where a person said (`--out`) replaces nothing, unless with `--overwrite`.
What it writes into a directory of its own (tables, figures, metrics of a run) replaces a file that
it wrote itself and nobody has changed since: the directory's list `.hlformer-written` has the
digest of each. Nothing replaces a link, a directory, a pipe or a device.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hlformer_jax.errors import UserError, legible

WRITTEN = ".hlformer-written"
"""List of the files that were written into a directory, in the format of sha256sum."""

READ_BYTES = 2**20
"""Bytes that are read of a file at a time where its digest is made."""

Replace = Literal["any", "none", "own", "any, own"]
"""Which regular file may be replaced: any, none, or one that is on the directory's list and
unchanged; with "own" the new file is put on the list."""


class OutputError(UserError, OSError):
    """A file that must not be replaced, or a place where none can be written."""


_DRAFT = re.compile(r"\.(.+)\.hlformer-[0-9a-f]{16}\.part", re.DOTALL)


def given_path(text: str) -> Path:
    """A path of a command line, for argparse; an empty one would name the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: name one (. is the current folder)")
    return Path(text)


def replacing(overwrite: bool, own: bool = False) -> Replace:
    """What an output replaces with --overwrite or without; `own`: in a directory of ours."""
    if own:
        return "any, own" if overwrite else "own"
    return "any" if overwrite else "none"


def check_output(path: Path, replace: Replace = "none") -> None:
    """Refuses a place where a file cannot be written or one stands that must stay.

    Commands call it before their long work; `whole` checks once more at the end of it.

    Raises:
      OutputError: saying what stands there.
      OSError: when the folder cannot be made or written to.
    """
    check_replaced(path, replace)
    path.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path.parent).close()


def check_directory(path: Path) -> None:
    """Refuses a directory to write into that is a link, or no directory; a missing one is fine."""
    mode = _mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        what = "a link: give what it leads to, or" if stat.S_ISLNK(mode) else "no directory: give"
        raise OutputError(f"{path} is {what} another name")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
      OSError: when it cannot be read, or is a pipe or device, whose reading might never end.
    """
    with open(open_regular(path), "rb") as file:
        return file.read()


def open_regular(path: Path) -> int:
    """Return a descriptor to read a regular file.

    Raises:
      OSError: when it cannot be read, or is a pipe or device, whose reading might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, no file", str(path))
    return descriptor


def digest(path: Path, pulse: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits.

    Args:
      path: a regular file.
      pulse: called for every block that is read; what it raises ends the reading.
    """
    digest, block = hashlib.sha256(), bytearray(READ_BYTES)
    with open(open_regular(path), "rb", buffering=0) as file:
        while count := file.readinto(block):  # None where a file of the kernel would block
            pulse()
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def is_gone(path: Path, follow: bool = False) -> bool:
    """Return whether nothing is at a path; what cannot be looked at is not gone.

    Args:
      path: a path.
      follow: whether a link counts as gone where its target is.
    """
    try:
        os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def discard(path: Path) -> None:
    """Removes a regular file; leaves a link, a directory, a pipe or a device."""
    mode = _mode(path)
    if mode is not None and stat.S_ISREG(mode):
        path.unlink(missing_ok=True)


def jsonable(value: Any) -> Any:
    """A value as JSON holds it: NaN as null, NumPy's numbers as Python's, texts legible."""
    if isinstance(value, Mapping):
        return {legible(str(key)): jsonable(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else legible(str(value))


def write_json(path: Path, content: Mapping[str, Any], replace: Replace = "any") -> None:
    """Writes a JSON file whole or not at all; NaN, which JSON lacks, as null."""
    text = json.dumps(_without_nan(content), indent=2, allow_nan=False)
    write_bytes(path, f"{text}\n".encode(), replace)


def parse_json(text: str | bytes, finite: bool = False) -> Any:
    """The content of a JSON text.

    Raises:
      ValueError: when it is no JSON, or nested deeper than any file of ours is; with `finite` also
        when a number of it is NaN or infinite.
    """
    options: dict[str, Any] = dict(parse_constant=_finite, parse_float=_finite) if finite else {}
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text[:20]}")
    return value


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(child) for child in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_bytes(path: Path, content: bytes, replace: Replace = "any") -> None:
    """Writes a file of any kind whole or not at all."""
    with whole(path, replace) as draft:
        draft.write_bytes(content)


def write_npz(path: Path, arrays: Mapping[str, Any], replace: Replace = "any") -> None:
    """Writes arrays as .npz, under exactly that name, whole or not at all."""
    with whole(path, replace) as draft, draft.open("wb") as file:
        content: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
        np.savez(file, **content)


def discard_own(path: Path) -> None:
    """Removes a file that is on its directory's list and unchanged; leaves any other."""
    mode = _mode(path)
    if mode is not None and stat.S_ISREG(mode) and _is_own(path):
        path.unlink()


@contextlib.contextmanager
def whole(path: Path, replace: Replace = "any") -> Iterator[Path]:
    """The draft of a file, which takes its place when the block ends without an error.

    It lies in the same folder, which is made where there is none; nothing of it stays after an
    error.

    Raises:
      OutputError: when something stands there that must stay.
      OSError: when it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.hlformer-{secrets.token_hex(8)}.part")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        with _listed(path, draft) if "own" in replace else contextlib.nullcontext():
            check_replaced(path, replace)
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def drafted(name: str) -> str | None:
    """The name of the file that a draft of `whole` is of; None for what is no name of a draft."""
    found = _DRAFT.fullmatch(name)
    return found and found[1]


def check_replaced(path: Path, replace: Replace = "any") -> None:
    """Refuse to replace what must stay at a place.

    Raises:
      OutputError: saying what stands there.
    """
    mode = _mode(path)
    if mode is None:
        return
    if stat.S_ISLNK(mode):
        raise OutputError(f"{path} is a link: give the file that it leads to, or another name")
    if stat.S_ISDIR(mode):
        raise OutputError(f"{path} is a directory: give the name of a file")
    if not stat.S_ISREG(mode):
        raise OutputError(f"{path} is no file but a pipe, socket or device: give another name")
    if replace == "none":
        raise OutputError(f"{path} is there already: give another name, or --overwrite")
    if replace == "own" and not _is_own(path):
        raise OutputError(
            f"{path} was not written here by this program, or has been changed since: move it"
            " away, or give --overwrite"
        )


def _mode(path: Path) -> int | None:
    """What stands at a place, a link for itself; None where nothing does."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _is_own(path: Path) -> bool:
    """Return whether the directory's list has the file as it is.

    Raises:
      OSError: when the list or the file cannot be read.
    """
    mode = _mode(path.parent / WRITTEN)
    if mode is None or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return False
    try:
        lines = read_bytes(path.parent / WRITTEN).decode().splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    return f"{digest(path)}  {path.name}" in lines


@contextlib.contextmanager
def _listed(path: Path, draft: Path) -> Iterator[None]:
    """Adds a draft to the directory's list before it takes its place: a kill leaves no stranger."""
    line = f"{digest(draft)}  {path.name}\n".encode()
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path.parent / WRITTEN, flags, 0o666), "r+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if line not in file.read().splitlines(keepends=True):
            file.write(line)
        yield


@contextlib.contextmanager
def lock(directory: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Keeps a directory to one holder at a time, until the block or the process ends.

    The directory, made where there is none, gets a file `.lock`, which stays. Yields False where
    the disk knows no locks, as some network disks: no one is kept out then. `waiting` is called
    before another holder is waited for.

    Raises:
      BlockingIOError: when another holds it, and `waiting` is None.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Neither waits for the other end of a pipe nor makes a file where a link leads.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(directory / ".lock", flags, 0o666), "rb", buffering=0) as file:
        held = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            held = False
        yield held
