"""Reading of video files by PyAV: opening, decoding, sampling, seeking, probing.

Second 0 is that of a player: the beginning of the first of the file's streams. The parts of a
damaged or truncated file that can be decoded are used, and a warning states the others. No other
file is opened: playlists, and other files that would make FFmpeg open further files or addresses,
are refused.
"""

import contextlib
import functools
import heapq
import itertools
import math
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.stream import Discard, Disposition
from av.video.stream import VideoStream
from jaxtyping import UInt8

from hlformer_jax.errors import is_of_disk
from hlformer_jax.video.clocks import DISORDER, Recording, find_recordings
from hlformer_jax.video.dates import recording_time
from hlformer_jax.video.encryption import ENCRYPTED, Encryption, encrypted_share, is_encrypted
from hlformer_jax.video.faults import UNKNOWN_CODEC, explain, fault, name_errors, until_damage
from hlformer_jax.video.packets import (
    LONGEST_GAP,
    MAX_REORDERED,
    WITHOUT_INDEX,
    EncoderMessage,
    Timestamps,
    packets_after_seek,
    read_packets,
    seek_stream,
)
from hlformer_jax.video.pixels import Painter

# Opening a file

MAX_PIXELS = 2**27
"""Largest picture in pixels: 11,585 x 11,585, 0.2 GB decoded. More is a damaged or hostile file."""

OPEN_SECONDS = 15.0
"""Time limit in which FFmpeg must recognise a file. Usually it takes less than a second."""

NO_FILM = Disposition.attached_pic | Disposition.timed_thumbnails
"""Dispositions of covers and thumbnails, which FFmpeg lists as video streams."""

_CLOSE = Fraction(1, 1000)
"""Seconds by which the rounded start of a container may differ from the start of its stream."""

_LATE = Fraction(1, 2)
"""First timestamp, in seconds, above which it is unclear where a container's length starts."""

_REFERRING = frozenset(
    "alias_pix alsa applehttp avisynth brender_pix concat dash dvdvideo fbdev hls iec61883 image2"
    " image2pipe imf jack kmsgrab lavfi mlv oss rtp rtsp sap sdp svg_pipe tty vapoursynth"
    " video4linux2,v4l2 vobsub webm_dash_manifest x11grab xcbgrab".split()
)
"""FFmpeg's formats that open further files, devices or addresses, such as playlists."""


@dataclass(frozen=True)
class Video:
    """An open video; times in seconds."""

    path: Path
    container: InputContainer
    stream: VideoStream
    start: Fraction | None  # timestamp of second 0; None if the file has no timestamps
    end: Fraction | None  # end that the file states; None if it states none that is reliable
    period: Fraction  # usual distance of two frames

    @property
    def unit(self) -> Fraction:
        """Seconds of one tick of the timestamps."""
        return self.stream.time_base or Fraction(1, 90_000)

    @property
    def aspect(self) -> Fraction:
        """Width over height of a pixel."""
        return Fraction(self.stream.sample_aspect_ratio or 1)

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """The recordings in the file; see `find_recordings`. Several if its clock was reset."""
        about = self.path.stat()
        version = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
        return _recordings(self.path, self.stream.index, self.period, version)

    @property
    def has_steady_clock(self) -> bool:
        """True if the clock is never reset, so that seeking by time works."""
        return len(self.recordings) < 2


@functools.lru_cache(maxsize=1024)
def _recordings(
    path: Path, index: int, period: Fraction, version: tuple[int, ...]
) -> tuple[Recording, ...]:
    """Return the recordings in a file; a process examines a version of a file once."""
    with demuxer(path) as container:
        for unused in container.streams:
            unused.discard = Discard.default if unused.index == index else Discard.all
        stream = container.streams[index]
        assert isinstance(stream, VideoStream)
        return find_recordings(path, container, stream, period)


