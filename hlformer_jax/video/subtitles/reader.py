"""Timed text of a video: subtitle files, and the text subtitle tracks in a video's container.

`read_file` and `read_tracks` return `Subtitles`: the cues in the order of their times, and warnings
about parts that could not be read. If a block cannot be read, only that block is lost.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.stream import Discard

from hlformer_jax import files
from hlformer_jax.text import counted
from hlformer_jax.video.clocks import Recordings, Shifts
from hlformer_jax.video.faults import VideoError, fault, name_errors
from hlformer_jax.video.packets import Timestamps, read_packets
from hlformer_jax.video.read import Video, opened
from hlformer_jax.video.subtitles import charset, closed_captions, ebu_stl, formats, ttml
from hlformer_jax.video.subtitles.text import (
    MAX_CUE_CHARACTERS,
    Block,
    Cue,
    clean_lines,
    merge_repeated,
)  # fmt: skip

SUFFIXES = frozenset(
    ".srt .vtt .ass .ssa .sub .sbv .smi .sami .ttml .dfxp .itt .xml .scc .stl".split()
)
"""Suffixes of subtitle files, in lower case."""

MAX_SUBTITLE_BYTES = 2**25
"""Largest subtitle file, and largest sum of the tracks of a container, in bytes; a day of speech
has a thirtieth of it."""

_HEAD_BYTES = 2**14
"""Number of bytes of a larger file that are read to recognise binary files and other XML."""

MAX_CUES = 200_000
"""Largest number of cues of a file or of a track; a day of speech has a tenth of it."""

MAX_SECONDS = 1e6
"""Latest start of a cue, in seconds: eleven days. A later start is a mistake."""

UNSTATED_SECONDS = 5.0
"""Length of a cue whose end is not stated, in seconds, unless the next cue begins earlier."""


@dataclass(frozen=True)
class Subtitles:
    """The cues of one source, over which it iterates."""

    cues: tuple[Cue, ...]  # sorted by start
    format: str  # "srt", "vtt", "ass", …; for tracks the names of their codecs, joined by ", "
    encoding: str = "utf-8"  # Python's name of the text encoding
    skipped: int = 0  # number of blocks that could not be read
    warnings: tuple[str, ...] = ()  # each completes a line about the file

    def __iter__(self) -> Iterator[Cue]:
        return iter(self.cues)

    def __len__(self) -> int:
        return len(self.cues)


def read_file(path: str | Path, video: str | Path | None = None) -> Subtitles:
    """Read a subtitle file.

    The formats are SubRip, WebVTT, SubStation Alpha, MicroDVD, MPL2, SubViewer, TTML, SAMI, EBU
    STL and Scenarist. The content decides the format, or the suffix if the content is ambiguous.
    XML of another kind, such as a camera's description of a clip, has no cue.

    Args:
      path: the subtitle file; a language code in its name (`a.ru.srt`) helps to detect its
        encoding.
      video: the video of the file. It is opened for its frame rate if the file is MicroDVD, whose
        times are numbers of frames, and does not state the rate.

    Raises:
      VideoError: if the file cannot be read, is too large, is not text, or has no cue.
    """
    path = Path(path)
    with name_errors(path), open(files.open_regular(path), "rb") as file:
        is_too_large = os.fstat(file.fileno()).st_size > MAX_SUBTITLE_BYTES
        content = file.read(_HEAD_BYTES if is_too_large else -1)
    if is_too_large:
        _check_text(path, content)
        text, encoding = charset.decode(content)
        if _is_xml(path, text) and not formats.sniff(text, ".xml"):
            return Subtitles((), "xml", encoding)
        limit = f"is too large for subtitles (at most {MAX_SUBTITLE_BYTES:,} bytes)"
        raise fault(path, limit, "leave it out")
    if not content.strip(b"\x00 \r\n\t"):
        raise fault(path, "holds no cue: it is empty", "write it again, or delete it")
    _check_text(path, content)
    if ebu_stl.is_ebu_stl(content):
        parsed, encoding = ebu_stl.read_stl(content)
        return _subtitles(path, "stl", encoding, parsed)
    text, encoding = charset.decode(content, _language(path))
    text = text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")
    name = formats.sniff(text, path.suffix.lower())
    if not name:
        if _is_xml(path, text):
            return Subtitles((), "xml", encoding)
        if _is_binary(text):
            raise fault(path, "is not text", "leave it out")
        what = "holds no cue: no line has the times of one in a format that is known"
        raise fault(path, what, "convert it to SubRip (.srt)")
    doubt = charset.doubt(content, encoding)
    return _subtitles(path, name, encoding, _parse(name, text, video), doubt)


def _is_xml(path: Path, text: str) -> bool:
    is_markup = re.match(r"\s*<[?!a-z]", text, re.IGNORECASE) is not None
    return path.suffix.lower() == ".xml" and is_markup


def _subtitles(
    path: Path, name: str, encoding: str, parsed: formats.Parsed, doubt: str = ""
) -> Subtitles:
    """Return the subtitles of a parsed file; a file without cues is an error."""
    cues, warnings = _finished(parsed.blocks, parsed.markup, parsed.skipped)
    if not cues:
        raise fault(path, f"holds no cue: {_reason(parsed)}", "write it again, or delete it")
    warnings += (doubt,) if doubt else ()
    return Subtitles(tuple(cues), name, encoding, parsed.skipped, warnings)


def _language(path: Path) -> str:
    """Return the last two words of a file's stem, which may be a language and a country."""
    kinds = {"forced", "sdh", "cc", "hi", "default", "full", "signs", "songs"}
    words = re.split(r"[\W_]+", path.stem.lower())[1:]
    return "-".join([word for word in words if word not in kinds][-2:])


