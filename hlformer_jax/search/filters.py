"""Filters of a search: by folder, and by the date of a video's last modification."""

import datetime
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import Bool

from hlformer_jax.errors import suggestion
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Entry

When = float | str | datetime.date | None
"""Seconds since the epoch, a date with or without a time, or such a text as 2026-11-22."""


def mask(
    entries: Sequence[Entry], folder: str | None, since: When, until: When
) -> Bool[np.ndarray, " V"]:
    """Which videos a search may find.

    Args:
      entries: the videos.
      folder: path relative to the indexed folder; the videos in it and below. None or "": all.
      since: the earliest time of modification.
      until: the latest; a date without a time counts to its end.

    Raises:
      SearchError: when a text is no date, or there is no such folder.
    """
    kept = np.ones(len(entries), bool)
    wanted = () if folder is None else PurePosixPath(folder.strip("/")).parts
    if wanted:
        folders = [PurePosixPath(entry.folder).parts[: len(wanted)] for entry in entries]
        kept &= np.asarray([parts == wanted for parts in folders], bool)
        if not kept.any():
            near = suggestion(folder, {entry.folder for entry in entries})
            raise SearchError(f"the index has no videos in a folder {folder!r}{near}")
    modified = np.asarray([entry.modified for entry in entries], np.float64)
    if since not in (None, ""):
        kept &= modified >= seconds(since)
    if until not in (None, ""):
        kept &= modified <= seconds(until, end=True)
    return kept


def seconds(when: When, end: bool = False) -> float:
    """Seconds since the epoch.

    Args:
      when: a time; a date and a text are of this machine's time zone, where they name none.
      end: whether a date without a time means its end.

    Raises:
      SearchError: when a text is no date.
    """
    if isinstance(when, str):
        try:
            return float(when)
        except ValueError:
            pass
        try:
            when = (
                datetime.date.fromisoformat(when)
                if len(when) <= 10
                else datetime.datetime.fromisoformat(when)
            )
        except ValueError:
            raise SearchError(f"{when!r} is no date: write it as 2026-11-22") from None
    if isinstance(when, datetime.datetime):
        return when.timestamp()
    if isinstance(when, datetime.date):
        last = datetime.time.max if end else datetime.time.min
        return datetime.datetime.combine(when, last).timestamp()
    return float(when or 0)
