"""SIGTERM and Ctrl-C as a question that the loop asks between two chunks of steps."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Stopped(Exception):  # noqa: N818 - it is no error
    """A signal asked the run to stop; the state has been saved.

    Attributes:
      status: what the program should exit with.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.status = 128 + signal_number


@contextlib.contextmanager
def received() -> Iterator[Callable[[], signal.Signals | None]]:
    """Notes SIGTERM and the first Ctrl-C; a second Ctrl-C stops at once.

    Yields:
      What tells the signal that was received, None for none.
    """
    signals: list[signal.Signals] = []

    def note(signal_number: int, frame: Any) -> None:
        if signal_number == signal.SIGINT:
            if signals:
                raise KeyboardInterrupt
            print("\nstopping after these steps; Ctrl-C again stops at once", file=sys.stderr)
        signals.append(signal.Signals(signal_number))

    noted = [signal.SIGTERM]
    # A shell's background jobs ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        noted.append(signal.SIGINT)
    before = {signal_number: signal.signal(signal_number, note) for signal_number in noted}
    try:
        yield lambda: signals[0] if signals else None
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
