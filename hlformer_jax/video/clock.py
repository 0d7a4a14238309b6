"""When a decoded frame is shown: timestamps as they are, and what stands in for bad ones."""

import heapq
from fractions import Fraction

import av

from hlformer_jax.video.opening import Video

WITHOUT_PRESENTATION_TIMES = frozenset({"avi"})
"""Containers with decoding times alone; FFmpeg's guesses of the others are wrong with B-frames."""

LONGEST_GAP = Fraction(3600)
"""Seconds between two frames; a longer gap is a jump of the timestamps."""

_DISORDER = Fraction(2)
"""Seconds by which a frame may come too early and is left out; more is a jump back."""


class Clock:
    """Seconds of frames from the video's start, in the order in which they are shown.

    A frame without a timestamp follows the one before it by that one's duration, and so does one
    after a jump, as in a recording whose clock was reset. Of a container with decoding times alone,
    the frame shown n-th has the n-th of them.

    Attributes:
      end: when the frame before ends, in seconds.
      jumps: jumps of the timestamps so far.
      disordered: frames so far that were left out, since they came too late.
    """

    def __init__(self, video: Video) -> None:
        """Reads which timestamps the container has."""
        self.end = Fraction(0)
        self.jumps = 0
        self.disordered = 0
        self._video = video
        self._start = video.start
        self._by_decoding = video.container.format.name in WITHOUT_PRESENTATION_TIMES
        self._decoding: list[int] = []
        self._last: Fraction | None = None
        self._shift = Fraction(0)

    def sent(self, packet: av.Packet) -> None:
        """Takes note of a packet that goes to the decoder."""
        if self._by_decoding and packet.dts is not None and packet.size:
            heapq.heappush(self._decoding, packet.dts)

    def time(self, frame: av.VideoFrame, coming: int = 0) -> Fraction | None:
        """Seconds of a frame; None when it is to be left out.

        Args:
          frame: the next that the decoder gave.
          coming: further frames that it gave at the same time.
        """
        stamp = frame.pts if frame.pts is not None else frame.dts
        if self._by_decoding:
            stamp = self._least_decoding_time(coming)
        time = self._relative(stamp)
        if self._last is not None and time <= self._last:
            if self._last - time <= _DISORDER:
                self.disordered += 1
                return None
            time = self._jump(time)
        elif self._last is not None and time - self._last > LONGEST_GAP:
            time = self._jump(time)
        self._last = time
        length = frame.duration * self._video.unit if frame.duration else self._video.period
        self.end = time + (length if 0 < length <= LONGEST_GAP else self._video.period)
        if self._video.end is not None and not self._shift and time < self._video.end:
            self.end = min(self.end, self._video.end)
        return time

    def _least_decoding_time(self, coming: int) -> int | None:
        stamp = heapq.heappop(self._decoding) if self._decoding else None
        # The decoder holds no more frames back than it reorders: of others nothing came out.
        held = self._video.stream.codec_context.reorder_depth + coming
        while len(self._decoding) > held:
            stamp = heapq.heappop(self._decoding)
        return stamp

    def _relative(self, stamp: int | None) -> Fraction:
        if stamp is None:
            return self.end
        seconds = stamp * self._video.unit
        if self._start is None:
            self._start = seconds - self.end
        return seconds - self._start + self._shift

    def _jump(self, time: Fraction) -> Fraction:
        self.jumps += 1
        self._shift += self.end - time
        return self.end
