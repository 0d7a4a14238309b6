"""Clips of a video with exact bounds, encoded as H.264 and AAC, or copied; and thumbnails."""

import contextlib
import errno
import heapq
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.audio.stream import AudioStream
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer, OutputContainer
from av.stream import Stream
from av.video.reformatter import Colorspace
from av.video.stream import VideoStream
from jaxtyping import UInt8
from PIL import Image

from hlformer_jax import files
from hlformer_jax.video.clocks import is_steady
from hlformer_jax.video.dates import recording_time
from hlformer_jax.video.faults import VideoError, explain, fault, name_errors
from hlformer_jax.video.packets import (
    EncoderMessage,
    Timestamps,
    packets_after_seek,
    read_packets,
    seek_stream,
    with_content,
)
from hlformer_jax.video.pixels import Painter
from hlformer_jax.video.read import (
    WITHOUT_PRESENTATION_TIMES,
    Clock,
    Video,
    demuxer,
    frames_from,
    opened,
    tolerance,
)
from hlformer_jax.video.sound import Sound, default_stream, reading

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""FFmpeg's names of containers, by the suffix of a clip."""

_TICKS = 90_000  # ticks a second of the clip's timestamps

_LARGEST = 2160  # pixels of the shorter side, above which no player plays H.264 smoothly

_QUALITY = {"crf": "20", "preset": "veryfast"}

_AS_HIGH_DEFINITION = 1  # FFmpeg's number of BT.709's matrix, primaries and transfer

_NO_LANGUAGE = "und"  # ISO 639's code of an undetermined language

_RATE = 48_000  # samples a second of a clip's sound

Picture = UInt8[np.ndarray, "height width 3"]

Shown = tuple[Fraction, Fraction, Picture]
"""The seconds from and until which a picture is shown, and the picture."""


class _SoundTrack:
    """The sound stream of a clip, encoded from the default track of a video."""

    def __init__(self, container: OutputContainer, sound: Sound) -> None:
        self._out, self._sound = container, sound
        self._stream = container.add_stream("aac", rate=_RATE, layout="stereo")
        self._stream.metadata["language"] = sound.language or _NO_LANGUAGE

    def write(self, until: Fraction) -> None:
        """Write the sound up to a second of the clip."""
        for samples in self._sound.read(int(until * _RATE)):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", "stereo")
            frame.sample_rate = _RATE
            frame.pts = self._sound.position - samples.shape[1]
            frame.time_base = Fraction(1, _RATE)
            self._out.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write the sound that is still in the encoder."""
        self._out.mux(self._stream.encode(None))


def cut(
    path: str | Path,
    start: float,
    end: float,
    out: str | Path,
    margin: float = 0.0,
    replace: files.Replace = files.Replace.NOTHING,
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Write the part of a video from `start - margin` to `end + margin` as a clip.

    The clip begins with the frame that is shown at its start, and ends exactly at its end, to
    1/90,000 s. Both may be rounded to milliseconds. A part outside the video is left out. Frames
    keep their times; if the sound goes on after the last frame, this frame is shown until the sound
    ends. The clip has the date and the place of the recording if the video states them.

    Args:
      path: the video file.
      start: start of the part, in seconds from the video's start.
      end: end of the part, in seconds from the video's start; above `start`.
      out: the file of the clip, which is written completely or not at all. Its suffix, one of
        `CONTAINERS`, decides the container.
      margin: seconds to add at both ends.
      replace: which existing file may be replaced.
      pulse: called for every frame; an exception that it raises ends the cut.

    Raises:
      VideoError: if the video cannot be read, has no frame in this part, or the clip cannot be
        written.
      OutputError: if something at the path of the clip must not be replaced.
    """
    path, out = Path(path), Path(out)

    def pictures() -> Iterator[Shown]:
        for begin, until, image in _part(video, first, last, sound):
            pulse()
            yield begin - first, until - first, image

    with (
        _part_of(path, start, end, out, margin, replace) as (video, first, last),
        reading(video, rate=_RATE, layout="stereo", first=first) as sound,
        _writing(out),
        files.atomic_write(out, replace) as draft,
    ):
        _encode(draft, CONTAINERS[out.suffix.lower()], video, pictures(), sound, first, last)


