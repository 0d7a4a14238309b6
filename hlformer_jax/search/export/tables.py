"""Moments as tables and playlists: CSV and M3U."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.search.export.moments import Part
from hlformer_jax.search.times import format_date
from hlformer_jax.text import legible

COLUMNS = "rank", "id", "video", "start", "end", "peak", "score", "by", "date", "path", "tags"


def write_csv(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    """Return a table of moments, a row for each."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    for rank, result, moment in parts:
        times = [f"{time:.3f}" for time in (moment.start, moment.end, moment.peak)]
        video, path, tags = map(_cell, (result.video, str(result.path), "; ".join(result.tags)))
        by = f"{moment.score:.6g}", " and ".join(result.signals)
        rows.writerow([rank, result.id, video, *times, *by, format_date(result.date), path, tags])
    return text.getvalue().encode("utf-8-sig")  # its mark tells Excel the encoding


def _cell(text: str) -> str:
    """A text, legible, that no spreadsheet takes for a formula."""
    text = legible(text)
    return f"'{text}" if text.startswith(tuple("=+-@\t\r")) else text


def read_csv(path: Path) -> list[tuple[str, float, float]]:
    """Id, start and end of the moments of a file that `write_csv` wrote, in its order.

    Raises:
      SearchError: when it is none; names the line.
      OSError: when it cannot be read.
    """
    try:
        rows = csv.DictReader(io.StringIO(files.read_bytes(path).decode("utf-8-sig"), newline=""))
        listed = []
        for row in rows:
            start, end = float(row["start"]), float(row["end"])
            if not 0 <= start < end < float("inf"):
                raise ValueError("the end is not after the start")
            listed.append((row["id"], start, end))
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        line = rows.line_num if "rows" in locals() else 1
        raise SearchError(
            f"{path}:{line}: this is no row of what query --export=FILE.csv writes"
            f" ({type(error).__name__} {error})"
        ) from None
    return listed


def write_m3u(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    """Return a playlist of moments."""
    lines = ["#EXTM3U", f"#PLAYLIST:{title}"]
    for part in parts:
        start, end = part.moment.start, part.moment.end
        lines += [
            f"#EXTINF:{round(end - start)},{part.title}",
            f"#EXTVLCOPT:start-time={start:.3f}", f"#EXTVLCOPT:stop-time={end:.3f}",
            part.result.path.as_uri(),
        ]  # fmt: skip
    return "\n".join([*lines, ""]).encode()