_SIGNATURES = {
    b"\x00\x00\x01\xba": "is a VobSub file: its subtitles are pictures, not text",
    b"PG": "is a Blu-ray subtitle file (PGS): its subtitles are pictures, not text",
    b"# VobSub index file": "is the index of a VobSub file: its subtitles are pictures, not text",
    b"PK\x03\x04": "is a ZIP archive, not text",
    b"Rar!": "is a RAR archive, not text",
    b"7z\xbc\xaf": "is a 7z archive, not text",
    b"\x1f\x8b": "is a gzip archive, not text",
    b"\x1a\x45\xdf\xa3": "is a Matroska file, not text",
}


def _check_text(path: Path, content: bytes) -> None:
    for signature, what in _SIGNATURES.items():
        if content.startswith(signature) and not (signature == b"PG" and content[:13].isascii()):
            advice = "unpack it" if "archive" in what else "convert it to SubRip (.srt) by OCR"
            raise fault(path, what, advice)


def _is_binary(text: str) -> bool:
    head = text[:4096]
    controls = len(re.findall("[\x00-\x08\x0e-\x19\x1b-\x1f\x80-\x84\x86-\x9f\ufffd]", head))
    return controls > 0.05 * len(head)


def _parse(name: str, text: str, video: str | Path | None) -> formats.Parsed:
    if name == "microdvd":
        return formats.read_microdvd(text, lambda: _frame_rate(video))
    if name == "scc":
        return formats.Parsed(*closed_captions.read_scenarist(text), "ass")
    readers = {
        "srt": formats.read_srt,
        "vtt": formats.read_vtt,
        "sbv": formats.read_sbv,
        "ass": formats.read_ass,
        "mpl2": formats.read_mpl2,
        "ttml": ttml.read_ttml,
        "sami": formats.read_sami,
    }
    return readers[name](text)


def _frame_rate(video: str | Path | None) -> float | None:
    if video is None:
        return None
    try:
        with opened(video) as source:
            return float(1 / source.period)
    except (VideoError, ZeroDivisionError):
        return None


def _finished(
    blocks: Sequence[Block], markup: str, skipped: int
) -> tuple[list[Cue], tuple[str, ...]]:
    """Return the cues of a source's blocks, and warnings."""
    usable = [block for block in blocks if 0 <= block.start < MAX_SECONDS]
    skipped += len(blocks) - len(usable)
    usable.sort(key=lambda block: block.start)  # stable: blocks with equal starts keep their order
    left_out = max(len(usable) - MAX_CUES, 0)
    usable = usable[:MAX_CUES]
    cut = sum(len(block.text) > MAX_CUE_CHARACTERS for block in usable)
    cues = sorted(merge_repeated(_timed(usable, markup)))
    warnings = []
    if skipped:
        warnings.append(f"{counted(skipped, 'block')} could not be read")
    if cut:
        warnings.append(f"{counted(cut, 'cue')} cut to {MAX_CUE_CHARACTERS:,} characters")
    if left_out:
        warnings.append(f"{counted(left_out, 'cue')} left out: only {MAX_CUES:,} are read")
    return cues, tuple(warnings)


