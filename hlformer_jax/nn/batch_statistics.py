"""Batch normalisation of points of hyperbolic space, by their centroid and their variance.

The variance is the mean squared distance from the centroid: one number for all coordinates. As
c → 0 it becomes the sum of the coordinates' variances, whereas the usual batch norm normalises
each coordinate by its own variance.

References:
  Bdeir, Schwethelm and Landwehr, Fully hyperbolic convolutional neural networks, ICLR 2024, section
  4.2. Lou et al., Differentiating through the Fréchet mean, ICML 2020.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.nn.hyperbolic import Space, check_space
from hlformer_jax.ops import lorentz
from hlformer_jax.ops.arguments import check_shape
from hlformer_jax.ops.lorentz.maps import log_map_in_frame
from hlformer_jax.ops.numerics import dot
from hlformer_jax.typing import Array


def batch_moments(
    space: Space, x: Float[Array, "*batch n"], mask: Bool[Array, "*batch"] | None = None
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Return the Lorentzian centroid of points, and their mean squared distance from it.

    Args:
      space: the space.
      x: points.
      mask: True for the points to include, at least one; None includes all points.

    Returns:
      The centroid, a point of ``space`` [n], and the mean squared distance, a scalar.

    Raises:
      TypeError: for a space of another kind.
      ValueError: for a mask of another shape than [*batch].
    """
    check_space(space)
    if mask is not None:
        check_shape("mask", jnp.asarray(mask), jnp.shape(x)[:-1])
    x = space.to_lorentz(x)
    points = x.reshape(-1, x.shape[-1])
    weights = jnp.ones(len(points), x.dtype) if mask is None else mask.reshape(-1).astype(x.dtype)
    centroid = lorentz.centroid(points, weights[None], space.c)[0]
    u = log_map_in_frame(centroid, points, space.c)
    variance = jnp.sum(jnp.where(weights > 0, dot(u, u), 0)) / jnp.sum(weights)
    return space.from_lorentz(centroid), variance


def batch_norm(
    space: Space,
    x: Float[Array, "*batch n"],
    mean: Float[Array, " n"],
    variance: ArrayLike,
    scale: ArrayLike,
    bias: Float[Array, " m"],
    epsilon: float = 1e-5,
) -> Float[Array, "*batch n"]:
    """Normalise the distances of points from their mean, and move the mean to another point.

    Args:
      space: the space.
      x: points.
      mean: the point from which distances are scaled.
      variance: mean squared distance of the points from ``mean``.
      scale: factor of the normalised distances.
      bias: space components of the point of the hyperboloid to which the mean moves.
      epsilon: added to the variance.

    Returns:
      The points boost(b, exp_0(scale u / √(variance + epsilon))). Here u are the logarithms of
      ``x`` at the mean, transported to the origin, and b is the point with the space components
      ``bias``.

    Raises:
      TypeError: for a space of another kind.
      ValueError: for more than one variance or scale, and for vectors of another length.
    """
    check_space(space)
    x, mean = space.to_lorentz(x), space.to_lorentz(mean)
    u = log_map_in_frame(mean, x, space.c)
    variance, scale = (jnp.asarray(number, x.dtype) for number in (variance, scale))
    check_shape("variance", variance, ())
    check_shape("scale", scale, ())
    u = u * (scale * jax.lax.rsqrt(variance + epsilon))
    centre = lorentz.from_space(bias.astype(x.dtype), space.c)
    return space.from_lorentz(lorentz.boost(centre, lorentz.exp_map0(u, space.c), space.c))


class BatchNorm(nn.Module):
    """Linen module of `batch_norm`, by the moments of the batch or by running moments.

    The running moments are in the collection ``batch_stats``, which must be mutable in training, as
    for `flax.linen.BatchNorm`. An update moves the running mean along the geodesic to the mean of
    the batch. ``use_running_average`` selects the running moments; ``mask`` is True for the points
    that count in the moments of the batch.

    Attributes:
      space: the space.
      momentum: weight of the old running moments in an update.
      epsilon: added to the variance.
    """

    space: Space
    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch n"],
        use_running_average: bool,
        mask: Bool[Array, "*batch"] | None = None,
    ) -> Float[Array, "*batch n"]:
        space, momentum = self.space, self.momentum
        check_space(space)
        x = space.project(x)
        m = space.to_lorentz(x).shape[-1] - 1
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (m,), x.dtype)
        running_variance = self.variable("batch_stats", "variance", jnp.ones, (), x.dtype)
        scale = self.param("scale", nn.initializers.ones, ())
        bias = self.param("bias", nn.initializers.zeros, (m,))
        centre = lorentz.from_space(running_mean.value, space.c)
        mean: Array
        variance: Array
        if use_running_average:
            mean, variance = space.from_lorentz(centre), running_variance.value
        else:
            mean, variance = batch_moments(space, x, mask)
            if not self.is_initializing():
                moved = lorentz.geodesic(1 - momentum, centre, space.to_lorentz(mean), space.c)
                running_mean.value = jnp.asarray(moved[1:])
                running_variance.value = (
                    momentum * running_variance.value + (1 - momentum) * variance
                )
        return batch_norm(space, x, mean, variance, scale, bias, self.epsilon)
