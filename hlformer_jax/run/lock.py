"""A lock on a directory, between processes that share its disk."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def hold(directory: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
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
