"""Frame rates and timecodes of videos, as editing programs count them.

Drop-frame timecode, at 29.97 (or 59.94) frames a second, leaves out the first 2 (or 4) numbers of
every minute except each tenth. So it keeps up with the clock.
"""

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

_NTSC_RATES = [Fraction(count * 1000, 1001) for count in (24, 30, 48, 60, 120)]
_STANDARD_RATES = sorted([*_NTSC_RATES, *map(Fraction, (24, 25, 30, 48, 50, 60, 100, 120))])

_SLOW_MOTION_RATES = [
    *(Fraction(count * 1000, 1001) for count in (240, 480, 960)),
    *map(Fraction, (200, 240, 300, 400, 480, 500, 600, 960, 1000)),
]
"""Rates of cameras for slow motion. A file with a lower rate is never counted at one of them."""

MAX_TIMECODE_RATE = 60
"""Highest rate of timecode, which has two digits for frames; see `timecode_rate`."""

_RATE_TOLERANCE = Fraction(1, 100)
"""Share by which the rate of a file may differ from the standard rate that it means."""


def nominal_rate(info: Any) -> Fraction:
    """Return the rate at which an editing program counts the frames of a video.

    For a constant rate this is the standard rate within a percent of it, or else the smallest
    standard rate that is a multiple of it (24 for 12). For a variable rate it is the standard rate
    of the timestamps, or the next above the mean rate; 30 if the mean is below all of them.

    Args:
      info: facts of the video (`video.Info`).
    """
    mean = info.rate
    nearest = _nearest_standard(mean)
    if not info.is_variable and abs(nearest / Fraction(mean) - 1) < _RATE_TOLERANCE:
        return nearest
    base = _nearest_standard(info.base_rate)
    is_standard = info.base_rate and abs(base / Fraction(info.base_rate) - 1) < _RATE_TOLERANCE
    if info.is_variable and is_standard and base > mean * 0.99 and base <= MAX_TIMECODE_RATE:
        return base
    multiples = sorted(_STANDARD_RATES, key=lambda rate: _multiple(rate, mean))
    higher = [rate for rate in _STANDARD_RATES if rate > mean * 0.99]
    if not info.is_variable and _multiple(multiples[0], mean)[0] < math.inf:
        return multiples[0]
    if mean < _STANDARD_RATES[0]:
        return Fraction(30)
    return higher[0] if higher else Fraction(round(mean))


def timecode_rate(rate: Fraction) -> Fraction:
    """Return the rate at which timecode counts a video: its rate up to `MAX_TIMECODE_RATE`.

    Of a faster video it is the highest standard rate that divides the rate (50 for 1000), or else
    `MAX_TIMECODE_RATE`.
    """
    if rate <= MAX_TIMECODE_RATE:
        return rate
    divisors = [
        standard
        for standard in _STANDARD_RATES
        if standard <= MAX_TIMECODE_RATE and (rate / standard).denominator == 1
    ]
    return max(divisors, default=Fraction(MAX_TIMECODE_RATE))


def _nearest_standard(rate: float) -> Fraction:
    rates = [*_STANDARD_RATES, *_SLOW_MOTION_RATES]
    return min(rates, key=lambda standard: abs(standard - Fraction(rate)))


def _multiple(rate: Fraction, mean: float) -> tuple[float, float]:
    """Return how many times a rate contains another, and the error; infinite if not a multiple."""
    times = round(float(rate) / mean)
    error = abs(float(rate) / times / mean - 1) if times else math.inf
    is_near = error < float(_RATE_TOLERANCE) / 2
    return (times, error) if is_near else (math.inf, error)


class Timing(NamedTuple):
    """Frame rate and timecode of a video."""

    rate: Fraction  # frames a second
    drop: bool  # drop-frame timecode
    first: int  # number of the file's first frame, from its timecode

    @classmethod
    def from_info(cls, info: Any, rate: Fraction | None = None) -> "Timing":
        """Return the timing of a probed video (`video.Info`), by default at its nominal rate."""
        rate = rate or nominal_rate(info)
        has_drop_frame = rate in _NTSC_RATES and round(rate) % 30 == 0
        # A semicolon or a dot before the frames marks drop-frame timecode.
        drop = has_drop_frame and (not info.timecode or info.timecode[-3] in ";.")
        timing = cls(rate, drop, 0)
        return timing._replace(first=timing.number(info.timecode)) if info.timecode else timing

    def frame(self, second: float) -> int:
        """Return the frame of the file at a second."""
        return round(Fraction(second) * self.rate)

    def number(self, timecode: str) -> int:
        """Return the number of the frame with a timecode HH:MM:SS:FF."""
        hours, minutes, seconds, frames = map(int, re.split("[:;.]", timecode))
        minutes += 60 * hours
        count = (60 * minutes + seconds) * round(self.rate) + frames
        return count - self._dropped * (minutes - minutes // 10) if self.drop else count

    def timecode(self, number: int) -> str:
        """Return the timecode of a frame number: the inverse of `number`, modulo a day."""
        nominal = round(self.rate)
        if self.drop:
            tens, rest = divmod(number, 600 * nominal - 9 * self._dropped)
            first_minute = 60 * nominal  # the first of ten minutes drops nothing
            later = max(rest - first_minute, 0) // (first_minute - self._dropped)
            number += self._dropped * (9 * tens + later + (rest >= first_minute))
        seconds, frames = divmod(number, nominal)
        minutes, hours = seconds // 60 % 60, seconds // 3600 % 24
        return f"{hours:02}:{minutes:02}:{seconds % 60:02}{';' if self.drop else ':'}{frames:02}"

    @property
    def _dropped(self) -> int:
        """Numbers left out in a minute."""
        return round(self.rate) // 15
