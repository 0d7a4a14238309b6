"""The centroid of points of the Lorentz model; `lorentz` has its conventions, and is its front."""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.numerics import (
    as_float,
    dot,
    inverse,
    largest_coordinate,
    per_batch,
    safe_normalize,
    sum_products,
    unit,
)
from hlformer_jax.typing import Array


def centroid(
    points: Float[Array, "*#batch L n1"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    exact: bool = True,
) -> Float[Array, "*#batch M n1"]:
    """Centroid under the squared Lorentzian distance.

    It is the weighted sum over its Lorentzian norm, which is a difference of squares. The exact
    form takes that from terms that do not cancel, one for each point and centroid, by M L n
    operations, of which a gradient may keep as many numbers; it reads space components only.

    The other form is one matrix product of the points as they are, time components included. The
    rounding of the sum is amplified: its relative error is up to L eps · c x_time², in float32 at
    √c x_time = 16 1e-3 for 32 points (1e-4 was seen) and 0.03 for 1,000 (3e-3 was seen). The norm
    is at least the sum of the weights over √c, and is set to that where rounding leaves less.

    Args:
      points: points.
      weights: non-negative, their scale is free; None for one centroid with equal weights. Where
        all are 0 the result is the origin.
      c: curvature, positive; broadcasts to ``*batch``.
      exact: whether the error is that of the module's other functions, or time and memory are those
        of a matrix product.

    Returns:
      The points μ that minimise Σ_i weight_i ⟨x_i − μ, x_i − μ⟩.

    Raises:
      ValueError: for weights that do not have the axes [*batch, M, L] for points [*batch, L, n+1]:
        those of a single centroid are [*batch, 1, L].

    References:
      HLFormer, eq. 6.
    """
    points = as_float(points)
    if weights is None:
        weights = jnp.ones((*points.shape[:-2], 1, points.shape[-2]), points.dtype)
    weights = as_float(weights)
    if weights.ndim != points.ndim or weights.shape[-1] != points.shape[-2]:
        raise ValueError(
            f"weights {weights.shape} of points {points.shape}: give [*batch, M, L] for"
            " [*batch, L, n+1], with M = 1 for one centroid"
        )
    curvature = per_batch(c, points[..., 0])[..., None]
    if exact:
        return _exact_centroid(points[..., 1:], weights, curvature)
    total = jnp.matmul(weights, points, precision=jax.lax.Precision.HIGHEST)
    scale = largest_coordinate(total)
    scale = jnp.where(scale == 0, 1, scale)
    mass = jnp.sum(weights, axis=-1) / jnp.squeeze(scale, -1)
    total = total / scale
    # −⟨total, total⟩
    norm2 = -(dot(total[..., 1:], total[..., 1:]) - total[..., 0] * total[..., 0]) * curvature
    norm2 = jnp.where(2 * norm2 < mass * mass, mass * mass, norm2)
    norm2 = jnp.where(norm2 == 0, 1, norm2)
    return hyperboloid.from_space(total[..., 1:] / jnp.sqrt(norm2)[..., None], curvature)


def _exact_centroid(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
) -> Float[Array, "*#batch M n1"]:
    """Centroid of points given by their space components.

    With S and T the sums of the space and time components and u = S / |S|, the norm is the root of
    (T − |S|) (T + |S|), and T − |S| the sum of x_time − u · x_space, in which
    x_time − |x_space| = 1 / (c (x_time + |x_space|)) and, with e = x_space / |x_space|,
    |x_space| − u · x_space = |x_space| |e − u|² / 2. Near the origin, where a direction means
    nothing, both differences are taken as they are.
    """
    largest = largest_coordinate(weights)
    weights = weights / jnp.where(largest == 0, 1, largest)
    t = hyperboloid.time(x, c)
    total, total_time = sum_products(weights, x), sum_products(weights, t[..., None])[..., 0]
    square, time_square = dot(total, total), total_time * total_time
    near = 2 * square <= time_square
    ahead = unit(jnp.where(near[..., None], 1, total))  # u
    is_near = c * dot(x, x) <= 1
    way, r = safe_normalize(jnp.where(is_near[..., None], 1, x))  # e, |x_space|
    turn = way[..., None, :, :] - ahead[..., :, None, :]
    # Its root is applied twice: far out the gradient of the product would overflow.
    turn = turn * jnp.sqrt(r)[..., None, :, None]
    split = (inverse(c) / (t + r))[..., None, :] + dot(turn, turn) / 2
    along = jnp.matmul(ahead, jnp.swapaxes(x, -1, -2), precision=jax.lax.Precision.HIGHEST)
    terms = jnp.where(is_near[..., None, :], t[..., None, :] - along, split)
    gap = sum_products(weights[..., :, None, :], terms[..., None])[..., 0, 0]
    length = jnp.sqrt(jnp.where(near, 1, square))
    norm2 = c * jnp.where(near, time_square - square, gap * (total_time + length))
    norm2 = jnp.where(norm2 == 0, 1, norm2)
    return hyperboloid.from_space(total / jnp.sqrt(norm2)[..., None], c)
