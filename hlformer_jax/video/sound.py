"""The sound of a clip: decoded from a video's own, cut to the clip's bounds, encoded as AAC."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from jaxtyping import Float32

from hlformer_jax.video.opening import Video, demuxer

_RATE = 48_000
"""Samples a second of a clip."""

_EARLIER = Fraction(1)
"""Seconds before the clip to start decoding at: a codec needs some frames to get going."""

Samples = Float32[np.ndarray, "2 samples"]


class Sound:
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
        """See `of`."""
        self._samples = _decoded(container, stream, start, first)
        self._first = first
        self._length = int((last - first) * _RATE)
        self._written = 0
        self._waiting: tuple[int, Samples] | None = None

    @staticmethod
    @contextmanager
    def of(
        path: Path, video: Video, first: Fraction, last: Fraction
    ) -> Iterator["Sound | Silence"]:
        """The sound of a file between two seconds, read beside its pictures; or silence.

        Args:
          path: the file.
          video: the file's video, for its second 0.
          first: seconds from the video's start.
          last: seconds from the video's start.

        Yields:
          What the clip's sound is written with.
        """
        with demuxer(path) as container:
            known = [x for x in container.streams.audio if x.codec_context is not None]
            if not known or video.start is None:
                yield Silence()
            else:
                yield Sound(container, known[0], video.start, first, last)

    def into(self, container: OutputContainer) -> None:
        """Adds the stream to the clip."""
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
        """Ends the stream."""
        self._out.mux(self._stream.encode(None))

    def _encode(self, samples: Samples) -> None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", "stereo")
        frame.sample_rate = _RATE
        frame.pts, frame.time_base = self._written, Fraction(1, _RATE)
        self._written += samples.shape[1]
        self._out.mux(self._stream.encode(frame))


class Silence:
    """The sound of a video that has none: nothing is written."""

    def into(self, container: OutputContainer) -> None:
        """Adds no stream."""

    def write(self, until: Fraction) -> None:
        """Writes nothing."""

    def finish(self) -> None:
        """Ends nothing."""


def _decoded(
    container: InputContainer, stream: AudioStream, start: Fraction, first: Fraction
) -> Iterator[tuple[int, Samples]]:
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
