"""Closed captions (CEA-608) in the pictures of broadcasts and DVDs, and in Scenarist files (.scc).

Captions are pairs of bytes in the packets of H.264, HEVC and MPEG-2, next to the picture, so no
picture has to be decoded. FFmpeg decodes the pairs.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import av
from av.stream import Discard

from hlformer_jax.video.clocks import Recordings
from hlformer_jax.video.packets import Timestamps, read_packets
from hlformer_jax.video.read import opened
from hlformer_jax.video.subtitles.formats import count_frames
from hlformer_jax.video.subtitles.text import Block

CODECS = frozenset({"h264", "hevc", "mpeg2video"})
"""FFmpeg's names of the video codecs that can carry captions."""

DECODER = "cc_dec"
"""FFmpeg's name of the decoder of captions."""

PROBED_PACKETS = 300
"""Number of video packets that are searched for a first pair, which may be an empty one."""

MAX_PAIRS = 2**22
"""Largest number of pairs of bytes; a day at 30 pictures a second has 2.6 million."""

_MARK = re.compile(rb"GA94\x03|\x00\x00\x01\xb2CC\x01\xf8", re.DOTALL)
_EMULATION = re.compile(rb"\x00\x00\x03(?=[\x00-\x03])")
_PICTURE_SECONDS = 1001 / 30_000

FIRST_FIELD, SECOND_FIELD = 4, 5
"""Flags of a valid pair of a field, which are the last three bits of the byte before it."""

_MAX_CAPTION_SECONDS = 3600
"""Seconds up to which the end of a caption is believed."""


def read_captions(path: str | Path) -> list[Block]:
    """Return the captions of the first channel as blocks of SubStation text; none without captions.

    Raises:
      VideoError: if the video cannot be opened; see `video.read.opened`.
    """
    pairs: list[tuple[int, float, bytes]] = []  # number of the recording, second in it, pair
    with opened(path) as video:
        if video.stream.codec_context.name not in CODECS:
            return []
        is_escaped = video.stream.codec_context.name != "mpeg2video"
        video.stream.discard = Discard.default
        zero, recordings = video.start or 0, Recordings(video.stream, video.period)
        with contextlib.suppress(av.error.InvalidDataError):  # decoding the frames reports it
            packets = read_packets(video.container, video.stream)
            for count, packet in enumerate(Timestamps(packets, video.stream, video.period)):
                if count >= PROBED_PACKETS and not pairs or len(pairs) >= MAX_PAIRS:
                    break
                number = recordings.add(packet)
                if packet.pts is not None:
                    time = float(packet.pts * video.unit - zero)
                    pairs += ((number, *pair) for pair in _pairs(bytes(packet), time, is_escaped))
    pairs.sort(key=lambda item: item[:2])  # packets come in decoding order
    shifts = [float(recording.shift) for recording in recordings.finish()]
    return decode([(second + shifts[number], pair) for number, second, pair in pairs])


def _pairs(content: bytes, time: float, is_escaped: bool) -> Iterator[tuple[float, bytes]]:
    """Yield seconds and pairs of bytes of the first field in one packet."""
    for mark in _MARK.finditer(content):
        data = content[mark.end() : mark.end() + 300]
        if mark[0].startswith(b"GA94"):
            if is_escaped:
                data = _EMULATION.sub(b"\0\0", data)
            count = data[0] & 31 if data else 0
            yield from ((time, pair) for pair in pairs_of(data[2 : 2 + 3 * count]))
        else:  # a DVD stores all pairs of a group of pictures before it
            count = data[0] & 63 if data else 0
            pairs = pairs_of(data[1 : 1 + 3 * count], 0xFF, 0xFF)
            yield from ((time + i * _PICTURE_SECONDS, pair) for i, pair in enumerate(pairs))


def pairs_of(data: bytes, mark: int = FIRST_FIELD, mask: int = 7) -> list[bytes]:
    """Return the pairs of bytes with a mark, of which each has a byte of flags before it."""
    places = range(0, len(data) - 2, 3)
    return [data[i + 1 : i + 3] for i in places if data[i] & mask == mark]


_SCENARIST_LINE = re.compile(
    r"(\d\d):([0-5]\d):([0-5]\d)([:.;,])([0-2]\d)\s+([0-9A-Fa-f]{4}(?:\s+[0-9A-Fa-f]{4})*)"
)
"""Time and pairs of a line; a semicolon or a comma marks drop-frame time."""


