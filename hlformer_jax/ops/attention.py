"""Attention under a window and a mask, in Euclidean space and in the Lorentz model.

Pure functions of per-head queries, keys and values. Logits and softmax are computed in float32 at
least; the Lorentz form, of curvature −1 and with the time first, stays in float32 altogether, since
its logits are differences of products of coordinates that reach cosh of the radius.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.dropout import dropout
from hlformer_jax.ops.numerics import as_float, asinhc_sqrt, check_floating, exact_precision, wide
from hlformer_jax.typing import Array

# Number added to a masked key's logit, as released: a row without any real key still gives a
# defined (uniformly shifted) softmax.
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
      query: queries at M positions, per head.
      key: keys at L positions, per head.
      value: values at L positions, per head.
      window: factor of the logits before the softmax, [M, L] or, for each head, [N, M, L]; None is
        a window of ones.
      mask: True for real keys, [*batch, L].
      dropout_key: random key of the dropout of the attention weights; None switches it off.
      rate: rate of that dropout.

    Returns:
      Attended values, in the dtype of ``value``.

    Raises:
      TypeError: for queries, keys or values that are not floating arrays.
      ValueError: for windows and masks that do not broadcast to the logits [*batch, N, M, L].
    """
    check_floating(query, key, value)
    _check_axes(query, key, window=window, mask=mask)
    logits = _exact_einsum("...md,...ld->...ml", query, key)
    logits = logits / math.sqrt(query.shape[-1])
    if window is not None:
        logits = _broadcast_window(window, logits) * logits
    if mask is not None:
        logits = logits + _broadcast_mask(_masked(mask, logits), logits)
    weights = dropout(dropout_key, jax.nn.softmax(logits, axis=-1).astype(value.dtype), rate)
    return jnp.einsum("...ml,...ld->...md", weights, value)


class Projection(NamedTuple):
    """A linear map of features to heads: x W + b, with the kernel W and the bias b."""

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
    """`euclidean_attention` of one query, without keys and values of the L positions.

    q . (x W + b) = (q W^T) . x + q . b, and the weighted sum of x W + b is the sum of x, times W,
    plus b times the sum of the weights: d times fewer operations for the keys and as many for the
    values, for the same numbers up to rounding.

    Args:
      query: one query per head.
      inputs: features at L positions, whose linear maps are keys and values.
      key: gives the keys.
      value: gives the values.
      mask: as in `euclidean_attention`; so are the following.
      dropout_key: for weights [*batch, N, L].
      rate: rate of that dropout.

    Returns:
      Attended values, in the dtype of ``inputs``.

    Raises:
      TypeError: for a query or inputs that are not floating arrays.
      ValueError: for a mask that does not broadcast to [*batch, L].
    """
    check_floating(query, inputs)
    if mask is not None:
        check_mask(mask, (*query.shape[:-2], inputs.shape[-2]), "[*batch, N, d]", query.shape)
    projected_query = jnp.einsum("...nd,hnd->...nh", query, key.kernel)
    logits = _exact_einsum("...nh,...lh->...nl", projected_query, inputs)
    shift = _exact_einsum("...nd,nd->...n", query, key.bias)
    logits = (logits + shift[..., None]) / math.sqrt(query.shape[-1])
    if mask is not None:
        logits = logits + _broadcast_mask(_masked(mask, logits), logits, axes=2)
    weights = dropout(dropout_key, jax.nn.softmax(logits, axis=-1).astype(inputs.dtype), rate)
    weighted_inputs = jnp.einsum("...nl,...lh->...nh", weights, inputs)
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
    """Attention by squared Lorentzian distance; its result is the Lorentzian centroid per head.

    The logits are -d_L^2(q, k) / scale + bias <= bias. As released they are multiplied by
    ``window``, which raises far positions towards 0, the maximum: locality is turned around. The
    corrected form adds ``log_window`` instead, which lowers far positions (HLFormer eqs. 6 and 15).

    Args:
      query: points of the hyperboloid (d coordinates) at M positions, per head.
      key: points at L positions, per head.
      value: points at L positions, per head.
      scale: a number, divides the squared distance; learned, sqrt(n + 1) at the start.
      bias: a number, added to the logits before the window.
      window: factor of the logits (as released), [M, L] or, for each head, [N, M, L]; not together
        with ``log_window``.
      log_window: term of the logits (corrected), of the same shapes.
      mask: True for real keys, [*batch, L].

    Returns:
      Centroids on the hyperboloid, float32 at least.

    Raises:
      ValueError: for both kinds of window, and for windows and masks that do not broadcast to the
        logits [*batch, N, M, L].
    """
    if window is not None and log_window is not None:
        raise ValueError("lorentz_attention takes a window or a log_window, not both")
    query, key, value = as_float(query), as_float(key), as_float(value)
    _check_axes(query, key, window=window, log_window=log_window, mask=mask)
    # The scale meets the coordinates, so that its gradient is a sum over these and not over pairs.
    slope = 2 / jnp.asarray(scale, query.dtype)
    # Else XLA would write the number out for every pair, for a GPU's product to be added to.
    inner = jax.lax.optimization_barrier(lorentz.pairwise_inner(slope * query, key))
    logits = inner + (slope + bias)
    if window is not None:
        logits = _broadcast_window(window, logits) * logits
    if log_window is not None:
        logits = _broadcast_window(log_window, logits) + logits
    if mask is not None:
        # Below the logit of any two points, with room for a difference of two. The released -1e18
        # is not, from a distance of 22 from the origin on; where it is, either leaves a masked key
        # a weight of exactly 0, and a row without any real key equal weights.
        least = float(jnp.finfo(logits.dtype).min) / 2
        logits = jnp.where(_broadcast_mask(mask, logits), logits, least)
    return lorentz.centroid(value, jax.nn.softmax(logits, axis=-1), exact=False)


