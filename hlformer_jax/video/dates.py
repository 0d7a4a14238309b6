"""Recording dates of videos, from their metadata."""

import contextlib
import re
from datetime import UTC, datetime

from av.container import InputContainer
from av.video.stream import VideoStream

_CLOCK_IS_SET = 2 * 86_400
"""Largest recording time, in seconds since 1970, that is ignored: the clock was never set."""

_CLOCK_RUNS_AHEAD = 2 * 86_400
"""Seconds by which a recording time may be later than now and is still accepted."""

_WRITTEN = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
"""Time at which this module was written; if this machine's clock is earlier, it is wrong."""

_RECORDED = (
    "com.apple.quicktime.creationdate",  # kept by phones when a clip is trimmed or sent
    "date_recorded",
    "creation_time",
    "date_utc",
    "creationdate",
    "date_digitized",
    "date_encoded",
    "modification_date",  # of MXF
    "date",
)
"""Names of metadata that state the time of recording, in lower case, the most reliable first."""

_DATE_FORMATS = (
    "%Y:%m:%d %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%a %b %d %H:%M:%S %Y", "%Y-%m-%d %H:%M:%S %Z",
)  # fmt: skip
"""Formats of dates besides ISO 8601, mostly from cameras that write AVI."""


def recording_time(container: InputContainer, stream: VideoStream) -> float:
    """Return the time of recording in seconds since the epoch; 0 if the file does not state it.

    Times without a time zone count as UTC, and days without a time as 10:00. Dates of a clock that
    was never set, and dates in the future, are ignored.

    Args:
      container: the open file.
      stream: its video stream; metadata of the file take precedence over its own.
    """
    stated: dict[str, str] = {}
    for metadata in (stream.metadata, container.metadata):  # the file's metadata take precedence
        stated |= {name.lower(): text.strip() for name, text in metadata.items()}
    if container.format.name != "avi" and "T" not in stated.get("date", ""):
        stated.pop("date", None)  # it is the date of publication
    current = max(datetime.now(UTC).timestamp(), _WRITTEN)
    for name in _RECORDED:
        time = _parse_date(stated.get(name, ""))
        if time is not None:
            with contextlib.suppress(ValueError, OverflowError):
                seconds = time.replace(tzinfo=time.tzinfo or UTC).timestamp()
                if _CLOCK_IS_SET < seconds < current + _CLOCK_RUNS_AHEAD:
                    return seconds
    return 0.0


def _parse_date(text: str) -> datetime | None:
    if re.fullmatch(r"\d{1,8}", text):  # a year alone, or a number
        return None
    for iso in (f"{text} 10", text):  # 10:00 UTC is on the same day from Hawaii to New Zealand
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(iso)
    for form in _DATE_FORMATS:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, form)
    return None