def read_scenarist(text: str) -> tuple[list[Block], int]:
    """Return the captions of the first channel in a Scenarist file, and the number of bad lines.

    Lines have times in frames, 30,000 in 1,001 seconds, and a pair of bytes for each frame. Some
    programs write bytes without their bits of parity, which the decoder checks. FFmpeg reads the
    files too, but all pairs of a line at once, and times without dropped frames as if a second had
    30 frames.
    """
    pairs: list[tuple[float, bytes]] = []
    skipped = 0
    for line in text.split("\n"):
        if not line.strip() or line.lstrip("\ufeff").lower().startswith("scenarist_scc"):
            continue
        match = _SCENARIST_LINE.fullmatch(line.strip())
        if match is None:
            skipped += 1
            continue
        hours, minutes, seconds, frames = (int(match[i]) for i in (1, 2, 3, 5))
        seconds += 3600 * hours + 60 * minutes
        first = count_frames(seconds, frames, 30, is_drop_frame=match[4] in ";,")
        pairs += [
            ((first + i) * _PICTURE_SECONDS, bytes.fromhex(pair).translate(_WITH_PARITY))
            for i, pair in enumerate(match[6].split())
        ]
    return decode(pairs), skipped


_WITHOUT_PARITY = bytes(value & 0x7F for value in range(256))
_WITH_PARITY = bytes(value | 0x80 * (value.bit_count() % 2 == 0) for value in _WITHOUT_PARITY)

_COMMANDS = 0x14, 0x15
"""First bytes of the commands of the first channel, by field; their second bytes follow."""

_LOAD, _ROLL_UP, _PAINT = 0x20, range(0x25, 0x28), 0x29
_ERASE, _FEED, _FLIP = 0x2C, 0x2D, 0x2F

_ERASING_PAIR = b"\x94\x2c"  # with parity


def decode(pairs: Sequence[tuple[float, bytes]]) -> list[Block]:
    """Decode the first channel of pairs of bytes with their seconds to blocks.

    FFmpeg's decoder returns a caption with the command that erases it, scrolls it up, or shows
    another one. It mixes the channels, so it gets the first one alone.
    """
    if not pairs:
        return []
    decoder = av.CodecContext.create(DECODER, "r")
    blocks: list[Block] = []
    start = pairs[0][0]  # second from which on the present captions are shown
    is_blank = True  # whether no caption is shown
    before = b""
    last, final = pairs[-1]
    # A caption that nothing erases is shown to the end of the padding, or to an unknown time.
    has_padding = final.translate(_WITHOUT_PARITY) == b"\0\0"
    erased = [*pairs, (last if has_padding else math.inf, _ERASING_PAIR)]
    for time, pair in _erase_before_repainting(_first_channel(erased)):
        high, low = pair.translate(_WITHOUT_PARITY)
        shown = decoder.decode2(av.Packet(b"\xfc" + pair))  # type: ignore[attr-defined]
        end = time if start < time < start + _MAX_CAPTION_SECONDS else None
        for line in shown or ():
            if time > 0:
                text = line.dialogue.decode(errors="replace")
                blocks.append(Block(max(start, 0.0), end, text))
        if high not in _COMMANDS:
            is_blank = False
        elif pair != before:  # each command is sent twice
            if low in (_ERASE, _FEED, _FLIP) or is_blank and (low in _ROLL_UP or low == _PAINT):
                start = time
            is_blank = low == _ERASE or is_blank and low != _FLIP
        before = pair
    return blocks


def _first_channel(pairs: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield the pairs of the first channel, without padding."""
    is_first = True
    for time, pair in pairs:
        high, low = pair.translate(_WITHOUT_PARITY)
        if 0x10 <= high < 0x20:
            is_first = high < 0x18
        if is_first and not high == low == 0:
            yield time, pair


def _erase_before_repainting(
    pairs: Iterable[tuple[float, bytes]],
) -> Iterator[tuple[float, bytes]]:
    """Yield pairs, and before a row with painted text is painted again a pair that erases it.

    Otherwise FFmpeg's decoder would never return the text that is painted over.
    """
    is_painting = False
    row, painted = (0, 0), set[tuple[int, int]]()  # the row of the cursor, and rows with text
    for time, pair in pairs:
        high, low = pair.translate(_WITHOUT_PARITY)
        if high in _COMMANDS and low < 0x40:
            is_painting = low == _PAINT if low in (_LOAD, _PAINT, *_ROLL_UP) else is_painting
            if low in (_ERASE, _FLIP):
                painted.clear()
        elif high < 0x20 and low >= 0x40:  # the cursor moves to a row
            row = high, low & 0x20
            if is_painting and row in painted:
                yield time, _ERASING_PAIR
                painted.clear()
        elif high >= 0x20 and is_painting:
            painted.add(row)
        yield time, pair
