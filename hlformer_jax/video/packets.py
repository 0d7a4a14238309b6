"""Packets of a file: seeking, repair of wrong timestamps, and the message of the encoder."""

import contextlib
import itertools
import re
from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Stream
from av.video.stream import VideoStream

WITHOUT_INDEX = frozenset({"mpeg", "mpegts"})
"""Containers without an index and a length; FFmpeg guesses the length from late timestamps."""


def read_packets(container: InputContainer, *streams: Stream) -> Iterator[av.Packet]:
    """Yield the packets of streams from the current position, except empty ones.

    FFmpeg's last packet of a stream is empty, and AVI has empty packets for still frames.
    """
    # PyAV raises IndexError at the end of a file in which a damaged packet announced a new stream.
    with contextlib.suppress(IndexError):
        for packet in container.demux(*streams):
            if packet.size:
                yield packet


def seek_stream(
    container: InputContainer, stream: VideoStream | AudioStream, second: Fraction | None
) -> None:
    """Seek to a second of a stream, or to its start if FFmpeg cannot seek there.

    If FFmpeg cannot seek in the sound of an AVI file, the pictures of that second are sought.
    In a container without an index, the first packet is sought by its byte: seeking by time, FFmpeg
    would skip the first keyframe, or land anywhere if the clock wraps around. If all seeking fails,
    reading continues at the current position.

    Args:
      container: the open file.
      stream: the stream to seek in.
      second: a second of the stream's timestamps; None for the first packet of the file.
    """
    unit, start = stream.time_base or Fraction(1, 90_000), stream.start_time or 0
    with contextlib.suppress(av.FFmpegError):
        if second is None and container.format.name in WITHOUT_INDEX:
            container.seek(0, unsupported_byte_offset=True)
            return
        try:
            container.seek(min(start, 0) if second is None else int(second / unit), stream=stream)
        except av.FFmpegError:
            beside = next(iter(container.streams.video), None)
            if container.format.name == "avi" and beside is not None and beside.time_base:
                # Cameras mark no packet of the sound as a keyframe, so the pictures are sought.
                container.seek(int((second or 0) / beside.time_base), stream=beside)
                return
            # FLV has no time before its first packet, and FFmpeg forgets the packets it has read.
            container.seek(start, stream=stream)


LONGEST_GAP = Fraction(3600)
"""Longest gap between two frames, in seconds; a longer gap is a jump of the timestamps."""


def packets_after_seek(
    container: InputContainer, stream: VideoStream | AudioStream
) -> Iterator[av.Packet]:
    """Yield the packets of a stream after a seek, without those whose timestamps are unknown.

    In a programme stream, not every packet has a timestamp; FFmpeg derives the others from the one
    before. After a seek it knows none, and the first that it finds belongs to an incomplete packet.
    In other containers all packets are yielded.
    """
    packets = read_packets(container, stream)
    if container.format.name == "mpeg":
        stamped = 0
        for packet in packets:
            stamped += packet.pos is not None  # set for a packet with a timestamp in the file
            if stamped > 1:
                yield packet
    else:
        yield from packets


MAX_REORDERED = 16
"""Number of packets that are read ahead before one is decoded: the most that H.264 reorders."""

_LEAP = Fraction(1)
"""Difference of two timestamps above which they are compared with later ones, in seconds.

It is never less than `MAX_REORDERED` frames, by which times may differ in a slow video.
"""

_MAX_WRONG_PACKETS = 128
"""Number of packets within which wrong timestamps return to the right ones."""


