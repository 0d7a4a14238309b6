"""Parsing and formatting of times: seconds of a video, and dates.

A date is ISO 8601, complete or shortened, by default in the time zone of this machine.
"""

import datetime
import math
import re
from typing import Any

import numpy as np

from hlformer_jax.errors import SearchError
from hlformer_jax.text import shown

When = str | datetime.date | None
"""A date: ISO 8601, complete or shortened, or a date or datetime of Python; None: no date."""

FORMS = "write 2026, 2026-01, 2026-01-10, 20260110 or 2026-01-10T18:30"

YEARS = range(1900, 10_000)
"""Years of dates; after 9000 the time zone is unknown on some machines."""

SECONDS_AFTER_END = 1.0
"""Longest time after the stated end of a video that may belong to it; lengths are rounded."""

_ISO = re.compile(
    r"(?P<year>[0-9]{4})|(?P<month>[0-9]{4}-[0-9]{2})"
    r"|(?P<day>[0-9]{4}(-?)[0-9]{2}\4[0-9]{2})"
    r"(?:[T ](?P<hour>[0-9]{2})(?::?(?P<minute>[0-9]{2})(?::?(?P<second>[0-9]{2})"
    r"(?P<instant>[.,][0-9]+)?)?)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
"""A date; the last group that matches is the name of its smallest unit."""

_TIME = re.compile(
    r"(?:\d+|\d+:[0-5]?\d|\d+:[0-5]?\d:[0-5]?\d)(?:\.\d*)?s?"  # 90:30 is an hour and a half
)
MAX_SECONDS = 1e7
"""Largest time in a video, in seconds (115 days)."""

_LENGTHS = {
    "day": datetime.timedelta(days=1),
    "hour": datetime.timedelta(hours=1),
    "minute": datetime.timedelta(minutes=1),
    "second": datetime.timedelta(seconds=1),
    "instant": datetime.timedelta(microseconds=1),
}


def parse_moment(text: str) -> tuple[str, float]:
    """Parse VIDEO@TIME; return the video, which is a path or an id, and the second.

    Raises:
      SearchError: if the text has no @, or no time after the last one.
    """
    video, _, time = text.rpartition("@")
    if not video:
        raise SearchError(
            f"{text!r} is not VIDEO@TIME: write a path or id and a time, such as trips/a.mp4@1:05"
        )
    return video, parse_seconds(time)


def parse_seconds(text: str) -> float:
    """Parse a time: seconds, M:SS or H:MM:SS, each with optional decimals; return seconds.

    Raises:
      SearchError: if the text is not a time, or a time above `MAX_SECONDS`.
    """
    if not _TIME.fullmatch(text):
        raise SearchError(
            f"{shown(text)} is not a time: write seconds, M:SS or H:MM:SS, with MM and SS below 60"
        )
    total = 0.0
    for part in text.removesuffix("s").split(":"):
        total = 60 * total + float(part)
    if total > MAX_SECONDS:
        raise SearchError(
            f"{shown(text)} is not a time in a video: give at most {MAX_SECONDS:.0f} s"
        )
    return total


def format_clock(seconds: float) -> str:
    """Format seconds as 7:05 or 1:07:05, rounded down."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def date_span(when: str | datetime.date) -> tuple[float, float]:
    """Return start and end of a date, in seconds since the epoch.

    Args:
      when: a year, month, day or time; by default in the time zone of this machine.

    Returns:
      The start, and the start of the next such date; infinity if Python cannot represent that.

    Raises:
      SearchError: if `when` is not a date, or its year is not in `YEARS`.
    """
    try:
        start, end = _bounds(when)
        if end is None:
            return _timestamp(start), math.inf
        # A date in an hour that the end of summer time repeats includes the second time.
        last = (end - datetime.timedelta(seconds=1)).replace(fold=1)
        return _timestamp(start), max(_timestamp(end), _timestamp(last) + 1)
    except (ValueError, OverflowError):
        raise SearchError(f"{when!r} is not a date: {FORMS}") from None


def _timestamp(time: datetime.datetime) -> float:
    """Return seconds since the epoch; in UTC if this machine's time zone is unknown."""
    try:
        return time.timestamp()
    except (ValueError, OverflowError, OSError):
        return time.replace(tzinfo=datetime.UTC).timestamp()


def format_date(seconds: float) -> str:
    """Format seconds since the epoch as ISO 8601 in local time, or in UTC beyond Python's range."""
    try:
        return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{np.datetime64(int(seconds), 's')}Z"


def _bounds(when: object) -> tuple[datetime.datetime, datetime.datetime | None]:
    """Return the start of a date and the start of the next one; None if that is after 9999."""
    if isinstance(when, datetime.datetime):
        start, unit = when, "instant"
    elif isinstance(when, datetime.date):
        start, unit = datetime.datetime.combine(when, datetime.time.min), "day"
    else:
        start, unit = _parse(when)
    if start.year not in YEARS:
        raise ValueError
    try:
        if unit == "year":
            return start, start.replace(year=start.year + 1)
        if unit == "month":
            return start, (start + datetime.timedelta(days=31)).replace(day=1)
        return start, start + _LENGTHS[unit]
    except (ValueError, OverflowError):
        return start, None


def _parse(when: object) -> tuple[datetime.datetime, str]:
    """Return the start of a written date, and its smallest unit."""
    match = _ISO.fullmatch(when.strip()) if isinstance(when, str) else None
    if match is None:
        raise ValueError
    unit: Any = match.lastgroup
    rest = {"year": "-01-01", "month": "-01"}.get(unit, "")
    # Python refuses a time in which only one of two colons is missing.
    return datetime.datetime.fromisoformat(match[0].replace(":", "") + rest), unit
