"""A video file that is open: which of its streams is the video, and when it begins."""

import contextlib
import functools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import av
from av.container import InputContainer
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from hlformer_jax.video.errors import fault, named

MOST_PIXELS = 2**27
"""Of a picture: 11,585 x 11,585, 0.2 GB decoded. More is a damaged header or an attack."""

_NO_FILM = Disposition.attached_pic | Disposition.timed_thumbnails
"""A cover is a video stream to FFmpeg."""

_CLOSE = Fraction(1, 1000)
"""A container's beginning is rounded to microseconds; this near it is the stream's own."""

_GUESSING = frozenset({"mpeg", "mpegts"})
"""Containers without a length: FFmpeg guesses it from timestamps near the end."""

_LATE = Fraction(1, 2)
"""Seconds; a container whose first timestamp is later leaves open what its length counts from."""

OPEN_SECONDS = 15.0
"""For FFmpeg to find out what a file is. A second is plenty; more is a file made to cost time."""

_MAX_BOXES, _LEAST_BOX = 1024, 64
"""Of MP4: so many boxes of fewer bytes on average are no recording's."""

_REFERRING = frozenset(
    "alias_pix alsa applehttp avisynth brender_pix concat dash dvdvideo fbdev hls iec61883 image2"
    " image2pipe imf jack kmsgrab lavfi mlv oss rtp rtsp sap sdp svg_pipe tty vapoursynth"
    " video4linux2,v4l2 vobsub webm_dash_manifest x11grab xcbgrab".split()
)
"""FFmpeg's formats that open further files, devices or addresses: playlists above all."""

_PLAYLISTS = frozenset(
    ".asx .concat .cue .ffconcat .ism .ismc .m3u .m3u8 .mpd .pls .sdp .smil .wpl .xspf".split()
)
_PLAYLIST_BEGINNINGS = (b"#EXTM3U", b"ffconcat", b"[playlist]", b"v=0\r", b"v=0\n")
_PLAYLIST_ELEMENTS = (
    b"<mpd", b"<smil", b"<asx", b"<playlist", b"<smoothstreamingmedia", b"<compositionplaylist",
)  # fmt: skip
"""What playlists begin with; those in XML have their element after a declaration."""

_MP4_BEGINNINGS = frozenset({b"ftyp", b"free", b"mdat", b"moov", b"pnot", b"skip", b"wide"})


@dataclass(frozen=True)
class Video:
    """An open video.

    Attributes:
      path: the file.
      container: FFmpeg's demuxer.
      stream: the video stream.
      start: the timestamp that is second 0, in seconds; None where the file has no timestamps.
      end: seconds at which the file states that its video ends; None where it states nothing that
        can be trusted.
      period: usual seconds between two frames.
    """

    path: Path
    container: InputContainer
    stream: VideoStream
    start: Fraction | None
    end: Fraction | None
    period: Fraction

    @property
    def unit(self) -> Fraction:
        """Returns the seconds of a timestamp's tick."""
        return self.stream.time_base or Fraction(1, 90_000)


@contextmanager
def opened(path: str | Path, *, pictures_only: bool = True) -> Iterator[Video]:
    """A video file, open until the block ends.

    Args:
      path: the file.
      pictures_only: whether packets of other streams are left out, which is faster.

    Yields:
      The open video.

    Raises:
      VideoError: when the file has no video that can be decoded; it says why.
    """
    path = Path(path)
    with named(path):
        _check_file(path)
        try:
            container = demuxer(path)
        except av.error.InvalidDataError as error:
            if _lacks_index(path):
                raise fault(
                    path,
                    "has no index (moov): its recording or copying was not finished",
                    "copy it again, or repair it with a tool such as untrunc",
                ) from error
            raise
        with container:
            stream = _choose(path, container)
            if pictures_only:
                for other in container.streams:
                    if other.index != stream.index:
                        other.discard = Discard.all
            # One thread: videos are decoded side by side in processes.
            stream.codec_context.thread_count = 1
            start = _start(container, stream)
            end = _end(container, stream, start)
            yield Video(path, container, stream, start, end, _period(stream))


