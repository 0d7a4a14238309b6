"""The moments of results as files for other programs; the suffix says as what.

    .csv             a row for each moment, which `cut --from` reads
    .m3u .m3u8       a playlist whose entries begin and end with the moments, as VLC reads it
    .edl             CMX 3600: an event for each moment, one after the other
    .otio            OpenTimelineIO: a clip for each moment, with a marker at its best frame
    .fcpxml          Final Cut Pro: an event of the videos, a keyword over each moment, and a
                     marker at its best frame

Videos are named by their absolute paths. Second t of a video of rate r is its frame round(t r), and
the last frame of a moment is the one before its end. docs/search.md says which rate and which
timecode a file has. "Drop frame" leaves out the first 2 or 4 numbers of every minute but each
tenth, at 29.97 and 59.94 frames a second, so that timecode keeps up with the clock.
"""

import csv
import hashlib
import io
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from hlformer_jax import files
from hlformer_jax.errors import SearchError, legible, optional
from hlformer_jax.retrieval.localisation import Moment
from hlformer_jax.search.query.results import Result
from hlformer_jax.search.times import format_date

_NTSC = [Fraction(count * 1000, 1001) for count in (24, 30, 48, 60, 120)]
_RATES = sorted([*_NTSC, *map(Fraction, (24, 25, 30, 48, 50, 60, 100, 120))])

_MAX_TIMECODE_RATE = 60
"""Frames a second above which timecode (two digits of frames, up to 59) counts every second one."""


def nominal_rate(info: Any) -> Fraction:
    """Return the rate at which an editor counts the frames of a video (`video.Info`).

    A constant rate is the standard rate within a percent of it, or the smallest that is a multiple
    of it (24 for 12). A variable one is the standard rate of its timestamps, or the next above its
    mean; at low means that is 30.
    """
    mean = info.rate
    nearest = _nearest(mean)
    if not info.is_variable and abs(nearest / Fraction(mean) - 1) < _NEAR:
        return nearest
    base = _nearest(info.base_rate or mean)
    is_standard = info.base_rate and abs(base / Fraction(info.base_rate) - 1) < _NEAR
    if info.is_variable and is_standard and base > mean * 0.99 and base <= _MAX_TIMECODE_RATE:
        return base
    multiples = sorted(_RATES, key=lambda rate: _multiple(rate, mean))
    above = [rate for rate in _RATES if rate > mean * 0.99]
    if not info.is_variable and _multiple(multiples[0], mean)[0] < math.inf:
        return multiples[0]
    if mean < _RATES[0]:
        return Fraction(30)
    return above[0] if above else Fraction(round(mean))


_NEAR = Fraction(1, 100)
"""Share by which a file's rate may differ from the standard rate that it means."""


def _nearest(rate: float) -> Fraction:
    return min(_RATES, key=lambda standard: abs(standard - Fraction(rate)))


def _multiple(rate: Fraction, mean: float) -> tuple[float, float]:
    """Count how often a rate contains another, with the error; infinite if it is no multiple."""
    times = round(float(rate) / mean)
    error = abs(float(rate) / times / mean - 1) if times else math.inf
    return (times, error) if times > 1 and error < float(_NEAR) / 2 else (math.inf, error)