@contextmanager
def opened(path: str | Path) -> Iterator[Video]:
    """Open a video file until the block ends; packets of its other streams are skipped.

    Raises:
      VideoError: if the file has no video that can be decoded, with the reason; also for an error
        of FFmpeg, the disk or the memory in the block.
    """
    path = Path(path)
    with name_errors(path):
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            raise fault(path, "is a folder", "give a file")
        if not stat.S_ISREG(about.st_mode):
            raise fault(path, "is a pipe, socket or device", "give a file")
        if about.st_size == 0:
            raise fault(path, "is empty", "copy it again")
        try:
            container = demuxer(path)
        except av.error.InvalidDataError as error:
            if _lacks_index(path):
                what = "has no index (moov): its recording or copying was not finished"
                advice = "copy it again, or repair it with a tool such as untrunc"
                raise fault(path, what, advice) from error
            if _index_holds(path, b"encv"):  # FFmpeg does not know some kinds of encryption
                raise fault(path, *ENCRYPTED) from error
            raise
        with container:
            stream = _choose(path, container)
            for unused in container.streams:
                if unused.index != stream.index:
                    unused.discard = Discard.all
            # One thread, because videos are decoded in several processes.
            stream.codec_context.thread_count = 1
            start = _start(container, stream)
            end = _end(path, container, stream, start)
            yield Video(path, container, stream, start, end, _period(stream))


def demuxer(path: Path) -> InputContainer:
    """Open FFmpeg's demuxer for a file; it opens no other file.

    Raises:
      av.FFmpegError: if FFmpeg does not recognise the file, or cannot read it.
    """
    # `file:` keeps FFmpeg from taking a name such as `concat:a|b` for a protocol.
    return av.open(
        f"file:{os.path.abspath(path)}",
        "r",
        options={"protocol_whitelist": "file", "format_whitelist": _formats()},
        timeout=(OPEN_SECONDS, None),
        metadata_errors="replace",
    )


@functools.cache
def _formats() -> str:
    """Return the formats that are read: all of this FFmpeg's except `_REFERRING`."""
    names = set()
    for alias in av.formats_available:
        with contextlib.suppress(ValueError):  # formats that are only written
            names.add(av.ContainerFormat(alias, "r").name)
    return ",".join(sorted(names - _REFERRING))


def check_size(path: Path, width: int, height: int) -> None:
    """Check the size of pictures before memory is allocated for them.

    Raises:
      VideoError: if they have more than `MAX_PIXELS` pixels.
    """
    if width * height > MAX_PIXELS:
        what = f"states pictures of {width} x {height} pixels, more than {MAX_PIXELS:,} in all"
        raise fault(path, what, "it is damaged, or convert it to a smaller picture")


def _choose(path: Path, container: InputContainer) -> VideoStream:
    """Return the video stream that a player shows.

    Raises:
      VideoError: if there is no video stream that can be decoded.
    """
    films = [stream for stream in container.streams.video if not stream.disposition & NO_FILM]
    if not films:
        what = "holds sound alone, no video" if container.streams.audio else "holds no video"
        raise fault(path, what, "leave it out")
    decodable = [stream for stream in films if stream.codec_context is not None]
    if not decodable:
        raise fault(path, *UNKNOWN_CODEC)

    def size(stream: VideoStream) -> int:
        return stream.codec_context.width * stream.codec_context.height

    most = max(stream.frames for stream in decodable)  # 0 if the file does not state them

    def preference(stream: VideoStream) -> tuple[bool, bool, int]:
        # Phones add a track of a few larger pictures to a film (Top Shot of Pixel phones).
        is_film = 10 * stream.frames >= most
        return bool(stream.disposition & Disposition.default), is_film, size(stream)

    stream = max(decodable, key=preference)
    check_size(path, stream.codec_context.width, stream.codec_context.height)
    if not size(stream):
        if encrypted_share(path, stream):
            raise fault(path, *ENCRYPTED)
        if stream.codec_context.name == "webp":
            what = "is an animated WebP, which FFmpeg cannot decode"
            raise fault(path, what, "convert it to GIF or MP4")
        what = "holds no frame that can be decoded, or absurdly large ones"
        raise fault(path, what, "copy it again")
    return stream


def _start(container: InputContainer, stream: VideoStream) -> Fraction | None:
    """Return the timestamp of second 0: the start of the first stream, without sound priming."""
    first = stream.start_time
    if first is None and container.format.name == "matroska,webm" and len(stream.index_entries):
        first = stream.index_entries[0].timestamp  # FFmpeg states no start of few or slow frames
    if first is None or stream.time_base is None:
        return None
    start = first * stream.time_base
    if container.start_time is None:
        return start
    earliest = max(Fraction(container.start_time, av.time_base), min(start, Fraction(0)))
    return start if abs(start - earliest) < _CLOSE else min(start, earliest)


