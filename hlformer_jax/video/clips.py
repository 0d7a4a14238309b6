"""Parts cut out of a video: clips of exact bounds, as H.264 and AAC or copied, and thumbnails."""

import contextlib
import errno
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
from typing import NamedTuple

import av
import numpy as np
from av.audio.stream import AudioStream
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer, OutputContainer
from av.stream import Stream
from av.video.reformatter import Colorspace
from jaxtyping import UInt8
from PIL import Image

from hlformer_jax import files
from hlformer_jax.video.dates import recording_time
from hlformer_jax.video.packets import (
    EncoderMessage,
    Timestamps,
    has_steady_clock,
    packets_after_seek,
    seek_stream,
)
from hlformer_jax.video.pixels import Painter
from hlformer_jax.video.read import (
    WITHOUT_PRESENTATION_TIMES,
    Clock,
    Video,
    VideoError,
    demuxer,
    explain,
    fault,
    frames_from,
    name_errors,
    opened,
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
    def open(video: Video, first: Fraction, last: Fraction) -> Iterator["_SoundTrack | None"]:
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
    replace: files.Replace = files.Replace.NOTHING,
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
        sound = stack.enter_context(_SoundTrack.open(video, first, last))
        pictures = ((a - first, b - first, image) for a, b, image in _part(video, first, last))
        with _writing(out), files.atomic_write(out, replace) as draft:
            _encode(draft, CONTAINERS[out.suffix.lower()], video, pictures, sound, first)


def copy(
    path: str | Path,
    start: float,
    end: float,
    out: str | Path,
    margin: float = 0.0,
    replace: files.Replace = files.Replace.NOTHING,
) -> tuple[float, float]:
    """Writes a part of a video as `cut` does, but as the file has it, without a loss.

    A decoder begins at a keyframe: the clip begins with the last one at or before its first second,
    and it ends with the frame that the others need.

    Returns:
      The seconds of the video from which and until which the clip goes.
    """
    path, out = Path(path), Path(out)
    with _part_of(path, start, end, out, margin, replace) as (video, first, last):
        part = _plan(video, first, last)
        with _writing(out), files.atomic_write(out, replace) as draft:
            _copy(draft, out, video, part, last)
    return float(part.start), float(part.end)


_LEADS = (Fraction(1), Fraction(20), Fraction(300))
"""Seconds before the clip to look for its keyframe from; after these the file's beginning."""


class _Part(NamedTuple):
    """The packets of a copied clip, in the order in which the file has them."""

    lead: Fraction | None  # seconds before the clip to seek to; None: the file's beginning
    sought: Fraction  # the second of the video before which `lead` lies
    skipped: int  # packets from there to the keyframe
    times: list[tuple[int, int] | None]  # presentation and decoding time of each; None: left out
    start: Fraction  # seconds of the video, like `end`
    end: Fraction


def _plan(video: Video, first: Fraction, last: Fraction) -> _Part:
    """Choose the packets of a clip and their timestamps, from 0 in ticks of the stream.

    The file's own timestamps are kept where every packet has valid ones. Otherwise (AVI has no
    presentation times, a programme stream only some) the packets are decoded to learn their order.
    """
    if video.start is None:
        what = "has no timestamps, so that no part of it can be copied"
        raise fault(video.path, what, _ENCODE)
    with opened(video.path) as source:
        if not has_steady_clock(source.container, source.stream):
            what = "has a clock that was reset, as two recordings joined have"
            raise fault(video.path, what, _ENCODE)
    sought, earlier = first, None
    while True:
        lead, skipped, keyframe = _keyframe(video, sought)
        times, start, end = _own_times(video, sought, last, lead, skipped) or _times_by_decoding(
            video, sought, last, lead, skipped
        )
        if start <= first or keyframe == earlier:
            break
        # Frames that come after the keyframe are shown before it: take the keyframe before.
        earlier, sought = keyframe, keyframe - video.period / 2
    if end <= first:
        what = f"ends at {float(end):.2f} s, before the clip begins ({float(first):.2f} s)"
        raise fault(video.path, what, "give a part of the video")
    return _Part(lead, sought, skipped, times, start, end)


def _keyframe(video: Video, first: Fraction) -> tuple[Fraction | None, int, Fraction]:
    """Find the last keyframe at or before a second, or else the first of the file.

    Returns:
      The seconds to seek back from there (None: to the file's beginning), the number of packets to
      skip, and the second of the keyframe.
    """
    by_decoding = video.container.format.name in WITHOUT_PRESENTATION_TIMES
    for lead in (*(step for step in _LEADS if step < first), None):
        keyframe: tuple[int, Fraction] | None = None
        with opened(video.path) as source:
            for count, packet in enumerate(_packets(source, first, lead)):
                shown = packet.dts if by_decoding else packet.pts
                if packet.is_keyframe and shown is not None:
                    # The first frame of the file also covers the time before it.
                    is_first = keyframe is None and lead is None
                    if is_first or _second(source, shown) <= first:
                        keyframe = count, _second(source, shown)
                sent = shown if packet.dts is None else packet.dts
                is_past = sent is not None and _second(source, sent) > first
                if is_past and (keyframe is not None or lead is not None):
                    break
        if keyframe is not None:
            return lead, *keyframe
    what = f"has no keyframe before {float(first):.2f} s"
    raise fault(video.path, what, _ENCODE)


def _packets(
    video: Video, first: Fraction, lead: Fraction | None, skipped: int = 0
) -> Iterator[av.Packet]:
    """Yield packets of a video just opened, from `lead` seconds before the clip on."""
    with name_errors(video.path):
        packets = video.container.demux(video.stream)
        if lead is not None:
            packets = packets_after_seek(video.container, video.stream)
            with contextlib.suppress(av.FFmpegError):  # then from the beginning
                second = (video.start or 0) + first - lead
                seek_stream(video.container, video.stream, second)
        unpacked = _one_frame_each((packet for packet in packets if packet.size), video)
        yield from itertools.islice(Timestamps(unpacked, video.stream, video.period), skipped, None)


def _one_frame_each(packets: Iterator[av.Packet], video: Video) -> Iterator[av.Packet]:
    """Split packets of MPEG-4 in AVI that hold a frame and the one shown before it."""
    if (video.container.format.name, video.stream.codec_context.name) != ("avi", "mpeg4"):
        yield from packets
        return
    split = BitStreamFilterContext("mpeg4_unpack_bframes", video.stream)
    for packet in packets:
        for single in split.filter(packet):
            single.stream, single.time_base = video.stream, video.unit
            yield single


def _second(video: Video, stamp: int) -> Fraction:
    """The second of the video at a timestamp of its stream."""
    return stamp * video.unit - (video.start or 0)


_Times = tuple[list[tuple[int, int] | None], Fraction, Fraction]


def _own_times(
    video: Video, first: Fraction, last: Fraction, lead: Fraction | None, skipped: int
) -> _Times | None:
    """The timestamps that the file has, and the seconds of start and end; None if invalid."""
    if video.container.format.name in WITHOUT_PRESENTATION_TIMES:
        return None
    times: list[tuple[int, int] | None] = []
    start, end = None, 0
    before: int | None = None  # decoding time of the packet before
    period = round(video.period / video.unit)
    with opened(video.path) as source:
        for packet in _packets(source, first, lead, skipped):
            shown, sent = packet.pts, packet.dts
            if shown is None or sent is None or shown < sent:
                return None
            if before is not None and sent <= before:
                return None
            if _second(source, sent) >= last:
                break
            before = sent
            start = shown if start is None else start
            times.append((shown - start, sent - start) if shown >= start else None)
            end = max(end, shown + (packet.duration or period))
    if start is None:
        return None
    return times, _second(video, start), _second(video, end)


def _times_by_decoding(
    video: Video, first: Fraction, last: Fraction, lead: Fraction | None, skipped: int
) -> _Times:
    """Timestamps by the order in which the decoder shows the packets' frames."""
    with opened(video.path) as source:
        shown, lengths = _shown(source, _packets(source, first, lead, skipped), last)
    start = shown.get(0)
    if start is None:
        raise fault(video.path, f"cannot be decoded at {float(first):.2f} s", _ENCODE)
    count = 1 + max((place for place, time in shown.items() if time < last), default=0)
    stamps: list[int | None] = []
    used: set[int] = set()
    for place in range(count):
        time = shown.get(place)
        if time is None or time < start:  # damaged, or it refers to frames before the keyframe
            stamps.append(None)
            continue
        stamp = round((time - start) / video.unit)
        while stamp in used:
            stamp += 1
        used.add(stamp)
        stamps.append(stamp)
    times = _with_decoding_times(stamps, max(round(video.period / video.unit), 1))
    end = max(time + lengths[place] for place, time in shown.items() if place < count)
    return times, start, end


_REORDERED = 32
"""Packets after which a frame that was not shown is damaged."""


def _shown(
    video: Video, packets: Iterator[av.Packet], last: Fraction
) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Seconds at which the frames of packets are shown and how long, by the packets' places."""
    clock, context = Clock(video), video.stream.codec_context
    shown: dict[int, Fraction] = {}
    lengths: dict[int, Fraction] = {}
    waiting: dict[int, int | None] = {}  # presentation times of packets that are being decoded
    hidden: dict[int, Fraction] = {}  # by place: frames that others need and no player shows

    def note(place: int, frame: av.VideoFrame | av.Packet, coming: int) -> Fraction:
        time = clock.time(frame, coming)
        if time is None:  # it comes too late, but others may refer to it
            time = clock.end
        shown[place], lengths[place] = time, max(clock.end - time, Fraction(0))
        return time

    past = 0  # packets since a frame behind the end was shown
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
            packet.pts = place  # which the decoder gives to the frame
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
    """Add decoding times to presentation times in decoding order: the latter, sorted and earlier.

    They are earlier by as many frames as the stream is out of order.
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
    options = {} if form == "matroska" else {"movflags": "+faststart"}
    name = f"file:{os.path.abspath(draft)}"
    streams: list[Stream] = [video.stream]
    # Sound is read beside the pictures, as a file may have it far from them.
    with opened(video.path) as source, demuxer(video.path) as beside:
        sounds: Iterator[av.Packet] = iter(())
        if (sound := default_stream(beside)) is not None:
            streams.append(sound)
            step = 0 if form == "matroska" else 1  # ticks between packets of TrueHD may be none
            sounds = _sounds(video, beside, sound, part.start, last, step)
        try:
            with av.open(name, "w", format=form, options=options) as clip:
                _state(clip, video, part.start)
                outputs = _outputs(clip, streams)
                message: EncoderMessage | None = EncoderMessage(video.container, video.stream)
                for packet in heapq.merge(_pictures(source, part), sounds, key=_sent):
                    if message is not None and packet.stream.index == video.stream.index:
                        packet, message = message.put_into(packet), None
                    packet.stream = outputs[packet.stream.index]
                    clip.mux(packet)
        except VideoError:
            raise
        except (av.FFmpegError, OSError, ValueError) as error:
            if getattr(error, "errno", None) in _ADVICE:
                raise
            raise _refusal(out, video.path, streams, error) from error
        if not _is_readable(draft):
            raise _refusal(out, video.path, streams, None)


def _sent(packet: av.Packet) -> Fraction:
    """The second at which a packet goes to its decoder."""
    return Fraction(packet.dts or 0) * (packet.time_base or 1)


def _outputs(clip: OutputContainer, streams: list[Stream]) -> dict[int, Stream]:
    """Add streams of the same codecs to a clip, by the indices of the given ones.

    Raises:
      ValueError: if the container does not take a codec.
    """
    outputs: dict[int, Stream] = {}
    for stream in streams:
        try:
            # Opaque: the template is not an encoder, which FFmpeg may not have.
            output = clip.add_stream_from_template(stream, opaque=True)
        except ValueError:
            if clip.format.name != "matroska":
                raise
            output = _compatible_stream(clip, stream)
        outputs[stream.index] = output
    return outputs


def _compatible_stream(clip: OutputContainer, stream: Stream) -> Stream:
    """Add a stream to Matroska in its compatibility mode (V_MS/VFW/FOURCC, A_MS/ACM).

    Matroska takes any codec of AVI so, but FFmpeg does not list these among its codecs, and PyAV
    adds none that is not listed. A filter overwrites the parameters of a stream that is.
    """
    with av.open(io.BytesIO(), "w", format="nut") as scratch:
        template = scratch.add_stream_from_template(stream, opaque=True)
        output = clip.add_mux_stream("h264" if stream.type == "video" else "aac")
        BitStreamFilterContext("null", template, output)
        output.time_base = stream.time_base
    return output


def _pictures(video: Video, part: _Part) -> Iterator[av.Packet]:
    """The packets of the pictures with their timestamps in the clip."""
    period = max(round(video.period / video.unit), 1)
    packets = _packets(video, part.sought, part.lead, part.skipped)
    for packet, times in zip(packets, part.times, strict=False):
        if times is not None:
            packet.pts, packet.dts = times
            packet.duration = packet.duration or period
            yield packet


def _sounds(
    video: Video,
    beside: InputContainer,
    stream: AudioStream,
    start: Fraction,
    last: Fraction,
    step: int,
) -> Iterator[av.Packet]:
    """The packets of a sound between two seconds, with timestamps from `start` in these steps."""
    unit = stream.time_base or Fraction(1, _RATE)
    first = start + (video.start or 0)
    with name_errors(video.path):
        for lead in (*_LEADS, None):
            with contextlib.suppress(av.FFmpegError):  # then from where it is
                seek_stream(beside, stream, None if lead is None else first - lead)
            demux = beside.demux(stream) if lead is None else packets_after_seek(beside, stream)
            packets = _timed(demux)
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
    """Packets of sound; one without a timestamp follows the one before it."""
    following: int | None = None
    for packet in packets:
        if packet.size and packet.pts is None:
            packet.pts = following
        if packet.size and packet.pts is not None:
            following = packet.pts + (packet.duration or 0)
            yield packet


def _refusal(out: Path, path: Path, streams: list[Stream], error: Exception | None) -> VideoError:
    """An error that says which codec the clip's container does not take, and which do."""
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
"""Packets of a file, from its beginning, that are written to try a container."""


def _takes(form: str, path: Path, indices: list[int]) -> bool:
    """Try a container: return whether it takes a file's streams, written to memory."""
    memory = io.BytesIO()
    with demuxer(path) as source:
        streams = [source.streams[index] for index in indices]
        try:
            with av.open(memory, "w", format=form) as clip:
                outputs = _outputs(clip, streams)
                times = dict.fromkeys(indices, 0)
                for packet in itertools.islice(source.demux(*streams), _TRIED_PACKETS):
                    index = packet.stream.index
                    if packet.size:
                        packet.pts = packet.dts = times[index]
                        times[index] += packet.duration or 1
                        packet.stream = outputs[index]
                        clip.mux(packet)
        except (av.FFmpegError, ValueError, OSError):
            return False
    memory.seek(0)
    return _is_readable(memory)


def _is_readable(clip: Path | io.BytesIO) -> bool:
    """Return whether a frame of each stream of a clip that has any can be decoded."""
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


def _state(container: OutputContainer, video: Video, first: Fraction) -> None:
    """Says of a clip when and where it was recorded, as far as the video does."""
    if since := recording_time(video.container, video.stream):
        beginning = datetime.fromtimestamp(since + float(first), UTC)
        container.metadata["creation_time"] = beginning.isoformat().replace("+00:00", "Z")
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
        suffixes = ", ".join(CONTAINERS)
        raise fault(out, "has no suffix of a container of clips", f"use {suffixes}")
    with _writing(out):
        files.check_output(out, replace)
    if not all(map(math.isfinite, (start, end, margin))) or end <= start or margin < 0:
        what = f"cannot be cut from {start} to {end} s with a margin of {margin} s"
        raise fault(path, what, "give an end after the start, and a margin of 0 or more")
    with name_errors(path), opened(path) as video:
        if out.exists() and out.samefile(path):
            raise fault(path, "would be overwritten by its own clip", "give the clip another name")
        first = max(_exact(start) - _exact(margin), Fraction(0))
        yield video, first, _exact(end) + _exact(margin)


def _exact(seconds: float) -> Fraction:
    return Fraction(seconds).limit_denominator(1_000_000)


def _part(video: Video, first: Fraction, last: Fraction) -> Iterator[Shown]:
    """Pictures that are shown between two seconds, with their times cut to those."""
    painter = Painter(video.aspect, _LARGEST)
    with name_errors(video.path):
        for start, end, frame in frames_from(video, first):
            if end <= first:
                what = f"ends at {float(end):.2f} s, before the clip begins ({float(first):.2f} s)"
                raise fault(video.path, what, "give a part of the video")
            if start >= last:
                break
            yield max(start, first), min(end, last), painter.paint(frame)
            if end >= last:
                break


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
"""What to do about an error of the disk that a clip is written to."""


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except files.OutputError:
        raise
    except (av.FFmpegError, OSError) as error:
        text = getattr(error, "strerror", None) or explain(error)[0]
        advice = _ADVICE.get(getattr(error, "errno", 0) or 0, "try another container, or folder")
        raise fault(out, f"cannot be written ({text})", advice) from error


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
    with name_errors(path), opened(path) as video:
        painter = Painter(video.aspect, width)
        _, _, frame = next(frames_from(video, Fraction(max(time, 0))))
        image = Image.fromarray(painter.paint(frame))
    if image.width > width:
        height = max(round(image.height * width / image.width), 1)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