def _timed(blocks: Sequence[Block], markup: str) -> Iterator[tuple[float, float, list[str]]]:
    """Yield start, end and lines of each block that shows text; the end is after the start."""
    following = math.inf
    ends: list[float] = []
    for i in range(len(blocks) - 1, -1, -1):
        start, end, _ = blocks[i]
        if i + 1 < len(blocks) and blocks[i + 1].start > start:
            following = blocks[i + 1].start
        if end is None:
            end = min(following, start + UNSTATED_SECONDS)
        ends.append(end if end > start else start + 1.0)
    ends.reverse()
    for block, end in zip(blocks, ends, strict=True):
        if lines := clean_lines(block.text, markup):
            yield block.start, end, lines


def _reason(parsed: formats.Parsed) -> str:
    if parsed.skipped and not parsed.blocks:
        return f"{counted(parsed.skipped, 'block')} could not be read"
    if any(block.text.strip() for block in parsed.blocks):
        return "its cues show pictures or drawings, not text"
    return "its cues have no text"


# Tracks in a container

_CODECS = {
    "subrip": "tags", "srt": "tags", "text": "tags", "mov_text": "tags", "webvtt": "vtt",
    "ass": "ass", "ssa": "ass", closed_captions.DECODER: "ass", "ttml": "tags",
}  # fmt: skip
"""FFmpeg's names of codecs of tracks that are read, with the kind of their markup."""


def read_tracks(path: str | Path) -> Subtitles:
    """Read all text subtitle tracks in a video's container, and the captions in its pictures.

    Times count from second 0 of the video. A video without tracks and captions has no cues. If its
    pictures have captions, a track of captions repeats them and is not read.

    Raises:
      VideoError: if the video cannot be opened; see `video.read.opened`.
    """
    captions = closed_captions.read_captions(path)
    decoders = _CODECS.keys() - ({closed_captions.DECODER} if captions else set())
    with opened(path) as video:
        tracks = video.container.streams.subtitles
        codecs = {track.index: codec for track in tracks if (codec := _codec(track)) in decoders}
        for track in tracks:
            if track.index in codecs:
                track.discard = Discard.default
        unread = [_codec(track) or "unknown" for track in tracks if track.index not in codecs]
        packets, warnings = _packets(video, codecs)
    cues: list[Cue] = []
    skipped = 0
    encodings: dict[str, None] = {}
    for index, codec in codecs.items():
        blocks, wrong, encoding, doubt = _blocks(packets[index], codec)
        track_cues, lines = _finished(blocks, _CODECS[codec], wrong)
        cues += track_cues
        skipped += wrong
        warnings += [line for line in (*lines, doubt) if line and line not in warnings]
        encodings[encoding] = None
    if captions:
        cues += _finished(captions, "ass", 0)[0]
        codecs[-1] = closed_captions.DECODER
    if unread and not cues:
        formats_of = ", ".join(dict.fromkeys(unread))
        what = f"{counted(len(unread), 'track')} could not be read"
        warnings.append(f"{what}: pictures of text, or an unsupported format ({formats_of})")
    names = ", ".join(dict.fromkeys(codecs.values())).replace(closed_captions.DECODER, "eia_608")
    encoding = ", ".join(encodings) or "utf-8"
    return Subtitles(tuple(sorted(set(cues))), names, encoding, skipped, tuple(warnings))


def _codec(stream: Any) -> str:
    """Return FFmpeg's name of the codec of a track; "" if it is unknown."""
    if stream.codec_context is not None:
        return str(stream.codec_context.name)
    # FFmpeg does not know WebVTT of mkvmerge, nor TTML and CEA-708 in MP4. `_packets` leaves out
    # CEA-708, and binary packets in Matroska.
    if stream.container.format.name in _WITHOUT_JUMPS:
        return "ttml"
    return "webvtt" if stream.container.format.name == "matroska,webm" else ""


@dataclass(slots=True)
class _Packet:
    """The times and the content of one packet of a track."""

    start: float
    end: float | None
    content: bytes
    place: int  # its byte in the file

    def shift(self, seconds: float) -> None:
        """Move the times of the packet by some seconds."""
        self.start += seconds
        self.end = None if self.end is None else self.end + seconds


_WITHOUT_JUMPS = frozenset({"mov,mp4,m4a,3gp,3g2,mj2"})
"""Containers whose timestamps are sums of lengths; their pictures need not be read."""


