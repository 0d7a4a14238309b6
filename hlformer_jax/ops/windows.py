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
corrected Lorentz attention adds the logarithm and far positions underflow otherwise. Widths that
are a JAX array may be learned: released, printed and bartlett windows differentiate in them.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from hlformer_jax.ops.numerics import as_float
from hlformer_jax.typing import Array

KINDS = ("released", "printed", "boxcar", "bartlett")

LOG_OUTSIDE = -1e4
"""The least logarithm of a window: finite, so that sums with it are; its exp is 0."""

MIN_WIDTH = {"released": 0.01, "printed": 1e-6, "boxcar": 0.01, "bartlett": 0.01}
"""The width below which a window does not change, and its derivative in the width is 0."""

Widths = Sequence[float] | Float[Array, " K"]


def log_attention_windows(
    widths: Widths, length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """Return logarithms of the windows of K widths over L positions; row i attends to column j.

    Args:
      widths: numbers, whose windows are constants, computed in float64 for any dtype;
        or a JAX array [K], which may be traced and learned: then they are computed in its dtype
        (float32 at least), with derivatives in the widths. For a boxcar they are 0, and so are
        those at width 0 and below `MIN_WIDTH`.
      length: number of positions L.
      kind: one of `KINDS`.
      dtype: dtype of the result.

    Returns:
      Logarithms, `LOG_OUTSIDE` at least.

    Raises:
      ValueError: for an unknown kind, a length below 1 and negative widths; traced widths are not
        checked, and negative ones give NaN.

    References:
      HLFormer, eq. 10. GMMFormer v2, eq. 13.
    """
    return jnp.asarray(_log_windows(widths, length, kind), dtype)


def attention_windows(
    widths: Widths, length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """Return the windows whose logarithms `log_attention_windows` returns; see there."""
    log_windows = _log_windows(widths, length, kind)
    exp = jnp.exp if isinstance(log_windows, jax.Array) else np.exp
    return jnp.asarray(exp(log_windows), dtype)


def _log_windows(widths: Widths, length: int, kind: str) -> Array:
    if kind not in KINDS:
        raise ValueError(f"window {kind!r} is unknown: use one of {', '.join(KINDS)}")
    is_known = not isinstance(widths, jax.core.Tracer)
    if length < 1 or (is_known and not np.all(np.asarray(widths, np.float64) >= 0)):
        raise ValueError(f"a window needs length >= 1 and widths >= 0, not {length}, {widths}")
    if isinstance(widths, jax.Array):
        return _log_windows_of(jnp, as_float(widths), length, kind)
    return _log_windows_of(np, np.asarray(widths, np.float64), length, kind)


def _log_windows_of(xp: ModuleType | Any, widths: Array, length: int, kind: str) -> Array:
    """`_log_windows` by the functions of NumPy or of JAX, in the dtype of the widths."""
    if widths.ndim != 1:
        raise ValueError(f"widths {widths.shape}: give one axis, of K windows")
    # Positions are constants in float64 for any dtype of the widths.
    positions = np.arange(length, dtype=np.float64)
    steps = np.abs(positions[None, :] - positions[:, None])[None]
    offset = np.square(positions[None, :] / max(length - 1, 1) - positions[:, None] / length)
    offset = (offset - offset.min(axis=-1, keepdims=True))[None]
    steps, offset = (xp.asarray(x, dtype=widths.dtype) for x in (steps, offset))
    width = widths[:, None, None]
    is_open = width == 0
    width = xp.where(width < MIN_WIDTH[kind], MIN_WIDTH[kind], width)  # NaN stays
    sigma = width / 9
    log_open = 0.0
    if kind == "printed":
        log_open = -math.log(2 * math.pi)
        log_window = log_open - xp.square(steps / width)
    elif kind == "boxcar":
        log_window = xp.where(steps / length <= math.sqrt(3) * sigma, 0.0, LOG_OUTSIDE)
    elif kind == "bartlett":
        height = 1 - steps / length / (math.sqrt(6) * sigma)
        inside = height > 0
        log_window = xp.where(inside, xp.log(xp.where(inside, height, 1.0)), LOG_OUTSIDE)
    else:
        # Less the smallest offset of the row, so that its largest number is 1.
        log_window = -offset / (2 * xp.square(sigma))
    return xp.maximum(xp.where(is_open, log_open, log_window), LOG_OUTSIDE)
