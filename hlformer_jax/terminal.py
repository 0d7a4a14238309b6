"""Output of commands: progress, warnings, and lines of results.

Progress is lines and a bar with speed and time left, on standard error; the bar is shown on a
terminal only. `silence`, which --quiet calls, hides progress. Colours are for terminals, unless
NO_COLOR is set.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

FRACTIONS = "{percentage:3.0f}%|{bar:16}| [{elapsed}<{remaining}{postfix}]"
"""Format of a bar whose count has fractions: percent, time so far, time left, and a text."""

_is_silent = False


def silence(silent: bool = True) -> None:
    """Hide progress of this process from now on, or show it again."""
    global _is_silent
    _is_silent = silent


def report(line: str) -> None:
    """Print a line of progress on standard error, unless progress is hidden."""
    if not _is_silent:
        warn(line)


def warn(line: str) -> None:
    """Print a line on standard error, above a bar."""
    _write(line, sys.stderr)


def show(line: str) -> None:
    """Print a line of the result on standard output, above a bar."""
    _write(line, sys.stdout)


def width() -> int | None:
    """Return the columns of the terminal of standard output; None if it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_red(text: str, file: TextIO | None) -> str:
    """Return a text in bold red if the file is a terminal with colours."""
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
    if tqdm is None:  # not imported yet, so no bar is shown
        print(line, file=file)
    else:
        tqdm.tqdm.write(line, file=file)
    file.flush()


def bar(unit: str, total: int | None = None, **options: Any) -> Any:
    """Return a tqdm bar with speed and time left, which is erased when it is closed.

    Args:
      unit: noun of the things that are counted.
      total: number of things to count, or None if it is not known yet.
      **options: further options of tqdm.
    """
    import tqdm  # here, as most commands need no bar

    settings = {"dynamic_ncols": True, "leave": False, "disable": None} | options
    if _is_silent:
        settings["disable"] = True
    return tqdm.tqdm(total=total, unit=unit, file=sys.stderr, **settings)


def each(items: Collection[T], unit: str) -> Iterator[T]:
    """Yield items, with a bar that counts them."""
    with bar(unit, len(items)) as counter:
        for item in items:
            yield item
            counter.update()


class TimeLeft:
    """An estimate of the time left, from the mean duration of the finished parts of a job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock."""
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
