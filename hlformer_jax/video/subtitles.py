"""Timed text of a video: subtitle files, and the text subtitle tracks in a video's container.

`read_file` and `read_tracks` return `Subtitles`: the cues in the order of their times, and what of
the source could not be read. One block that cannot be read costs that block and nothing else.
"""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import av
from av.stream import Discard

from hlformer_jax import files
from hlformer_jax.video.read import fault, named, opened

SUFFIXES = frozenset({".srt", ".vtt", ".ass", ".ssa"})
"""Suffixes of subtitle files, in lower case."""

MAX_SUBTITLE_BYTES = 2**25
"""Largest subtitle file in bytes; a day of speech has a thirtieth of it."""

_TEXT_CODECS = frozenset({"ass", "mov_text", "srt", "ssa", "subrip", "text", "webvtt"})
"""FFmpeg's names of the subtitle codecs that carry text."""


class Cue(NamedTuple):
    """Text that is shown or spoken from one second of a video to another."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Subtitles:
    """The cues of one source; iterating over it gives the cues."""

    cues: tuple[Cue, ...]  # sorted by start
    format: str  # "srt", "vtt", "ass", …; of tracks the codecs' names, with ", " between them
    encoding: str = "utf-8"  # Python's name of the text encoding; of tracks "utf-8"
    skipped: int = 0  # blocks that could not be read
    warnings: tuple[str, ...] = ()  # what is missing, each for the end of a line about the file

    def __iter__(self) -> Iterator[Cue]:
        return iter(self.cues)

    def __len__(self) -> int:
        return len(self.cues)


def read_file(path: str | Path, video: str | Path | None = None) -> Subtitles:
    """Read a subtitle file of any format in `SUFFIXES`; the content decides, not the suffix.

    Args:
      path: the subtitle file.
      video: the video that it belongs to, which is opened for its frame rate when a MicroDVD file
        counts frames and does not say of what rate.

    Raises:
      VideoError: when the file cannot be read, is too large, is not text or holds no cue.
    """
    path = Path(path)
    with named(path):
        if path.stat().st_size > MAX_SUBTITLE_BYTES:
            raise fault(path, "is too large for subtitles", "leave it out")
        content = io.BytesIO(_text(files.read_bytes(path)).encode())
        with av.open(content, format=_FORMATS[path.suffix.lower()]) as container:
            cues = sorted(_decoded(container, container.streams.subtitles, 0.0))
    return Subtitles(tuple(cues), path.suffix[1:].lower())


def read_tracks(path: str | Path) -> Subtitles:
    """Read all text subtitle tracks in a video's container; their times count from second 0.

    Raises:
      VideoError: when the video cannot be opened, as `video.read.opened` does.
    """
    with opened(path) as video:
        streams = [
            stream
            for stream in video.container.streams.subtitles
            if stream.codec_context is not None and stream.codec_context.name in _TEXT_CODECS
        ]
        video.stream.discard = Discard.all
        for stream in streams:
            stream.discard = Discard.default
        cues = sorted(_decoded(video.container, streams, float(video.start or 0)))
        return Subtitles(tuple(cues), ", ".join(stream.codec_context.name for stream in streams))


_FORMATS = {".srt": "srt", ".vtt": "webvtt", ".ass": "ass", ".ssa": "ass"}
_STYLE = re.compile(r"\{[^}]*\}|<[^>]*>")


def _text(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _decoded(container: Any, streams: Sequence[Any], start: float) -> Iterator[Cue]:
    for packet in container.demux(streams) if streams else ():
        if packet.pts is None or not packet.size:
            continue
        begin = max(float(packet.pts * packet.time_base) - start, 0.0)
        length = float((packet.duration or 0) * packet.time_base)
        for line in packet.decode():
            text = _STYLE.sub("", line.dialogue.decode(errors="replace")).replace(r"\N", " ")
            if text := " ".join(text.split()):
                yield Cue(round(begin, 3), round(begin + max(length, 1.0), 3), text)
