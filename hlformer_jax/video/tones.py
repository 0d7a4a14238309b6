"""High dynamic range to the standard one: what a picture of 10 bit means to a program of 8.

The codes of a phone's or a film's HDR mean other light than sRGB's, in wider primaries: taken as
they are, they look grey and pale. They are brought to linear light with 1 for HDR's reference white
of 203 cd/m² (ITU-R BT.2408), which is white paper in either range:

    PQ    the electro-optical transfer function of SMPTE ST 2084, which gives cd/m²
    HLG   the inverse transfer function of ITU-R BT.2100, and its OOTF for a display of 1,000 cd/m²

then to the primaries of BT.709, and to the code of sRGB. Up to `KNEE` light stays as it is; what is
brighter approaches white, so that highlights keep their hue, and paper is nearly white.
"""

import functools

import numpy as np
from jaxtyping import Float, UInt8, UInt16

PQ, HLG = 16, 18
"""FFmpeg's numbers of the two transfer functions ..."""

BT2020 = 9
"""... and of the primaries that they come with."""

WHITE = 203.0
"""Reference white, cd/m²."""

KNEE = 0.75
"""Light, of reference white, that is left as it is."""

_HLG_PEAK, _HLG_GAMMA = 1000.0, 1.2

_TO_BT709 = np.asarray(
    [
        [1.660491, -0.587641, -0.072850],
        [-0.124550, 1.132900, -0.008349],
        [-0.018151, -0.100579, 1.118730],
    ],
    np.float32,
)
"""Linear BT.2020 to linear BT.709 (ITU-R BT.2087)."""

_LUMINANCE = np.asarray([0.2627, 0.6780, 0.0593], np.float32)
"""Of BT.2020's primaries, by which HLG's OOTF weighs them."""

_CODES = 2**16
_STEPS = 4095
"""Steps of linear light at the square root's scale, of which each has its code of sRGB."""


def to_standard(
    image: UInt16[np.ndarray, "height width 3"], transfer: int, primaries: int
) -> UInt8[np.ndarray, "height width 3"]:
    """The picture of a frame in HDR.

    Args:
      image: R'G'B' of 16 bit, of the whole range.
      transfer: `PQ` or `HLG`.
      primaries: FFmpeg's number; those of BT.2020 are converted, others are taken for BT.709's.

    Returns:
      R'G'B' of 8 bit, by sRGB.
    """
    light = _light_of_codes(transfer)[image]
    if transfer == HLG:
        light *= _ootf(light @ _LUMINANCE)[..., None]
    if primaries == BT2020:
        light = light @ _TO_BT709.T
    np.maximum(light, 0, out=light)
    # Pairwise: NumPy's maximum over an axis of three takes ten times as long.
    strongest = np.maximum(np.maximum(light[..., 0], light[..., 1]), light[..., 2])
    above = np.maximum(strongest - np.float32(KNEE), 0)
    headroom = np.float32(1 - KNEE)
    shown = np.minimum(strongest, np.float32(KNEE)) - headroom * np.expm1(-above / headroom)
    light *= (shown / np.where(strongest > 0, strongest, 1))[..., None]
    steps = np.sqrt(light, out=light)
    steps *= _STEPS
    steps += np.float32(0.5)
    return _codes_of_light()[steps.astype(np.int32)]


def _ootf(luminance: Float[np.ndarray, "height width"]) -> Float[np.ndarray, "height width"]:
    """What a display of 1,000 cd/m² multiplies a scene's light with, to units of `WHITE`."""
    scale = np.float32(_HLG_PEAK / WHITE)
    return scale * luminance ** np.float32(_HLG_GAMMA - 1)


@functools.cache
def _light_of_codes(transfer: int) -> Float[np.ndarray, " codes"]:
    """Linear light of every code: of a display by PQ, in units of `WHITE`; of a scene by HLG."""
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
    """Codes of sRGB for every step of the square root of linear light."""
    light = (np.arange(_STEPS + 1) / _STEPS) ** 2
    code = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.rint(255 * code).astype(np.uint8)
