"""Attention under a window and a mask, in Euclidean space and in the Lorentz model.

The functions take the queries, keys and values of each head. Logits and softmax are computed in at
least float32. The Lorentz form has curvature −1 and puts the time component first. It computes
everything in at least float32, because its logits are differences of products of coordinates, and
coordinates grow like cosh of the distance from the origin.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.arguments import as_vectors, check_floating
from hlformer_jax.ops.dropout import dropout
from hlformer_jax.ops.numerics import asinhc_sqrt
from hlformer_jax.ops.products import einsum
from hlformer_jax.typing import Array

# Added to the logit of a masked key, as in the released code. Because it is finite, the softmax of
# a row without any real key is still defined: all its logits are shifted equally.
_EUCLIDEAN_MASKED = -1e4


def euclidean_attention(
    query: Float[Array, "*#batch #N M d"],
    key: Float[Array, "*#batch #N L d"],
    value: Float[Array, "*#batch #N L dv"],
    window: Float[Array, "*heads #M #L"] | None = None,
    mask: Bool[Array, "*masked L"] | None = None,
    dropout_key: Array | None = None,
    rate: float = 0.0,
) -> Float[Array, "*#batch N M dv"]:
    """Scaled dot-product attention whose logits are multiplied by a window (HLFormer eq. 10).

    Args:
      query: queries at M positions, [*batch, N, M, d] for N heads.
      key: keys at L positions, [*batch, N, L, d].
      value: values at L positions, [*batch, N, L, dv].
      window: factor of the logits before the softmax, [M, L] for all heads or [N, M, L] with one
        window per head; None means a window of ones.
      mask: True for real keys, [*batch, L]; None means that all keys are real.
      dropout_key: random key for dropout of the attention weights; None switches dropout off.
      rate: dropout probability, in [0, 1].

    Returns:
      Attended values [*batch, N, M, dv], in the dtype of ``value``.

    Raises:
      TypeError: for queries, keys or values that are not floating arrays.
      ValueError: for windows and masks that do not broadcast to the logits [*batch, N, M, L].
    """
    check_floating(query, key, value)
    _check_axes(query, key, value, window=window, mask=mask)
    logits = einsum("...md,...ld->...ml", query, key, exact=True)
    logits = logits / math.sqrt(query.shape[-1])
    if window is not None:
        logits = _broadcast_window(window, logits) * logits
    if mask is not None:
        logits = logits + _broadcast_mask(_masked(mask, logits), logits)
    weights = dropout(dropout_key, jax.nn.softmax(logits, axis=-1).astype(value.dtype), rate)
    return einsum("...ml,...ld->...md", weights, value)


class Projection(NamedTuple):
    """A linear map of features to heads: x W + b, with the kernel W and the bias b.

    Attributes:
      kernel: W [H, N, d], for H features and N heads of dimension d.
      bias: b [N, d].
    """

    kernel: Float[Array, "H N d"]
    bias: Float[Array, "N d"]


def single_query_attention(
    query: Float[Array, "*#batch N d"],
    inputs: Float[Array, "*#batch L H"],
    key: Projection,
    value: Projection,
    mask: Bool[Array, "*masked L"] | None = None,
    dropout_key: Array | None = None,
    rate: float = 0.0,
) -> Float[Array, "*#batch N d"]:
    """Compute `euclidean_attention` of one query without the keys and values of the L positions.

    The logits are q . (x W + b) = (q W^T) . x + q . b. The weighted sum of x W + b is the weighted
    sum of x, times W, plus b times the sum of the weights. Keys and values each take d times fewer
    operations, and the result is the same up to rounding.

    Args:
      query: one query per head, [*batch, N, d].
      inputs: features at L positions, [*batch, L, H], from which keys and values are projected.
      key: projection of the inputs to keys.
      value: projection of the inputs to values.
      mask: True for real positions, [*batch, L]; None means that all are real.
      dropout_key: random key for dropout of the weights [*batch, N, L]; None switches it off.
      rate: dropout probability, in [0, 1].

    Returns:
      Attended values [*batch, N, d], in the dtype of ``inputs``.

    Raises:
      TypeError: for a query or inputs that are not floating arrays.
      ValueError: for a mask that does not broadcast to [*batch, L].
    """
    check_floating(query, inputs)
    if mask is not None:
        check_mask(mask, (*query.shape[:-2], inputs.shape[-2]), "[*batch, N, d]", query.shape)
    projected_query = jnp.einsum("...nd,hnd->...nh", query, key.kernel)
    logits = einsum("...nh,...lh->...nl", projected_query, inputs, exact=True)
    shift = einsum("...nd,nd->...n", query, key.bias, exact=True)
    logits = (logits + shift[..., None]) / math.sqrt(query.shape[-1])
    if mask is not None:
        logits = logits + _broadcast_mask(_masked(mask, logits), logits, axes=2)
    weights = dropout(dropout_key, jax.nn.softmax(logits, axis=-1).astype(inputs.dtype), rate)
    weighted_inputs = einsum("...nl,...lh->...nh", weights, inputs)
    attended = jnp.einsum("...nh,hnd->...nd", weighted_inputs, value.kernel)
    total = jnp.sum(weights, axis=-1)[..., None]
    bias = value.bias.reshape((1,) * (attended.ndim - 2) + value.bias.shape)
    return attended + total * bias


def lorentz_attention(
    query: Float[Array, "*#batch #N M d"],
    key: Float[Array, "*#batch #N L d"],
    value: Float[Array, "*#batch #N L dv"],
    scale: ArrayLike,
    bias: ArrayLike = 0.0,
    window: Float[Array, "*heads #M #L"] | None = None,
    log_window: Float[Array, "*heads #M #L"] | None = None,
    mask: Bool[Array, "*masked L"] | None = None,
) -> Float[Array, "*#batch N M dv"]:
    """Attention by squared Lorentzian distance; the result is the Lorentzian centroid per head.

    The logits are -d_L^2(q, k) / scale + bias, at most ``bias``. The released code multiplies them
    by ``window``. That moves the negative logits of far positions towards 0, so far positions gain
    weight and the window acts the wrong way round. The corrected form adds ``log_window`` instead,
    which lowers the logits of far positions (HLFormer eqs. 6 and 15).

    Args:
      query: points of the hyperboloid of curvature −1 at M positions, [*batch, N, M, d] for N
        heads; d coordinates, time first.
      key: points at L positions, [*batch, N, L, d].
      value: points at L positions, [*batch, N, L, dv].
      scale: a number that divides the squared distance; the models learn it, from sqrt(n + 1).
      bias: a number, added to the logits before the window.
      window: factor of the logits (released form), [M, L] for all heads or [N, M, L] with one
        window per head; cannot be combined with ``log_window``.
      log_window: term added to the logits (corrected form), of the same shapes.
      mask: True for real keys, [*batch, L]; None means that all keys are real.

    Returns:
      Centroids on the hyperboloid, [*batch, N, M, dv], in at least float32.

    Raises:
      ValueError: if both kinds of window are given, and for windows and masks that do not broadcast
        to the logits [*batch, N, M, L].
    """
    if window is not None and log_window is not None:
        raise ValueError("lorentz_attention takes window or log_window, not both")
    query, key, value = as_vectors(query), as_vectors(key), as_vectors(value)
    _check_axes(query, key, value, window=window, log_window=log_window, mask=mask)
    # The scale multiplies coordinates, so that its gradient is a sum over coordinates, not pairs.
    slope = 2 / jnp.asarray(scale, query.dtype)
    # Without the barrier XLA fills an array of all pairs with the number added below, so that a GPU
    # can accumulate the matrix product into it.
    inner = jax.lax.optimization_barrier(lorentz.pairwise_inner(slope * query, key))
    logits = inner + (slope + bias)
    if window is not None:
        logits = _broadcast_window(window, logits) * logits
    if log_window is not None:
        logits = _broadcast_window(log_window, logits) + logits
    if mask is not None:
        # This is below the logit of any two points, and the difference of two such numbers is still
        # finite. The released -1e18 is not low enough for points farther than 22 from the origin.
        # Nearer to it both give the same weights: exactly 0 for a masked key, and equal weights in
        # a row without any real key.
        least = float(jnp.finfo(logits.dtype).min) / 2
        logits = jnp.where(_broadcast_mask(mask, logits), logits, least)
    return lorentz.centroid(value, jax.nn.softmax(logits, axis=-1), exact=False)


def concatenate_heads_released(
    points: Float[Array, "*#batch N L d"],
) -> Float[Array, "*#batch L n"]:
    """Return tangent coordinates of concatenated heads, as in the released code.

    The coordinates of all heads are concatenated. The time of head 0 then serves as the time of the
    concatenation, and the times of the other heads count as space, so the concatenation is not on
    the hyperboloid. The logarithmic map at the origin scales the N d - 1 coordinates after the
    first time by arcosh(t) / sqrt(t^2 - 1) = asinh(r) / r, where r is the norm of the space of head
    0 alone. The form with r does not cancel near the origin.

    Args:
      points: points of the hyperboloid of curvature −1, [*batch, N, L, d] for N heads.

    Returns:
      Tangent coordinates [*batch, L, N d - 1].
    """
    points = _as_heads(points)
    factor = asinhc_sqrt(jnp.sum(jnp.square(points[..., 0, :, 1:]), axis=-1, keepdims=True))
    return factor * _side_by_side(points)[..., 1:]


def merge_heads_on_hyperboloid(
    points: Float[Array, "*#batch N L d"],
) -> Float[Array, "*#batch L m"]:
    """Return tangent coordinates of the heads, merged into one point of a larger hyperboloid.

    The space components of the heads are concatenated, and the time is computed from them: t^2 is
    the sum of t^2 over the heads, minus N - 1. So the merged point is on the hyperboloid.

    Args:
      points: points of the hyperboloid of curvature −1, [*batch, N, L, d] for N heads.

    Returns:
      Tangent coordinates at the origin, [*batch, L, N (d - 1)].
    """
    return lorentz.log_map0(lorentz.from_space(_side_by_side(_as_heads(points)[..., 1:])))


def _as_heads(points: Float[Array, "*#batch N L d"]) -> Float[Array, "*#batch N L d"]:
    points = as_vectors(points)
    if points.ndim < 3:
        raise ValueError(f"points must have the axes [*batch, N, L, d], got shape {points.shape}")
    return points


def _side_by_side(heads: Float[Array, "*#batch N L d"]) -> Float[Array, "*#batch L m"]:
    heads = jnp.moveaxis(heads, -3, -2)
    return heads.reshape(*heads.shape[:-2], -1)


def _check_axes(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    **windows: Array | None,
) -> None:
    """Check that a mask and windows broadcast to the logits without adding or lengthening axes.

    Raises:
      ValueError: for queries without a head axis, keys or values without an axis of positions, and
        shapes that do not broadcast to the logits.
    """
    axes = "[*batch, N, M, d]"
    if query.ndim < 3:
        raise ValueError(
            f"queries must have the axes {axes}, got shape {query.shape}: the axis of heads"
            " is missing"
        )
    for name, array in (("keys", key), ("values", value)):
        if array.ndim < 2:
            raise ValueError(
                f"{name} must have the axes [*batch, N, L, d], got shape {array.shape}"
            )
    batch, count = jnp.broadcast_shapes(query.shape[:-2], key.shape[:-2]), key.shape[-2]
    logits = (*batch, query.shape[-2], count)
    for name, window in windows.items():
        if window is not None and not _broadcasts(window.shape, logits):
            raise ValueError(
                f"{name} of shape {window.shape} does not broadcast to the logits {logits}"
                " [*batch, N, M, L]: pass [M, L], or [N, M, L] for a window of each head;"
                " for K windows at once give the queries an axis of K"
            )
    if mask is not None:
        check_mask(mask, (*batch[:-1], count), axes, query.shape)


def check_heads(features: int, num_heads: int) -> None:
    """Raise ValueError for a number of heads that does not divide the number of features."""
    if num_heads < 1 or features % num_heads:
        raise ValueError(f"num_heads must divide the {features} features, got {num_heads}")


def check_mask(mask: Array, shape: tuple[int, ...], axes: str, query: tuple[int, ...]) -> None:
    """Check a mask of keys against the shape [*batch, L].

    Args:
      mask: the mask.
      shape: the shape [*batch, L].
      axes: the axes of the queries, for the message.
      query: the shape of the queries, for the message.

    Raises:
      TypeError: for a mask of floating numbers, such as 0 for real keys and -inf for others, of
        which the wrong keys would count as real.
      ValueError: for a mask that does not broadcast to that shape. A common cause is queries
        without an axis of heads.
    """
    if jnp.issubdtype(mask.dtype, jnp.floating):
        raise TypeError(f"mask must be boolean, True for real keys, got the dtype {mask.dtype}")
    if not _broadcasts(mask.shape, shape) or mask.shape[-1] != shape[-1]:
        raise ValueError(
            f"mask of shape {mask.shape} does not broadcast to [*batch, L] {shape} of"
            f" queries of shape {query} with the axes {axes}: the mask has no axes of heads"
            " or queries; the queries need an axis of heads, of length 1 for one head"
        )


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether an array broadcasts to a shape without adding or lengthening axes of it."""
    missing = len(target) - len(shape)
    return missing >= 0 and all(
        size in (1, full_size) for size, full_size in zip(shape, target[missing:], strict=True)
    )


def _broadcast_window(window: Float[Array, "*heads #M #L"], logits: Array) -> Array:
    return window.astype(logits.dtype).reshape((1,) * (logits.ndim - window.ndim) + window.shape)


def _broadcast_mask(mask: Array, logits: Array, axes: int = 3) -> Array:
    """Reshape a mask [*batch, L] to logits whose last ``axes`` axes are not batch axes."""
    lead = (1,) * (logits.ndim - axes - (mask.ndim - 1)) + mask.shape[:-1]
    return mask.reshape(*lead, *(1,) * (axes - 1), mask.shape[-1])


def _masked(mask: Bool[Array, "*masked L"], logits: Array) -> Array:
    return jnp.where(mask, 0.0, _EUCLIDEAN_MASKED).astype(logits.dtype)