def demuxer(path: Path) -> InputContainer:
    """FFmpeg's demuxer of a file, which opens that file and nothing else.

    Raises:
      av.FFmpegError: when FFmpeg does not know what it is, or not in `OPEN_SECONDS`.
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
    """The formats that are read: all of this FFmpeg but those of `_REFERRING`."""
    names = set()
    for alias in av.formats_available:
        with contextlib.suppress(ValueError):  # formats that are only written
            names.add(av.ContainerFormat(alias, "r").name)
    return ",".join(sorted(names - _REFERRING))


def check_size(path: Path, width: int, height: int) -> None:
    """Refuses pictures that no camera makes, before memory is taken for them.

    Raises:
      VideoError: with the size and the limit.
    """
    if width * height > MOST_PIXELS:
        raise fault(
            path,
            f"states pictures of {width} x {height} pixels, more than {MOST_PIXELS:,} in all",
            "it is damaged, or convert it to a smaller picture",
        )


def _check_file(path: Path) -> None:
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise fault(path, "is a folder", "give a file")
    if not stat.S_ISREG(found.st_mode):
        raise fault(path, "is no file but a pipe, socket or device", "give a file")
    if found.st_size == 0:
        raise fault(path, "is empty", "copy it again, or delete it")
    with open(path, "rb") as file:
        head = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
        if (
            path.suffix.lower() in _PLAYLISTS
            or head.startswith(_PLAYLIST_BEGINNINGS)
            or (head.startswith(b"<") and any(x in head.lower() for x in _PLAYLIST_ELEMENTS))
        ):
            raise fault(path, "is a playlist, no video", "give the files that it names")
        if head[4:8] in _MP4_BEGINNINGS and len(list(_boxes(file))) == _MAX_BOXES:
            if file.tell() < _MAX_BOXES * _LEAST_BOX:
                raise fault(path, "holds thousands of empty parts, no video", "delete it")


def _choose(path: Path, container: InputContainer) -> VideoStream:
    """The video stream that a player shows."""
    films = [stream for stream in container.streams.video if not stream.disposition & _NO_FILM]
    if not films:
        what = "holds sound alone, no video" if container.streams.audio else "holds no video"
        raise fault(path, what, "leave it out")
    known = [stream for stream in films if stream.codec_context is not None]
    if not known:
        raise fault(path, "has a codec that FFmpeg cannot decode here", "convert it to H.264")
    size = lambda stream: stream.codec_context.width * stream.codec_context.height
    rank = lambda stream: (bool(stream.disposition & Disposition.default), size(stream))
    stream = max(known, key=rank)
    context = stream.codec_context
    check_size(path, context.width, context.height)
    if not (context.width and context.height):
        what = "holds no frame that can be decoded, or absurdly large ones"
        raise fault(path, what, "copy it again, or delete it")
    return stream


def _start(container: InputContainer, stream: VideoStream) -> Fraction | None:
    """Second 0 of a player: where the first stream begins, but for a sound codec's priming."""
    if stream.start_time is None or stream.time_base is None:
        return None
    own = stream.start_time * stream.time_base
    if container.start_time is None:
        return own
    whole = max(Fraction(container.start_time, av.time_base), min(own, Fraction(0)))
    return own if abs(own - whole) < _CLOSE else min(own, whole)


def _end(container: InputContainer, stream: VideoStream, start: Fraction | None) -> Fraction | None:
    """When the video ends by what the file states, from its second 0."""
    if start is None or container.format.name in _GUESSING:
        return None
    if stream.duration and stream.start_time is not None and stream.time_base is not None:
        return (stream.start_time + stream.duration) * stream.time_base - start
    if not container.duration or start > _LATE:  # Matroska's counts from timestamp 0, or from start
        return None
    return Fraction(container.duration, av.time_base)


def _period(stream: VideoStream) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate
    return 1 / rate if rate and Fraction(1, 1000) < rate < 1000 else Fraction(1, 25)


def _lacks_index(path: Path) -> bool:
    """Whether this is MP4 or QuickTime without its index, which is written last."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"ftyp" and b"moov" not in set(_boxes(file))


def _boxes(file: BinaryIO) -> Iterator[bytes]:
    """Names of the first `_MAX_BOXES` boxes at an MP4 file's top level."""
    end = file.seek(0, os.SEEK_END)
    place = 0
    for _ in range(_MAX_BOXES):
        if place + 8 > end:
            return
        file.seek(place)
        size, name = int.from_bytes(file.read(4), "big"), file.read(4)
        if size == 1:
            size = int.from_bytes(file.read(8), "big")
        yield name
        if size < 8:  # 0: to the end of the file; less than its own head: damaged
            return
        place += size
