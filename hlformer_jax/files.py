"""Files that are written whole or not at all, and a lock on a directory."""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all; NaN, which JSON lacks, as null."""
    text = json.dumps(_without_nan(content), indent=2, allow_nan=False)
    with whole(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(child) for child in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file of any kind whole or not at all."""
    with whole(path) as draft:
        draft.write_bytes(content)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays as .npz, under exactly that name, whole or not at all."""
    with whole(path) as draft, draft.open("wb") as file:
        content: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
        np.savez(file, **content)


def check_place(path: Path) -> None:
    """Refuses a place for a file where none can be written.

    Raises:
      OSError: saying why.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory: give the name of a file")
    with whole(path.with_name(f"{path.name}.tried")) as draft:
        draft.touch()
    path.with_name(f"{path.name}.tried").unlink()


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The draft of a file, which takes its place when the block ends without an error.

    Args:
      path: its file; folders are made where there are none.

    Returns:
      What gives the draft's name, in the same folder; nothing of it stays after an error.

    Raises:
      OSError: when it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def lock(directory: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Keeps a directory to one holder at a time, until the block or the process ends.

    Args:
      directory: made where there is none; gets a file `.lock`, which stays.
      waiting: called before another holder is waited for; None: it is not waited for.

    Yields:
      False where the disk knows no locks, as some network disks: no one is kept out then.

    Raises:
      BlockingIOError: when another holds it, and `waiting` is None.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "ab") as file:
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