class Timing(NamedTuple):
    """How the frames of a video are counted."""

    rate: Fraction  # frames a second
    drop: bool
    first: int  # the number of the file's first frame, from its timecode

    @classmethod
    def of(cls, info: Any, rate: Fraction | None = None) -> "Timing":
        """The timing of a video that was probed (`video.Info`), by default at its nominal rate."""
        rate = rate or nominal_rate(info)
        # Of timecodes, a semicolon or a dot before the frames says that numbers are dropped.
        drops = rate in _NTSC and round(rate) % 30 == 0
        drop = drops and (not info.timecode or info.timecode[-3] in ";.")
        own = cls(rate, drop, 0)
        return own._replace(first=own.number(info.timecode)) if info.timecode else own

    def frame(self, second: float) -> int:
        """The frame of the file at a second."""
        return round(Fraction(second) * self.rate)

    def number(self, timecode: str) -> int:
        """The number of the frame that has a timecode, HH:MM:SS:FF."""
        hours, minutes, seconds, frames = map(int, re.split("[:;.]", timecode))
        minutes += 60 * hours
        count = (60 * minutes + seconds) * round(self.rate) + frames
        return count - self._dropped * (minutes - minutes // 10) if self.drop else count

    def timecode(self, number: int) -> str:
        """The timecode of a frame's number, from 0 again after a day; the inverse of `number`."""
        nominal = round(self.rate)
        if self.drop:
            tens, rest = divmod(number, 600 * nominal - 9 * self._dropped)
            first = 60 * nominal  # of ten minutes, the first drops nothing
            later = max(rest - first, 0) // (first - self._dropped) + (rest >= first)
            number += self._dropped * (9 * tens + later)
        seconds, frames = divmod(number, nominal)
        minutes, hours = seconds // 60 % 60, seconds // 3600 % 24
        return f"{hours:02}:{minutes:02}:{seconds % 60:02}{';' if self.drop else ':'}{frames:02}"

    @property
    def _dropped(self) -> int:
        """Numbers that a minute leaves out."""
        return round(self.rate) // 15


class Part(NamedTuple):
    """A moment of a result."""

    rank: int
    result: Result
    moment: Moment

    @property
    def title(self) -> str:
        """Its video's name on one line."""
        return " ".join(legible(self.result.path.name).split())


COLUMNS = "rank", "id", "video", "start", "end", "peak", "score", "by", "date", "path", "tags"


def write(
    path: Path,
    title: str,
    results: Sequence[Result],
    probe: Callable[[Path], Any],
    replace: files.Replace = "none",
) -> int:
    """Writes all moments of results; returns how many. `probe` is that of `hlformer_jax.video`.

    Raises:
      SearchError: for an unknown suffix, or an EDL of several rates.
      MissingExtra: for .otio without its library.
      OutputError: when something stands there that must stay.
    """
    form = check(path)
    parts = [
        Part(rank, result, one) for rank, result in enumerate(results, 1) for one in result.moments
    ]
    files.write_bytes(path, form(" ".join(legible(title).split()), parts, probe), replace)
    return len(parts)


def check(path: Path) -> Callable[..., bytes]:
    """What writes files of that suffix, or a `SearchError`."""
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise SearchError(f"--export={path}: its suffix says as what; use {', '.join(_FORMS)}")
    if form is _otio:
        optional("opentimelineio", "editing")
    return form


MAX_NAME = 200
"""Bytes of a video's path that fit into a clip's name, which may have 255 with its draft's."""


def clip_name(video: str, start: float, end: float) -> str:
    """The name of a clip: another for every video (its slashes written %2F) and part of it."""
    times = "-".join(f"{time:.6f}".rstrip("0").rstrip(".") for time in (start, end))
    name = video.replace("%", "%25").replace("/", "%2F")
    if legible(name) != name or len(os.fsencode(name)) > MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16] + legible(Path(video).suffix)
    return f"{name}_{times}.mp4"


