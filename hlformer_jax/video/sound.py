"""Audio tracks of videos: choosing a track, and decoding it as one continuous signal.

Sample 0 is at second 0 of the video, or at a later second that the caller chooses. Gaps in the
timestamps and packets that cannot be decoded become silence, so later samples keep their times.
Overlapping samples are dropped. The sample rate and the channels may change within a track. If
the clock of the pictures was reset, the sound is shifted with them. If only the timestamps of the
sound jump back, or forward by more than `LONGEST_GAP`, the sound continues without a gap.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard, Disposition
from jaxtyping import Float32

from hlformer_jax.errors import is_of_disk
from hlformer_jax.video.clocks import DISORDER, shifted
from hlformer_jax.video.faults import explain, fault
from hlformer_jax.video.packets import read_packets, seek_stream
from hlformer_jax.video.read import LONGEST_GAP, Video, demuxer

Waveform = Float32[np.ndarray, "channels samples"]

_SPECIAL = (
    Disposition.comment
    | Disposition.karaoke
    | Disposition.hearing_impaired
    | Disposition.visual_impaired
    | Disposition.clean_effects
)
"""Kinds of tracks that a player does not choose by default."""

_JITTER = Fraction(1, 100)
"""Largest difference of a timestamp from the sample count that is ignored, in seconds. Matroska
rounds to 1 ms, and the shortest packet that can be missing lasts 20 ms."""

_CONFIRMATION = Fraction(1, 2)
"""Seconds of consistent sound after a jump of the timestamps before the jump is accepted."""

_SEEK_MARGIN = Fraction(1)
"""Seconds before the first sample at which decoding starts: a codec needs some earlier packets."""

_MAX_DEMUXER_ERRORS = 100
"""Demuxer errors in a row after which the rest of a file counts as unreadable."""


class Track(NamedTuple):
    """An audio track of a video."""

    number: int  # from 1, among the tracks that can be decoded, in the order of the file
    stream: int  # its index among all streams of the file
    language: str  # as the file states it, such as "eng" or "de-AT"; "" if it states none
    is_default: bool  # whether a player chooses it by default


def tracks(container: InputContainer) -> list[Track]:
    """List the audio tracks that can be decoded, in the order of the file."""
    streams = [stream for stream in container.streams.audio if stream.codec_context is not None]

    def precedence(stream: AudioStream) -> tuple[bool, bool, int]:
        is_default = bool(stream.disposition & Disposition.default)
        return not is_default, bool(stream.disposition & _SPECIAL), stream.index

    first = min(streams, key=precedence, default=None)
    return [
        Track(number, stream.index, _language(stream), stream is first)
        for number, stream in enumerate(streams, 1)
    ]


def default_stream(container: InputContainer) -> AudioStream | None:
    """Return the audio stream that a player chooses by default; None without a decodable one."""
    for track in tracks(container):
        if track.is_default:
            stream = container.streams[track.stream]
            assert isinstance(stream, AudioStream)
            return stream
    return None


def _language(stream: AudioStream) -> str:
    tag = stream.metadata.get("language", "").strip().lower()
    return "" if tag in ("und", "mis", "mul", "zxx", "qaa") else tag


TimedFrame = tuple[Fraction | None, av.AudioFrame]
"""A frame with its second, or with None if it continues the frame before."""


class _Timeline:
    """The seconds of frames whose timestamps may jump.

    Frames after a jump are pending. If `_CONFIRMATION` seconds of them agree, the jump is accepted:
    as a gap of at most `LONGEST_GAP` seconds, or else as a reset of the clock. If the timestamps
    return to the clock before the jump, the timestamps of the pending frames were wrong.
    """

    def __init__(self) -> None:
        self.gaps = Fraction(0)  # length of the gaps in the timestamps
        self._end: Fraction | None = None  # second at which the frames so far end
        self._shift = Fraction(0)  # sum of the corrections of timestamps for reset clocks
        self._pending: list[av.AudioFrame] = []  # frames since the timestamps jumped
        self._onset = Fraction(0)  # second of the pending frames by their timestamps
        self._pending_length = Fraction(0)

    def add(
        self, frame: av.AudioFrame, length: Fraction, stamp: Fraction | None
    ) -> list[TimedFrame]:
        """Add the next frame; return the frames whose seconds are now known.

        Args:
          frame: the frame.
          length: its length in seconds.
          stamp: its second by its timestamp; None without a timestamp.
        """
        if self._end is None:
            second = stamp or Fraction(0)
            self._end = second + length
            return [(second, frame)]
        timed: list[TimedFrame] = []
        stamp = None if stamp is None else stamp + self._shift
        if self._pending:
            if stamp is not None and _agree(stamp, self._end + self._pending_length):
                timed += self._reject_jump()
            elif stamp is None or _agree(stamp, self._onset + self._pending_length):
                self._pending.append(frame)
                self._pending_length += length
                return self._accept_confirmed_jump()
            else:
                before = self._shift
                timed += self._accept_jump()
                stamp += self._shift - before
        if stamp is None or _agree(stamp, self._end):
            self._end += length
            return [*timed, (None, frame)]
        self._pending, self._pending_length, self._onset = [frame], length, stamp
        return timed + self._accept_confirmed_jump()

    def finish(self) -> list[TimedFrame]:
        """Return the pending frames at the end of the track."""
        return self._accept_jump() if self._pending else []

    def _accept_confirmed_jump(self) -> list[TimedFrame]:
        return self._accept_jump() if self._pending_length >= _CONFIRMATION else []

    def _accept_jump(self) -> list[TimedFrame]:
        assert self._end is not None
        offset = self._onset - self._end
        second: Fraction | None = None
        if -DISORDER <= offset <= LONGEST_GAP:
            second = self._onset
            self.gaps += max(offset, Fraction(0))
            self._end = self._onset
        else:
            self._shift -= offset
        self._end += self._pending_length
        first, *later = self._pending
        self._pending = []
        return [(second, first), *((None, frame) for frame in later)]

    def _reject_jump(self) -> list[TimedFrame]:
        assert self._end is not None
        self._end += self._pending_length
        frames, self._pending = self._pending, []
        return [(None, frame) for frame in frames]


def _agree(stamp: Fraction, second: Fraction) -> bool:
    return abs(stamp - second) <= _JITTER


class Sound:
    """The sound of one track, read forward as one continuous signal.

    Attributes:
      language: language of the track; see `Track`.
      position: number of samples read so far; the next sample is `position / rate` seconds after
        sample 0.
      packets: number of packets that were read.
      decoded: seconds that were decoded.
      stopped: the reason why reading ended early; "" if it did not.
      stopped_by_disk: whether the reason was an error of the disk or network, not of the file.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: AudioStream,
        video: Video,
        rate: int,
        layout: str,
        first: Fraction = Fraction(0),
    ) -> None:
        """Prepare reading; see `reading`.

        Args:
          container: the open file, at its start or sought before `first`.
          stream: the track.
          video: the video.
          rate: samples a second to convert to.
          layout: FFmpeg's name of the channels to mix down to.
          first: second of the video at which sample 0 lies.
        """
        self.language = _language(stream)
        self.position = 0
        self._lost = Fraction(0)  # length of the packets that could not be decoded
        self._timeline = _Timeline()
        self.packets = 0
        self.decoded = Fraction(0)
        self.stopped = ""
        self.stopped_by_disk = False
        self._container, self._stream = container, stream
        self._video, self._first = video, first
        self._zero = video.start or Fraction(0)
        self._rate, self._layout = rate, layout
        self._channels = av.AudioLayout(layout).nb_channels
        self._blocks = self._resample()
        self._block: tuple[int, Waveform] | None = None

    @property
    def missing(self) -> Fraction:
        """Seconds that are silence because packets are damaged or missing."""
        # Not the sum, because a damaged packet also leaves a gap.
        return max(self._lost, self._timeline.gaps)

    @property
    def stated_end(self) -> Fraction | None:
        """Second of the video at which the track ends according to the file; None if not stated."""
        unit = self._stream.time_base
        if not self._stream.duration or not unit or not self._video.has_steady_clock:
            return None
        onset = (self._stream.start_time or 0) * unit - self._zero
        return onset + self._stream.duration * unit

    def read(self, stop: int) -> Iterator[Waveform]:
        """Yield the next samples, up to sample `stop` or to the end of the sound.

        Yields:
          Blocks of samples [channels, n], float32 between -1 and 1. A block of silence in a gap has
          at most a second.
        """
        while self.position < stop:
            if self._block is None:
                self._block = next(self._blocks, None)
            if self._block is None:
                return
            onset, samples = self._block
            end = onset + samples.shape[1]
            if onset > self.position:
                count = min(onset, stop, self.position + self._rate) - self.position
                part = np.zeros((self._channels, count), np.float32)
            else:
                part = samples[:, self.position - onset : stop - onset]
            self.position += part.shape[1]
            if end <= self.position:
                self._block = None
            if part.shape[1]:
                yield part

    def _resample(self) -> Iterator[tuple[int, Waveform]]:
        """Yield blocks of samples, each with the position of its first sample."""
        resampler = self._resampler()
        position = 0

        def place(pieces: list[av.AudioFrame]) -> Iterator[tuple[int, Waveform]]:
            nonlocal position
            for piece in pieces:
                yield position, _limit_samples(piece)
                position += piece.samples

        for second, frame in self._time_frames():
            if second is not None:
                yield from place(resampler.resample(None))
                resampler = self._resampler()
                position = round((second - self._first) * self._rate)
            try:
                pieces = resampler.resample(frame)
            except ValueError:  # its sample rate or its channels changed
                yield from place(resampler.resample(None))
                resampler = self._resampler()
                pieces = resampler.resample(frame)
            yield from place(pieces)
        yield from place(resampler.resample(None))

    def _resampler(self) -> av.AudioResampler:
        return av.AudioResampler(format="fltp", layout=self._layout, rate=self._rate)

    def _time_frames(self) -> Iterator[TimedFrame]:
        """Yield the decoded frames with their seconds."""
        for frame in self._frames():
            length = Fraction(frame.samples, frame.sample_rate or self._rate)
            self.decoded += length
            yield from self._timeline.add(frame, length, self._second(frame))
        yield from self._timeline.finish()

    def _second(self, frame: av.AudioFrame) -> Fraction | None:
        if frame.pts is None or frame.time_base is None:
            return None
        return Fraction(frame.pts * frame.time_base) - self._zero

    def _frames(self) -> Iterator[av.AudioFrame]:
        """Decode frame by frame; packets that cannot be decoded are left out."""
        length = Fraction(0)  # seconds of the last packet that could be decoded
        for packet in itertools.chain(self._packets(), [None]):  # None: flush the decoder
            self.packets += packet is not None
            try:
                frames = self._stream.decode(packet)
            except MemoryError:
                raise
            except (av.FFmpegError, ValueError):
                if packet is not None:
                    ticks, unit = packet.duration, packet.time_base
                    self._lost += ticks * unit if ticks and unit else length
                continue
            for frame in frames:
                if frame.samples:
                    length = Fraction(frame.samples, frame.sample_rate or self._rate)
                    yield frame

    def _packets(self) -> Iterator[av.Packet]:
        """Yield the packets of the track, also those after data that the demuxer cannot read.

        If the clock was reset, seeking is impossible, and packets long before sample 0 are left
        out.
        """
        errors = 0
        is_sought = self._video.has_steady_clock
        beginning = self._zero + self._first - _SEEK_MARGIN
        while True:
            try:
                packets = read_packets(self._container, self._stream)
                for packet in shifted(packets, self._video.recordings):
                    errors = 0
                    stamp, tick = packet.pts, packet.time_base
                    if is_sought or stamp is None or not tick or stamp * tick >= beginning:
                        yield packet
                return
            except av.error.InvalidDataError:
                errors += 1
                if errors > _MAX_DEMUXER_ERRORS:
                    return
            except (av.FFmpegError, OSError) as error:
                self.stopped = explain(error)[0]
                self.stopped_by_disk = is_of_disk(error)
                return


