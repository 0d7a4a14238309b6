"""Frames from a second on, without decoding all that is before it."""

from collections.abc import Iterator
from fractions import Fraction

import av

from hlformer_jax.video.decoding import Decoder
from hlformer_jax.video.opening import Video

_STEPS_BACK = (Fraction(0), Fraction(3), Fraction(20))
"""Seconds before the wanted one to start from, in turn: some containers seek too far."""


def frames_from(
    video: Video, second: Fraction
) -> Iterator[tuple[Fraction, Fraction, av.VideoFrame]]:
    """Frames of a video from the one on that is shown at a second.

    Args:
      video: a video just opened.
      second: from the video's start. Before the first frame, that is the first; after the last
        frame, it is the last.

    Yields:
      When a frame is shown, from and until, in seconds, and the frame.

    Raises:
      VideoError: when no frame can be decoded.
    """
    decoder, frames = _sought(video, second)
    shown: tuple[Fraction, av.VideoFrame] | None = None
    for time, frame in frames:
        if shown is not None and time > second:
            yield shown[0], time, shown[1]
        shown = time, frame
    decoder.check()
    assert shown is not None
    yield shown[0], decoder.clock.end, shown[1]


def _sought(
    video: Video, second: Fraction
) -> tuple[Decoder, Iterator[tuple[Fraction, av.VideoFrame]]]:
    """A decoder and its frames, the first of which is not later than the second if any is not."""
    wanted = lambda _, end: end > second
    if video.start is None:  # no timestamps to seek by
        decoder = Decoder(video, wanted)
        return decoder, iter(decoder)
    for step in _STEPS_BACK:
        if second <= step:
            break
        try:
            _seek(video, video.start + second - step)
        except av.FFmpegError:
            break
        decoder = Decoder(video, wanted)
        frames = iter(decoder)
        first = next(frames, None)
        if first is not None and first[0] <= second:
            return decoder, _chained(first, frames)
    _seek(video, min(video.start, Fraction(0)))
    decoder = Decoder(video, wanted)
    return decoder, iter(decoder)


def _seek(video: Video, stamp: Fraction) -> None:
    video.container.seek(int(stamp / video.unit), stream=video.stream)


def _chained(
    first: tuple[Fraction, av.VideoFrame], rest: Iterator[tuple[Fraction, av.VideoFrame]]
) -> Iterator[tuple[Fraction, av.VideoFrame]]:
    yield first
    yield from rest
