"""Output of commands: progress, warnings and results.

Progress goes to standard error: lines, and on a terminal also a bar with speed and time left.
`silence` hides it (the flag --quiet). Colours are used only on a terminal, and not if NO_COLOR is
set. No line can change the terminal: see `text.printable`.
"""

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TextIO, TypeVar

from hlformer_jax.text import printable

T = TypeVar("T")

FRACTIONS = "{percentage:3.0f}%|{bar:16}| [{elapsed}<{remaining}{postfix}]"
"""Format of a bar whose count has fractions: percent, time so far, time left, and a text."""

_is_silent = False


def silence(silent: bool = True) -> None:
    """Hide the progress of this process.

    Args:
      silent: whether to hide progress; False shows it again.
    """
    global _is_silent
    _is_silent = silent


def report(line: str) -> None:
    """Print a line of progress on standard error, unless progress is hidden."""
    if not _is_silent:
        warn(line)


SLOW_SECONDS = 10.0
"""Seconds after which `reported_if_slow` prints its line."""


@contextlib.contextmanager
def reported_if_slow(line: str, report: Callable[[str], None] = report) -> Iterator[None]:
    """Print a line of progress if the block takes longer than `SLOW_SECONDS`.

    Args:
      line: the line.
      report: function that prints the line; it is called in another thread.
    """
    timer = threading.Timer(SLOW_SECONDS, report, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def warn(line: str) -> None:
    """Print a line on standard error; a progress bar stays below it."""
    _write(line, sys.stderr)


def show(line: str) -> None:
    """Print a line of the result on standard output; a progress bar stays below it."""
    _write(line, sys.stdout)


def width() -> int | None:
    """Return the width of the terminal in characters; None if output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_red(text: str, file: TextIO | None) -> str:
    """Return a text in bold red, or unchanged if the file is not a terminal with colours."""
    has_colours = (
        file is not None
        and file.isatty()
        and os.environ.get("TERM") not in (None, "", "dumb")
        and not os.environ.get("NO_COLOR")
    )
    return f"\x1b[1;31m{text}\x1b[0m" if has_colours else text


def _write(line: str, file: TextIO | None) -> None:
    tqdm = sys.modules.get("tqdm")
    if file is None:  # the caller has closed the stream
        return
    line = printable(line)
    if tqdm is None:  # not imported yet, so no bar is shown
        print(line, file=file)
    else:
        tqdm.tqdm.write(line, file=file)
    file.flush()


def bar(unit: str, total: int | None = None, **options: Any) -> Any:
    """Return a tqdm bar with speed and time left; closing it erases it.

    Args:
      unit: noun for the items that are counted, such as "video".
      total: number of items; None if it is not known yet.
      **options: further options of tqdm.
    """
    import tqdm  # imported here, because most commands show no bar

    settings = {"dynamic_ncols": True, "leave": False, "disable": None} | options
    if _is_silent:
        settings["disable"] = True
    return tqdm.tqdm(total=total, unit=unit, file=sys.stderr, **settings)


def track(items: Collection[T], unit: str) -> Iterator[T]:
    """Yield items while a progress bar counts them.

    Args:
      items: the items.
      unit: noun for the items, such as "video".
    """
    with bar(unit, len(items)) as counter:
        for item in items:
            yield item
            counter.update()


class TimeLeft:
    """Estimate of a job's remaining time, from the mean duration of its finished parts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start measuring.

        Args:
          clock: function that returns the time in seconds.
        """
        self._clock, self._start, self._finished = clock, clock(), 0

    def add(self) -> None:
        """Count a part as finished."""
        self._finished += 1

    def text(self, parts: int) -> str:
        """Return ", about 5 min left" if `parts` are left; "" before the first has finished."""
        if not self._finished or not parts:
            return ""
        minutes = (self._clock() - self._start) / self._finished * parts / 60
        hours, rest = divmod(max(1, round(minutes)), 60)
        return f", about {f'{hours} h ' * bool(hours)}{rest} min left"