def _limit_samples(frame: av.AudioFrame) -> Waveform:
    """Return samples limited to -1 and 1: damaged packets may decode to NaN or huge values."""
    samples: Waveform = np.nan_to_num(frame.to_ndarray(), nan=0.0, posinf=1.0, neginf=-1.0)
    return np.clip(samples, -1.0, 1.0)


@contextmanager
def reading(
    video: Video,
    stream: int | None = None,
    *,
    rate: int,
    layout: str,
    first: Fraction = Fraction(0),
) -> Iterator[Sound | None]:
    """Open the sound of a video separately from its pictures.

    Args:
      video: the open video.
      stream: index of the track's stream; None for the track that a player chooses by default.
      rate: samples a second to convert to.
      layout: FFmpeg's name of the channels to mix down to, such as "mono" or "stereo".
      first: second of the video at which sample 0 lies.

    Yields:
      The sound; None if the video has no track that can be decoded, or no timestamps.

    Raises:
      VideoError: if `stream` is not an audio stream.
    """
    with demuxer(video.path) as container:
        audio_stream = default_stream(container) if stream is None else container.streams[stream]
        if audio_stream is None or video.start is None:
            yield None
            return
        if not isinstance(audio_stream, AudioStream):
            raise fault(video.path, f"has no audio stream {stream}", "was it replaced?")
        for stream_beside in container.streams:
            if stream_beside.index != audio_stream.index:
                stream_beside.discard = Discard.all
        if first > 0 and video.has_steady_clock:
            second = video.start + max(first - _SEEK_MARGIN, Fraction(0))
            seek_stream(container, audio_stream, second)
        yield Sound(container, audio_stream, video, rate, layout, first)
