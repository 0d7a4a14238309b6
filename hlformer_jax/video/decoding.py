"""Frames of an open video with their times; damaged packets are passed over and counted."""

from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction

import av

from hlformer_jax.video.clock import WITHOUT_PRESENTATION_TIMES, Clock
from hlformer_jax.video.errors import explained, fault
from hlformer_jax.video.opening import Video

SKIPPING = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders can pass over frames that no other frame refers to."""

_AHEAD = 16
"""Packets that are looked at before one is decoded: the most that H.264 reorders."""

_HARDLY = 0.02
"""Share of its length by which a video may end early before that is told; at least a second."""

Wanted = Callable[[Fraction, Fraction], bool]
"""Whether the frame that is shown from one second until another is wanted."""


class Decoder:
    """Decodes a video from where its demuxer stands.

    With a predicate, frames are left undecoded where that changes no wanted frame: of a codec
    without references between frames all that are not wanted, of those in `SKIPPING` the frames
    among them that are no references. That is decided by timestamps of packets before they are
    decoded; where those cannot be trusted, everything is decoded.

    Attributes:
      clock: the times of frames.
      packets: packets that were read.
      damaged: packets of them that could not be decoded.
      stopped: why reading ended before the end of the file, or "".
      frames: frames that were decoded and had a place in time.
    """

    def __init__(self, video: Video, wanted: Wanted | None = None) -> None:
        """Decodes from where the demuxer of the video stands."""
        self.clock = Clock(video)
        self.packets = self.damaged = self.frames = 0
        self.stopped = ""
        self._video = video
        self._wanted = wanted
        codec = video.stream.codec_context.codec
        self._alone = codec.intra_only
        trusted = video.start is not None
        trusted &= video.container.format.name not in WITHOUT_PRESENTATION_TIMES
        self._trusted = trusted and (self._alone or codec.name in SKIPPING)
        self._decoded_last: int | None = None
        self._first = True

    def __iter__(self) -> Iterator[tuple[Fraction, av.VideoFrame]]:
        """Yields frames in the order in which they are shown, with their seconds."""
        context = self._video.stream.codec_context
        for packet, wanted in self._plan():
            if packet is not None:
                if self._alone and not wanted:
                    continue
                if self._wanted is not None:
                    context.skip_frame = "DEFAULT" if wanted else "NONREF"
                self.clock.sent(packet)
            try:
                frames = context.decode(packet)
            except (av.FFmpegError, EOFError) as error:
                if isinstance(error, MemoryError):
                    raise
                self.damaged += 1
                continue
            for place, frame in enumerate(frames, 1):
                time = self.clock.time(frame, len(frames) - place)
                if time is not None:
                    self.frames += 1
                    yield time, frame

    def check(self) -> None:
        """Refuses a video of which no frame was decoded.

        Raises:
          VideoError: saying whether it has none, or none that can be decoded.
        """
        if self.frames:
            return
        path = self._video.path
        if self.packets:
            what = f"has {self.packets} frames or parts of them, but none can be decoded"
            raise fault(path, what, "copy it again, or try it in a player")
        raise fault(path, f"holds no frame{self.stopped and f' ({self.stopped})'}", "delete it")

    def warning(self) -> str:
        """One line on what was wrong with a video that was decoded to its end; "" if nothing."""
        # Of a container without lengths of streams, the sound may be longer.
        video = self._video
        own = video.stream.duration is not None or not video.container.streams.audio
        stated, end = float(own and video.end or 0), float(self.clock.end)
        early = stated - end > max(1, _HARDLY * stated)
        faults = [
            f"its reading stopped at {end:.1f} s ({self.stopped})" if self.stopped else "",
            f"it ends at {end:.1f} s of the {stated:.1f} s it states" if early else "",
            f"{self.damaged} of its {self.packets} packets are damaged" if self.damaged else "",
            f"its timestamps jump {self.clock.jumps} times" if self.clock.jumps else "",
            f"{self.clock.disordered} frames come too late" if self.clock.disordered else "",
        ]
        told = "; ".join(filter(None, faults))
        return f"{str(self._video.path)!r} is used as far as it can be read: {told}" if told else ""

    def _plan(self) -> Iterator[tuple[av.Packet | None, bool]]:
        """Packets, each with whether its frame is wanted; then None, which drains the decoder."""
        coming: deque[av.Packet] = deque()
        gone: deque[int] = deque(maxlen=_AHEAD)
        ahead = 1 if self._alone else _AHEAD
        for packet in self._read():
            if self._wanted is None:
                yield packet, True
                continue
            self._judge(packet)
            coming.append(packet)
            if len(coming) > ahead:
                yield self._with_need(coming, gone)
        while coming:
            yield self._with_need(coming, gone)
        yield None, True

    def _with_need(self, coming: deque[av.Packet], gone: deque[int]) -> tuple[av.Packet, bool]:
        packet = coming.popleft()
        start, stamp = self._video.start, packet.pts
        first, self._first = self._first, False
        trusted = self._trusted and not first  # the first frame stands for what is before it
        if not trusted or self._wanted is None or start is None or stamp is None:
            return packet, True
        others = [other.pts for other in coming if other.pts is not None]
        later = [other for other in (*others, *gone) if other > stamp]
        gone.append(stamp)
        if not later:
            return packet, True
        seconds = lambda ticks: ticks * self._video.unit - start
        return packet, self._wanted(seconds(stamp), seconds(min(later)))

    def _judge(self, packet: av.Packet) -> None:
        """Distrusts timestamps for good as soon as some are missing or do not rise."""
        last = self._decoded_last
        backwards = last is not None and packet.dts is not None and packet.dts <= last
        if packet.pts is None or backwards:
            self._trusted = False
        if packet.dts is not None:
            self._decoded_last = packet.dts

    def _read(self) -> Iterator[av.Packet]:
        packets = self._video.container.demux(self._video.stream)
        while True:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError) as error:
                self.stopped = explained(error)[0]
                return
            if packet is None:
                return
            if packet.size:  # FFmpeg ends with an empty one; an AVI has empty ones for stills
                self.packets += 1
                yield packet