def _exact_einsum(subscripts: str, x: Array, y: Array) -> Array:
    """An einsum in float32 at least, whose gradient multiplies in the dtype of the factors."""
    if wide(x.dtype) == x.dtype:
        return jnp.einsum(subscripts, x, y, precision=exact_precision())
    return _widened_einsum(subscripts, x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _widened_einsum(subscripts: str, x: Array, y: Array) -> Array:
    return jnp.einsum(subscripts, x, y, preferred_element_type=wide(x.dtype))


def _widened_forward(subscripts: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _widened_einsum(subscripts, x, y), (x, y)


def _widened_backward(
    subscripts: str, factors: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    # JAX would cast the factors to float32, and multiply in it.
    _, pull = jax.vjp(lambda x, y: jnp.einsum(subscripts, x, y), *factors)
    pulled: tuple[Array, Array] = pull(gradient.astype(factors[0].dtype))
    return pulled


_widened_einsum.defvjp(_widened_forward, _widened_backward)


def concatenate_heads_released(
    points: Float[Array, "*#batch N L d"],
) -> Float[Array, "*#batch L n"]:
    """Tangent coordinates of concatenated heads, as released: off the hyperboloid.

    The heads' coordinates are put side by side; head 0's time is taken for the time of the whole
    and the other heads' times count as space. The logarithmic map at the origin then scales the
    N d - 1 coordinates after that time by arcosh(t) / sqrt(t^2 - 1) = asinh(r) / r, where r is the
    norm of head 0's space alone; written so, there is nothing to cancel near the origin.
    """
    points = as_float(points)
    factor = asinhc_sqrt(jnp.sum(jnp.square(points[..., 0, :, 1:]), axis=-1, keepdims=True))
    return factor * _side_by_side(points)[..., 1:]


def merge_heads_on_hyperboloid(
    points: Float[Array, "*#batch N L d"],
) -> Float[Array, "*#batch L m"]:
    """Tangent coordinates of the heads merged into one point of a larger hyperboloid.

    The heads' space parts are put side by side and the time follows from them (t^2 is the sum of
    the heads' t^2 less N - 1), so the merged point is exact; m = N (d - 1).
    """
    return lorentz.log_map0(lorentz.from_space(_side_by_side(points[..., 1:])))


def _side_by_side(heads: Float[Array, "*#batch N L d"]) -> Float[Array, "*#batch L m"]:
    heads = jnp.moveaxis(heads, -3, -2)
    return heads.reshape(*heads.shape[:-2], -1)


def _check_axes(
    query: Array,
    key: Array,
    mask: Array | None = None,
    **windows: Array | None,
) -> None:
    """Check a mask and windows against the logits, whose axes they must not add to or lengthen.

    Raises:
      ValueError: for queries without a head axis, and for shapes that do not broadcast to the
        logits.
    """
    axes = "[*batch, N, M, d]"
    if query.ndim < 3:
        raise ValueError(
            f"queries {query.shape} have the axes {axes}: the axis of heads is missing"
        )
    batch, count = np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), key.shape[-2]
    logits = (*batch, query.shape[-2], count)
    for name, window in windows.items():
        if window is not None and not _broadcasts(window.shape, logits):
            raise ValueError(
                f"{name} {window.shape} does not broadcast to the logits {logits}"
                " [*batch, N, M, L]: give [M, L], or [N, M, L] for a window of each head; for K"
                " windows at once give the queries an axis of K"
            )
    if mask is not None:
        check_mask(mask, (*batch[:-1], count), axes, query.shape)


def check_mask(mask: Array, shape: tuple[int, ...], axes: str, query: tuple[int, ...]) -> None:
    """Check a mask of keys against the shape [*batch, L].

    Raises:
      ValueError: for a mask that does not broadcast to that shape, which queries without an axis of
        heads give.
    """
    if not _broadcasts(mask.shape, shape) or mask.shape[-1] != shape[-1]:
        raise ValueError(
            f"mask {mask.shape} does not broadcast to [*batch, L] {shape} of queries {query}, whose"
            f" axes are {axes}: the mask has no axes of heads or queries, and the queries have an"
            " axis of heads, of length 1 for one head"
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
    """A mask [*batch, L] with the axes of logits, whose last ``axes`` are not batch axes."""
    lead = (1,) * (logits.ndim - axes - (mask.ndim - 1)) + mask.shape[:-1]
    return mask.reshape(*lead, *(1,) * (axes - 1), mask.shape[-1])


def _masked(mask: Bool[Array, "*masked L"], logits: Array) -> Array:
    return jnp.where(mask, 0.0, _EUCLIDEAN_MASKED).astype(logits.dtype)
