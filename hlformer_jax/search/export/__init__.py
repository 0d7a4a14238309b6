"""Moments of results as files for other programs; the suffix of the path chooses the format.

    .csv             a row for each moment, which `cut --from` reads
    .m3u .m3u8       a playlist whose entries begin and end with the moments, as VLC reads it
    .edl             CMX 3600: an event for each moment, one after the other
    .otio            OpenTimelineIO: a clip for each moment, with a marker at its best frame
    .fcpxml          Final Cut Pro: an event of the videos, a keyword over each moment, and a
                     marker at its best frame

Videos are named by their absolute paths. Second t of a video of rate r is its frame round(t r), and
the last frame of a moment is the one before its end. docs/search.md says which rate and which
timecode a file has.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.export import tables, timelines
from hlformer_jax.search.export.moments import Part, clip_name
from hlformer_jax.search.export.tables import read_csv
from hlformer_jax.search.export.timecode import Timing, nominal_rate
from hlformer_jax.search.query.results import Result
from hlformer_jax.text import legible

__all__ = ["Timing", "check", "clip_name", "nominal_rate", "read_csv", "write"]


def write(
    path: Path,
    title: str,
    results: Sequence[Result],
    probe: Callable[[Path], Any],
    replace: files.Replace = files.Replace.NOTHING,
) -> int:
    """Writes all moments of results; returns how many. `probe` is that of `hlformer_jax.video`.

    Raises:
      SearchError: for an unknown suffix, or an EDL of several rates.
      MissingExtra: for .otio without its library.
      OutputError: when something stands there that must stay.
    """
    form = check(path)
    parts = [
        Part(rank, result, moment)
        for rank, result in enumerate(results, 1)
        for moment in result.moments
    ]
    files.write_bytes(path, form(" ".join(legible(title).split()), parts, probe), replace)
    return len(parts)


def check(path: Path) -> Callable[..., bytes]:
    """What writes files of that suffix, or a `SearchError`."""
    form = _FORMATS.get(path.suffix.lower())
    if form is None:
        raise SearchError(f"--export={path}: its suffix says as what; use {', '.join(_FORMATS)}")
    if form is timelines.write_otio:
        optional("opentimelineio", "editing")
    return form


_FORMATS = {
    ".csv": tables.write_csv, ".m3u": tables.write_m3u, ".m3u8": tables.write_m3u,
    ".edl": timelines.write_edl, ".otio": timelines.write_otio, ".fcpxml": timelines.write_fcpxml,
}  # fmt: skip
