"""Layers of the Lorentz model as functions: rotations, concatenation, hyperplanes, logits."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops.arguments import (
    as_floats,
    as_matrix,
    check_floating,
    check_vectors,
    per_batch,
    split_coordinates,
    without_time,
)
from hlformer_jax.ops.lorentz.maps import from_space
from hlformer_jax.ops.lorentz.pairs import (
    Point,
    Scalar,
    inner_with_end,
    point_from_space,
    rescale,
    space_components,
    tangent_length,
)
from hlformer_jax.ops.numerics import dot, logits, precise_matmul, scaled_asinh, unit
from hlformer_jax.typing import Array


def rotate(matrix: Float[Array, "n n"], x: Point, c: ArrayLike = 1.0) -> Point:
    """Multiply space components by a matrix; an orthogonal one rotates about the origin.

    Args:
      matrix: the matrix. If it is not orthogonal, the map is no isometry, but the time component is
        still computed from the new space components.
      x: points.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Points of the shape of ``x``.

    Raises:
      ValueError: for a matrix that does not have one column for each space component.
    """
    matrix, space = as_matrix("matrix", matrix, without_time(x))
    space = precise_matmul(space, matrix.T)
    return point_from_space(space, per_batch(c, space))


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Point:
    """Concatenate the space components of points, which gives points of a larger space.

    Source: Qu and Zou, Autoencoding hyperbolic representation for adversarial generation, 2022.

    Args:
      points: points with the same batch axes, of any dimensions.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    parts = as_floats(*(without_time(x) for x in points))
    return from_space(jnp.concatenate(parts, axis=-1), c)


def split(x: Point, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Split points into points with ``dims`` consecutive space components, to undo `concatenate`.

    Args:
      x: points.
      dims: dimensions of the parts.
      c: curvature, positive; broadcasts to ``*batch``.

    Raises:
      ValueError: for dimensions that do not add up to the dimension of ``x``.
    """
    space = without_time(x)
    return [from_space(part, c) for part in split_coordinates(space, dims)]


def from_linear(z: Float[Array, "*#batch d"], scale: Float[Array, ""]) -> Float[Array, "*#batch d"]:
    """Map any vector to a point of curvature −1: the last step of a fully Lorentzian linear map.

    The point has time = sigmoid(z_0) exp(scale) + 1.1, and its space components are parallel to
    z_1 … with |space|² = time² − 1. If z_1 … are all zero, it is the origin (HLFormer eqs. 13 and
    14, in the released form).

    Args:
      z: vectors; unlike elsewhere in this package they keep a dtype narrower than float32.
      scale: logarithm of the largest possible value of time − 1.1.

    Returns:
      Points in the dtype of ``z``.

    Raises:
      TypeError: for arrays that are not floating.
      ValueError: for a number, and for vectors of fewer than two coordinates.
    """
    check_floating(z)
    check_vectors(z, least=2)
    if z.dtype == jnp.float16:  # squares above 65,504 overflow
        return from_linear(z.astype(jnp.float32), scale).astype(z.dtype)
    time = jax.nn.sigmoid(z[..., :1]) * jnp.exp(scale).astype(z.dtype) + 1.1
    squared_norm = jnp.sum(jnp.square(z[..., 1:]), axis=-1, keepdims=True)
    directed = ~(squared_norm <= jnp.finfo(z.dtype).tiny)  # True for NaN
    radius = jnp.sqrt((time - 1) * (time + 1))
    space = z[..., 1:] * (radius * jax.lax.rsqrt(jnp.where(directed, squared_norm, 1.0)))
    space = jnp.where(directed, space, 0.0)
    return jnp.concatenate([jnp.where(directed, time, 1.0), space], axis=-1)


def hyperplane_distance(x: Point, point: Point, normal: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the signed distance arsinh(√c ⟨x, normal⟩ / |normal|) / √c to a hyperplane.

    Args:
      x: points.
      point: a point of the hyperplane.
      normal: tangent vector at ``point``, orthogonal to the hyperplane, of any length. The distance
        is positive on the side that it points to; a zero normal gives the distance 0.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    point, x, normal = space_components(point, x, normal)
    normal = unit(normal)
    length = tangent_length(point, normal, per_batch(c, x))
    pair = rescale(point, x, per_batch(c, x))
    rise = inner_with_end(pair, normal)[0] * pair.scale / jnp.where(length == 0, 1, length)
    return scaled_asinh(rise, per_batch(c, x))


def mlr(
    x: Float[Array, "*#batch n1"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Return logits of multinomial logistic regression, by one matrix product.

    The logit of a class is the length of its normal times the signed distance to its hyperplane.
    The hyperplane crosses the geodesic from the origin along the normal z orthogonally, at the
    signed distance b from the origin:

        |z| arsinh(√c (cosh(√c b) ⟨z / |z|, x_space⟩ − sinh(√c b) x_time)) / √c.

    As c → 0 this becomes the linear |z| (⟨z / |z|, x⟩ − b). Errors are relative to
    eps · cosh(√c b) √c x_time, before the arsinh (Bdeir, Schwethelm and Landwehr, 2024).

    Args:
      x: points.
      normals: space components of the normals z, tangent at the origin; a zero normal gives 0.
      offsets: signed distances b; √c b is clipped to ± `max_hyperbolic_norm`.
      c: curvature, positive; broadcasts to ``*batch``.
    """
    normals, space = as_matrix("normals", normals, without_time(x))
    c = per_batch(c, space)
    return logits(space, jnp.sqrt(1 + c * dot(space, space)), normals, offsets, c)
