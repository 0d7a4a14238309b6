"""Layers of the Lorentz model as functions of points: rotations, joined points, hyperplanes."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

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
from hlformer_jax.ops.numerics import (
    as_float,
    dot,
    logits,
    per_batch,
    same_length,
    scaled_asinh,
    split_coordinates,
    unit,
)
from hlformer_jax.typing import Array


def rotate(matrix: Float[Array, "n n"], x: Point, c: ArrayLike = 1.0) -> Point:
    """Rotates space components by an orthogonal matrix; the origin stays.

    Another matrix maps the space components, and the time component follows from them.
    """
    matrix, space = as_float(matrix), as_float(x)[..., 1:]
    same_length(matrix, space)
    space = jnp.matmul(space, matrix.T, precision=jax.lax.Precision.HIGHEST)
    return point_from_space(space, per_batch(c, space))


def concatenate(points: Sequence[Float[Array, "..."]], c: ArrayLike = 1.0) -> Point:
    """The point of a larger space with the space components of several, of any dimensions.

    See Qu and Zou, Autoencoding hyperbolic representation for adversarial generation, 2022.
    """
    return from_space(jnp.concatenate([as_float(x)[..., 1:] for x in points], axis=-1), c)


def split(x: Point, dims: Sequence[int], c: ArrayLike = 1.0) -> list[Float[Array, "..."]]:
    """Points with ``dims`` consecutive space components each: it undoes `concatenate`.

    ValueError is raised for dimensions that do not add up to the one of ``x``.
    """
    space = as_float(x)[..., 1:]
    return [from_space(part, c) for part in split_coordinates(space, dims)]


def from_linear(z: Float[Array, "*#batch d"], scale: Float[Array, ""]) -> Float[Array, "*#batch d"]:
    """The last step of a fully Lorentzian linear map: any vector becomes a point of curvature −1.

    [time, space] with time = sigmoid(z_0) exp(scale) + 1.1 and space along z_1.., |space|² =
    time² − 1; the origin where z_1.. is zero. It has the dtype of ``z``, which a layer chooses
    (HLFormer eqs. 13 and 14, as in the released code).
    """
    time = jax.nn.sigmoid(z[..., :1]) * jnp.exp(scale).astype(z.dtype) + 1.1
    squared_norm = jnp.sum(jnp.square(z[..., 1:]), axis=-1, keepdims=True)
    directed = squared_norm > jnp.finfo(z.dtype).tiny
    radius = jnp.sqrt((time - 1) * (time + 1))
    space = z[..., 1:] * (radius * jax.lax.rsqrt(jnp.where(directed, squared_norm, 1.0)))
    space = jnp.where(directed, space, 0.0)
    return jnp.concatenate([jnp.where(directed, time, 1.0), space], axis=-1)


def hyperplane_distance(x: Point, point: Point, normal: Point, c: ArrayLike = 1.0) -> Scalar:
    """Signed distance arsinh(√c ⟨x, normal⟩ / |normal|) / √c to the hyperplane through a point.

    It is positive where the normal points to, a tangent vector at ``point`` of any length; where
    that is 0 the distance is 0.
    """
    point, x, normal = space_components(point, x, normal)
    normal = unit(normal)
    length = tangent_length(point, normal, per_batch(c, x))
    pair = rescale(point, x, per_batch(c, x))
    rise = inner_with_end(pair, normal) * pair.scale / jnp.where(length == 0, 1, length)
    return scaled_asinh(rise, per_batch(c, x))


def mlr(
    x: Float[Array, "*#batch n1"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Logits of multinomial logistic regression, by one matrix product.

    The logit of a class is the length of its normal times the signed distance to its hyperplane,
    which is given by space components of a normal z, tangent at the origin, and a signed distance b
    from there, at which it crosses the geodesic along z orthogonally:

        |z| arsinh(√c (cosh(√c b) ⟨z / |z|, x_space⟩ − sinh(√c b) x_time)) / √c;

    as c → 0 it is the linear |z| (⟨z / |z|, x⟩ − b). Errors are relative to
    eps · cosh(√c b) √c x_time, before the arsinh. A zero normal gives 0, and offsets are cut at
    `max_hyperbolic_norm` (Bdeir, Schwethelm and Landwehr, 2024).
    """
    space = as_float(x)[..., 1:]
    c = per_batch(c, space)
    return logits(space, jnp.sqrt(1 + c * dot(space, space)), normals, offsets, c)
