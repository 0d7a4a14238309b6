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
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.video.reformatter import Colorspace
from jaxtyping import Float32, UInt8
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

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""FFmpeg's names of containers, by the suffix of a clip."""

_TICKS = 90_000  # a second of the clip's timestamps

_LARGEST = 2160  # pixels of the shorter side, above which no player plays H.264 smoothly

_QUALITY = {"crf": "20", "preset": "veryfast"}

_AS_HIGH_DEFINITION = 1  # FFmpeg's number of BT.709's matrix, primaries and transfer

_RATE = 48_000  # samples a second of a clip's sound

_EARLIER = Fraction(1)
"""Seconds before the clip to start decoding at: a codec needs some frames to get going."""

Waveform = Float32[np.ndarray, "2 samples"]

Picture = UInt8[np.ndarray, "height width 3"]

Shown = tuple[Fraction, Fraction, Picture]
"""A picture with the seconds from and until which it is shown."""


class _Sound:
    """The sound of a part of a video, as one stretch from the part's beginning.

    Gaps in the timestamps become silence and overlaps are left out, so that sound and picture stay
    together. What cannot be decoded is silent.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: AudioStream,
        start: Fraction,
        first: Fraction,
        last: Fraction,
    ) -> None:
        self._samples = _decoded(container, stream, start, first)
        self._first = first
        self._length = int((last - first) * _RATE)
        self._written = 0
        self._waiting: tuple[int, Waveform] | None = None

    @staticmethod
    @contextmanager
    def of(path: Path, video: Video, first: Fraction, last: Fraction) -> Iterator["_Sound | None"]:
        """The sound of a file between two seconds, read beside its pictures; None without any."""
        with demuxer(path) as container:
            known = [x for x in container.streams.audio if x.codec_context is not None]
            if not known or video.start is None:
                yield None
            else:
                yield _Sound(container, known[0], video.start, first, last)

    def into(self, container: OutputContainer) -> None:
        self._out = container
        self._stream = container.add_stream("aac", rate=_RATE, layout="stereo")

    def write(self, until: Fraction) -> None:
        """Writes the sound up to a second of the clip."""
        stop = min(int(until * _RATE), self._length)
        while self._written < stop:
            self._waiting = self._waiting or next(self._samples, None)
            if self._waiting is None:
                return
            place, samples = self._waiting
            end = place + samples.shape[1]
            if place > self._written:
                # A second at a time: a gap may be long.
                until_sound = min(place, stop, self._written + _RATE)
                self._encode(np.zeros((2, until_sound - self._written), np.float32))
            elif end > self._written:
                self._encode(samples[:, self._written - place : stop - place])
            if end <= self._written:
                self._waiting = None

    def finish(self) -> None:
        self._out.mux(self._stream.encode(None))

    def _encode(self, samples: Waveform) -> None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", "stereo")
        frame.sample_rate = _RATE
        frame.pts, frame.time_base = self._written, Fraction(1, _RATE)
        self._written += samples.shape[1]
        self._out.mux(self._stream.encode(frame))


def _decoded(
    container: InputContainer, stream: AudioStream, start: Fraction, first: Fraction
) -> Iterator[tuple[int, Waveform]]:
    """Stretches of sound, each with the sample of the clip at which it begins."""
    unit = stream.time_base or Fraction(1, _RATE)
    with contextlib.suppress(av.FFmpegError):  # then from the beginning
        container.seek(int((start + max(first - _EARLIER, Fraction(0))) / unit), stream=stream)
    make = lambda: av.AudioResampler(format="fltp", layout="stereo", rate=_RATE)
    resampler, place = make(), 0
    for frame in _frames(container, stream):
        try:
            pieces = resampler.resample(frame)
        except ValueError:  # its rate or layout changed
            resampler = make()
            pieces = resampler.resample(frame)
        for piece in pieces:
            if piece.pts is not None and piece.time_base is not None:
                place = round((piece.pts * piece.time_base - start - first) * _RATE)
            samples = piece.to_ndarray()
            yield place, samples
            place += samples.shape[1]


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[av.AudioFrame]:
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            frames = packet.decode()
        except av.error.InvalidDataError:
            continue
        except (av.FFmpegError, OSError):
            return
        yield from frames


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
        sound = stack.enter_context(_Sound.of(path, video, first, last))
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
        known = [one for one in beside.streams.audio if one.codec_context is not None][:1]
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
    sound: _Sound | None,
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
                    sound.into(container)
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
