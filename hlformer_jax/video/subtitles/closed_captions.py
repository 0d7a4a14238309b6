"""Closed captions (CEA-608) in the pictures of broadcasts and DVDs.

Captions are pairs of bytes in the packets of H.264, HEVC and MPEG-2, next to the picture, so no
picture has to be decoded. FFmpeg decodes the pairs, which it gets as a Scenarist file.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import av
from av.stream import Discard

from hlformer_jax.video.clocks import Recordings
from hlformer_jax.video.packets import Timestamps, read_packets
from hlformer_jax.video.read import opened
from hlformer_jax.video.subtitles.text import Block

CODECS = frozenset({"h264", "hevc", "mpeg2video"})
"""FFmpeg's names of the video codecs that can carry captions."""

PROBED_PACKETS = 300
"""Number of video packets that are searched for a first pair, which may be an empty one."""

MAX_PAIRS = 2**22
"""Largest number of pairs of bytes; a day at 30 pictures a second has 2.6 million."""

_MARK = re.compile(rb"GA94\x03|\x00\x00\x01\xb2CC\x01\xf8", re.DOTALL)
_EMULATION = re.compile(rb"\x00\x00\x03(?=[\x00-\x03])")
_PICTURE_SECONDS = 1001 / 30_000


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
    return _decoded([(second + shifts[number], pair) for number, second, pair in pairs])


def _pairs(content: bytes, time: float, is_escaped: bool) -> Iterator[tuple[float, bytes]]:
    """Yield seconds and pairs of bytes of the first field in one packet."""
    for mark in _MARK.finditer(content):
        data = content[mark.end() : mark.end() + 300]
        if mark[0].startswith(b"GA94"):
            if is_escaped:
                data = _EMULATION.sub(b"\0\0", data)
            for i in range(2, 2 + 3 * (data[0] & 31 if data else 0), 3):
                if len(data) >= i + 3 and data[i] & 7 == 4:  # valid, of the first field
                    yield time, data[i + 1 : i + 3]
        else:  # a DVD stores all pairs of a group of pictures before it
            count = 0
            for i in range(1, 1 + 3 * (data[0] & 63 if data else 0), 3):
                if len(data) >= i + 3 and data[i] == 0xFF:
                    yield time + count * _PICTURE_SECONDS, data[i + 1 : i + 3]
                    count += 1


_WITHOUT_PARITY = bytes(value & 0x7F for value in range(256))

_COMMAND = 0x14
"""First byte of the commands of the first channel, whose second bytes follow."""

_ROLL_UP, _PAINT, _ERASE, _FLIP = range(0x25, 0x28), 0x29, 0x2C, 0x2F

_ERASING_PAIR = b"\x94\x2c"  # with parity


def _first_channel(pairs: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield the pairs of the first channel, with further commands to erase.

    FFmpeg's decoder mixes the channels. It lets a caption that rolls up or is painted begin at the
    last erasure, and loses such a caption at the end of the file if nothing erases it.
    """
    is_first = is_blank = True  # whether the channel is the first, and nothing is shown
    for time, pair in pairs:
        high, low = pair.translate(_WITHOUT_PARITY)
        if 0x10 <= high < 0x20:
            is_first = high < 0x18
        if not is_first or high == low == 0:
            continue
        yield time, pair
        if high != _COMMAND or low == _FLIP:
            is_blank = False
        elif low == _ERASE:
            is_blank = True
        elif is_blank and (low in _ROLL_UP or low == _PAINT):
            yield time, _ERASING_PAIR
    yield pairs[-1][0], _ERASING_PAIR


def _decoded(pairs: list[tuple[float, bytes]]) -> list[Block]:
    """Decode pairs of bytes with their seconds to blocks."""
    if not pairs:
        return []
    lines = ["Scenarist_SCC V1.0", ""]
    for time, pair in _first_channel(pairs):
        frames = round(max(time, 0.0) * 30)
        second, frame = divmod(frames, 30)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}:{frame:02}"
        if lines[-1].startswith(clock):
            lines[-1] += f" {pair.hex()}"
        else:
            lines += [f"{clock}\t{pair.hex()}"]
    content = io.BytesIO("\n\n".join([*lines, ""]).encode())
    with av.open(content, "r", format="scc") as container:
        stream = container.streams.subtitles[0]
        blocks: list[Block] = []
        for packet in container.demux(stream):
            blocks += decoded_blocks(stream, packet, 0.0)
    return blocks


def decoded_blocks(stream: av.stream.Stream, packet: av.Packet, zero: float) -> list[Block]:
    """Decode one packet of a caption stream to blocks with times.

    Args:
      stream: a stream of FFmpeg's codec eia_608.
      packet: the next packet of the stream.
      zero: timestamp of second 0, in seconds.
    """
    shown = stream.codec_context.decode2(packet)  # type: ignore[attr-defined]
    if not shown or shown.pts is None:
        return []
    start = shown.pts / 1_000_000 - zero
    length = shown.end_display_time / 1000
    end = start + length if 0 < length < 3600 else None
    return [
        Block(max(start, 0.0), end, line.dialogue.decode(errors="replace"))
        for line in shown
        if end is None or end > 0
    ]