def copy(
    path: str | Path,
    start: float,
    end: float,
    out: str | Path,
    margin: float = 0.0,
    replace: files.Replace = files.Replace.NOTHING,
) -> tuple[float, float]:
    """Copy a part of a video into a clip without encoding, so without loss.

    Decoding must begin at a keyframe, so the clip begins with the last keyframe at or before its
    start. It may end later, with the last frame that other frames refer to. For the arguments and
    errors see `cut`; a VideoError is also raised if the part cannot be copied.

    Returns:
      The seconds of the video at which the clip begins and ends.
    """
    path, out = Path(path), Path(out)
    with _part_of(path, start, end, out, margin, replace) as (video, first, last):
        part = _plan(video, first, last)
        with _writing(out), files.atomic_write(out, replace) as draft:
            _copy(draft, out, video, part, last)
    return float(part.start), float(part.end)


_LEADS = (Fraction(1), Fraction(20), Fraction(300))
"""Seconds before the clip from which its keyframe is looked for; at last, the whole file."""


class _Keyframe(NamedTuple):
    """The picture with which a copied clip begins, and its place in the file."""

    second: Fraction  # of the video
    sought: Fraction | None  # second of the video to seek to; None: the start of the file
    skipped: int  # number of packets from there to the keyframe


class _Part(NamedTuple):
    """The packets of a copied clip, in the order of the file."""

    keyframe: _Keyframe
    times: list[tuple[int, int] | None]  # presentation and decoding times; None for skipped packets
    start: Fraction  # second of the video at which the clip begins
    end: Fraction  # second of the video at which the clip ends


def _plan(video: Video, first: Fraction, last: Fraction) -> _Part:
    """Choose the packets of a clip and their timestamps, from 0 in ticks of the stream.

    If every packet has valid timestamps, they are kept. Otherwise (AVI has no presentation times, a
    programme stream only some) the packets are decoded to find their order.

    Raises:
      VideoError: if the part cannot be copied.
    """
    if video.start is None:
        what = "has no timestamps, so that no part of it can be copied"
        raise fault(video.path, what, _ENCODE)
    if not video.has_steady_clock:
        raise _reset_clock(video)
    second, earlier = first, None
    while True:
        keyframe = _find_keyframe(video, second)
        times, start, end = _own_times(video, keyframe, last) or _times_by_decoding(
            video, keyframe, last
        )
        if start <= first + tolerance(video) or keyframe.second == earlier:
            break
        # Frames that follow the keyframe in the file are shown before it: take an earlier keyframe.
        earlier, second = keyframe.second, keyframe.second - video.period / 2
    is_first = keyframe.sought is None and not keyframe.skipped
    if video.stream.codec_context.pix_fmt == "pal8" and not is_first:
        raise fault(video.path, "has a palette, which only its first packet may hold", _ENCODE)
    if end <= first:
        what = f"ends at {float(end):.2f} s, before the clip begins ({float(first):.2f} s)"
        raise fault(video.path, what, "give a part of the video")
    if start >= last:
        raise _empty_part(video)
    return _Part(keyframe, times, start, end)


def _reset_clock(video: Video) -> VideoError:
    what = "has a clock that was reset, as two recordings joined have"
    return fault(video.path, what, _ENCODE)


def _empty_part(video: Video) -> VideoError:
    return fault(video.path, "shows nothing in this part yet", "give a later end")


def _find_keyframe(video: Video, first: Fraction) -> _Keyframe:
    """Return the last keyframe at or before a second, or else the first keyframe of the file."""
    by_decoding = video.container.format.name in WITHOUT_PRESENTATION_TIMES
    for lead in (*(step for step in _LEADS if step < first), None):
        keyframe: _Keyframe | None = None
        sought = None if lead is None else first - lead
        with opened(video.path) as source:
            for count, packet in enumerate(_packets(source, sought)):
                shown = packet.dts if by_decoding else packet.pts
                if packet.is_keyframe and shown is not None:
                    # The first frame of the file also covers the time before it.
                    is_first = keyframe is None and lead is None
                    if is_first or _second(source, shown) <= first + tolerance(source):
                        keyframe = _Keyframe(_second(source, shown), sought, count)
                sent = shown if packet.dts is None else packet.dts
                is_past = sent is not None and _second(source, sent) > first
                if is_past and (keyframe is not None or lead is not None):
                    break
        if keyframe is not None:
            return keyframe
    what = f"has no keyframe before {float(first):.2f} s"
    raise fault(video.path, what, _ENCODE)


