"""Entailment cones of the Poincaré ball; `cones` has their convention, and those of Lorentz.

The ball is conformal: the angle at p between the ray from the origin and the geodesic to q is that
of the Euclidean directions p and log_p(q), which is along γ_p (q − p) − c |q − p|² p (`log_map`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from hlformer_jax.ops.cones import aperture
from hlformer_jax.ops.gyrovectors import Ball, Scalar, align, gap, inside
from hlformer_jax.ops.numerics import (
    along_and_across,
    as_float,
    dot,
    per_batch,
    safe_atan2,
    safe_norm,
)


def half_aperture(p: Ball, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Half the opening angle of the cone of p, arcsin(min_radius (1 − c |p|²) / (√c |p|)).

    Near the origin the cone is a half-space: exactly π/2, with gradient 0; see
    `cones.half_aperture`, of which it is the value at the same point.

    Args:
      p: points.
      c: curvature, positive.
      min_radius: half the distance scale of the saturation, positive; broadcasts as ``c`` does.

    Returns:
      Angles in (0, π/2].

    References:
      Ganea, Bécigneul and Hofmann, Hyperbolic entailment cones for learning hierarchical
      embeddings, ICML 2018, where min_radius is K.
    """
    p = as_float(p)
    c = per_batch(c, p)
    p = inside(p, c)
    radius = 2 * jnp.sqrt(c) * safe_norm(p) / gap(p, c)
    return aperture(radius, 2 * per_batch(min_radius, p, "min_radius"))


def exterior_angle(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Angle at p between the cone's axis and the geodesic to q, see `cones.exterior_angle`.

    Args:
      p: the apexes.
      q: points.
      c: curvature, positive.

    Returns:
      Angles in [0, π]; 0 at q = p (nearer than 2e-24 in float32), and π/2 where p is the origin
      and q is not, with gradient 0.

    References:
      Ganea, Bécigneul and Hofmann, ICML 2018.
    """
    c, (p, q) = align(c, p, q)
    p, q = inside(p, c), inside(q, c)
    way, room = q - p, gap(p, c)
    r, along, across = along_and_across(p, way)
    return safe_atan2(room * across, room * along - c * dot(way, way) * r)


def energy(p: Ball, q: Ball, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """How far q lies outside the cone of p: max(0, exterior angle − half aperture).

    Args:
      p: the apexes.
      q: points.
      c: curvature, positive.
      min_radius: radius within which the aperture is saturated, see `half_aperture`.

    Returns:
      Angles in [0, π]; 0, with gradient 0, inside of the cone.

    References:
      Ganea, Bécigneul and Hofmann, ICML 2018.
    """
    curvature, (p, q) = align(c, p, q)
    return jax.nn.relu(exterior_angle(p, q, curvature) - half_aperture(p, curvature, min_radius))
