"""A clip cut out of a video, with exact bounds: so it is encoded anew, as H.264 and AAC."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.video.reformatter import Colorspace
from jaxtyping import UInt8

from hlformer_jax import files
from hlformer_jax.video.errors import explained, fault, named
from hlformer_jax.video.opening import Video, opened
from hlformer_jax.video.picture import Painter
from hlformer_jax.video.seeking import frames_from
from hlformer_jax.video.sound import Silence, Sound

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""Of clips by their suffix, in FFmpeg's names."""

_TICKS = 90_000
"""A second of the clip's timestamps."""

_LARGEST = 2160
"""Pixels of the shorter side, above which no player plays H.264 smoothly."""

_QUALITY = {"crf": "20", "preset": "veryfast"}

_AS_HIGH_DEFINITION = 1
"""FFmpeg's number of the colour matrix, primaries and transfer of BT.709."""

Image = UInt8[np.ndarray, "height width 3"]

Shown = tuple[Fraction, Fraction, Image]
"""A picture with the seconds from and until which it is shown."""


def cut(
    path: str | Path,
    start: float,
    end: float,
    out: str | Path,
    margin: float = 0.0,
    replace: files.Replace = "none",
) -> None:
    """Writes the part of a video from `start - margin` to `end + margin` as a clip.

    The clip begins with the frame that is shown at its first second, and ends where its last second
    ends, to 1/90,000 s; a part outside of the video is left out. Frames keep their own times.

    Args:
      path: the video file.
      start: seconds from the video's start.
      end: seconds from the video's start, above `start`.
      out: the clip, written whole or not at all; its suffix, one of `CONTAINERS`, says as what.
      margin: seconds more at both ends.
      replace: whether a file that is there may be replaced.

    Raises:
      VideoError: when the file cannot be read, has nothing there, or the clip not be written.
      OutputError: when something stands there that must stay.
    """
    path, out = Path(path), Path(out)
    container = container_of(out)
    with _writing(out):
        files.check_output(out, replace)
    if not all(map(math.isfinite, (start, end, margin))) or end <= start or margin < 0:
        what = f"cannot be cut from {start} to {end} s with a margin of {margin} s"
        raise fault(path, what, "give an end after the start, and a margin of 0 or more")
    first = max(_exact(start) - _exact(margin), Fraction(0))
    with named(path), ExitStack() as stack:
        video = stack.enter_context(opened(path))
        if out.exists() and out.samefile(path):
            raise fault(path, "would be overwritten by its own clip", "give the clip another name")
        last = _exact(end) + _exact(margin)
        sound = stack.enter_context(Sound.of(path, video, first, last))
        pictures = ((a - first, b - first, image) for a, b, image in _part(video, first, last))
        with _writing(out), files.whole(out, replace) as draft:
            _encode(draft, container, video, pictures, sound)


def container_of(out: Path) -> str:
    """FFmpeg's name of the container that a clip's suffix asks for.

    Raises:
      VideoError: when no clip is written as such; names those that are.
    """
    if out.suffix.lower() not in CONTAINERS:
        known = ", ".join(CONTAINERS)
        raise fault(out, "has no suffix of a container that clips are written as", f"use {known}")
    return CONTAINERS[out.suffix.lower()]


def _exact(seconds: float) -> Fraction:
    return Fraction(seconds).limit_denominator(1_000_000)


def _part(video: Video, first: Fraction, last: Fraction) -> Iterator[Shown]:
    """Pictures that are shown between two seconds, with their times cut to those."""
    painter = Painter(video, _LARGEST)
    with named(video.path):
        for start, end, frame in frames_from(video, first):
            if end <= first:
                what = f"ends at {float(end):.2f} s, before the clip begins ({float(first):.2f} s)"
                raise fault(video.path, what, "give a part of the video")
            if start >= last:
                break
            yield max(start, first), min(end, last), painter.paint(frame)
            if end >= last:
                break


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except files.OutputError:
        raise
    except (av.FFmpegError, OSError) as error:
        text = getattr(error, "strerror", None) or explained(error)[0]
        raise fault(
            out, f"cannot be written ({text})", "is there such a folder, with room?"
        ) from error


def _encode(
    draft: Path, form: str, video: Video, pictures: Iterator[Shown], sound: Sound | Silence
) -> None:
    """Writes pictures and sound, in the order of time, so that little waits in memory."""
    name = f"file:{os.path.abspath(draft)}"
    options = {} if form == "matroska" else {"movflags": "+faststart"}
    with av.open(name, "w", format=form, options=options) as container:
        stream: _Pictures | None = None
        for start, end, image in pictures:
            if stream is None:
                stream = _Pictures(container, image.shape[1], image.shape[0], 1 / video.period)
                sound.into(container)
            stream.write(start, end, image)
            sound.write(end)
        if stream is None:
            raise fault(video.path, "shows nothing in this part yet", "give a later end")
        stream.finish()
        sound.finish()


class _Pictures:
    """The video stream of a clip."""

    def __init__(self, container: OutputContainer, width: int, height: int, rate: Fraction) -> None:
        self._container = container
        self._stream = container.add_stream("libx264", rate=rate, options=dict(_QUALITY))
        self._stream.width, self._stream.height = max(width // 2 * 2, 2), max(height // 2 * 2, 2)
        self._stream.pix_fmt = "yuv420p"
        context = self._stream.codec_context
        context.time_base = Fraction(1, _TICKS)
        context.colorspace = context.color_primaries = context.color_trc = _AS_HIGH_DEFINITION
        self._lengths: dict[int, int] = {}

    def write(
        self, start: Fraction, end: Fraction, image: UInt8[np.ndarray, "height width 3"]
    ) -> None:
        frame = av.VideoFrame.from_ndarray(image, "rgb24").reformat(
            self._stream.width,
            self._stream.height,
            "yuv420p",
            dst_colorspace=Colorspace.ITU709,
            threads=1,
        )
        frame.pts, frame.time_base = round(start * _TICKS), Fraction(1, _TICKS)
        if frame.pts in self._lengths:
            return  # two within a tick
        self._lengths[frame.pts] = max(round(end * _TICKS) - frame.pts, 1)
        self._mux(self._stream.encode(frame))

    def finish(self) -> None:
        self._mux(self._stream.encode(None))

    def _mux(self, packets: list[av.Packet]) -> None:
        for packet in packets:
            # The encoder thinks that all frames last as long as the first does.
            packet.duration = self._lengths.pop(packet.pts or 0, packet.duration)
            self._container.mux(packet)