def _end(
    path: Path, container: InputContainer, stream: VideoStream, start: Fraction | None
) -> Fraction | None:
    """Return the end of the video that the file states, in seconds from second 0; None if none."""
    if start is None or container.format.name in WITHOUT_INDEX:
        return None
    if stream.duration and stream.start_time is not None and stream.time_base is not None:
        # Joined segments (DASH) state the length of the whole stream, from timestamp 0.
        if start > _LATE and any(name == b"moof" for name, _ in _boxes(path)):
            return None
        return (stream.start_time + stream.duration) * stream.time_base - start
    # Matroska's duration counts from timestamp 0, or from the start.
    if not container.duration or start > _LATE:
        return None
    return Fraction(container.duration, av.time_base)


def _read_tagged_length(stream: VideoStream) -> float:
    """Return the seconds of a track by its tag DURATION, such as 00:00:02.5; infinity without."""
    parts = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d*)?)", stream.metadata.get("DURATION", ""))
    if parts is None:
        return math.inf
    return 3600 * int(parts[1]) + 60 * int(parts[2]) + float(parts[3])


def _mean_rate(stream: VideoStream) -> Fraction | None:
    """Return the frames a second on average; None if the file states no plausible rate."""
    # If the number of frames is not stated, FFmpeg takes the clock for the rate: 60,000 ticks a
    # second in raw DV, 1,000 in Matroska. If it is stated, as in MP4, slow motion has such rates.
    highest = 1 / (stream.time_base or 1) if stream.frames > 1 else 999
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and Fraction(1, 1000) < rate <= highest:
            return rate
    return None


def _period(stream: VideoStream) -> Fraction:
    return 1 / (_mean_rate(stream) or Fraction(25))


def _lacks_index(path: Path) -> bool:
    """Return whether a file is MP4 or QuickTime without its index (`moov`), often written last."""
    boxes = [name for name, _ in _boxes(path)]
    return boxes[:1] == [b"ftyp"] and b"moov" not in boxes and boxes[-1] == b""


def _is_initialisation(path: Path) -> bool:
    """Return whether a file is MP4 that announces fragments (`mvex`) and has no frame."""
    boxes = dict(_boxes(path))
    return not {b"moof", b"mdat"} & boxes.keys() and _index_holds(path, b"mvex")


def _index_holds(path: Path, name: bytes) -> bool:
    """Return whether the index (`moov`) of an MP4 file has a box."""
    place, size = dict(_boxes(path)).get(b"moov", (0, 0))
    with open(path, "rb") as file:
        file.seek(place)
        return name in file.read(min(size, _MAX_INDEX_BYTES))


_MAX_INDEX_BYTES = 2**20
"""Number of bytes of an index in which a box is looked for."""

_MAX_BOXES = 1000