def _packets(video: Video, sought: Fraction | None, skipped: int = 0) -> Iterator[av.Packet]:
    """Yield the packets of a newly opened video.

    Args:
      video: the video, before any packet is read.
      sought: second of the video to seek to; None: the start of the file.
      skipped: number of packets to skip from there.

    Raises:
      VideoError: if the clock is reset between two packets.
    """
    sent: int | None = None  # decoding time of the packet before
    with name_errors(video.path):
        packets = read_packets(video.container, video.stream)
        if sought is not None:
            packets = packets_after_seek(video.container, video.stream)
            seek_stream(video.container, video.stream, (video.start or 0) + sought)
        unpacked = _one_frame_each(packets, video)
        for count, packet in enumerate(Timestamps(unpacked, video.stream, video.period)):
            if packet.dts is not None:
                if sent is not None and not is_steady((packet.dts - sent) * video.unit):
                    raise _reset_clock(video)
                sent = packet.dts
            if count >= skipped:
                yield packet


def _one_frame_each(packets: Iterator[av.Packet], video: Video) -> Iterator[av.Packet]:
    """Split packets of MPEG-4 in AVI that have two frames, so that each packet has one frame."""
    if (video.container.format.name, video.stream.codec_context.name) != ("avi", "mpeg4"):
        yield from packets
        return
    split = BitStreamFilterContext("mpeg4_unpack_bframes", video.stream)
    for packet in packets:
        for single in split.filter(packet):
            single.stream, single.time_base = video.stream, video.unit
            yield single


def _second(video: Video, stamp: int) -> Fraction:
    """Return the second of the video for a timestamp of its stream."""
    return stamp * video.unit - (video.start or 0)


_Times = tuple[list[tuple[int, int] | None], Fraction, Fraction]


def _own_times(video: Video, keyframe: _Keyframe, last: Fraction) -> _Times | None:
    """Return the timestamps in the file, and the seconds of start and end; None if invalid."""
    if video.container.format.name in WITHOUT_PRESENTATION_TIMES:
        return None
    times: list[tuple[int, int] | None] = []
    start, end = None, 0
    before: int | None = None  # decoding time of the packet before
    period = round(video.period / video.unit)
    with opened(video.path) as source:
        for packet in _packets(source, keyframe.sought, keyframe.skipped):
            shown, sent = packet.pts, packet.dts
            if shown is None or sent is None or shown < sent:
                return None
            if before is not None and sent <= before:
                return None
            if _second(source, sent) >= last:  # the picture before is shown until there
                end = max(end, math.ceil((last + (video.start or 0)) / video.unit))
                break
            before = sent
            start = shown if start is None else start
            times.append((shown - start, sent - start) if shown >= start else None)
            end = max(end, shown + (packet.duration or period))
    if start is None:
        return None
    return times, _second(video, start), _second(video, end)


def _times_by_decoding(video: Video, keyframe: _Keyframe, last: Fraction) -> _Times:
    """Return timestamps from the order in which the decoder returns the frames of the packets."""
    with opened(video.path) as source:
        packets = _packets(source, keyframe.sought, keyframe.skipped)
        shown, lengths = _shown(source, packets, last)
    start = shown.get(0)
    if start is None:
        raise fault(video.path, f"cannot be decoded at {float(keyframe.second):.2f} s", _ENCODE)
    count = 1 + max((place for place, time in shown.items() if time < last), default=0)
    stamps: list[int | None] = []
    used: set[int] = set()
    for place in range(count):
        time = shown.get(place)
        if time is None or time < start:  # damaged, or refers to frames before the keyframe
            stamps.append(None)
            continue
        stamp = round((time - start) / video.unit)
        while stamp in used:
            stamp += 1
        used.add(stamp)
        stamps.append(stamp)
    times = _with_decoding_times(stamps, max(round(video.period / video.unit), 1))
    end = max(time + lengths[place] for place, time in shown.items() if place < count)
    if any(time >= last for time in shown.values()):
        end = max(end, last)
    return times, start, end


_REORDERED = 32
"""Number of further packets after which a frame that was not decoded counts as damaged."""


