"""Moments as tables (CSV) and playlists (M3U)."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.search.export.moments import ExportedMoment
from hlformer_jax.search.times import format_date
from hlformer_jax.text import visible

COLUMNS = "rank", "id", "video", "start", "end", "peak", "score", "by", "date", "path", "tags"


def encode_csv(title: str, moments: Sequence[ExportedMoment], probe: Any) -> bytes:
    """Return a table with a row for each moment."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for rank, result, moment in moments:
        times = [f"{time:.3f}" for time in (moment.start, moment.end, moment.peak)]
        video, path, tags = map(
            _escape_cell, (result.video, str(result.path), "; ".join(result.tags))
        )
        by = f"{moment.score:.6g}", " and ".join(result.signals)
        rows.writerow([rank, result.id, video, *times, *by, format_date(result.date), path, tags])
    return text.getvalue().encode("utf-8-sig")  # Excel recognises UTF-8 by the byte order mark


def _escape_cell(text: str) -> str:
    """Return visible text that no spreadsheet evaluates as a formula."""
    text = visible(text)
    return f"'{text}" if text.startswith(tuple("=+-@")) else text


def read_csv(path: Path) -> list[tuple[str, float, float]]:
    """Read the id, start and end of each moment of a table that `encode_csv` made.

    Raises:
      SearchError: if a line is not a row of such a table.
      OSError: if the file cannot be read.
    """
    try:
        rows = csv.DictReader(io.StringIO(files.read_bytes(path).decode("utf-8-sig"), newline=""))
        moments = []
        for row in rows:
            start, end = float(row["start"]), float(row["end"])
            if not 0 <= start < end < float("inf"):
                raise ValueError("the end is not after the start")
            moments.append((row["id"], start, end))
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        line = rows.line_num if "rows" in locals() else 1
        raise SearchError(
            f"{path}:{line}: not a row of a table that query --export=FILE.csv wrote"
            f" ({type(error).__name__} {error})"
        ) from None
    return moments


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
