"""Activations of points of hyperbolic space: of their tangent vectors or of the points themselves.

Both are Euclidean activations as c → 0, and both compute the same in the Lorentz model and in the
Poincaré ball. The direct one leaves out a logarithm and an exponential map.

References:
  Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018, for tangent vectors.
  Bdeir, Schwethelm and Landwehr, Fully hyperbolic convolutional neural networks, ICLR 2024, for
  points.
"""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Float

from hlformer_jax.nn.hyperbolic import Space
from hlformer_jax.ops import lorentz
from hlformer_jax.ops.manifolds import Poincare
from hlformer_jax.typing import Array

Function = Callable[[Array], Array]
"""A function of arrays [*batch, n] that keeps their shape, such as `jax.nn.relu`."""


def activate(
    space: Space, x: Float[Array, "*batch n"], function: Function
) -> Float[Array, "*batch n"]:
    """Apply a function to the space components of points.

    Args:
      space: the space.
      x: points.
      function: a function of arrays that keeps their shape, such as `jax.nn.relu`.

    Returns:
      The points with the space components function(s), where s are those of ``x`` on the
      hyperboloid.

    References:
      Bdeir, Schwethelm and Landwehr, 2024, eq. 9.
    """
    return space.from_lorentz(lorentz.from_space(function(space.to_lorentz(x)[..., 1:]), space.c))


def activate_tangent(
    space: Space, x: Float[Array, "*batch n"], function: Function
) -> Float[Array, "*batch n"]:
    """Apply a function to the tangent vectors at the origin that lead to points.

    Args:
      space: the space.
      x: points.
      function: a function of arrays that keeps their shape, such as `jax.nn.relu`.

    Returns:
      The points exp_0(function(log_0(x))). Tangent vectors have the length of the distance, also in
      the ball, where their coordinates are half as long; for `jax.nn.relu` and other homogeneous
      functions this makes no difference.

    References:
      Ganea, Bécigneul and Hofmann, 2018, section 3.2.
    """
    length = 2 if isinstance(space, Poincare) else 1
    return space.exp_map0(function(length * space.log_map0(x)) / length)


class Activation(nn.Module):
    """`activate`, or `activate_tangent`, without parameters.

    Attributes:
      function: a function of arrays, such as `jax.nn.relu`.
      space: the space.
      is_tangent: whether it is applied to tangent vectors at the origin.
    """

    function: Function
    space: Space
    is_tangent: bool = False

    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        apply = activate_tangent if self.is_tangent else activate
        return apply(self.space, x, self.function)
