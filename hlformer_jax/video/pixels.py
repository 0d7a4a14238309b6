"""Conversion of decoded frames to pictures: upright, square pixels, scaled, 8 bits.

High dynamic range (HDR) is converted to linear light, in which 1 is HDR's reference white of
203 cd/m² (ITU-R BT.2408), the brightness of white paper:

    PQ    by the electro-optical transfer function of SMPTE ST 2084, which gives cd/m²
    HLG   by the inverse transfer function of ITU-R BT.2100, and its OOTF for 1,000 cd/m²

The light is then converted to the primaries of BT.709 and to sRGB. Light up to `KNEE` is not
changed. Brighter light approaches white, so that highlights keep their hue.
"""

import functools
import struct
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.video.reformatter import Colorspace, VideoReformatter
from jaxtyping import Float, UInt8, UInt16

_WIDEST_PIXEL = 4  # largest width over height, or its inverse; more is a damaged header

_INTERPOLATION = 0x4 | 0x40000 | 0x2000
"""Flags of swscale: bicubic, exact rounding (otherwise colours differ by two), full chroma."""

_UNSPECIFIED = 2  # FFmpeg's number for an unspecified colour space
_HIGH_DEFINITION = 720  # rows from which on an unspecified colour space is taken for BT.709


class Painter:
    """Converter of the frames of one video to pictures.

    Args:
      aspect: width over height of a pixel of the video.
      size: pixels to which the shorter side is scaled down if it has more; None: no scaling.
    """

    def __init__(self, aspect: Fraction, size: int | None = None) -> None:
        self._aspect = aspect
        self._size = size
        self._scaler = VideoReformatter()
        self._matrix: tuple[int, int, int, int] | None = None

    def paint(self, frame: av.VideoFrame) -> UInt8[np.ndarray, "height width 3"]:
        """Return a frame as a player shows it: RGB, upright, in standard dynamic range, uint8.

        A frame is scaled before its colours are converted, so that a huge frame is never in memory
        as RGB.
        """
        width, height = self._shape(frame.width, frame.height)
        unspecified = frame.colorspace == _UNSPECIFIED and frame.height >= _HIGH_DEFINITION
        hdr = frame.color_trc in (PQ, HLG)
        scaled = self._scaler.reformat(
            frame,
            width,
            height,
            "rgb48le" if hdr else "rgb24",
            src_colorspace=Colorspace.ITU709 if unspecified else None,
            interpolation=_INTERPOLATION,
            threads=1,
        )
        if self._matrix is None:
            # Only of the first frame: all frames have the same matrix, and PyAV keeps a frame whose
            # side data was read in memory until the next garbage collection.
            self._matrix = _matrix(frame)
        image = scaled.to_ndarray()
        if hdr:
            image = to_standard(image, int(frame.color_trc), int(frame.color_primaries))
        return _upright(image, self._matrix)

    def _shape(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height before rotation, with square pixels."""
        pixel = self._aspect
        if Fraction(1, _WIDEST_PIXEL) <= pixel <= _WIDEST_PIXEL:
            width = round(width * max(pixel, Fraction(1)))
            height = round(height / min(pixel, Fraction(1)))
        if self._size is not None and (shorter := min(width, height)) > self._size:
            width, height = (max(round(x * self._size / shorter), 1) for x in (width, height))
        return width, height


def _matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """Return a, b, c, d of the display matrix, which moves (x, y) to (a x + c y, b x + d y)."""
    try:
        data = cast(SideDataContainer, frame.side_data).get("DISPLAYMATRIX")
    except ValueError:  # PyAV has no name for data of FFmpeg, such as the view in spatial videos
        cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[round(frame.rotation / 90) % 4]
        return cosine, -sine, sine, cosine
    if data is None:
        return 1, 0, 0, 1
    a, b, _, c, d, *_ = struct.unpack("9i", bytes(data)[:36])
    return a, b, c, d


def _upright(
    image: UInt8[np.ndarray, "height width 3"], matrix: tuple[int, int, int, int]
) -> UInt8[np.ndarray, "height2 width2 3"]:
    """Return a picture turned and mirrored by the nearest multiple of a quarter turn."""
    a, b, c, d = matrix
    turned = abs(a) + abs(d) < abs(b) + abs(c)
    if turned:
        image = image.swapaxes(0, 1)
    across, down = (c, b) if turned else (a, d)
    return np.ascontiguousarray(image[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])


# High dynamic range


PQ, HLG, BT2020 = 16, 18, 9  # FFmpeg's numbers of two transfer functions, and of primaries
WHITE = 203.0  # reference white, cd/m²
KNEE = 0.75  # share of reference white up to which light is not changed

_HLG_PEAK, _HLG_GAMMA = 1000.0, 1.2

_TO_BT709 = np.asarray(
    [
        [1.660491, -0.587641, -0.072850],
        [-0.124550, 1.132900, -0.008349],
        [-0.018151, -0.100579, 1.118730],
    ],
    np.float32,
)
"""Matrix from linear BT.2020 to linear BT.709 (ITU-R BT.2087)."""

_LUMINANCE = np.asarray([0.2627, 0.6780, 0.0593], np.float32)
"""Weights of BT.2020's primaries in HLG's OOTF."""

_CODES = 2**16
_STEPS = 4095  # steps of the square root of linear light, each with its sRGB value


def to_standard(
    image: UInt16[np.ndarray, "height width 3"], transfer: int, primaries: int
) -> UInt8[np.ndarray, "height width 3"]:
    """Convert a picture in HDR to sRGB.

    Args:
      image: R'G'B' in full range, uint16.
      transfer: the transfer function, `PQ` or `HLG`.
      primaries: FFmpeg's number of the primaries; all except `BT2020` are taken for BT.709's.

    Returns:
      The picture in sRGB, uint8.
    """
    light = _light_of_codes(transfer)[image]
    if transfer == HLG:
        # BT.2100's OOTF, for a display of 1,000 cd/m².
        gain = np.float32(_HLG_PEAK / WHITE) * (light @ _LUMINANCE) ** np.float32(_HLG_GAMMA - 1)
        light *= gain[..., None]
    if primaries == BT2020:
        light = light @ _TO_BT709.T
    np.maximum(light, 0, out=light)
    # Pairwise, because NumPy's maximum over an axis of length three takes ten times as long.
    strongest = np.maximum(np.maximum(light[..., 0], light[..., 1]), light[..., 2])
    excess = np.maximum(strongest - np.float32(KNEE), 0)
    headroom = np.float32(1 - KNEE)
    shown = np.minimum(strongest, np.float32(KNEE)) - headroom * np.expm1(-excess / headroom)
    light *= (shown / np.where(strongest > 0, strongest, 1))[..., None]
    steps = np.sqrt(light, out=light)
    steps *= _STEPS
    steps += np.float32(0.5)
    return _codes_of_light()[steps.astype(np.int32)]


@functools.cache
def _light_of_codes(transfer: int) -> Float[np.ndarray, " codes"]:
    """Return linear light for every 16-bit value: display light in `WHITE` (PQ), or scene light."""
    code = np.arange(_CODES) / (_CODES - 1)
    if transfer == PQ:
        m1, m2 = 2610 / 16384, 2523 / 32
        c1, c2, c3 = 3424 / 4096, 2413 / 128, 2392 / 128
        root = code ** (1 / m2)
        light = 10_000 / WHITE * (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1)
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    return light.astype(np.float32)


@functools.cache
def _codes_of_light() -> UInt8[np.ndarray, " steps"]:
    """Return the sRGB value for every step of the square root of linear light."""
    light = (np.arange(_STEPS + 1) / _STEPS) ** 2
    code = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.rint(255 * code).astype(np.uint8)
