"""The Poincaré ball of curvature −c, and the way to it from the Lorentz model and back.

Convention: p in R^n with √c |p| < 1; p = x_space / (1 + √c x_time), the stereographic projection
of the hyperboloid from [−1/√c, 0, …, 0] (see `lorentz`). A ball of floating-point numbers is
small: 1 − √c |p| = 2 / (e^{√c d} + 1) at a distance d from the origin, so beyond
√c d = −log(eps) (15.9 in float32, 36.0 in float64) points would be rounded to the sphere.
"""

import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops.lorentz import from_space
from hlformer_jax.ops.numerics import as_float, dot, limit_norm, per_batch
from hlformer_jax.typing import Array


def project(p: Float[Array, "*batch n"], c: ArrayLike = 1.0) -> Float[Array, "*batch n"]:
    """Moves what lies outside √c |p| = 1 − 4 eps radially onto that sphere.

    Args:
      p: vectors, anywhere.
      c: curvature, positive.

    Returns:
      Points of the ball, √c times at most log(1 / (2 eps)) from the origin (15.2 in float32, 35.4
      in float64) where their coordinates are exact, and less than 16.0 and 36.1 as they are
      rounded; the gradient of a point that was moved is tangential.
    """
    p = as_float(p)
    radius = 1 - 4 * float(jnp.finfo(p.dtype).eps)
    return limit_norm(p, radius / jnp.sqrt(per_batch(c, p)))


def from_lorentz(x: Float[Array, "*batch n1"], c: ArrayLike = 1.0) -> Float[Array, "*batch n"]:
    """The point of the ball that stands for a point of the hyperboloid.

    Args:
      x: points of the hyperboloid, of which the space components are read; at most as far out as
        the exponential maps go.
      c: curvature, positive.

    Returns:
      Points of the ball, moved inside by `project` where they are too far out for it.

    References:
      HLFormer, the inverse of eq. 23.
    """
    space = as_float(x)[..., 1:]
    curvature = per_batch(c, space)
    tau = jnp.sqrt(1 + curvature * dot(space, space))
    return project(space / (1 + tau)[..., None], c)


def to_lorentz(p: Float[Array, "*batch n"], c: ArrayLike = 1.0) -> Float[Array, "*batch n1"]:
    """The point of the hyperboloid that stands for a point of the ball.

    The error is relative to eps · √c x_time, the effect of rounding p: near the sphere the ball
    does not tell points apart.

    Args:
      p: points of the ball, first moved inside by `project` where they are too far out.
      c: curvature, positive.

    Returns:
      Points with space components 2 p / (1 − c |p|²).

    References:
      HLFormer, eq. 23.
    """
    p = as_float(p)
    root = jnp.sqrt(per_batch(c, p))[..., None]
    # Of the unit ball, in which what is moved inside does not depend on c.
    p = project(p * root)
    return from_space(2 * p / (1 - dot(p, p))[..., None] / root, c)
