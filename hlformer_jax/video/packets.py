"""Packets of a file: sought, with timestamps that can be believed, and told of their encoder."""

import contextlib
import itertools
import re
from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

WITHOUT_INDEX = frozenset({"mpeg", "mpegts"})
"""Containers without a length: FFmpeg guesses it from timestamps near the end."""


def seek_stream(
    container: InputContainer, stream: VideoStream | AudioStream, second: Fraction | None
) -> None:
    """Seek to a second of a stream's own clock; None: to the first packet of the file.

    A transport stream begins with its first byte: by time FFmpeg passes over the first keyframe,
    and with a clock that wraps it lands anywhere.
    """
    unit = stream.time_base or Fraction(1, 90_000)
    if second is not None:
        container.seek(int(second / unit), stream=stream)
    elif container.format.name in WITHOUT_INDEX:
        container.seek(0, unsupported_byte_offset=True)
    else:
        container.seek(min(stream.start_time or 0, 0), stream=stream)


LONGEST_GAP = Fraction(3600)
"""Seconds between two frames; a longer gap is a jump of the timestamps."""

_CLOCK_SAMPLES = 16


def has_steady_clock(container: InputContainer, stream: VideoStream) -> bool:
    """Return whether the timestamps rise from place to place in the file, so that it can be sought.

    A stream whose clock was reset, as in two recordings joined, has some seconds twice. Only files
    without an index are looked at, in a few places.
    """
    if container.format.name not in WITHOUT_INDEX:
        return True
    unit, last = stream.time_base or Fraction(1, 90_000), None
    for place in range(_CLOCK_SAMPLES):
        with contextlib.suppress(av.FFmpegError):
            offset = container.size * place // _CLOCK_SAMPLES
            container.seek(offset, unsupported_byte_offset=True)
            stamps = (packet.dts for packet in packets_after_seek(container, stream))
            stamp = next((stamp for stamp in stamps if stamp is not None), last)
            if last is not None and stamp is not None:
                if not 0 <= (stamp - last) * unit <= LONGEST_GAP:
                    return False
            last = stamp
    return True


def packets_after_seek(
    container: InputContainer, stream: VideoStream | AudioStream
) -> Iterator[av.Packet]:
    """Packets whose timestamps are known after a seek.

    In a programme stream not every packet has a timestamp. FFmpeg counts on from the one before,
    which it does not know at first; and the first that it finds belongs to a packet that was cut.
    """
    packets = container.demux(stream)
    if container.format.name == "mpeg":
        stamped = 0
        for packet in packets:
            stamped += packet.pos is not None  # where a timestamp stood
            if stamped > 1:
                yield packet
    else:
        yield from packets


MAX_REORDERED = 16
"""Packets that are looked at before one is decoded: the most that H.264 reorders."""

_LEAP = Fraction(1)
"""Seconds between two timestamps from which on they are checked against those that follow."""

_RETURN = 128
"""Packets within which timestamps that leapt come back, where the leap is an error."""


