"""Timed text of a video: the subtitles in its file, and in files beside it.

Beside `a.mp4` these are `a.srt` and `a.en.srt`, say: SubRip, WebVTT or ASS. Subtitles that are
pictures, as on discs, are left out.
"""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
from av.stream import Discard

from hlformer_jax import files
from hlformer_jax.video.read import fault, named, opened

SUFFIXES = {".srt": "srt", ".vtt": "webvtt", ".ass": "ass", ".ssa": "ass"}
"""Formats of FFmpeg by the suffixes of files."""

MAX_BYTES = 2**25
"""Size of a file of subtitles, at most; a day of speech has a thirtieth of it."""

_TEXT = frozenset({"ass", "mov_text", "srt", "ssa", "subrip", "text", "webvtt"})
"""FFmpeg's codecs of subtitles that are text."""

_STYLE = re.compile(r"\{[^}]*\}|<[^>]*>")


class Cue(NamedTuple):
    """What is said or written from one second of a video to another."""

    start: float
    end: float
    text: str


def inside(path: str | Path) -> list[Cue]:
    """The cues in a video's file, in the order of their times; raises as `opened`."""
    with opened(path) as video:
        streams = [
            stream
            for stream in video.container.streams.subtitles
            if stream.codec_context is not None and stream.codec_context.name in _TEXT
        ]
        video.stream.discard = Discard.all
        for stream in streams:
            stream.discard = Discard.default
        return sorted(_cues(video.container, streams, float(video.start or 0)))


def beside(path: str | Path) -> list[Cue]:
    """The cues of a file of subtitles, in the order of their times.

    Raises:
      VideoError: when it is none, too large, or cannot be read.
    """
    path = Path(path)
    with named(path):
        if path.stat().st_size > MAX_BYTES:
            raise fault(path, "is too large for subtitles", "leave it out")
        content = io.BytesIO(_text(files.read_bytes(path)).encode())
        with av.open(content, format=SUFFIXES[path.suffix.lower()]) as container:
            return sorted(_cues(container, container.streams.subtitles, 0.0))


def _text(content: bytes) -> str:
    """The text of a file: UTF-8 or UTF-16, or else Windows' Western European."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _cues(container: Any, streams: Sequence[Any], start: float) -> Iterator[Cue]:
    for packet in container.demux(streams) if streams else ():
        if packet.pts is None or not packet.size:
            continue
        begin = max(float(packet.pts * packet.time_base) - start, 0.0)
        length = float((packet.duration or 0) * packet.time_base)
        for line in packet.decode():
            text = _STYLE.sub("", line.dialogue.decode(errors="replace")).replace(r"\N", " ")
            if text := " ".join(text.split()):
                yield Cue(round(begin, 3), round(begin + max(length, 1.0), 3), text)
