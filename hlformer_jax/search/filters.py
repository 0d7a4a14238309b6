"""Filters of a search: by folder, and by a video's date.

The date is that of its recording where the file states one, else that of its last modification.
"""

import datetime
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import Bool

from hlformer_jax.errors import suggestion
from hlformer_jax.search.errors import SearchError, legible
from hlformer_jax.search.index import Entry

When = str | datetime.date | None
"""A date as ISO 8601 writes it, whole or its beginning; a date or a time of Python."""

FORMS = "write 2026, 2026-01, 2026-01-10, 20260110 or 2026-01-10T18:30"

YEARS = range(1900, 9001)
"""Whose seconds since the epoch every machine can tell."""

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


def mask(
    entries: Sequence[Entry], folder: str | None, since: When, until: When
) -> Bool[np.ndarray, " V"]:
    """Which videos a search may return; see `Library.query`.

    Raises:
      SearchError: when one is no date, or there is no such folder.
    """
    kept = np.ones(len(entries), bool)
    folder = legible(folder or "")  # as it is shown: bytes that are no text are typed by nobody
    wanted = PurePosixPath(folder.strip("/")).parts
    if wanted:
        folders = [PurePosixPath(legible(one.folder)).parts[: len(wanted)] for one in entries]
        kept &= np.asarray([parts == wanted for parts in folders], bool)
        if not kept.any():
            near = suggestion(folder, {legible(entry.folder) for entry in entries})
            raise SearchError(f"the index has no videos in a folder {folder!r}{near}")
    dates = np.asarray([entry.date for entry in entries], np.float64)
    if since is not None:
        kept &= dates >= span(since)[0]
    if until is not None:
        kept &= dates < span(until)[1]
    return kept


def span(when: str | datetime.date) -> tuple[float, float]:
    """The first second of a date, a time of any unit, and the first after it, since the epoch.

    What names no time zone is of this machine's.

    Raises:
      SearchError: when it is no date, or its year is not within `YEARS`.
    """
    try:
        begin, end = _bounds(when)
        return begin.timestamp(), end.timestamp()
    except (ValueError, OverflowError):
        raise SearchError(f"{when!r} is no date: {FORMS}") from None


def iso(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 writes them here, or in UTC where Python cannot."""
    try:
        return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{np.datetime64(int(seconds), 's')}Z"


def _bounds(when: object) -> tuple[datetime.datetime, datetime.datetime]:
    if isinstance(when, datetime.datetime):
        begin, unit = when, "instant"
    elif isinstance(when, datetime.date):
        begin, unit = datetime.datetime.combine(when, datetime.time.min), "day"
    else:
        begin, unit = _parsed(when)
    if begin.year not in YEARS:
        raise ValueError
    if unit == "year":
        return begin, begin.replace(year=begin.year + 1)
    if unit == "month":
        return begin, (begin + datetime.timedelta(days=31)).replace(day=1)
    if unit == "day":
        return begin, begin + datetime.timedelta(days=1)
    return begin, begin + _LENGTHS.get(unit, datetime.timedelta(microseconds=1))


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