class Timestamps:
    """The packets of a stream in decoding order, without the timestamps that are errors.

    A few packets may state times that are seconds or minutes off, after which the others go on as
    if nothing had happened. The packets around them tell such an error from a real gap and from a
    clock that was reset:

    - decoding times that leap away and come back to where they left are errors, and so are the
      presentation times of these packets;
    - a presentation time that is far later than its decoding time is an error if more packets
      with earlier ones follow than the codec reorders, or if the decoding times do not reach it;
    - a presentation time that is far earlier than its decoding time is an error.

    Such a time is set to None; `wrong` counts the packets.

    Args:
      packets: the packets of the stream.
      stream: the stream.
      period: usual seconds between two frames.
    """

    def __init__(self, packets: Iterator[av.Packet], stream: VideoStream, period: Fraction) -> None:
        unit = stream.time_base or Fraction(1, 90_000)
        self.wrong = 0
        self._packets = packets
        self._leap = int(_LEAP / unit)
        self._period = int(period / unit)
        self._delay = stream.codec_context.reorder_depth
        self._latest: int | None = None  # presentation time so far
        self._run = self._longest_run = 2  # packets in a row that are shown before an earlier one
        self._ahead: deque[av.Packet] = deque()

    def __iter__(self) -> Iterator[av.Packet]:
        last: int | None = None  # decoding time of the packet before
        offset = 0  # of the first packet: its presentation time less its decoding time
        while self._read_ahead(1):
            packet = self._ahead.popleft()
            if last is not None and packet.dts is not None:
                for _ in range(self._count_errors(packet.dts, last)):
                    packet.pts = packet.dts = None
                    self.wrong += 1
                    yield packet
                    packet = self._ahead.popleft()
            if packet.pts is not None and packet.dts is not None:
                late = packet.pts - packet.dts
                if last is None:
                    offset = min(late, 0)
                if late < offset - self._leap or (late > self._leap and self._is_late(packet.pts)):
                    packet.pts = packet.dts if last is None else None
                    self.wrong += 1
            last = last if packet.dts is None else packet.dts
            if packet.pts is not None:
                self._note_order(packet.pts)
            yield packet

    def _count_errors(self, stamp: int, last: int) -> int:
        """Count the packets from this decoding time on that are errors, by where it comes back."""
        ahead = stamp > last
        if abs(stamp - last) <= self._leap:
            return 0
        for count in range(1, _RETURN + 1):
            if not self._read_ahead(count):
                return 0
            coming = self._ahead[count - 1].dts
            if coming is None:
                continue
            jump = stamp - coming if ahead else coming - stamp
            if jump > self._leap and 0 < coming - last <= self._leap + count * self._period:
                return count
            stamp = coming
        return 0

    def _is_late(self, stamp: int) -> bool:
        """Judge a presentation time by the packets that follow: whether it is an error."""
        self._read_ahead(_RETURN)
        following = list(itertools.islice(self._ahead, _RETURN))
        earlier = sum(packet.pts is not None and packet.pts < stamp for packet in following)
        last = MAX_REORDERED + self._delay  # packet that comes when this one has been shown
        if len(following) < last:  # near the end of the file
            return earlier > self._longest_run
        reached = following[last - 1].dts
        return earlier > MAX_REORDERED or (reached is not None and reached < stamp)

    def _note_order(self, stamp: int) -> None:
        if self._latest is None or stamp > self._latest:
            self._latest, self._run = stamp, 0
        else:
            self._run += 1
            self._longest_run = max(self._longest_run, self._run)

    def _read_ahead(self, count: int) -> bool:
        """Read until `count` packets wait; return whether they do."""
        while len(self._ahead) < count:
            packet = next(self._packets, None)
            if packet is None:
                return False
            self._ahead.append(packet)
        return True


_FULL_CHROMA = ("yuv444", "gbrp")
"""Pixel formats of 4:4:4."""

_START_CODE = b"\0\0\0\1"

_DELIMITER = 9
"""Type of the unit that begins a picture of a transport stream."""


class EncoderMessage:
    """The message in the first packet of an H.264 video of 4:4:4 that names its encoder.

    x264 before core 151 wrote such video with an error, which FFmpeg reverses where it knows the
    encoder. A decoder that begins later in the file has to be told.

    Args:
      container: a file just opened, before any packet is read.
      stream: the pictures.
    """

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        context = stream.codec_context
        self._length_bytes = 0  # before each unit; 0 where units begin with a start code
        self._message = b""
        if context.codec.name != "h264" or not (context.pix_fmt or "").startswith(_FULL_CHROMA):
            return
        header = context.extradata or b""
        if len(header) > 4 and header[0] == 1:
            self._length_bytes = (header[4] & 3) + 1
        with contextlib.suppress(av.FFmpegError):
            first = next(container.demux(stream), None)
            units = [] if first is None else self._units(bytes(first))
            self._message = next((unit for unit in units if b"x264 - core" in unit), b"")

    def put_into(self, packet: av.Packet) -> av.Packet:
        """Return the packet with the message in front of its picture; unchanged without any."""
        data = bytes(packet)
        if not self._message or self._message in data:
            return packet
        units = self._units(data)
        place = 1 if units and units[0][:1] and units[0][0] & 31 == _DELIMITER else 0
        units.insert(place, self._message)
        marked = av.Packet(b"".join(self._prefix(unit) + unit for unit in units))
        marked.stream, marked.time_base = packet.stream, packet.time_base
        marked.pts, marked.dts, marked.duration = packet.pts, packet.dts, packet.duration
        marked.is_keyframe = packet.is_keyframe
        return marked

    def _prefix(self, unit: bytes) -> bytes:
        return len(unit).to_bytes(self._length_bytes, "big") if self._length_bytes else _START_CODE

    def _units(self, data: bytes) -> list[bytes]:
        """Split a packet into its units (network abstraction layer units of H.264)."""
        if not self._length_bytes:
            return [unit for unit in re.split(rb"\x00*\x00\x00\x01", data) if unit]
        units, place = [], 0
        while place < len(data):
            start = place + self._length_bytes
            place = start + int.from_bytes(data[place:start], "big")
            units.append(data[start:place])
        return units
