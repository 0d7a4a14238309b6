"""Times as people write them and read them: seconds of a video, and dates.

A date is ISO 8601, whole or its beginning. One without a time zone is of this machine's.
"""

import datetime
import math
import re

import numpy as np

from hlformer_jax.errors import SearchError

When = str | datetime.date | None
"""A date as ISO 8601 writes it, whole or its beginning; a date or a time of Python."""

FORMS = "write 2026, 2026-01, 2026-01-10, 20260110 or 2026-01-10T18:30"

YEARS = range(1900, 10_000)
"""Years of dates; after 9000 some machines do not know their own time zone any more."""

_ISO = re.compile(
    r"(?P<year>[0-9]{4})"
    r"(?:-(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?|(?P<month2>[0-9]{2})(?P<day2>[0-9]{2}))?"
    r"(?:[T ](?P<hour>[0-9]{2})(?::?(?P<minute>[0-9]{2})(?::?(?P<second>[0-9]{2})"
    r"(?P<part>[.,][0-9]+)?)?)?(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_LENGTHS = {
    "hour": datetime.timedelta(hours=1),
    "minute": datetime.timedelta(minutes=1),
    "second": datetime.timedelta(seconds=1),
}


def parse_moment(text: str) -> tuple[str, float]:
    """The video, a path or an id, and the second that VIDEO@TIME names."""
    video, _, time = text.rpartition("@")
    if not video:
        raise SearchError(f"{text!r} names no instant: write VIDEO@TIME, such as trips/a.mp4@1:05")
    return video, parse_seconds(time)


def parse_seconds(text: str) -> float:
    """A time of an option: seconds, M:SS or H:MM:SS, each with decimals where wanted."""
    if not re.fullmatch(r"(?:(?:\d+:)?\d+:)?\d+(?:\.\d*)?s?", text):
        raise SearchError(f"{text!r} is no time: write seconds, M:SS or H:MM:SS")
    total = 0.0
    for part in text.removesuffix("s").split(":"):
        total = 60 * total + float(part)
    return total


def format_clock(seconds: float) -> str:
    """A time as a person reads it: 7:05 or 1:07:05, seconds rounded down."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def date_span(when: str | datetime.date) -> tuple[float, float]:
    """The first second of a date, a time of any unit, and the first after it, since the epoch.

    What names no time zone is of this machine's.

    Raises:
      SearchError: when it is no date, or its year is not within `YEARS`.
    """
    try:
        begin, end = _bounds(when)
        return _timestamp(begin), math.inf if end is None else _timestamp(end)
    except (ValueError, OverflowError):
        raise SearchError(f"{when!r} is no date: {FORMS}") from None


def _timestamp(time: datetime.datetime) -> float:
    """Return seconds since the epoch; UTC where this machine's time zone is not known."""
    try:
        return time.timestamp()
    except (ValueError, OverflowError, OSError):
        return time.replace(tzinfo=datetime.UTC).timestamp()


def format_date(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 writes them here, or in UTC where Python cannot."""
    try:
        return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{np.datetime64(int(seconds), 's')}Z"


def _bounds(when: object) -> tuple[datetime.datetime, datetime.datetime | None]:
    """Return the first instant of a date and the first after it; None after the year 9999."""
    if isinstance(when, datetime.datetime):
        begin, unit = when, "instant"
    elif isinstance(when, datetime.date):
        begin, unit = datetime.datetime.combine(when, datetime.time.min), "day"
    else:
        begin, unit = _parsed(when)
    if begin.year not in YEARS:
        raise ValueError
    try:
        if unit == "year":
            return begin, begin.replace(year=begin.year + 1)
        if unit == "month":
            return begin, (begin + datetime.timedelta(days=31)).replace(day=1)
        if unit == "day":
            return begin, begin + datetime.timedelta(days=1)
        return begin, begin + _LENGTHS.get(unit, datetime.timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return begin, None


def _parsed(when: object) -> tuple[datetime.datetime, str]:
    """The beginning of a date that is written, and the least unit that it names."""
    match = _ISO.fullmatch(when.strip()) if isinstance(when, str) else None
    if match is None:
        raise ValueError
    part = match.groupdict()
    month, day = part["month"] or part["month2"], part["day"] or part["day2"]
    if part["hour"] and not day:
        raise ValueError
    clock = f"{part['hour'] or '00'}:{part['minute'] or '00'}:{part['second'] or '00'}"
    digits = (part["part"] or "").replace(",", ".")[:7]
    text = f"{part['year']}-{month or '01'}-{day or '01'}T{clock}{digits}{part['zone'] or ''}"
    units = {
        "instant": digits, "second": part["second"], "minute": part["minute"],
        "hour": part["hour"], "day": day, "month": month, "year": True,
    }  # fmt: skip
    least = next(unit for unit, there in units.items() if there)
    return datetime.datetime.fromisoformat(text), least
