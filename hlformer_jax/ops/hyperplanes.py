"""Distances to hyperplanes, and the logits of multinomial logistic regression made of them.

A hyperplane is given by a point on it and a normal, a tangent vector there; or, as a parameter of a
layer, by a normal z in the tangent space at the origin and a signed distance b from the origin, at
which it crosses the geodesic along z orthogonally. Distances are signed, positive where the normal
points to, and the logit of a class is the length of its normal times the distance to its
hyperplane; as c → 0 it is the linear |z| (⟨z / |z|, x⟩ − b). Conventions for points and c are those
of `lorentz` and `poincare`.

References:
  Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018. Shimizu, Mukuta and
  Harada, Hyperbolic neural networks++, ICLR 2021, for the parameters. Bdeir, Schwethelm and
  Landwehr, Fully hyperbolic convolutional neural networks, ICLR 2024, for the Lorentz model.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import hyperboloid
from hlformer_jax.ops.gyrovectors import Ball, Scalar, align, gap, inside
from hlformer_jax.ops.hyperbolic_functions import asinhc_sqrt, cosh_sqrt, sinhc_sqrt
from hlformer_jax.ops.lorentz_maps import Point, spaces
from hlformer_jax.ops.numerics import (
    as_float,
    dot,
    max_hyperbolic_norm,
    per_batch,
    safe_normalize,
    same_length,
    unit,
)
from hlformer_jax.typing import Array


def lorentz_distance(x: Point, point: Point, normal: Point, c: ArrayLike = 1.0) -> Scalar:
    """Signed distance to the hyperplane through a point, in the Lorentz model.

    Args:
      x: points.
      point: points of the hyperplanes.
      normal: tangent vectors at ``point``, of any length; where it is 0 the distance is 0.
      c: curvature, positive.

    Returns:
      arsinh(√c ⟨x, normal⟩ / |normal|) / √c.
    """
    point, x, normal = spaces(point, x, normal)
    normal = unit(normal)
    length = hyperboloid.tangent_norm(point, normal, per_batch(c, x))
    scale, point, x, difference, curvature = hyperboloid.rescale(point, x, per_batch(c, x))
    rise = hyperboloid.inner_from(point, x, difference, normal, curvature)
    rise = rise * jnp.squeeze(scale, -1) / jnp.where(length == 0, 1, length)
    return _asinh(rise, per_batch(c, x))


def poincare_distance(p: Ball, point: Ball, normal: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Signed distance to the hyperplane through a point, in the Poincaré ball.

    Args:
      p: points.
      point: points of the hyperplanes.
      normal: tangent vectors at ``point``, of any length; where it is 0 the distance is 0.
      c: curvature, positive.

    Returns:
      arsinh(2 √c w · a / ((1 − c |w|²) |a|)) / √c for w = (−point) ⊕ p and the normal a.

    References:
      Ganea, Bécigneul and Hofmann, 2018, without the absolute value.
    """
    c, (p, point, normal) = align(c, p, point, normal)
    p, point = inside(p, c), inside(point, c)
    normal, room, way = unit(normal), gap(point, c), p - point
    rise = room * dot(way, normal) - c * dot(way, way) * dot(point, normal)
    return _asinh(2 * rise / room / gap(p, c), c)


def lorentz_mlr(
    x: Float[Array, "*#batch n1"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Logits of multinomial logistic regression in the Lorentz model, by one matrix product.

    Errors are relative to eps · cosh(√c offset) √c x_time, before the arsinh.

    Args:
      x: points.
      normals: space components of the normals of the classes, tangent at the origin; a zero gives
        the logit 0.
      offsets: signed distances of the hyperplanes from the origin, cut at `max_hyperbolic_norm`.
      c: curvature, positive.

    Returns:
      |z| arsinh(√c (cosh(√c b) ⟨z / |z|, x_space⟩ − sinh(√c b) x_time)) / √c for normals z and
      offsets b.

    References:
      Bdeir, Schwethelm and Landwehr, 2024.
    """
    space = as_float(x)[..., 1:]
    c = per_batch(c, space)
    return _logits(space, jnp.sqrt(1 + c * dot(space, space)), normals, offsets, c)


def poincare_mlr(
    p: Float[Array, "*#batch n"],
    normals: Float[Array, "classes n"],
    offsets: Float[Array, " classes"],
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch classes"]:
    """Logits of multinomial logistic regression in the Poincaré ball, by one matrix product.

    Args:
      p: points.
      normals: normals of the classes, tangent at the origin, where their length is 2 |z|; a zero
        gives the logit 0.
      offsets: signed distances of the hyperplanes from the origin, cut at `max_hyperbolic_norm`.
      c: curvature, positive.

    Returns:
      2 |z| arsinh(λ_p √c ⟨z / |z|, p⟩ cosh(√c b) − (λ_p − 1) sinh(√c b)) / √c for normals z and
      offsets b; those of `lorentz_mlr` for the same point and the normals 2 z.

    References:
      Shimizu, Mukuta and Harada, 2021, where the offset b is 2 r.
    """
    p = as_float(p)
    c = per_batch(c, p)
    p = inside(p, c)
    room = gap(p, c)
    return _logits(2 * p / room[..., None], 2 / room - 1, 2 * as_float(normals), offsets, c)


def _logits(space: Array, tau: Scalar, normals: Array, offsets: Array, c: Scalar) -> Array:
    """The logits of points given by their space components and √c times their time component."""
    normals, offsets = as_float(normals), as_float(offsets)
    same_length(space, normals)
    way, length = safe_normalize(normals)
    along = jnp.matmul(space, way.T, precision=jax.lax.Precision.HIGHEST)
    c = c[..., None]
    most = max_hyperbolic_norm(space.dtype) / jnp.sqrt(c)
    offsets = jnp.clip(offsets.reshape((1,) * (space.ndim - 1) + offsets.shape), -most, most)
    z = c * offsets * offsets
    rise = cosh_sqrt(z) * along - sinhc_sqrt(z) * offsets * tau[..., None]
    return length.reshape((1,) * (space.ndim - 1) + length.shape) * _asinh(rise, c)


def _asinh(rise: Scalar, c: Scalar) -> Scalar:
    """The value of arsinh(√c rise) / √c, smooth as c → 0, where the square may overflow."""
    root = jnp.sqrt(c)
    size = root * jnp.abs(rise)
    steep = size > 1 / math.sqrt(float(jnp.finfo(rise.dtype).eps))  # where arsinh is log(2 size)
    gentle = jnp.where(steep, 0, rise)
    far = jnp.sign(rise) * jnp.log(2 * jnp.where(steep, size, 1)) / root
    return jnp.where(steep, far, gentle * asinhc_sqrt(c * gentle * gentle))
