"""Moments as tables (CSV) and playlists (M3U)."""

import codecs
import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.search.export.moments import ExportedMoment
from hlformer_jax.search.times import format_date, parse_seconds
from hlformer_jax.text import visible

COLUMNS = "rank", "id", "video", "start", "end", "peak", "score", "by", "date", "path", "tags"

READ_COLUMNS = "id", "start", "end"
"""Columns that `read_csv` needs."""

DELIMITERS = ",;\t"
"""Characters that may separate the cells of a table: many spreadsheets use semicolons."""


def encode_csv(title: str, moments: Sequence[ExportedMoment], probe: Any) -> bytes:
    """Return a table with a row for each moment."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for rank, result, moment in moments:
        times = [f"{time:.3f}" for time in (moment.start, moment.end, moment.peak)]
        video, path, tags = map(
            _escape_cell, (result.video, str(result.path), "; ".join(result.tags))
        )
        by = f"{moment.score:.6g}", " and ".join(result.signals)
        # A spreadsheet would round an id such as 1234567890123456.
        id = f"'{result.id}" if re.fullmatch(r"\d+(e\d+)?", result.id) else result.id
        rows.writerow([rank, id, video, *times, *by, format_date(result.date), path, tags])
    return text.getvalue().encode("utf-8-sig")  # Excel recognises UTF-8 by the byte order mark


def _escape_cell(text: str) -> str:
    """Return visible text that no spreadsheet evaluates as a formula."""
    text = visible(text)
    return f"'{text}" if text.startswith(tuple("=+-@")) else text


def read_csv(path: str | os.PathLike[str]) -> list[tuple[str, float, float]]:
    """Read the id, start and end of each moment of a table that `encode_csv` made.

    A spreadsheet may have saved the table again: as UTF-8 or UTF-16, with cells separated by
    commas, semicolons or tabs. Times are in the forms of `parse_seconds`; decimals may follow a
    comma if the cells are separated by something else.

    Returns:
      The id, start and end of each moment; an empty list for a table without rows.

    Raises:
      SearchError: if the file is not such a table, or a line is not a row of it.
      OSError: if the file cannot be read.
    """
    path = Path(path)
    text = _decode(path, files.read_bytes(path))
    head = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(DELIMITERS, key=head.count))
    moments = []
    try:
        missing = [name for name in READ_COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise SearchError(
                f"{path} has no column {' and no column '.join(missing)}: give a table that"
                " query --export=FILE.csv wrote, with its first line"
            )
        for row in rows:
            place = f"{path}:{rows.line_num}"
            id = re.sub(r"^'(?=[0-9a-f]{16}$)", "", row["id"] or "")
            if not id:
                raise SearchError(f"{place}: the column id is empty: give the id of a video")
            start, end = (_read_time(place, row, name) for name in ("start", "end"))
            if end <= start:
                raise SearchError(
                    f"{place}: the end {row['end']!r} is not after the start {row['start']!r}"
                )
            moments.append((id, start, end))
    except csv.Error as error:
        raise SearchError(f"{path}:{rows.line_num}: not a row of a table ({error})") from None
    return moments


def _decode(path: Path, content: bytes) -> str:
    """Decode UTF-8 with or without a byte order mark, or UTF-16 with one.

    Raises:
      SearchError: if the content has another encoding.
    """
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        name = "UTF-16" if is_utf16 else "UTF-8"
        raise SearchError(
            f"{path} is not a table in {name}: save it as CSV in UTF-8, or in UTF-16 with a byte"
            " order mark"
        ) from None


def _read_time(place: str, row: Mapping[str, str | None], column: str) -> float:
    """Return the time in a column of a row.

    Raises:
      SearchError: if it is not a time; the message begins with `place`.
    """
    try:
        return parse_seconds((row[column] or "").strip().replace(",", "."))
    except SearchError as error:
        raise SearchError(f"{place}: the column {column}: {error}") from None


def encode_m3u(title: str, moments: Sequence[ExportedMoment], probe: Any) -> bytes:
    """Return a playlist with an entry for each moment."""
    lines = ["#EXTM3U", f"#PLAYLIST:{title}"]
    for exported in moments:
        start, end = exported.moment.start, exported.moment.end
        lines += [
            f"#EXTINF:{round(end - start)},{exported.title}",
            f"#EXTVLCOPT:start-time={start:.3f}", f"#EXTVLCOPT:stop-time={end:.3f}",
            exported.result.path.as_uri(),
        ]  # fmt: skip
    return "\n".join([*lines, ""]).encode()
