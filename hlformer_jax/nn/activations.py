"""Activations of points of hyperbolic space: `activate` and `activate_tangent`.

`activate` applies a function to the space components of points, `activate_tangent` to their tangent
vectors at the origin, which costs a logarithm and an exponential map. As c → 0 both become the
Euclidean activation. Both give the same points in the Lorentz model and in the Poincaré ball.

References:
  Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018, for tangent vectors.
  Bdeir, Schwethelm and Landwehr, Fully hyperbolic convolutional neural networks, ICLR 2024, for
  points.
"""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Float

from hlformer_jax.nn.hyperbolic import Space, check_space
from hlformer_jax.ops import lorentz
from hlformer_jax.ops.arguments import check_shape
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
      The points with the space components function(s), for the space components s of ``x`` on the
      hyperboloid.

    Raises:
      TypeError: for a space of another kind.
      ValueError: for a function that changes the shape.

    References:
      Bdeir, Schwethelm and Landwehr, 2024, eq. 9.
    """
    check_space(space)
    s = _apply(function, space.to_lorentz(x)[..., 1:])
    return space.from_lorentz(lorentz.from_space(s, space.c))


def activate_tangent(
    space: Space, x: Float[Array, "*batch n"], function: Function
) -> Float[Array, "*batch n"]:
    """Apply a function to the tangent vectors at the origin whose exponential maps are the points.

    Args:
      space: the space.
      x: points.
      function: a function of arrays that keeps their shape, such as `jax.nn.relu`.

    Returns:
      The points exp_0(function(log_0(x))). The function receives tangent vectors whose length is
      the distance from the origin, in the ball too, where `log_map0` returns half that length. For
      `jax.nn.relu` and other homogeneous functions the factor makes no difference.

    Raises:
      TypeError: for a space of another kind.
      ValueError: for a function that changes the shape.

    References:
      Ganea, Bécigneul and Hofmann, 2018, section 3.2.
    """
    check_space(space)
    length = 2 if isinstance(space, Poincare) else 1
    return space.exp_map0(_apply(function, length * space.log_map0(x)) / length)


def _apply(function: Function, vectors: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
    result = function(vectors)
    check_shape("the result of function", result, vectors.shape)
    return result


class Activation(nn.Module):
    """Linen module of `activate` or `activate_tangent`; it has no parameters.

    Attributes:
      function: a function of arrays that keeps their shape, such as `jax.nn.relu`.
      space: the space.
      is_tangent: True for `activate_tangent`, False for `activate`.
    """

    function: Function
    space: Space
    is_tangent: bool = False

    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        apply = activate_tangent if self.is_tangent else activate
        return apply(self.space, x, self.function)
