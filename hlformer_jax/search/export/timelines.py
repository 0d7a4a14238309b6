"""Moments as timelines for editors: CMX 3600, OpenTimelineIO and Final Cut Pro's XML."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.export.moments import Part
from hlformer_jax.search.export.timecode import MAX_TIMECODE_RATE, Timing, nominal_rate


def write_edl(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    """Return an edit decision list, CMX 3600, of moments one after the other."""
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
    while rate > MAX_TIMECODE_RATE:
        rate /= 2
    return rate


def write_otio(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    """Return a timeline of OpenTimelineIO with a clip for each moment."""
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


def write_fcpxml(title: str, parts: Sequence[Part], probe: Any) -> bytes:
    """Return an event of Final Cut Pro (FCPXML 1.10); times are whole frames, as fractions."""
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
