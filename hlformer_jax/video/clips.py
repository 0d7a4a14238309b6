"""What is cut out of a video: clips of exact bounds, encoded as H.264 and AAC, and thumbnails."""

import contextlib
import heapq
import io
import itertools
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.video.reformatter import Colorspace
from jaxtyping import UInt8
from PIL import Image

from hlformer_jax import files
from hlformer_jax.video.pixels import Painter
from hlformer_jax.video.read import (
    Video,
    demuxer,
    explained,
    fault,
    frames_from,
    named,
    opened,
    recorded,
)
from hlformer_jax.video.sound import Sound, default_stream, reading

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""FFmpeg's names of containers, by the suffix of a clip."""

_TICKS = 90_000  # a second of the clip's timestamps

_LARGEST = 2160  # pixels of the shorter side, above which no player plays H.264 smoothly

_QUALITY = {"crf": "20", "preset": "veryfast"}

_AS_HIGH_DEFINITION = 1  # FFmpeg's number of BT.709's matrix, primaries and transfer

_RATE = 48_000  # samples a second of a clip's sound

Picture = UInt8[np.ndarray, "height width 3"]

Shown = tuple[Fraction, Fraction, Picture]
"""A picture with the seconds from and until which it is shown."""


class _SoundTrack:
    """The sound stream of a clip, encoded from the default track of a video."""

    def __init__(self, sound: Sound, length: Fraction) -> None:
        self._sound = sound
        self._length = int(length * _RATE)
        self._encoded = 0

    @staticmethod
    @contextmanager
    def of(video: Video, first: Fraction, last: Fraction) -> Iterator["_SoundTrack | None"]:
        """Open the sound of a video between two seconds; None without any."""
        with reading(video, rate=_RATE, layout="stereo", first=first) as sound:
            yield None if sound is None else _SoundTrack(sound, last - first)

    def start(self, container: OutputContainer) -> None:
        """Add the stream to a clip."""
        self._out = container
        self._stream = container.add_stream("aac", rate=_RATE, layout="stereo")

    def write(self, until: Fraction) -> None:
        """Write the sound up to a second of the clip."""
        for samples in self._sound.read(min(int(until * _RATE), self._length)):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", "stereo")
            frame.sample_rate = _RATE
            frame.pts, frame.time_base = self._encoded, Fraction(1, _RATE)
            self._encoded += samples.shape[1]
            self._out.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what the encoder holds back."""
        self._out.mux(self._stream.encode(None))


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
    ends, to 1/90,000 s; a part outside of the video is left out. Frames keep their own times. It
    states when and where it was recorded, as far as the video does.

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
    with ExitStack() as stack:
        video, first, last = stack.enter_context(_part_of(path, start, end, out, margin, replace))
        sound = stack.enter_context(_SoundTrack.of(video, first, last))
        pictures = ((a - first, b - first, image) for a, b, image in _part(video, first, last))
        with _writing(out), files.whole(out, replace) as draft:
            _encode(draft, CONTAINERS[out.suffix.lower()], video, pictures, sound, first)


def copy(
    path: str | Path,
    start: float,
    end: float,
    out: str | Path,
    margin: float = 0.0,
    replace: files.Replace = "none",
) -> tuple[float, float]:
    """Writes a part of a video as `cut` does, but as the file has it, without a loss.

    A decoder begins at a keyframe: the clip begins with the last one at or before its first second,
    and it ends with the frame that the others need.

    Returns:
      The seconds of the video from which and until which the clip goes.
    """
    path, out = Path(path), Path(out)
    with _part_of(path, start, end, out, margin, replace) as (video, first, last):
        with _writing(out), files.whole(out, replace) as draft:
            form = CONTAINERS[out.suffix.lower()]
            bounds = _copy(draft, form, video, first, last)
    return float(bounds[0]), float(bounds[1])


def _copy(
    draft: Path, form: str, video: Video, first: Fraction, last: Fraction
) -> tuple[Fraction, Fraction]:
    source, zero = video.container, video.start
    if zero is None:
        what = "has no timestamps, so that no part of it can be copied"
        raise fault(video.path, what, "cut it without --copy")
    second = lambda packet, stamp: stamp * packet.time_base - zero
    sent = lambda packet: second(packet, packet.pts if packet.dts is None else packet.dts)
    waiting: list[av.Packet] = []
    begin: Fraction | None = None
    for back in (Fraction(1), Fraction(20), first + 1):
        with contextlib.suppress(av.FFmpegError):
            sought = zero + max(first - back, Fraction(0))
            source.seek(int(sought / video.unit), stream=video.stream)
        pictures = (one for one in source.demux(video.stream) if one.pts is not None)
        for packet in pictures:
            if packet.is_keyframe and second(packet, packet.pts) <= first:
                begin = second(packet, packet.pts)
                waiting.clear()
            waiting.append(packet)
            if sent(packet) > first:
                break
        if begin is not None:
            break
        waiting.clear()
    if begin is None:
        what = f"has no keyframe before {float(first):.2f} s"
        raise fault(video.path, what, "cut it without --copy")
    end, options = begin, {} if form == "matroska" else {"movflags": "+faststart"}
    name = f"file:{os.path.abspath(draft)}"
    # Sound is read beside the pictures, as a file may have it far from them.
    with demuxer(video.path) as beside, av.open(name, "w", format=form, options=options) as clip:
        _state(clip, video, begin)
        track = default_stream(beside)
        known = [] if track is None else [track]
        outputs = {one.index: clip.add_stream_from_template(one) for one in (video.stream, *known)}
        sounds: Iterator[av.Packet] = iter(())
        if known:
            with contextlib.suppress(av.FFmpegError):
                beside.seek(int((zero + begin) / (known[0].time_base or 1)), stream=known[0])
            sounds = (one for one in beside.demux(known[0]) if one.pts is not None)
        until = lambda packets: itertools.takewhile(lambda one: sent(one) < last, packets)
        both = until(itertools.chain(waiting, pictures)), until(sounds)
        for packet in heapq.merge(*both, key=sent):
            shown = second(packet, packet.pts)
            if shown < begin:
                continue
            if packet.stream.index == video.stream.index:
                end = max(end, shown + (packet.duration or 0) * video.unit)
            shift = round((begin + zero) / packet.time_base)
            packet.pts -= shift
            packet.dts = None if packet.dts is None else packet.dts - shift
            packet.stream = outputs[packet.stream.index]
            clip.mux(packet)
    if end <= first:
        what = f"ends at {float(end):.2f} s, before the clip begins ({float(first):.2f} s)"
        raise fault(video.path, what, "give a part of the video")
    return begin, end


def _state(container: OutputContainer, video: Video, first: Fraction) -> None:
    """Says of a clip when and where it was recorded, as far as the video does."""
    if since := recorded(video):
        begun = datetime.fromtimestamp(since + float(first), UTC)
        container.metadata["creation_time"] = begun.isoformat().replace("+00:00", "Z")
    stated = {name.lower(): text for name, text in video.container.metadata.items()}
    for name in ("location", "com.apple.quicktime.location.iso6709"):
        if name in stated:
            container.metadata["location"] = stated[name]
            break


@contextmanager
def _part_of(
    path: Path, start: float, end: float, out: Path, margin: float, replace: files.Replace
) -> Iterator[tuple[Video, Fraction, Fraction]]:
    """The opened video and the seconds of a clip; refuses what `cut` does."""
    if out.suffix.lower() not in CONTAINERS:
        known = ", ".join(CONTAINERS)
        raise fault(out, "has no suffix of a container that clips are written as", f"use {known}")
    with _writing(out):
        files.check_output(out, replace)
    if not all(map(math.isfinite, (start, end, margin))) or end <= start or margin < 0:
        what = f"cannot be cut from {start} to {end} s with a margin of {margin} s"
        raise fault(path, what, "give an end after the start, and a margin of 0 or more")
    with named(path), opened(path) as video:
        if out.exists() and out.samefile(path):
            raise fault(path, "would be overwritten by its own clip", "give the clip another name")
        first = max(_exact(start) - _exact(margin), Fraction(0))
        yield video, first, _exact(end) + _exact(margin)


def _exact(seconds: float) -> Fraction:
    return Fraction(seconds).limit_denominator(1_000_000)


def _part(video: Video, first: Fraction, last: Fraction) -> Iterator[Shown]:
    """Pictures that are shown between two seconds, with their times cut to those."""
    painter = Painter(video.aspect, _LARGEST)
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
        what = f"cannot be written ({text})"
        raise fault(out, what, "is there such a folder, with room?") from error


def _encode(
    draft: Path,
    form: str,
    video: Video,
    pictures: Iterator[Shown],
    sound: _SoundTrack | None,
    first: Fraction,
) -> None:
    """Writes pictures and sound, in the order of time, so that little waits in memory."""
    name = f"file:{os.path.abspath(draft)}"
    options = {} if form == "matroska" else {"movflags": "+faststart"}
    with av.open(name, "w", format=form, options=options) as container:
        stream: _Pictures | None = None
        _state(container, video, first)
        for start, end, image in pictures:
            if stream is None:
                stream = _Pictures(container, image.shape[1], image.shape[0], 1 / video.period)
                if sound is not None:
                    sound.start(container)
            stream.write(start, end, image)
            if sound is not None:
                sound.write(end)
        if stream is None:
            raise fault(video.path, "shows nothing in this part yet", "give a later end")
        stream.finish()
        if sound is not None:
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

    def write(self, start: Fraction, end: Fraction, image: Picture) -> None:
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


def thumbnail(path: str | Path, time: float, width: int) -> bytes:
    """The frame shown at a second, as the bytes of a JPEG file.

    Args:
      path: the video file.
      time: seconds from its start; outside of the video, the first or the last frame is taken.
      width: pixels; a narrower video keeps its own.

    Raises:
      ValueError: when the time is not finite or the width below 1.
      VideoError: when the file cannot be read or no frame of it be decoded.
    """
    if not math.isfinite(time) or width < 1:
        raise ValueError(f"thumbnail wants a finite time and width >= 1, not {time} and {width}")
    with named(path), opened(path) as video:
        painter = Painter(video.aspect, width)
        _, _, frame = next(frames_from(video, Fraction(max(time, 0))))
        image = Image.fromarray(painter.paint(frame))
    if image.width > width:
        height = max(round(image.height * width / image.width), 1)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
