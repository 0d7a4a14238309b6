"""Decoded frames as pictures: upright, with square pixels, of a wanted size."""

import struct
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.reformatter import Colorspace, VideoReformatter
from jaxtyping import UInt8

from hlformer_jax.video import tones
from hlformer_jax.video.opening import Video, check_size

_WIDEST_PIXEL = 4
"""Width over height of a pixel, or its inverse; more is a damaged header."""

_INTERPOLATION = 0x4 | 0x40000 | 0x2000
"""swscale's: bicubic, exact rounding (colours are off by two without), chroma interpolated."""

_UNTOLD = 2
"""FFmpeg's number for colours of which the file does not say how they are coded ..."""

_HIGH_DEFINITION = 720
"""... which from so many rows on is as in high definition, by common use."""


class Painter:
    """Turns frames of one video into pictures."""

    def __init__(self, video: Video, size: int | None = None) -> None:
        """Takes the video, and the pixels to which the shorter side is scaled down, if any."""
        self._video = video
        self._size = size
        self._scaler = VideoReformatter()
        self._matrix: tuple[int, int, int, int] | None = None

    def paint(self, frame: av.VideoFrame) -> UInt8[np.ndarray, "height width 3"]:
        """The picture of a frame, as a player shows it.

        Args:
          frame: a decoded frame; scaled by swscale before its colours are converted, so that a
            huge one never is in memory as RGB.

        Returns:
          RGB, rotated and mirrored as the file asks; of HDR in the standard range (`tones`).

        Raises:
          VideoError: when the frame is absurdly large.
        """
        check_size(self._video.path, frame.width, frame.height)
        width, height = self._shape(frame.width, frame.height)
        untold = frame.colorspace == _UNTOLD and frame.height >= _HIGH_DEFINITION
        hdr = frame.color_trc in (tones.PQ, tones.HLG)
        scaled = self._scaler.reformat(
            frame,
            width,
            height,
            "rgb48le" if hdr else "rgb24",
            src_colorspace=Colorspace.ITU709 if untold else None,
            interpolation=_INTERPOLATION,
            threads=1,
        )
        if self._matrix is None:
            # Of the first alone: it is the file's, and PyAV keeps a frame whose side data was read
            # in memory until the garbage collector comes by.
            self._matrix = _matrix(frame)
        image = scaled.to_ndarray()
        if hdr:
            image = tones.to_standard(image, int(frame.color_trc), int(frame.color_primaries))
        return _upright(image, self._matrix)

    def _shape(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before rotation, with square pixels."""
        pixel = Fraction(self._video.stream.sample_aspect_ratio or 1)
        if Fraction(1, _WIDEST_PIXEL) <= pixel <= _WIDEST_PIXEL:
            width = round(width * max(pixel, Fraction(1)))
            height = round(height / min(pixel, Fraction(1)))
        if self._size is not None and (shorter := min(width, height)) > self._size:
            width, height = (max(round(x * self._size / shorter), 1) for x in (width, height))
        return width, height


def _matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """The display matrix's a, b, c, d: a pixel at (x, y) is shown at (a x + c y, b x + d y)."""
    side_data = cast(SideDataContainer, frame.side_data)
    for place in range(len(side_data)):
        data = side_data[place]
        if data.type == Type.DISPLAYMATRIX:
            a, b, _, c, d, *_ = struct.unpack("9i", bytes(data)[:36])
            return a, b, c, d
    return 1, 0, 0, 1


def _upright(
    image: UInt8[np.ndarray, "height width 3"], matrix: tuple[int, int, int, int]
) -> UInt8[np.ndarray, "height2 width2 3"]:
    """A picture turned and mirrored by the nearest of the eight ways there are."""
    a, b, c, d = matrix
    turned = abs(a) + abs(d) < abs(b) + abs(c)
    if turned:
        image = image.swapaxes(0, 1)
    across, down = (c, b) if turned else (a, d)
    return np.ascontiguousarray(image[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])
