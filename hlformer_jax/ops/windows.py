"""Windows over positions, for all widths of a bank at once.

A window says for row i (the position that attends) how far position j is. Its forms:

- released: a Gaussian. Positions are normalised, sigma = max(width, 0.01) / 9, and row i is
  centred at i / L while key j sits at j / (L - 1), so that a window is not quite symmetric; a row
  is divided by its maximum: exp(-(j / (L - 1) - i / L)^2 / (2 sigma^2)) / max_j.
- printed (HLFormer eq. 10): exp(-(j - i)^2 / sigma^2) / (2 pi), sigma = width in positions.
- boxcar, bartlett (GMMFormer v2 Table 8): 1 up to a distance, and falling linearly to 0 at a
  distance. The paper does not print the distances: here they have the standard deviation sigma of
  the released Gaussian of the same width, so sqrt(3) sigma and sqrt(6) sigma, over normalised
  positions j / L; the own position is always inside.

Width 0 stands for no window (sigma = infinity). Everything is computed as a logarithm, since the
corrected Lorentz attention adds the logarithm and far positions underflow otherwise.
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from hlformer_jax.typing import Array

KINDS = ("released", "printed", "boxcar", "bartlett")

LOG_OUTSIDE = -1e4
"""The least logarithm of a window: finite, so that sums with it are; its exp is 0."""


def log_attention_windows(
    widths: Sequence[float], length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """Logarithms of the windows of K widths over L positions; row i attends to column j.

    They are constants, computed in float64 whatever the dtype. ValueError is raised for a kind that
    is not in `KINDS`, a negative width or a length below 1 (HLFormer eq. 10; GMMFormer v2 eq. 13).
    """
    return jnp.asarray(_log_windows(widths, length, kind), dtype)


def attention_windows(
    widths: Sequence[float], length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """The windows whose logarithms `log_attention_windows` gives."""
    return jnp.asarray(np.exp(_log_windows(widths, length, kind)), dtype)


def _log_windows(widths: Sequence[float], length: int, kind: str) -> np.ndarray:
    if kind not in KINDS:
        raise ValueError(f"window {kind!r} is unknown: use one of {', '.join(KINDS)}")
    if length < 1 or any(not width >= 0 for width in widths):
        raise ValueError(f"a window needs length >= 1 and widths >= 0, not {length}, {widths}")
    positions = np.arange(length, dtype=np.float64)
    steps = (positions[None, :] - positions[:, None])[None]
    width = np.asarray(widths, np.float64)[:, None, None]
    open_width = width == 0
    sigma = np.maximum(width, 0.01) / 9
    log_open = 0.0
    if kind == "printed":
        log_open = -math.log(2 * math.pi)
        # As large as a square may be; far below LOG_OUTSIDE.
        log_window = log_open - np.square(
            np.minimum(np.abs(steps) / np.where(open_width, 1.0, width), 1e9)
        )
    elif kind == "boxcar":
        log_window = np.where(np.abs(steps) / length <= math.sqrt(3) * sigma, 0.0, LOG_OUTSIDE)
    elif kind == "bartlett":
        height = np.maximum(1 - np.abs(steps) / length / (math.sqrt(6) * sigma), 0)
        inside = height > 0
        log_window = np.where(inside, np.log(np.where(inside, height, 1.0)), LOG_OUTSIDE)
    else:
        offset = positions[None, :] / max(length - 1, 1) - positions[:, None] / length
        log_window = -np.square(offset)[None] / (2 * np.square(sigma))
        log_window = log_window - log_window.max(axis=-1, keepdims=True)
    return np.maximum(np.where(open_width, log_open, log_window), LOG_OUTSIDE)
