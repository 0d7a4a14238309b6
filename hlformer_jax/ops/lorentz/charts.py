"""Klein and half-space coordinates of points of the Lorentz model.

At the origin both charts preserve lengths and directions. For points of the ball, compose them with
`poincare.to_lorentz` and `poincare.from_lorentz`.

References:
  Cannon, Floyd, Kenyon and Parry, Hyperbolic geometry, in Flavors of geometry, 1997.
"""

import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops.arguments import as_vectors, check_positive, per_batch, without_time
from hlformer_jax.ops.lorentz.maps import from_space
from hlformer_jax.ops.numerics import dot, limit_norm, limit_norm_and_square
from hlformer_jax.typing import Array


def to_klein(x: Float[Array, "*#batch n1"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n"]:
    """Return the coordinates x_space / (√c x_time) of the Klein model, with straight geodesics.

    Args:
      x: points.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Vectors k with √c |k| < 1. Points farther from the origin than a distance of 7.2 / √c in
      float32 (17.3 / √c in float64) would be rounded to the sphere, so they are moved inside it.

    Raises:
      ValueError: for a curvature that is not positive, if its value is known.
    """
    space = without_time(x)
    check_positive("c", c)
    root = jnp.sqrt(per_batch(c, space))[..., None]
    s = space * root
    k = s / jnp.sqrt(1 + dot(s, s))[..., None]
    return limit_norm(k, _max_radius(k)) / root


def from_klein(k: Float[Array, "*#batch n"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n1"]:
    """Return the point with space components k / √(1 − c |k|²), the inverse of `to_klein`.

    The error is relative to eps · c x_time², the effect of rounding k.

    Args:
      k: vectors with √c |k| < 1; longer ones are moved inside.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Points.

    Raises:
      ValueError: for a curvature that is not positive, if its value is known.
    """
    k = as_vectors(k)
    check_positive("c", c)
    root = jnp.sqrt(per_batch(c, k))[..., None]
    k, square = limit_norm_and_square(k * root, _max_radius(k))
    return from_space(k / jnp.sqrt(1 - square)[..., None] / root, c)


def _max_radius(k: Array) -> float:
    """Return the largest √c |k|, which leaves 1 − c |k|² at least 7 eps after rounding."""
    return 1 - 4 * float(jnp.finfo(k.dtype).eps)


def to_half_space(x: Float[Array, "*#batch n1"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n"]:
    """Return coordinates of the upper half-space, whose metric at a height h is |dz|² / (c h²).

    Let x_n be the last space component and s the others. The last coordinate is the height,
    h = 1 / (√c (√c x_time − √c x_n)), and the other coordinates are √c h s. The origin has the
    coordinates [0, …, 0, 1/√c], and the axis of x_n points upwards. Errors are relative to the
    height and to the length of the other coordinates; near the origin they are relative to 1/√c.

    Args:
      x: points.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Coordinates with a positive height.

    Raises:
      ValueError: for a curvature that is not positive, if its value is known.
    """
    space = without_time(x)
    check_positive("c", c)
    root = jnp.sqrt(per_batch(c, space))[..., None]
    s, rise = space[..., :-1] * root, space[..., -1:] * root
    width2 = dot(s, s)[..., None]
    tau = jnp.sqrt(1 + width2 + rise * rise)
    is_upper = rise >= 0
    # (τ − x_n)(τ + x_n) is 1 + |s|². The factor that is a sum of positive terms does not cancel.
    positive_sum = tau + jnp.where(is_upper, rise, -rise)
    # A factor applied twice, because the square of 1 + |s|² would overflow far out.
    per_width = 1 / jnp.sqrt(1 + width2)
    height = jnp.where(is_upper, positive_sum * per_width * per_width, 1 / positive_sum)
    return jnp.concatenate([s * height, height], axis=-1) / root


def from_half_space(h: Float[Array, "*#batch n"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n1"]:
    """Return the point of the Lorentz model for half-space coordinates; see `to_half_space`.

    Let y be the height and z the other coordinates, both times √c. The last space component is
    ((y − 1)(y + 1) + |z|²) / (2 √c y), and the others are z / (√c y). The error is the effect of
    rounding the coordinates.

    Args:
      h: coordinates, the last of which is the positive height.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Points.

    Raises:
      ValueError: for a height or a curvature that is not positive, if its value is known; otherwise
        such a height gives NaN.
    """
    h = as_vectors(h)
    check_positive("c", c)
    check_positive("the height h[..., -1]", h[..., -1])
    root = jnp.sqrt(per_batch(c, h))[..., None]
    z, y = h[..., :-1] * root, h[..., -1:] * root
    y = jnp.where(y > 0, y, jnp.nan)
    rise = ((y - 1) * (y + 1) + dot(z, z)[..., None]) / (2 * y)
    return from_space(jnp.concatenate([z / y, rise], axis=-1) / root, c)