def _boxes(path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the name of each box of an MP4 file, with its position and size in bytes.

    A last name b"" says that the boxes end with the file or are damaged. It is missing if there are
    more than `_MAX_BOXES` boxes.
    """
    with open(path, "rb") as file:
        place, end = 0, os.fstat(file.fileno()).st_size
        for _ in range(_MAX_BOXES):
            file.seek(place)
            size, name = int.from_bytes(file.read(4), "big"), file.read(4)
            size = int.from_bytes(file.read(8), "big") if size == 1 else size
            yield name, (place, size or end - place)
            place += size
            if size < 8 or place + 8 > end:  # 0: to the end of the file; 1 to 7: damaged
                yield b"", (place, 0)
                return


# Decoding

WITHOUT_PRESENTATION_TIMES = frozenset({"avi"})
"""Containers that only have decoding times.

FFmpeg guesses the presentation times, which is wrong for B-frames.
"""


class Clock:
    """Times of frames in seconds from the video's start, in the order in which they are shown.

    A frame without a timestamp begins when the frame before it ends. So does a frame after a jump
    of the timestamps, as in a recording whose clock was reset. In a container that only has
    decoding times, the n-th frame shown has the n-th smallest decoding time.

    Args:
      video: the video.
      is_sought: whether decoding begins after a seek. Then a first frame without a timestamp is
        dropped, because its time is unknown.
    """

    def __init__(self, video: Video, is_sought: bool = False) -> None:
        self.end = Fraction(0)  # second at which the frame before ends
        self.jumps = 0  # number of jumps of the timestamps so far
        self.disordered = 0  # number of frames that were dropped, because they came too late
        self._video = video
        self._start = video.start
        self._by_decoding = video.container.format.name in WITHOUT_PRESENTATION_TIMES
        self._decoding: list[int] = []
        self._has_times = False  # whether a packet had a presentation time
        self._sent: deque[int] = deque(maxlen=4 * MAX_REORDERED)  # times of the latest packets
        self._last_stamp: int | None = None  # timestamp of the frame before
        self._is_sought = is_sought
        self._last: Fraction | None = None
        self._shift = Fraction(0)

    def sent(self, packet: av.Packet) -> None:
        """Record a packet that is sent to the decoder."""
        if packet.pts is not None:
            self._has_times = True
            self._sent.append(packet.pts)
        if self._by_decoding and packet.dts is not None and packet.size:
            heapq.heappush(self._decoding, packet.dts)

    def time(self, frame: av.VideoFrame | av.Packet, coming: int = 0) -> Fraction | None:
        """Return the second of the decoder's next frame; None if the frame must be dropped.

        Args:
          frame: the frame, or its packet if the codec does not reorder frames.
          coming: number of further frames that the decoder has returned with it.
        """
        # `frame.dts` is that of the last packet, which is right for a stream without reordering.
        stamp = frame.pts if frame.pts is not None or self._has_times else frame.dts
        if self._by_decoding:
            stamp = self._least_decoding_time(coming)
        if stamp is None and self._last is None and self._is_sought:
            return None
        time = self._relative(stamp)
        if self._last is not None:
            gap = time - self._last
            if gap <= 0 and (gap >= -DISORDER or self._is_delayed(stamp)):
                self.disordered += 1
                return None
            if gap < -DISORDER or gap > LONGEST_GAP:
                self.jumps += 1
                self._shift += self.end - time
                time = self.end
        self._last, self._last_stamp = time, stamp
        length = frame.duration * self._video.unit if frame.duration else self._video.period
        self.end = time + (length if 0 < length <= LONGEST_GAP else self._video.period)
        if self._video.end is not None and not self._shift and time < self._video.end:
            self.end = min(self.end, self._video.end)
        return time

    def _is_delayed(self, stamp: int | None) -> bool:
        """Return whether the packet of a frame was sent before the packet of the last frame.

        After a gap in the reception, decoders return some frames of both sides alternately.
        """
        sent = list(self._sent)
        if stamp is None or sent.count(stamp) != 1 or self._last_stamp not in sent:
            return False
        return sent.index(stamp) < sent.index(self._last_stamp)

    def _least_decoding_time(self, coming: int) -> int | None:
        stamp = heapq.heappop(self._decoding) if self._decoding else None
        # The decoder holds back no more frames than it reorders; from other packets came no frame.
        delayed = self._video.stream.codec_context.reorder_depth + coming
        while len(self._decoding) > delayed:
            stamp = heapq.heappop(self._decoding)
        return stamp

    def _relative(self, stamp: int | None) -> Fraction:
        if stamp is None:
            return self.end
        seconds = stamp * self._video.unit
        if self._start is None:
            self._start = seconds - self.end
        return seconds - self._start + self._shift


SKIPPING = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders can skip frames to which no other frame refers."""

_MAX_MISSING_SHARE = 0.02
"""Share of its length by which a video may end early without a warning; at least a second."""

_PROBED_PICTURES = 16
"""Number of pictures of a DVD from which `probe` tells damage from encryption."""

Wanted = Callable[[Fraction, Fraction], bool]
"""Function that takes the seconds from and until which a frame is shown; whether it is needed."""


class Decoder:
    """Decoder of a video from the position of its demuxer.

    With `is_needed`, frames are not decoded if that changes no needed frame. If the codec has no
    references between frames, all unneeded frames are skipped; for the codecs in `SKIPPING`, the
    unneeded frames that are not references. The timestamps of packets decide before decoding. If
    they are not reliable, everything is decoded.

    Args:
      video: the open video.
      is_needed: whether a frame is needed; None if all frames are.
      sought: after a seek, the message of the encoder, which is put into the first packet; None at
        the start of the file.
    """

    def __init__(
        self,
        video: Video,
        is_needed: Wanted | None = None,
        sought: EncoderMessage | None = None,
    ) -> None:
        self.clock = Clock(video, sought is not None)
        self.packets = 0  # number of packets read
        self.damaged = 0  # number of these packets that could not be decoded
        self.encrypted = 0  # number of these packets that are encrypted
        self.frames = 0  # number of frames that were decoded and not dropped by the clock
        self.stopped = ""  # why reading ended before the end of the file
        self._video = video
        self._encryption = Encryption(video.path, video.stream)
        self._is_needed = is_needed
        codec = video.stream.codec_context.codec
        self._alone = codec.intra_only
        self._trusted = (
            video.start is not None
            and video.container.format.name not in WITHOUT_PRESENTATION_TIMES
            and (self._alone or codec.name in SKIPPING)
        )
        self._decoded_last: int | None = None
        self._first = True
        self._message = sought
        self._is_at_start = sought is None
        self._timestamps = Timestamps(self._read(), video.stream, video.period)

    def __iter__(self) -> Iterator[tuple[Fraction, av.VideoFrame]]:
        """Yield frames with their seconds, in the order in which they are shown."""
        context = self._video.stream.codec_context
        for packet, is_needed in self._plan():
            if packet is not None:
                if is_encrypted(packet):  # it would be decoded to noise
                    self.encrypted += 1
                    continue
                if self._alone and not is_needed:
                    continue
                if self._is_needed is not None:
                    context.skip_frame = "DEFAULT" if is_needed else "NONREF"
                self.clock.sent(packet)
                if self._message is not None:
                    packet, self._message = self._message.put_into(packet), None
            try:
                frames = context.decode(packet)
            except (av.FFmpegError, EOFError) as error:
                if isinstance(error, MemoryError):
                    raise
                self.damaged += 1
                continue
            for place, frame in enumerate(frames, 1):
                time = self.clock.time(frame, len(frames) - place)
                if time is not None:
                    check_size(self._video.path, frame.width, frame.height)
                    self.frames += 1
                    self._encryption.add(frame)
                    yield time, frame

    def check(self) -> None:
        """Refuse a video of which no frame was decoded, and a DVD whose pictures are encrypted.

        Raises:
          VideoError: in both cases; it gives the reason.
        """
        if self.frames:
            return self._encryption.check()
        path = self._video.path
        if self.encrypted or self._encryption.share():
            raise fault(path, *ENCRYPTED)
        if self.packets:
            what = f"has {self.packets} frames or parts of them, but none can be decoded"
            raise fault(path, what, "copy it again, or try it in a player")
        if _is_initialisation(path):
            what = "is the initialisation segment of a stream (DASH or HLS), without a frame"
            raise fault(path, what, "join it with its media segments")
        if self._video.container.streams.audio and not self.stopped:
            raise fault(path, "holds sound and a video track without a frame", "leave it out")
        raise fault(path, f"holds no frame{self.stopped and f' ({self.stopped})'}", "copy it again")

    def warning(self) -> str:
        """Return one line on the faults of a video that was decoded to its end; "" for none."""
        # If only the container states a length, it may be that of the sound.
        video = self._video
        has_length = video.stream.duration is not None or not video.container.streams.audio
        # Matroska states one length for all tracks, and most programs add a tag to each track.
        stated = min(float(has_length and video.end or 0), _read_tagged_length(video.stream))
        end = float(self.clock.end)
        share = self._encryption.share()
        early = stated - end > max(1, _MAX_MISSING_SHARE * stated)
        faults = [
            f"its reading stopped at {end:.1f} s ({self.stopped})" if self.stopped else "",
            f"it ends at {end:.1f} s of the {stated:.1f} s it states" if early else "",
            f"{self.damaged} of its {self.packets} packets are damaged" if self.damaged else "",
            f"{self.encrypted} of its {self.packets} packets are encrypted" * bool(self.encrypted),
            f"{max(100 * share, 1):.0f} % of its packets are encrypted" if share else "",
            f"its timestamps jump {self.clock.jumps} times" if self.clock.jumps else "",
            f"{wrong} packets have wrong timestamps" if (wrong := self._timestamps.wrong) else "",
            f"{self.clock.disordered} frames come too late" if self.clock.disordered else "",
        ]
        line = "; ".join(filter(None, faults))
        return line and f"{str(video.path)!r} is used as far as it can be read: {line}"

    def _plan(self) -> Iterator[tuple[av.Packet | None, bool]]:
        """Yield packets, each with whether its frame is needed; then None, to flush the decoder."""
        coming: deque[av.Packet] = deque()
        passed: deque[int] = deque(maxlen=MAX_REORDERED)
        ahead = 1 if self._alone else MAX_REORDERED
        for packet in self._timestamps:
            if self._is_needed is None:
                yield packet, True
                continue
            self._judge(packet)
            coming.append(packet)
            if len(coming) > ahead:
                yield self._with_need(coming, passed)
        while coming:
            yield self._with_need(coming, passed)
        yield None, True

    def _with_need(self, coming: deque[av.Packet], passed: deque[int]) -> tuple[av.Packet, bool]:
        packet = coming.popleft()
        start, stamp = self._video.start, packet.pts
        first, self._first = self._first, False
        trusted = self._trusted and not first  # the first frame also covers the time before it
        if not trusted or self._is_needed is None or start is None or stamp is None:
            return packet, True
        stamps = [packet.pts for packet in coming if packet.pts is not None]
        later = [x for x in (*stamps, *passed) if x > stamp]
        passed.append(stamp)
        if not later:
            return packet, True
        unit = self._video.unit
        return packet, self._is_needed(stamp * unit - start, min(later) * unit - start)

    def _judge(self, packet: av.Packet) -> None:
        """Stop trusting the timestamps once one is missing, does not rise, or jumps ahead."""
        last = self._decoded_last
        if packet.pts is None:
            self._trusted = False
        elif last is not None and packet.dts is not None:
            step = (packet.dts - last) * self._video.unit
            self._trusted = self._trusted and 0 < step <= LONGEST_GAP
        if packet.dts is not None:
            self._decoded_last = packet.dts

    def _read(self) -> Iterator[av.Packet]:
        container, stream = self._video.container, self._video.stream
        try:
            read = read_packets if self._is_at_start else packets_after_seek
            for packet in read(container, stream):
                self.packets += 1
                yield packet
        except (av.FFmpegError, OSError) as error:
            if is_of_disk(error):
                raise
            self.stopped = explain(error)[0]


# Seeking and sampling

_ROUNDING = Fraction(1, 1000)
"""Seconds to which some containers round times; an instant this close to the end is behind it."""


def tolerance(video: Video) -> Fraction:
    """Return the seconds after an instant in which a frame may begin that is shown at it.

    Times are written in milliseconds, so the time of a frame may be rounded down.
    """
    return min(_ROUNDING, video.period / 2)


_STEPS_BACK = (Fraction(0), Fraction(3), Fraction(20))
"""Seconds by which to seek too early, tried in turn, because some containers seek too far."""


def frames_from(
    video: Video, second: Fraction
) -> Iterator[tuple[Fraction, Fraction, av.VideoFrame]]:
    """Yield the frames of a newly opened video that are shown from a second on.

    The first frame is the one shown at that second (see `tolerance`), or else the nearest one.

    Args:
      video: the video, before any packet is read.
      second: seconds from the video's start.

    Yields:
      The seconds from and until which a frame is shown, and the frame.

    Raises:
      VideoError: if no frame can be decoded.
    """
    second += tolerance(video)
    decoder, frames = _sought(video, second)
    shown: tuple[Fraction, av.VideoFrame] | None = None
    for time, frame in frames:
        if shown is not None and time > second:
            decoder.check()
            yield shown[0], time, shown[1]
        shown = time, frame
    decoder.check()
    assert shown is not None
    yield shown[0], decoder.clock.end, shown[1]


def _sought(
    video: Video, second: Fraction
) -> tuple[Decoder, Iterator[tuple[Fraction, av.VideoFrame]]]:
    """Return a decoder and its frames, the first of which is at or before `second` if any is."""

    def is_needed(_: Fraction, end: Fraction) -> bool:
        return end > second

    if video.start is not None:  # without timestamps seeking is impossible
        message = EncoderMessage(video.container, video.stream)
        if video.stream.codec_context.pix_fmt == "pal8":
            # The first packet alone has the palette of AVI and QuickTime, which the decoder keeps.
            with contextlib.suppress(av.FFmpegError):
                next(video.container.decode(video.stream), None)
        for step in _STEPS_BACK if video.has_steady_clock else ():
            if second <= step:
                break
            seek_stream(video.container, video.stream, video.start + second - step)
            decoder = Decoder(video, is_needed, message)
            frames = iter(decoder)
            first = next(frames, None)
            if first is not None and first[0] <= second:
                return decoder, itertools.chain([first], frames)
        seek_stream(video.container, video.stream, None)
    decoder = Decoder(video, is_needed)
    return decoder, iter(decoder)


class Frame(NamedTuple):
    """A picture of a video at an instant."""

    time: float  # the frame's time in seconds; for further instants that show it, the instant
    image: UInt8[np.ndarray, "height width 3"]  # RGB, upright; instants of one frame share it


class Samples(Iterator[Frame]):
    """Iterator over the frames of a video at a constant rate; see `sample`.

    Attributes:
      end: second at which the last frame decoded so far ends; after the iteration, the length.
      warning: after the iteration, one line on parts that could not be used, or "".
    """

    def __init__(self, path: str | Path, fps: float, size: int | None) -> None:
        if not (math.isfinite(fps) and fps > 0) or (size is not None and size < 1):
            raise ValueError(f"sample wants fps > 0 and size >= 1, not {fps} and {size}")
        self.end = 0.0
        self.warning = ""
        self._path = Path(path)
        self._rate = Fraction(fps).limit_denominator(1_000_000) or Fraction(fps)
        self._size = size
        self._frames = self._decode()

    def __next__(self) -> Frame:
        return next(self._frames)

    def close(self) -> None:
        """Close the file before the iteration has ended."""
        self._frames.close()

    def _decode(self) -> Generator[Frame, None, None]:
        with opened(self._path) as video:
            decoder = Decoder(video, self._any_instant)
            painter = Painter(video.aspect, self._size)
            shown: tuple[Fraction, av.VideoFrame] | None = None
            instant = 0
            for time, frame in decoder:
                if shown is None:
                    # The first frame is also used for the instants before it.
                    instant = max(math.floor(time * self._rate), 0)
                else:
                    yield from self._until(time, shown, instant, painter)
                    instant = max(instant, math.ceil(time * self._rate))
                shown = time, frame
                self.end = float(decoder.clock.end)
            decoder.check()
            assert shown is not None
            end = decoder.clock.end
            end -= min(_ROUNDING, (end - shown[0]) / 2)
            yield from self._until(end, shown, instant, painter)
            self.warning = decoder.warning()

    def _any_instant(self, start: Fraction, end: Fraction) -> bool:
        """Return whether an instant of the samples lies in [start, end)."""
        return math.ceil(start * self._rate) < end * self._rate

    def _until(
        self, end: Fraction, shown: tuple[Fraction, av.VideoFrame], instant: int, painter: Painter
    ) -> Iterator[Frame]:
        """Yield the shown frame once for each instant from number `instant` on, before `end`."""
        time, frame = shown
        image = None
        for index in range(instant, math.ceil(end * self._rate)):
            image = painter.paint(frame) if image is None else image
            yield Frame(float(time if index == instant else index / self._rate), image)


def sample(path: str | Path, fps: float = 1.0, size: int | None = None) -> Samples:
    """Sample the frames of a video that are shown at 0, 1/fps, 2/fps ... seconds.

    The frame shown at an instant is the last frame whose time is not later. If the first frame
    comes after second 0, it is used for the instant before it. Memory does not grow with the length
    of the video.

    Args:
      path: the file.
      fps: instants a second; may be below 1.
      size: pixels to which the shorter side is scaled down if it has more; None: no scaling.

    Returns:
      An iterator over the frames. It opens the file when the first frame is taken, and raises a
      VideoError if the file cannot be read or none of its frames can be decoded.

    Raises:
      ValueError: if fps is not above 0, or size is below 1.
    """
    return Samples(path, fps, size)


# Probing

_MAX_BYTES_READ = 2**26
"""Largest file, in bytes, that is read to the end to find its length; else FFmpeg guesses it."""


class Info(NamedTuple):
    """Properties of a video that are known before it is decoded."""

    duration: float  # seconds from second 0 to the end of the last frame
    width: int  # square pixels, after rotation
    height: int
    rate: float  # frames a second on average
    codec: str  # FFmpeg's name of the codec, for example h264
    start: float  # timestamp of second 0, in seconds
    recorded: float = 0.0  # time of recording, seconds since the epoch; 0 if not stated
    timecode: str = ""  # HH:MM:SS:FF of the first frame; ; or . before FF means drop-frame
    sound: bool = False  # whether there is an audio track
    base_rate: float = 0.0  # rate whose multiples of 1/rate all timestamps are; 0 if unknown
    is_variable: bool = False  # whether the distance of frames varies


def probe(path: str | Path) -> Info:
    """Return the properties of a video file, by decoding one frame, or a few of a DVD.

    If the file states no length, its packets are read to the end, without decoding. For a large
    file FFmpeg's guess is used instead. FLV and Matroska state the length of the longest track.

    Raises:
      VideoError: if the file cannot be read, or none of its frames can be decoded.
    """
    with opened(path) as video:
        decoder = Decoder(video)
        height, width = 0, 0
        needed = _PROBED_PICTURES if video.container.format.name == "mpeg" else 1
        for _, frame in decoder:
            if decoder.frames == 1:
                height, width, _ = Painter(video.aspect).paint(frame).shape
            if decoder.frames == needed:
                break
        decoder.check()
        duration, stream, container = _read_stated_length(video), video.stream, video.container
        info = Info(
            float(duration or 0), width, height, float(1 / video.period),
            stream.codec_context.codec.canonical_name, float(video.start or 0),
            recording_time(container, stream), _timecode(video), bool(container.streams.audio),
            float(stream.base_rate or 0), _is_variable(stream),
        )  # fmt: skip
    if duration is None:
        with opened(path) as video:
            info = info._replace(duration=float(_measure_length(video)))
    return info


_STEADY = 0.01
"""Share of the usual distance by which the distance of frames of a constant rate may differ."""

_MAX_ENTRIES = 2_000


def _is_variable(stream: VideoStream) -> bool:
    """Return whether the distance of frames varies, from an MP4's index or from FFmpeg's rates."""
    mean, base = float(_mean_rate(stream) or 0), float(stream.base_rate or 0)
    if not mean or not base:
        return False
    entries = itertools.islice(stream.index_entries, _MAX_ENTRIES)
    if "mp4" in stream.container.format.name and stream.frames > 2:
        steps = np.diff([entry.timestamp for entry in entries])
        usual = np.median(steps) if len(steps) else 0.0
        return bool(len(steps) and np.max(np.abs(steps - usual)) > max(2, _STEADY * usual))
    fields = base / mean > 1.5  # interlaced video has two fields for each frame
    return abs(base / (2 if fields else 1) / mean - 1) > _STEADY


def _timecode(video: Video) -> str:
    """Return the timecode of the video stream, the file, or a timecode track; "" for none."""
    tracks = (stream.metadata for stream in video.container.streams.data)
    for stated in (video.stream.metadata, video.container.metadata, *tracks):
        code = stated.get("timecode", "").strip()
        if re.fullmatch(r"\d\d:[0-5]\d:[0-5]\d[:;.]\d\d", code):
            return code
    return ""


def _read_stated_length(video: Video) -> Fraction | None:
    """Return the length that a file states, or that FFmpeg guesses for a large file; else None.

    FFmpeg's guess is wrong if the clock was reset; then all packets were read already.
    """
    if not video.has_steady_clock:
        last = video.recordings[-1]
        return last.end * video.unit + last.shift - (video.start or 0)
    if video.end is not None or video.container.size < _MAX_BYTES_READ:
        return video.end
    guessed = video.container.duration
    return Fraction(guessed, av.time_base) if guessed else None


def _measure_length(video: Video) -> Fraction:
    """Return the seconds from second 0 to the end of the last packet, by reading all packets."""
    end, length = Fraction(0), Fraction(0)
    with until_damage():
        packets = read_packets(video.container, video.stream)
        for packet in Timestamps(packets, video.stream, video.period):
            duration = packet.duration * video.unit if packet.duration else video.period
            length += duration
            if packet.pts is not None and video.start is not None:
                end = max(end, packet.pts * video.unit - video.start + duration)
    return end or length