class Timestamps:
    """The packets of a stream in decoding order, without wrong timestamps.

    The timestamps of a few packets may be wrong by seconds or minutes, while those before and after
    are right. The packets around them distinguish such an error from a real gap and from a clock
    that was reset:

    - decoding times that jump away and soon return to where they were are wrong, and so are the
      presentation times of the same packets. But if they jump back at a keyframe, and for more
      packets than a codec reorders, a short recording begins there;
    - a presentation time far after its decoding time is wrong if more packets with earlier
      presentation times follow than the codec reorders, or if later decoding times do not reach it;
    - a presentation time far before its decoding time is wrong.

    A wrong time is set to None, or the first packet's presentation time to its decoding time.
    `wrong` counts the packets.

    Args:
      packets: the packets of the stream.
      stream: the stream.
      period: usual distance of two frames, in seconds.
    """

    def __init__(self, packets: Iterator[av.Packet], stream: VideoStream, period: Fraction) -> None:
        unit = stream.time_base or Fraction(1, 90_000)
        self.wrong = 0
        self._packets = packets
        self._leap = int(max(_LEAP, MAX_REORDERED * period) / unit)
        self._period = int(period / unit)
        self._delay = stream.codec_context.reorder_depth
        self._latest: int | None = None  # latest presentation time so far
        self._run = self._longest_run = 2  # number of packets in a row before the latest time
        self._ahead: deque[av.Packet] = deque()

    def __iter__(self) -> Iterator[av.Packet]:
        last: int | None = None  # decoding time of the packet before
        offset = 0  # the first packet's presentation time minus its decoding time, at most 0
        while self._read_ahead(1):
            packet = self._ahead.popleft()
            if last is not None and packet.dts is not None:
                for _ in range(self._count_errors(packet, packet.dts, last)):
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

    def _count_errors(self, packet: av.Packet, stamp: int, last: int) -> int:
        """Return the number of packets with wrong decoding times, before the times return.

        Args:
          packet: the next packet.
          stamp: its decoding time.
          last: the decoding time before it.
        """
        ahead = stamp > last
        if abs(stamp - last) <= self._leap:
            return 0
        for count in range(1, _MAX_WRONG_PACKETS + 1):
            if not self._read_ahead(count):
                return 0
            coming = self._ahead[count - 1].dts
            if coming is None:
                continue
            jump = stamp - coming if ahead else coming - stamp
            if jump > self._leap and 0 < coming - last <= self._leap + count * self._period:
                return count
            if packet.is_keyframe and not ahead and count > MAX_REORDERED:
                return 0
            stamp = coming
        return 0

    def _is_late(self, stamp: int) -> bool:
        """Return whether a presentation time is too late, by the packets that follow."""
        self._read_ahead(_MAX_WRONG_PACKETS)
        following = list(itertools.islice(self._ahead, _MAX_WRONG_PACKETS))
        earlier = sum(packet.pts is not None and packet.pts < stamp for packet in following)
        last = MAX_REORDERED + self._delay  # number of the packet after this one was shown
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
        """Read ahead until `count` packets are waiting; return False if the stream ends before."""
        while len(self._ahead) < count:
            packet = next(self._packets, None)
            if packet is None:
                return False
            self._ahead.append(packet)
        return True


def with_content(packet: av.Packet, content: bytes) -> av.Packet:
    """Return a packet with the times of another one, but without its side data."""
    changed = av.Packet(content)
    changed.stream, changed.time_base = packet.stream, packet.time_base
    changed.pts, changed.dts, changed.duration = packet.pts, packet.dts, packet.duration
    changed.is_keyframe = packet.is_keyframe
    return changed


_FULL_CHROMA = ("yuv444", "gbrp")
"""Beginnings of the names of pixel formats with 4:4:4 chroma."""

_START_CODE = b"\0\0\0\1"

_DELIMITER = 9
"""Type of the unit that begins a picture in a transport stream."""


class EncoderMessage:
    """The message that names the encoder of an H.264 video with 4:4:4 chroma.

    It is in the first packet. x264 before core 151 wrote such videos with an error, which FFmpeg
    corrects if it knows the encoder. A decoder that begins later in the file needs the message too.

    Args:
      container: a newly opened file, before any packet is read.
      stream: the video stream.
    """

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        context = stream.codec_context
        self._length_bytes = 0  # bytes of the length before a unit; 0 if there is a start code
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
        """Return a packet with the message before its picture; the same packet without one."""
        data = bytes(packet)
        if not self._message or self._message in data:
            return packet
        units = self._units(data)
        place = 1 if units and units[0][:1] and units[0][0] & 31 == _DELIMITER else 0
        units.insert(place, self._message)
        return with_content(packet, b"".join(self._prefix(unit) + unit for unit in units))

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