def _shown(
    video: Video, packets: Iterator[av.Packet], last: Fraction
) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Return the second at which the frame of each packet is shown, and for how many seconds.

    Both are by the place of the packet.
    """
    clock, context = Clock(video), video.stream.codec_context
    shown: dict[int, Fraction] = {}
    lengths: dict[int, Fraction] = {}
    waiting: dict[int, int | None] = {}  # presentation times of packets that are being decoded
    hidden: dict[int, Fraction] = {}  # seconds of frames that only other frames need, by place

    def note(place: int, frame: av.VideoFrame | av.Packet, coming: int) -> Fraction:
        time = clock.time(frame, coming)
        if time is None:  # the frame comes too late, but other frames may refer to it
            time = clock.end
        shown[place], lengths[place] = time, max(clock.end - time, Fraction(0))
        return time

    past = 0  # number of packets since a frame after the end was shown
    reorders = context.codec.reorder and not context.codec.intra_only
    for place, packet in enumerate(itertools.chain(packets, [None])):
        if packet is not None:
            clock.sent(packet)
        if not reorders:
            if packet is None or note(place, packet, 0) >= last:
                break
            continue
        frames: list[av.VideoFrame] = []
        if packet is not None:
            if packet.is_discard and packet.pts is not None:  # outside of the file's edit list
                hidden[place] = _second(video, packet.pts)
            else:
                waiting[place] = packet.pts
            packet.pts = place  # the decoder copies it to the frame
        with contextlib.suppress(av.FFmpegError, EOFError):
            frames = context.decode(packet)
        latest = Fraction(0)
        for count, frame in enumerate(frames, 1):
            if frame.pts in waiting:
                number, frame.pts = frame.pts, waiting.pop(frame.pts)
                latest = note(number, frame, len(frames) - count)
        past += latest >= last or past > 0
        needed = max((place for place, time in shown.items() if time < last), default=0)
        if past > _REORDERED or (past and min(waiting, default=needed) >= needed):
            break
    return hidden | shown, dict.fromkeys(hidden, video.period) | lengths


def _with_decoding_times(stamps: list[int | None], period: int) -> list[tuple[int, int] | None]:
    """Add a decoding time to each presentation time.

    The decoding times are the sorted presentation times, made earlier by as many frames as the
    stream reorders.

    Args:
      stamps: presentation times in decoding order; None for packets that are left out.
      period: usual distance of two frames, in ticks.
    """
    in_decoding_order = [stamp for stamp in stamps if stamp is not None]
    order = sorted(in_decoding_order)
    rank = {stamp: place for place, stamp in enumerate(order)}
    delay = max(place - rank[stamp] for place, stamp in enumerate(in_decoding_order))
    early = [order[0] - period * (delay - place) for place in range(delay)]
    decoding = iter([*early, *order])
    return [None if stamp is None else (stamp, next(decoding)) for stamp in stamps]


_ENCODE = "encode the clip instead of copying it"


def _copy(draft: Path, out: Path, video: Video, part: _Part, last: Fraction) -> None:
    form = CONTAINERS[out.suffix.lower()]
    stated = video.stream.codec_context.sample_aspect_ratio or 1
    # PyAV writes no shape of pixels into Matroska. Files that state the shown size in whole pixels
    # differ a little from the codec.
    if form == "matroska" and abs(video.aspect / stated - 1) > Fraction(1, 50):
        what = "would lose the shape of the pixels, which only the container states"
        raise fault(out, what, f"give it the suffix .mp4 or .mov, or {_ENCODE}")
    streams: list[Stream] = [video.stream]
    # Sound is read by another demuxer, because it may be far from the pictures in the file.
    with opened(video.path) as source, demuxer(video.path) as beside:
        sounds: Iterator[av.Packet] = iter(())
        if (sound := default_stream(beside)) is not None:
            streams.append(sound)
            step = 0 if form == "matroska" else 1  # ticks between packets of TrueHD may be none
            sounds = _sounds(video, beside, sound, part.start, min(last, part.end), step)
        try:
            with _new_clip(draft, form, video, part.start) as clip:
                outputs = _outputs(clip, streams)
                message: EncoderMessage | None = EncoderMessage(video.container, video.stream)
                for packet in heapq.merge(_pictures(source, part, form), sounds, key=_sent):
                    if message is not None and packet.stream.index == video.stream.index:
                        packet, message = message.put_into(packet), None
                    packet.stream = outputs[packet.stream.index]
                    clip.mux(packet)
        except VideoError:
            raise
        except (av.FFmpegError, OSError, ValueError) as error:
            if getattr(error, "errno", None) in _ADVICE:
                raise _unwritable(out, error) from error
            raise _refusal(out, video.path, streams, error) from error
        if not _is_readable(draft):
            raise _refusal(out, video.path, streams, None)


def _sent(packet: av.Packet) -> Fraction:
    """Return the second at which a packet is sent to its decoder."""
    return Fraction(packet.dts or 0) * (packet.time_base or 1)


def _outputs(clip: OutputContainer, streams: list[Stream]) -> dict[int, Stream]:
    """Add streams of the same codecs to a clip; return them by the indices of the given streams.

    Raises:
      ValueError: if the container does not support a codec.
    """
    outputs: dict[int, Stream] = {}
    for stream in streams:
        try:
            # opaque: no encoder is needed, which FFmpeg may not have.
            output = clip.add_stream_from_template(stream, opaque=True)
            if isinstance(stream, VideoStream) and isinstance(output, VideoStream):
                output.codec_context.sample_aspect_ratio = stream.sample_aspect_ratio or Fraction(0)
        except ValueError:
            if clip.format.name != "matroska":
                raise
            output = _compatible_stream(clip, stream)
        output.metadata["language"] = stream.metadata.get("language", _NO_LANGUAGE)
        outputs[stream.index] = output
    return outputs


def _compatible_stream(clip: OutputContainer, stream: Stream) -> Stream:
    """Add a stream to Matroska in its compatibility mode (V_MS/VFW/FOURCC, A_MS/ACM).

    In this mode Matroska supports any codec of AVI, but FFmpeg does not list these codecs, and PyAV
    only adds listed ones. So a stream of a listed codec is added, and a filter overwrites its
    parameters.
    """
    with av.open(io.BytesIO(), "w", format="nut") as scratch:
        template = scratch.add_stream_from_template(stream, opaque=True)
        output = clip.add_mux_stream("h264" if stream.type == "video" else "aac")
        BitStreamFilterContext("null", template, output)
        output.time_base = stream.time_base
    return output


def _pictures(video: Video, part: _Part, form: str) -> Iterator[av.Packet]:
    """Yield the packets of the pictures with their timestamps in the clip."""
    period = max(round(video.period / video.unit), 1)
    length = round((part.end - part.start) / video.unit)
    stamps = [times for times in part.times if times is not None]
    final = [max(stamps)]  # pictures that last to the end of the clip
    if form != "matroska":  # a picture lasts until the next in the file is decoded
        final.append(stamps[-1])
    packets = _packets(video, part.keyframe.sought, part.keyframe.skipped)
    for packet, times in zip(packets, part.times, strict=False):
        if times is not None:
            packet.pts, packet.dts = times
            packet.duration = length - times[0] if times in final else packet.duration or period
            yield packet


def _sounds(
    video: Video,
    beside: InputContainer,
    stream: AudioStream,
    start: Fraction,
    last: Fraction,
    step: int,
) -> Iterator[av.Packet]:
    """Yield the packets of a sound between two seconds, with their timestamps in the clip.

    Args:
      video: the video.
      beside: a demuxer of the file that only reads the sound.
      stream: the audio stream.
      start: second of the video at which the clip begins.
      last: second of the video at which the sound ends.
      step: smallest distance of two timestamps, in ticks.
    """
    unit = stream.time_base or Fraction(1, _RATE)
    first = start + (video.start or 0)
    with name_errors(video.path):
        for lead in (*_LEADS, None):
            seek_stream(beside, stream, None if lead is None else first - lead)
            read = read_packets if lead is None else packets_after_seek
            packets = _timed(read(beside, stream))
            packet = next(packets, None)
            if packet is None or (packet.pts or 0) * unit <= first:
                break
        before = -1
        while packet is not None and packet.pts is not None:
            second = packet.pts * unit
            if second >= last + (video.start or 0):
                return
            if second >= first:
                packet.pts = packet.dts = max(packet.pts - round(first / unit), before + step)
                before = packet.pts
                yield packet
            packet = next(packets, None)


def _timed(packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
    """Yield packets of sound; a packet without a timestamp begins where the one before it ends."""
    following: int | None = None
    for packet in packets:
        if packet.has_sidedata("new_extradata"):  # FFmpeg would write a damaged Matroska file
            packet = with_content(packet, bytes(packet))
        if packet.pts is None:
            packet.pts = following
        if packet.pts is not None:
            following = packet.pts + (packet.duration or 0)
            yield packet


def _refusal(out: Path, path: Path, streams: list[Stream], error: Exception | None) -> VideoError:
    """Return the error for a clip whose container does not support its codecs.

    It names the codecs, and the containers that support them.
    """
    suffixes = {form: suffix for suffix, form in reversed(CONTAINERS.items())}
    form = CONTAINERS[out.suffix.lower()]
    indices = [stream.index for stream in streams]
    refused = [stream for stream in streams if not _takes(form, path, [stream.index])]
    if not refused and _takes(form, path, indices):
        reason = "its frames cannot be read again" if error is None else explain(error)[0]
        return fault(out, f"cannot be written ({reason})", _ENCODE)
    codecs = " and ".join(
        stream.codec_context.codec.canonical_name for stream in refused or streams
    )
    suitable = [suffix for form, suffix in suffixes.items() if _takes(form, path, indices)]
    advice = f"give it the suffix {' or '.join(suitable)}, or {_ENCODE}" if suitable else _ENCODE
    return fault(out, f"is of a container that does not take {codecs}", advice)


_TRIED_PACKETS = 50
"""Number of packets, from the start of a file, that are written to try a container."""


def _takes(form: str, path: Path, indices: list[int]) -> bool:
    """Return whether a container supports streams of a file, by writing some packets to memory."""
    memory = io.BytesIO()
    with demuxer(path) as source:
        streams = [source.streams[index] for index in indices]
        try:
            with av.open(memory, "w", format=form) as clip:
                outputs = _outputs(clip, streams)
                times = dict.fromkeys(indices, 0)
                for packet in itertools.islice(read_packets(source, *streams), _TRIED_PACKETS):
                    index = packet.stream.index
                    packet.pts = packet.dts = times[index]
                    times[index] += packet.duration or 1
                    packet.stream = outputs[index]
                    clip.mux(packet)
        except (av.FFmpegError, ValueError, OSError):
            return False
    memory.seek(0)
    return _is_readable(memory)


def _is_readable(clip: Path | io.BytesIO) -> bool:
    """Return whether a frame can be decoded in each stream of a clip that has packets."""
    try:
        name = clip if isinstance(clip, io.BytesIO) else f"file:{os.path.abspath(clip)}"
        with av.open(name, "r") as container:
            for stream in (*container.streams.video, *container.streams.audio):
                container.seek(0)
                packets = list(itertools.islice(container.demux(stream), _TRIED_PACKETS))
                has_packets = any(packet.size for packet in packets)
                if has_packets and not any(packet.decode() for packet in packets):
                    return False
    except (av.FFmpegError, ValueError, OSError):
        return False
    return True


def _new_clip(draft: Path, form: str, video: Video, first: Fraction) -> OutputContainer:
    """Open a new clip that begins at a second of a video.

    It states the date and the place of the recording if the video states them.
    """
    options = {} if form == "matroska" else {"movflags": "+faststart"}
    container = av.open(f"file:{os.path.abspath(draft)}", "w", format=form, options=options)
    if since := recording_time(video.container, video.stream):
        beginning = datetime.fromtimestamp(since + float(first), UTC)
        container.metadata["creation_time"] = beginning.isoformat().replace("+00:00", "Z")
    stated = {name.lower(): text for name, text in video.container.metadata.items()}
    for name in ("location", "com.apple.quicktime.location.iso6709"):
        if name in stated:
            container.metadata["location"] = stated[name]
            break
    return container


@contextmanager
def _part_of(
    path: Path, start: float, end: float, out: Path, margin: float, replace: files.Replace
) -> Iterator[tuple[Video, Fraction, Fraction]]:
    """Check the arguments of `cut`; yield the opened video, and the seconds of start and end.

    Raises:
      VideoError: as `cut`.
      OutputError: as `cut`.
    """
    if out.suffix.lower() not in CONTAINERS:
        suffixes = ", ".join(CONTAINERS)
        raise fault(out, "has no suffix of a container of clips", f"use {suffixes}")
    with _writing(out):
        files.check_output(out, replace)
    if not all(map(math.isfinite, (start, end, margin))) or end <= start or margin < 0:
        what = f"cannot be cut from {start} to {end} s with a margin of {margin} s"
        raise fault(path, what, "give an end after the start, and a margin of 0 or more")
    with opened(path) as video:
        if out.exists() and out.samefile(path):
            raise fault(path, "would be overwritten by its own clip", "give the clip another name")
        first = max(_exact(start) - _exact(margin), Fraction(0))
        yield video, first, _exact(end) + _exact(margin)


def _exact(seconds: float) -> Fraction:
    return Fraction(seconds).limit_denominator(1_000_000)


def _part(video: Video, first: Fraction, last: Fraction, sound: Sound | None) -> Iterator[Shown]:
    """Yield the pictures that are shown between two seconds, with times limited to these.

    If only sound is left there, the last picture is shown.
    """
    painter, rounding = Painter(video.aspect, _LARGEST), tolerance(video)
    limit = last
    with name_errors(video.path):
        for start, end, frame in frames_from(video, first):
            if end <= first and (sound is None or next(sound.read(1), None) is None):
                what = f"ends at {float(end):.2f} s, before the clip begins ({float(first):.2f} s)"
                raise fault(video.path, what, "give a part of the video")
            end = end if end > first else first + video.period
            if start >= limit:
                break
            begin = first if start - first <= rounding else start
            yield begin, last if last - end <= rounding else end, painter.paint(frame)
            limit = last - rounding  # another frame begins at the end, which was rounded up


_ADVICE = {
    errno.ENOENT: "is there such a folder?",
    errno.ENOTDIR: "is there such a folder?",
    errno.ENOSPC: "is there room?",
    errno.EDQUOT: "is there room?",
    errno.EFBIG: "does the disk take files of this size?",
    errno.EACCES: "may this folder be written to?",
    errno.EPERM: "may this folder be written to?",
    errno.EROFS: "may this folder be written to?",
    errno.EIO: "try another disk",
}  # fmt: skip
"""Advice for errors of the disk that a clip is written to, by error number."""


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except files.OutputError:
        raise
    except (av.FFmpegError, OSError) as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: Exception) -> VideoError:
    text = getattr(error, "strerror", None) or explain(error)[0]
    advice = _ADVICE.get(getattr(error, "errno", 0) or 0, "try another container, or folder")
    return fault(out, f"cannot be written ({text})", advice)


def _encode(
    draft: Path,
    form: str,
    video: Video,
    pictures: Iterator[Shown],
    sound: Sound | None,
    first: Fraction,
    last: Fraction,
) -> None:
    """Write pictures and sound in the order of time, so that few packets wait in memory."""
    with _new_clip(draft, form, video, first) as container:
        stream: _Pictures | None = None
        track: _SoundTrack | None = None
        for start, end, image in pictures:
            if stream is None:
                stream = _Pictures(container, image.shape[1], image.shape[0], 1 / video.period)
                track = None if sound is None else _SoundTrack(container, sound)
            stream.write(start, end, image)
            if track is not None:
                track.write(end)
        if stream is None:
            raise _empty_part(video)
        if track is not None and sound is not None:
            track.write(last - first)
            if (heard := Fraction(sound.position, _RATE)) > end + video.period:
                stream.write(end, heard, image)
            track.finish()
        stream.finish()


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
            return  # a second picture within one tick
        self._lengths[frame.pts] = max(round(end * _TICKS) - frame.pts, 1)
        self._mux(self._stream.encode(frame))

    def finish(self) -> None:
        self._mux(self._stream.encode(None))

    def _mux(self, packets: list[av.Packet]) -> None:
        for packet in packets:
            # The encoder assumes that all frames last as long as the first.
            packet.duration = self._lengths.pop(packet.pts or 0, packet.duration)
            self._container.mux(packet)


def thumbnail(path: str | Path, time: float, width: int) -> bytes:
    """Return the frame shown at a second of a video, as the bytes of a JPEG file.

    Args:
      path: the video file.
      time: seconds from its start; for a time outside the video, the first or the last frame is
        returned.
      width: largest width in pixels; a narrower video keeps its width.

    Raises:
      ValueError: if the time is not finite, or the width is below 1.
      VideoError: if the file cannot be read, or none of its frames can be decoded.
    """
    if not math.isfinite(time) or width < 1:
        raise ValueError(f"thumbnail wants a finite time and width >= 1, not {time} and {width}")
    with opened(path) as video:
        painter = Painter(video.aspect, width)
        _, _, frame = next(frames_from(video, _exact(max(time, 0))))
        image = Image.fromarray(painter.paint(frame))
    if image.width > width:
        height = max(round(image.height * width / image.width), 1)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
