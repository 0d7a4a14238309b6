"""What a video file states about itself, and what its first frame shows."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av

from hlformer_jax.video.decoding import Decoder
from hlformer_jax.video.errors import named
from hlformer_jax.video.opening import Video, opened
from hlformer_jax.video.picture import Painter

_MOST_BYTES_READ = 2**26
"""Of a file that states no length, where FFmpeg guesses one: a smaller file is read through."""


_CLOCK_IS_SET = 2 * 86_400
"""Seconds since 1970, where clocks begin that nobody has set."""


class Info(NamedTuple):
    """What is known of a video before it is decoded.

    Attributes:
      duration: seconds from second 0 to the end of the last frame.
      width: pixels, as shown: after rotation, and with square pixels.
      height: pixels, as shown.
      rate: frames a second on average.
      codec: FFmpeg's name of it, for example h264.
      start: the timestamp that is second 0, in seconds.
      recorded: when it was recorded, seconds since the epoch; 0 where the file does not say.
    """

    duration: float
    width: int
    height: int
    rate: float
    codec: str
    start: float
    recorded: float = 0.0


def probe(path: str | Path) -> Info:
    """What a video file is, found by decoding one frame of it.

    Args:
      path: the file.

    Returns:
      Its length, size, rate, codec and start. Where the file states no length, its packets are
      read (not decoded) to the end.

    Raises:
      VideoError: when the file cannot be read or no frame of it be decoded.
    """
    with named(path):
        with opened(path) as video:
            decoder = Decoder(video)
            height, width = 0, 0
            for _, frame in decoder:
                height, width, _ = Painter(video).paint(frame).shape
                break
            decoder.check()
            duration = _stated(video)
            rate, codec = float(1 / video.period), video.stream.codec_context.codec.canonical_name
            start = float(video.start or 0)
            recorded = _recorded(video)
        if duration is None:
            with opened(path) as video:
                duration = _counted(video)
    return Info(float(duration), width, height, rate, codec, start, recorded)


def _recorded(video: Video) -> float:
    """The container's `creation_time`; 0 for none, and for a clock that was never set."""
    stated = video.container.metadata.get("creation_time", "")
    with contextlib.suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(stated.strip())
        seconds = time.replace(tzinfo=time.tzinfo or UTC).timestamp()
        return seconds if seconds > _CLOCK_IS_SET else 0.0
    return 0.0


def _stated(video: Video) -> Fraction | None:
    """Seconds that a file states, or that FFmpeg guesses for a large one; None to count them."""
    if video.end is not None or video.container.size < _MOST_BYTES_READ:
        return video.end
    guessed = video.container.duration
    return Fraction(guessed, av.time_base) if guessed else None


def _counted(video: Video) -> Fraction:
    """Seconds from second 0 to the end of the last packet, by reading them all."""
    count, end, length = 0, Fraction(0), Fraction(0)
    for packet in _packets(video):
        count += 1
        own = packet.duration * video.unit if packet.duration else video.period
        length += own
        if packet.pts is not None and video.start is not None:
            end = max(end, packet.pts * video.unit - video.start + own)
    return end or length


def _packets(video: Video) -> Iterator[av.Packet]:
    try:
        yield from (packet for packet in video.container.demux(video.stream) if packet.size)
    except (av.FFmpegError, OSError):
        return  # as far as it can be read
