"""How far an indexing run is, and what it did at its end."""

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
      done: videos that are decoded or failed.
      total: videos that must be decoded.
      video: the one that is under way.
      position: seconds of it that are encoded.
      duration: its length in seconds.
      seconds: seconds of video encoded in this run.
      elapsed: seconds since the first video was begun.
    """

    done: int
    total: int
    video: str
    position: float
    duration: float
    seconds: float
    elapsed: float

    @property
    def speed(self) -> float:
        """Multiples of real time."""
        return _speed(self.seconds, self.elapsed)


class Report(NamedTuple):
    """What a run did, in numbers of paths.

    Attributes:
      indexed: decoded and encoded.
      known: found again by their content: moved, renamed, copied, touched.
      unchanged: left alone.
      failed: failed in this run.
      skipped: failed before, and not tried again.
      offline: not there now; their vectors are kept.
      unreadable: indexed, and not to be read now; their vectors are kept.
      gone: failed before, and no longer there.
      seconds: seconds of video that were encoded.
      elapsed: seconds that it took.
    """

    indexed: int = 0
    known: int = 0
    unchanged: int = 0
    failed: int = 0
    skipped: int = 0
    offline: int = 0
    unreadable: int = 0
    gone: int = 0
    seconds: float = 0.0
    elapsed: float = 0.0

    @property
    def speed(self) -> float:
        """Multiples of real time."""
        return _speed(self.seconds, self.elapsed)


def _speed(seconds: float, elapsed: float) -> float:
    return seconds / max(elapsed, 1e-9)