def _csv(title: str, parts: Sequence[Part], probe: Any) -> bytes:
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
    """Id, start and end of the moments of a file that `_csv` wrote, in its order.

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


def _m3u(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    lines = ["#EXTM3U", f"#PLAYLIST:{title}"]
    for part in parts:
        start, end = part.moment.start, part.moment.end
        lines += [
            f"#EXTINF:{round(end - start)},{part.title}",
            f"#EXTVLCOPT:start-time={start:.3f}", f"#EXTVLCOPT:stop-time={end:.3f}",
            part.result.path.as_uri(),
        ]  # fmt: skip
    return "\n".join([*lines, ""]).encode()


def _edl(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    timings = _edl_timings(parts, probe)
    ways = {(timing.rate, timing.drop) for timing in timings.values()}
    if len(ways) > 1:
        known = ", ".join(sorted(f"{float(rate):.5g}{' drop frame' * drop}" for rate, drop in ways))
        raise SearchError(
            f"an EDL has one rate, and these videos have several ({known}): narrow the query by"
            " --folder, or export .otio"
        )
    drops = any(drop for _, drop in ways)
    lines = [f"TITLE: {title}", f"FCM: {'DROP' if drops else 'NON-DROP'} FRAME", ""]
    recorded = 0
    for event, part in enumerate(parts, 1):
        timing = timings[part.result.path]
        first, count = _frames(timing, part.moment)
        places = timing.first + first, timing.first + first + count, recorded, recorded + count
        recorded += count
        lines += [
            f"{event:03}  AX       V     C        {' '.join(map(timing.timecode, places))}",
            f"* FROM CLIP NAME: {part.title}",
            f"* SOURCE FILE: {part.result.path.as_uri()}",
        ]
    return "\n".join([*lines, ""]).encode()


def _edl_timings(parts: Sequence[Part], probe: Callable[[Path], Any]) -> dict[Path, Timing]:
    """Timings of the videos at rates that timecode has.

    A variable rate has no frames of its own to count: it takes the rate of the other videos.
    """
    infos = {path: probe(path) for path in {part.result.path for part in parts}}
    rates = {path: _timecode_rate(nominal_rate(info)) for path, info in infos.items()}
    fixed = [rates[path] for path, info in infos.items() if not info.is_variable]
    common = Counter(fixed or sorted(rates.values(), reverse=True)).most_common(1)
    return {
        path: Timing.of(info, common[0][0] if info.is_variable else rates[path])
        for path, info in infos.items()
    }


def _timecode_rate(rate: Fraction) -> Fraction:
    """The rate, halved until two digits hold the number of a frame."""
    while rate > _MAX_TIMECODE_RATE:
        rate /= 2
    return rate


def _otio(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    otio = optional("opentimelineio", "editing")
    at, schema, timings = otio.opentime, otio.schema, _timings(parts, probe)
    timeline = schema.Timeline(title)
    track = schema.Track("moments", kind=schema.TrackKind.Video)
    for part in parts:
        result, moment, timing = part.result, part.moment, timings[part.result.path]
        time = lambda number, rate=float(timing.rate): at.RationalTime(number, rate)
        span = lambda first, count, time=time, offset=timing.first: at.TimeRange(
            time(offset + first), time(count)
        )
        first, count = _frames(timing, moment)
        peak = min(max(timing.frame(moment.peak), first), first + count - 1)
        facts = {"score": float(moment.score), "rank": part.rank, "id": result.id}
        whole = span(0, max(timing.frame(result.duration), first + count))
        file = schema.ExternalReference(result.path.as_uri(), whole)
        clip = schema.Clip(part.title, file, span(first, count), metadata={"hlformer": facts})
        clip.markers.append(schema.Marker(title, span(peak, 1)))
        track.append(clip)
    timeline.tracks.append(track)
    text: str = timeline.to_json_string()
    return text.encode()


def _fcpxml(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    """By the document type of version 1.10: times are fractions of seconds, in whole frames."""
    grouped: dict[Path, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.result.path, []).append(part)
    root, child = ElementTree.Element("fcpxml", version="1.10"), ElementTree.SubElement
    resources = child(root, "resources")
    library = child(root, "library")
    event = child(library, "event", name=_printable(title))
    for number, (path, own) in enumerate(grouped.items(), 1):
        info, name = probe(path), _printable(own[0].title)
        timing = Timing.of(info)
        time = lambda frames, rate=timing.rate: f"{Fraction(frames) / rate}s"
        spans = [_frames(timing, part.moment) for part in own]
        count = max(timing.frame(own[0].result.duration), *(sum(span) for span in spans))
        of, start = f"video{number}", {"start": time(timing.first)}
        size = {"width": str(info.width), "height": str(info.height)}
        child(resources, "format", size, id=f"format{number}", frameDuration=time(1))
        length = {"duration": time(count), "format": f"format{number}"}
        tracks = {"hasVideo": "1"} | ({"hasAudio": "1"} if info.sound else {})
        asset = child(resources, "asset", start | length | tracks, id=of, name=name)
        child(asset, "media-rep", kind="original-media", src=path.as_uri())
        code = {"tcFormat": "DF" if timing.drop else "NDF"}
        clip = child(event, "asset-clip", start | length | code, ref=of, name=name)
        for part, (first, frames) in zip(own, spans, strict=True):
            peak = min(max(timing.frame(part.moment.peak), first), first + frames - 1)
            note = f"rank {part.rank}, score {part.moment.score:.6g}"
            for tag, at, long in (("keyword", first, frames), ("marker", peak, 1)):
                place = {"start": time(timing.first + at), "duration": time(long)}
                child(clip, tag, place, value=_printable(title), note=note)
    ElementTree.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE fcpxml>\n'
    return f"{head}{ElementTree.tostring(root, encoding='unicode')}\n".encode()


def _printable(text: str) -> str:
    """A text without the characters that XML cannot hold."""
    return re.sub("[\0-\x1f\ufffe\uffff]", "\ufffd", text)


def _timings(parts: Sequence[Part], probe: Callable[[Path], Any]) -> dict[Path, Timing]:
    return {path: Timing.of(probe(path)) for path in {part.result.path for part in parts}}


def _frames(timing: Timing, moment: Moment) -> tuple[int, int]:
    """The first frame of a moment, and how many there are, one at least."""
    first = timing.frame(moment.start)
    return first, max(timing.frame(moment.end) - first, 1)


_FORMS = {
    ".csv": _csv, ".m3u": _m3u, ".m3u8": _m3u, ".edl": _edl, ".otio": _otio, ".fcpxml": _fcpxml
}  # fmt: skip
