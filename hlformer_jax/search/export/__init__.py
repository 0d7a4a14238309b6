"""Export of moments to files for other programs. The suffix of the path chooses the format.

    .csv             table with a row for each moment, which `cut --from` reads
    .m3u .m3u8       playlist for VLC that plays each moment from its start to its end
    .edl             CMX 3600 edit decision list: an event for each moment, one after the other
    .otio            OpenTimelineIO: a clip for each moment, with a marker at its best frame
    .fcpxml          Final Cut Pro: an event of the videos, with a keyword over each moment and a
                     marker at its best frame

Paths of videos are absolute. Second t of a video at rate r is its frame round(t r); a moment ends
before the frame at its end. docs/search/clips.md explains rates and timecodes.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.export import tables, timelines
from hlformer_jax.search.export.moments import ExportedMoment, clip_name
from hlformer_jax.search.export.tables import read_csv
from hlformer_jax.search.export.timecode import Timing, nominal_rate
from hlformer_jax.search.query.results import Result
from hlformer_jax.text import visible

__all__ = ["Timing", "check", "clip_name", "nominal_rate", "read_csv", "write"]


def write(
    path: str | os.PathLike[str],
    title: str,
    results: Sequence[Result],
    probe: Callable[[Path], Any],
    replace: files.Replace = files.Replace.NOTHING,
) -> int:
    """Write all moments of results to a file.

    Args:
      path: the file; its suffix chooses the format.
      title: title of the playlist or timeline.
      results: the results, best first.
      probe: function that reads the rate and length of a video (`hlformer_jax.video.probe`).
      replace: which existing files may be replaced.

    Returns:
      The number of moments.

    Raises:
      SearchError: for an unknown suffix, or an EDL of several rates.
      MissingExtra: for .otio without OpenTimelineIO.
      OutputError: if a file exists that must not be replaced.
    """
    path = Path(path)
    encode = check(path)
    moments = [
        ExportedMoment(rank, result, moment)
        for rank, result in enumerate(results, 1)
        for moment in result.moments
    ]
    content = encode(visible(" ".join(title.split())), moments, probe)
    files.write_bytes(path, content, replace)
    return len(moments)


def check(path: str | os.PathLike[str]) -> Callable[..., bytes]:
    """Return the function that encodes files of this suffix.

    Raises:
      SearchError: for an unknown suffix.
      MissingExtra: for .otio without OpenTimelineIO.
    """
    path = Path(path)
    encode = FORMATS.get(path.suffix.lower())
    if encode is None:
        suffix = repr(path.suffix) if path.suffix else "no suffix"
        raise SearchError(f"cannot export to {path} ({suffix}): use one of {', '.join(FORMATS)}")
    if encode is timelines.encode_otio:
        optional("opentimelineio", "editing")
    return encode


FORMATS: dict[str, Callable[..., bytes]] = {
    ".csv": tables.encode_csv, ".m3u": tables.encode_m3u, ".m3u8": tables.encode_m3u,
    ".edl": timelines.encode_edl, ".otio": timelines.encode_otio,
    ".fcpxml": timelines.encode_fcpxml,
}  # fmt: skip
"""Functions that encode moments, by the suffix of the file."""
