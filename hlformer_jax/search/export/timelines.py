"""Moments as timelines for editing programs: CMX 3600, OpenTimelineIO and Final Cut Pro's XML."""

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
from hlformer_jax.search.export.moments import ExportedMoment
from hlformer_jax.search.export.timecode import Timing, nominal_rate, timecode_rate


def encode_edl(title: str, moments: Sequence[ExportedMoment], probe: Any) -> bytes:
    """Return a CMX 3600 edit decision list with the moments one after the other.

    Raises:
      SearchError: if the videos have several rates.
    """
    # OpenTimelineIO's adapter writes no FCM line, makes up reel names and has upper-case markers.
    timings = _edl_timings(moments, probe)
    formats = {(timing.rate, timing.drop) for timing in timings.values()}
    if len(formats) > 1:
        rates = ", ".join(
            sorted(f"{float(rate):.5g}{' drop frame' * drop}" for rate, drop in formats)
        )
        raise SearchError(
            f"an EDL has one frame rate, but these videos have several ({rates}): narrow the"
            " query to one folder, or export .otio"
        )
    has_drop_frame = any(drop for _, drop in formats)
    lines = [f"TITLE: {title}", f"FCM: {'DROP' if has_drop_frame else 'NON-DROP'} FRAME", ""]
    recorded, digits = 0, 3 if len(moments) < 1000 else 6
    for event, exported in enumerate(moments, 1):
        timing = timings[exported.result.path]
        first, count = _frames(timing, exported.moment)
        source = timing.first + first, timing.first + first + count
        record = recorded, recorded + count
        recorded += count
        lines += [
            f"{event:0{digits}}  AX       V     C        "
            + " ".join(map(timing.timecode, (*source, *record))),
            f"* FROM CLIP NAME: {exported.title}",
            f"* SOURCE FILE: {exported.result.path.as_uri()}",
        ]
    return "\n".join([*lines, ""]).encode()


def _edl_timings(
    moments: Sequence[ExportedMoment], probe: Callable[[Path], Any]
) -> dict[Path, Timing]:
    """Return the timings of the videos, at rates that timecode can count.

    A video of variable rate takes the most common rate of the other videos.
    """
    infos = {path: probe(path) for path in {exported.result.path for exported in moments}}
    rates = {path: timecode_rate(nominal_rate(info)) for path, info in infos.items()}
    constant = [rates[path] for path, info in infos.items() if not info.is_variable]
    common = Counter(constant or sorted(rates.values(), reverse=True)).most_common(1)
    return {
        path: Timing.from_info(info, common[0][0] if info.is_variable else rates[path])
        for path, info in infos.items()
    }


def encode_otio(title: str, moments: Sequence[ExportedMoment], probe: Any) -> bytes:
    """Return an OpenTimelineIO timeline with a clip for each moment."""
    otio = optional("opentimelineio", "editing")
    schema, paths = otio.schema, {exported.result.path for exported in moments}
    timings = {path: Timing.from_info(probe(path)) for path in paths}
    timeline = schema.Timeline(title)
    track = schema.Track("moments", kind=schema.TrackKind.Video)
    for exported in moments:
        result, moment, timing = exported.result, exported.moment, timings[exported.result.path]
        first, count = _frames(timing, moment)
        peak = _peak_frame(timing, moment)
        metadata = {"score": float(moment.score), "rank": exported.rank, "id": result.id}
        available = _otio_range(otio, timing, 0, max(timing.frame(result.duration), first + count))
        clip = schema.Clip(
            exported.title,
            schema.ExternalReference(result.path.as_uri(), available),
            _otio_range(otio, timing, first, count),
            metadata={"hlformer": metadata},
        )
        clip.markers.append(schema.Marker(title, _otio_range(otio, timing, peak, 1)))
        track.append(clip)
    timeline.tracks.append(track)
    text: str = timeline.to_json_string()
    return text.encode()


def _otio_range(otio: Any, timing: Timing, first: int, count: int) -> Any:
    """Return the range of `count` frames from frame `first` of a file on."""
    rate, time = float(timing.rate), otio.opentime.RationalTime
    return otio.opentime.TimeRange(time(timing.first + first, rate), time(count, rate))


def encode_fcpxml(title: str, moments: Sequence[ExportedMoment], probe: Any) -> bytes:
    """Return a Final Cut Pro event (FCPXML 1.10), with times as fractions of whole frames."""
    # OpenTimelineIO's adapter writes no keywords, no sound, and a project in place of an event.
    by_path: dict[Path, list[ExportedMoment]] = {}
    for exported in moments:
        by_path.setdefault(exported.result.path, []).append(exported)
    root, child = ElementTree.Element("fcpxml", version="1.10"), ElementTree.SubElement
    resources = child(root, "resources")
    library = child(root, "library")
    event = child(library, "event", name=_xml_text(title))
    for number, (path, group) in enumerate(by_path.items(), 1):
        info, name = probe(path), _xml_text(group[0].title)
        timing = Timing.from_info(info)
        spans = [_frames(timing, exported.moment) for exported in group]
        count = max(timing.frame(group[0].result.duration), *(sum(span) for span in spans))
        video_id, start = f"video{number}", {"start": _fcpxml_time(timing, timing.first)}
        size = {"width": str(info.width), "height": str(info.height)}
        frame_duration = _fcpxml_time(timing, 1)
        child(resources, "format", size, id=f"format{number}", frameDuration=frame_duration)
        length = {"duration": _fcpxml_time(timing, count), "format": f"format{number}"}
        tracks = {"hasVideo": "1"} | ({"hasAudio": "1"} if info.sound else {})
        asset = child(resources, "asset", start | length | tracks, id=video_id, name=name)
        child(asset, "media-rep", kind="original-media", src=path.as_uri())
        timecode = {"tcFormat": "DF" if timing.drop else "NDF"}
        clip = child(event, "asset-clip", start | length | timecode, ref=video_id, name=name)
        for exported, (first, frames) in zip(group, spans, strict=True):
            peak = _peak_frame(timing, exported.moment)
            note = f"rank {exported.rank}, score {exported.moment.score:.6g}"
            for tag, frame, length_in_frames in (("keyword", first, frames), ("marker", peak, 1)):
                place = {
                    "start": _fcpxml_time(timing, timing.first + frame),
                    "duration": _fcpxml_time(timing, length_in_frames),
                }
                child(clip, tag, place, value=_xml_text(title), note=note)
    ElementTree.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE fcpxml>\n'
    return f"{head}{ElementTree.tostring(root, encoding='unicode')}\n".encode()


def _fcpxml_time(timing: Timing, frames: int) -> str:
    """Return the length of frames in seconds, as a fraction."""
    return f"{Fraction(frames) / timing.rate}s"


def _xml_text(text: str) -> str:
    """Return a text with the characters that XML cannot hold replaced."""
    return re.sub("[\0-\x1f\ufffe\uffff]", "\ufffd", text)


def _frames(timing: Timing, moment: Moment) -> tuple[int, int]:
    """Return the first frame of a moment and the number of its frames, at least one."""
    first = timing.frame(moment.start)
    return first, max(timing.frame(moment.end) - first, 1)


def _peak_frame(timing: Timing, moment: Moment) -> int:
    """Return the frame of a moment's best score, within the moment."""
    first, count = _frames(timing, moment)
    return min(max(timing.frame(moment.peak), first), first + count - 1)
