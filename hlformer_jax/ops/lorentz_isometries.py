"""Isometries of the Lorentz model: boosts and rotations; `lorentz` is their front."""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.lorentz_maps import Point, spaces
from hlformer_jax.ops.numerics import as_float, dot, per_batch, same_length
from hlformer_jax.typing import Array


def boost(to: Point, x: Point, c: ArrayLike = 1.0) -> Point:
    """The boost that takes the origin to a point; it is Möbius addition in the Lorentz model.

    `boost(antipode(to), x)` is what is left of x as seen from ``to``: its polar coordinates there
    are those of `direction`, from differences that are exact for near points.

    Args:
      to: points, the images of the origin.
      x: points to move.
      c: curvature, positive.

    Returns:
      Points with space components x + (τ_x + c a · x / (1 + τ_a)) a for a = to_space, τ = √c time.

    References:
      Chen et al., Fully hyperbolic neural networks, ACL 2022.
    """
    to, x = spaces(to, x)
    curvature = per_batch(c, x)
    scale, a, y, difference, c = hyperboloid.rescale(-to, x, curvature)
    near = c * dot(a, a) <= 1
    tau_a, tau_y = (jnp.sqrt(1 + c * dot(v, v)) for v in (a, y))
    # y − f a with f − 1 from the difference of a and y, exact where they are near.
    fall = dot(difference, (a + y) / (tau_a + tau_y)[..., None])
    lean = c * (dot(a, y) / (1 + tau_y)) * (fall / (1 + tau_a)) - dot(y, difference) / (1 + tau_y)
    flat = -difference - (c * lean)[..., None] * a
    start, end, way = (jnp.where(near[..., None], 1, v) for v in (a, y, difference))
    unit, _, radial, across = hyperboloid.components(start, end, way, c)
    space = jnp.where(near[..., None], flat, across + radial[..., None] * unit)
    return hyperboloid.from_space(space * scale, curvature)


def rotate(matrix: Float[Array, "n n"], x: Point, c: ArrayLike = 1.0) -> Point:
    """Rotates space components; the origin stays.

    Args:
      matrix: an orthogonal matrix. Of another the space components are the linear map's, and the
        time component puts the point on the hyperboloid.
      x: points.
      c: curvature, positive.

    Returns:
      Points with space components matrix x_space.
    """
    matrix, space = as_float(matrix), as_float(x)[..., 1:]
    same_length(matrix, space)
    space = jnp.matmul(space, matrix.T, precision=jax.lax.Precision.HIGHEST)
    return hyperboloid.from_space(space, per_batch(c, space))
