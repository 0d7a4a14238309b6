"""Frames of a video at a constant rate."""

import math
from collections.abc import Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from jaxtyping import UInt8

from hlformer_jax.video.decoding import Decoder
from hlformer_jax.video.errors import named
from hlformer_jax.video.opening import opened
from hlformer_jax.video.picture import Painter

_ROUNDING = Fraction(1, 1000)
"""Seconds to which some containers round: an instant this near the end is past it."""


class Frame(NamedTuple):
    """A picture of a video.

    Attributes:
      time: a second, from the video's start, at which it is shown. It is the frame's timestamp;
        where the frame is still shown at a further instant, that instant. So times rise.
      image: RGB, upright. Further instants of one frame share it.
    """

    time: float
    image: UInt8[np.ndarray, "height width 3"]


class Samples(Iterator[Frame]):
    """The frames that `sample` gives, one at a time.

    Attributes:
      end: when the last frame that was decoded ends, in seconds: at the end of the iteration, how
        long the video really is.
      warning: after the last frame: one line that says what of the video could not be used (a
        file that is cut off, damaged packets, timestamps that jump), or "".
    """

    def __init__(self, path: str | Path, fps: float = 1.0, size: int | None = None) -> None:
        """See `sample`."""
        if not (math.isfinite(fps) and fps > 0) or (size is not None and size < 1):
            raise ValueError(f"sample wants fps > 0 and size >= 1, not {fps} and {size}")
        self.end = 0.0
        self.warning = ""
        self._path = Path(path)
        self._rate = Fraction(fps).limit_denominator(1_000_000) or Fraction(fps)
        self._size = size
        self._frames = self._decode()

    def __next__(self) -> Frame:
        """Returns the next frame."""
        return next(self._frames)

    def close(self) -> None:
        """Closes the file before the last frame."""
        self._frames.close()

    def _decode(self) -> Generator[Frame, None, None]:
        with named(self._path), opened(self._path) as video:
            decoder = Decoder(video, self._any_instant)
            painter = Painter(video, self._size)
            shown: tuple[Fraction, av.VideoFrame] | None = None
            instant = 0
            for time, frame in decoder:
                if shown is None:
                    # The first frame stands for the instants before it.
                    instant = max(math.floor(time * self._rate), 0)
                else:
                    yield from self._until(time, shown, instant, painter)
                    instant = max(instant, math.ceil(time * self._rate))
                shown = time, frame
                self.end = float(decoder.clock.end)
            decoder.check()
            assert shown is not None
            end = decoder.clock.end
            end -= min(_ROUNDING, (end - shown[0]) / 2)
            yield from self._until(end, shown, instant, painter)
            self.warning = decoder.warning()

    def _any_instant(self, start: Fraction, end: Fraction) -> bool:
        """Whether an instant lies in [start, end); true of the first frame, whenever it is."""
        return math.ceil(start * self._rate) < end * self._rate

    def _until(
        self, end: Fraction, shown: tuple[Fraction, av.VideoFrame], instant: int, painter: Painter
    ) -> Iterator[Frame]:
        """The frame that is shown until `end`, once for each instant from a given one on."""
        time, frame = shown
        image = None
        for index in range(instant, math.ceil(end * self._rate)):
            image = painter.paint(frame) if image is None else image
            yield Frame(float(time if index == instant else index / self._rate), image)


def sample(path: str | Path, fps: float = 1.0, size: int | None = None) -> Samples:
    """Frames of a video at a constant rate: those shown at 0, 1/fps, 2/fps ... seconds.

    Second 0 is a player's: where the first of the file's streams begins. The frame shown at an
    instant is the last whose timestamp is not later; a first frame that comes after second 0
    stands for the instants before it. Memory does not grow with the video's length. What can be
    decoded of a damaged or cut-off file is given, and `Samples.warning` says what could not.

    Args:
      path: the file.
      fps: instants a second; may be below 1.
      size: pixels to which the shorter side is scaled down, where it has more. None: as it is.

    Returns:
      An iterator over frames; the file is opened at the first.

    Raises:
      ValueError: when fps is not above 0, or size is below 1.
      VideoError: on iteration, when the file cannot be read or no frame of it be decoded.
    """
    return Samples(path, fps, size)
