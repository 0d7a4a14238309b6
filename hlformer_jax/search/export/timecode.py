"""Frame rates and timecodes of videos, as editors count them.

"Drop frame" leaves out the first 2 or 4 numbers of every minute but each tenth, at 29.97 and 59.94
frames a second, so that timecode keeps up with the clock.
"""

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

_NTSC = [Fraction(count * 1000, 1001) for count in (24, 30, 48, 60, 120)]
_RATES = sorted([*_NTSC, *map(Fraction, (24, 25, 30, 48, 50, 60, 100, 120))])

MAX_TIMECODE_RATE = 60
"""Frames a second above which timecode (two digits of frames, up to 59) counts every second one."""


def nominal_rate(info: Any) -> Fraction:
    """Return the rate at which an editor counts the frames of a video (`video.Info`).

    A constant rate is the standard rate within a percent of it, or the smallest that is a multiple
    of it (24 for 12). A variable one is the standard rate of its timestamps, or the next above its
    mean; at low means that is 30.
    """
    mean = info.rate
    nearest = _nearest(mean)
    if not info.is_variable and abs(nearest / Fraction(mean) - 1) < _NEAR:
        return nearest
    base = _nearest(info.base_rate or mean)
    is_standard = info.base_rate and abs(base / Fraction(info.base_rate) - 1) < _NEAR
    if info.is_variable and is_standard and base > mean * 0.99 and base <= MAX_TIMECODE_RATE:
        return base
    multiples = sorted(_RATES, key=lambda rate: _multiple(rate, mean))
    above = [rate for rate in _RATES if rate > mean * 0.99]
    if not info.is_variable and _multiple(multiples[0], mean)[0] < math.inf:
        return multiples[0]
    if mean < _RATES[0]:
        return Fraction(30)
    return above[0] if above else Fraction(round(mean))


_NEAR = Fraction(1, 100)
"""Share by which a file's rate may differ from the standard rate that it means."""


def _nearest(rate: float) -> Fraction:
    return min(_RATES, key=lambda standard: abs(standard - Fraction(rate)))


def _multiple(rate: Fraction, mean: float) -> tuple[float, float]:
    """Count how often a rate contains another, with the error; infinite if it is no multiple."""
    times = round(float(rate) / mean)
    error = abs(float(rate) / times / mean - 1) if times else math.inf
    return (times, error) if times > 1 and error < float(_NEAR) / 2 else (math.inf, error)


class Timing(NamedTuple):
    """How the frames of a video are counted."""

    rate: Fraction  # frames a second
    drop: bool
    first: int  # the number of the file's first frame, from its timecode

    @classmethod
    def of(cls, info: Any, rate: Fraction | None = None) -> "Timing":
        """The timing of a video that was probed (`video.Info`), by default at its nominal rate."""
        rate = rate or nominal_rate(info)
        # Of timecodes, a semicolon or a dot before the frames says that numbers are dropped.
        drops = rate in _NTSC and round(rate) % 30 == 0
        drop = drops and (not info.timecode or info.timecode[-3] in ";.")
        own = cls(rate, drop, 0)
        return own._replace(first=own.number(info.timecode)) if info.timecode else own

    def frame(self, second: float) -> int:
        """The frame of the file at a second."""
        return round(Fraction(second) * self.rate)

    def number(self, timecode: str) -> int:
        """The number of the frame that has a timecode, HH:MM:SS:FF."""
        hours, minutes, seconds, frames = map(int, re.split("[:;.]", timecode))
        minutes += 60 * hours
        count = (60 * minutes + seconds) * round(self.rate) + frames
        return count - self._dropped * (minutes - minutes // 10) if self.drop else count

    def timecode(self, number: int) -> str:
        """The timecode of a frame's number, from 0 again after a day; the inverse of `number`."""
        nominal = round(self.rate)
        if self.drop:
            tens, rest = divmod(number, 600 * nominal - 9 * self._dropped)
            first = 60 * nominal  # of ten minutes, the first drops nothing
            later = max(rest - first, 0) // (first - self._dropped) + (rest >= first)
            number += self._dropped * (9 * tens + later)
        seconds, frames = divmod(number, nominal)
        minutes, hours = seconds // 60 % 60, seconds // 3600 % 24
        return f"{hours:02}:{minutes:02}:{seconds % 60:02}{';' if self.drop else ':'}{frames:02}"

    @property
    def _dropped(self) -> int:
        """Numbers that a minute leaves out."""
        return round(self.rate) // 15
