"""Attention windows over positions, for several widths at once.

A window weights key position j for query position i by their distance. Its forms:

- released: a Gaussian of normalised positions, with sigma = max(width, 0.01) / 9. Row i is centred
  at i / L while key j is at j / (L - 1), so the window is slightly asymmetric. Each row is divided
  by its maximum: exp(-(j / (L - 1) - i / L)^2 / (2 sigma^2)) / max_j.
- printed (HLFormer eq. 10): exp(-(j - i)^2 / sigma^2) / (2 pi), sigma = width in positions.
- boxcar (GMMFormer v2 Table 8): 1 up to a distance of sqrt(3) sigma, 0 beyond it.
- bartlett (same table): falls linearly from 1 to 0 at a distance of sqrt(6) sigma.

The paper does not print the distances of the last two. With those above, both have the standard
deviation sigma of the released Gaussian of the same width. Their positions are normalised as j / L,
and the position i itself always has the weight 1.

Width 0 means no window (sigma = infinity). Windows are computed as logarithms, because the
corrected Lorentz attention adds the logarithm, and far positions would underflow otherwise. Widths
given as a JAX array may be learned: released, printed and bartlett windows are differentiable.
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

from hlformer_jax.ops.arguments import as_float
from hlformer_jax.typing import Array

KINDS = ("released", "printed", "boxcar", "bartlett")

LOG_OUTSIDE = -1e4
"""Smallest logarithm of a window: finite, so that sums stay finite, and exp of it is 0."""

MIN_WIDTH = {"released": 0.01, "printed": 1e-6, "boxcar": 0.01, "bartlett": 0.01}
"""Narrower windows than this equal the window of this width, with derivative 0 in the width."""

Widths = Sequence[float] | Float[Array, " K"]


def log_attention_windows(
    widths: Widths, length: int, kind: str = "released", dtype: DTypeLike = jnp.float32
) -> Float[Array, "K L L"]:
    """Return logarithms of the windows of K widths over L positions; row i attends to column j.

    Args:
      widths: K numbers or a JAX array [K]. Windows of numbers are constants, computed in float64
        for any ``dtype``. A JAX array may be traced and learned: its windows are computed in its
        dtype (at least float32), with derivatives in the widths. Those derivatives are 0 for a
        boxcar, at width 0 and below `MIN_WIDTH`.
      length: number of positions L.
      kind: one of `KINDS`.
      dtype: dtype of the result.

    Returns:
      Logarithms [K, L, L], at least `LOG_OUTSIDE`.

    Raises:
      ValueError: for an unknown kind, a length below 1, negative widths, and widths without exactly
        one axis. Traced widths are not checked for their sign.

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
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    is_known = not isinstance(widths, jax.core.Tracer)
    if length < 1 or (is_known and not np.all(np.asarray(widths, np.float64) >= 0)):
        raise ValueError(
            f"length must be at least 1 and widths at least 0, got length {length} and widths"
            f" {widths}"
        )
    if isinstance(widths, jax.Array):
        return _log_windows_of(jnp, as_float(widths), length, kind)
    return _log_windows_of(np, np.asarray(widths, np.float64), length, kind)


def _log_windows_of(xp: ModuleType | Any, widths: Array, length: int, kind: str) -> Array:
    """Compute `_log_windows` with NumPy or `jax.numpy` as ``xp``, in the dtype of the widths."""
    if widths.ndim != 1:
        raise ValueError(f"widths must have one axis, of K windows, got shape {widths.shape}")
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
        # The smallest offset of each row has been subtracted, so that the row's maximum is 1.
        log_window = -offset / (2 * xp.square(sigma))
    log_window = xp.where(xp.isnan(width), width, log_window)  # comparisons would hide it
    return xp.maximum(xp.where(is_open, log_open, log_window), LOG_OUTSIDE)
