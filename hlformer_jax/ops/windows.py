"""Gaussian windows over positions, for all widths of a bank at once.

A window tells row i (the position that attends) how far position j is. Two forms exist:

- as released: positions are normalised, sigma = max(width, 0.01) / 9, and row i is centred at
  i / L while key j sits at j / (L - 1), so that a window is not quite symmetric; a row is divided
  by its maximum: exp(-(j / (L - 1) - i / L)^2 / (2 sigma^2)) / max_j.
- as printed (HLFormer eq. 10): exp(-(j - i)^2 / sigma^2) / (2 pi), sigma = width in positions.

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

KINDS = ("released", "printed")


def log_gaussian_windows(
    widths: Sequence[float], length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """Logarithms of the Gaussian windows of a bank of blocks.

    Args:
      widths: K widths, each >= 0; 0 is no window.
      length: number of positions L, at least 1.
      kind: "released" or "printed".
      dtype: dtype of the result; the windows are constants, computed in float64.

    Returns:
      Log-windows [K, L, L]: row i is the position that attends, column j the one attended to.

    Raises:
      ValueError: for another kind, a negative width or a length below 1.

    References:
      HLFormer eq. 10; GMMFormer v2 eq. 5.
    """
    return jnp.asarray(_log_windows(widths, length, kind), dtype)


def gaussian_windows(
    widths: Sequence[float], length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """Gaussian windows of a bank of blocks; arguments and errors of `log_gaussian_windows`."""
    return jnp.asarray(np.exp(_log_windows(widths, length, kind)), dtype)


def _log_windows(widths: Sequence[float], length: int, kind: str) -> np.ndarray:
    if kind not in KINDS:
        raise ValueError(f"window {kind!r} is unknown: use one of {', '.join(KINDS)}")
    if length < 1 or any(not width >= 0 for width in widths):
        raise ValueError(f"a window needs length >= 1 and widths >= 0, not {length}, {widths}")
    positions = np.arange(length, dtype=np.float64)
    width = np.asarray(widths, np.float64)[:, None, None]
    open_width = width == 0
    if kind == "released":
        offset = positions[None, :] / max(length - 1, 1) - positions[:, None] / length
        sigma = np.maximum(width, 0.01) / 9
        log_window = -np.square(offset)[None] / (2 * np.square(sigma))
        log_window = log_window - log_window.max(axis=-1, keepdims=True)
        log_open = 0.0
    else:
        offset = positions[None, :] - positions[:, None]
        log_open = -math.log(2 * math.pi)
        sigma = np.where(open_width, 1.0, width)
        log_window = log_open - np.square(offset)[None] / np.square(sigma)
    return np.where(open_width, log_open, log_window)