def _packets(video: Video, codecs: Mapping[int, str]) -> tuple[dict[int, list[_Packet]], list[str]]:
    """Return the packets of each track, by the index of its stream, and warnings.

    Args:
      video: the video.
      codecs: the codec of each track to read, by the index of its stream.

    The packets of the pictures show where the clock of the file was reset.
    """
    packets: dict[int, list[_Packet]] = {index: [] for index in codecs}
    if not packets:
        return packets, []
    zero, finder = float(video.start or 0), Recordings(video.stream, video.period)
    size = place = 0
    warnings = []

    def pictures() -> Iterator[av.Packet]:
        """Yield the packets of the pictures; put those of the tracks into `packets`."""
        nonlocal size, place
        for packet in read_packets(video.container, *streams, *film):
            place = place if packet.pos is None else packet.pos
            if packet.stream.index == video.stream.index:
                yield packet
                continue
            if packet.pts is None:
                continue
            start = float(packet.pts * packet.time_base) - zero
            end = start + float(packet.duration * packet.time_base) if packet.duration else None
            content, codec = bytes(packet), codecs[packet.stream.index]
            if codec == "webvtt" and _is_binary(content.decode(errors="replace")):
                continue
            if codec == "ttml":
                text = content.replace(b"\0", b"").decode("latin-1")  # without UTF-16's zeros
                if formats.sniff(text, ".ttml") != "ttml":  # CEA-708
                    continue
                start, end = -zero, None  # its times count from the start of the track
            track = packets[packet.stream.index]
            track.append(_Packet(start, end, content, place))
            size += packet.size
            limit = closed_captions.MAX_PAIRS if codec == closed_captions.DECODER else MAX_CUES
            if size > MAX_SUBTITLE_BYTES or len(track) > limit:
                warnings.append("more subtitles than can be read: the rest is left out")
                break

    streams = [stream for stream in video.container.streams if stream.index in codecs]
    film = [] if video.container.format.name in _WITHOUT_JUMPS else [video.stream]
    video.stream.discard = Discard.default if film else Discard.all
    try:
        for packet in Timestamps(pictures(), video.stream, video.period):
            finder.add(packet)
    except av.error.InvalidDataError:
        warnings.append("the subtitles after a damaged place could not be read")
    if len(recordings := finder.finish()) > 1:
        for track in packets.values():
            shifts = Shifts(recordings)
            for item in track:
                item.shift(float(shifts.next(item.place, Fraction(item.start + zero))))
    return packets, warnings


def _blocks(packets: Sequence[_Packet], codec: str) -> tuple[list[Block], int, str, str]:
    """Return a track's blocks, number of unreadable packets, encoding, and warning about it."""
    if codec == closed_captions.DECODER:
        return closed_captions.decode(_caption_pairs(packets)), 0, "utf-8", ""
    contents = [packet.content for packet in packets]
    if codec == "mov_text":  # two bytes of length before the text, and styles after it
        contents = [content[2 : 2 + int.from_bytes(content[:2], "big")] for content in contents]
    marks = (b"\xfe\xff", b"\xff\xfe")  # of UTF-16, which each packet may have
    if codec != "ttml":  # a zero ends the text, and may precede remains of an older one
        contents = [
            content if content.startswith(marks) else content.lstrip(b"\0").partition(b"\0")[0]
            for content in contents
        ]
    joined = b"\n".join([content for content in contents if not content.startswith(marks)])
    encoding = charset.detect(joined)
    blocks = []
    wrong = 0
    for packet, content in zip(packets, contents, strict=True):
        if content.startswith(marks):
            text = content.decode("utf-16", errors="replace")
        else:
            text = content.decode(encoding, errors="replace")
        if codec in ("ass", "ssa"):
            fields = text.split(",", 8)
            if len(fields) < 9:
                wrong += 1
                continue
            text = fields[8]
        shown = [Block(packet.start, packet.end, text)]
        if codec == "ttml":
            parsed = ttml.read_ttml(text)
            wrong += parsed.skipped
            shown = [
                Block(start + packet.start, None if end is None else end + packet.start, line)
                for start, end, line in parsed.blocks
            ]
        blocks += [
            Block(max(start, 0.0), end, line)
            for start, end, line in shown
            if end is None or end > 0
        ]
    return blocks, wrong, encoding, charset.doubt(joined, encoding)


def _caption_pairs(packets: Sequence[_Packet]) -> list[tuple[float, bytes]]:
    """Return the pairs of bytes of a caption track's first field, or else of its second field."""
    for field in (closed_captions.FIRST_FIELD, closed_captions.SECOND_FIELD):
        pairs = [
            (packet.start, pair)
            for packet in packets
            for pair in closed_captions.pairs_of(packet.content, field)
        ]
        if pairs:
            return pairs
    return []
