"""Entailment cones in both models: the points that x entails lie in the cone of x.

The cone of x has its apex at x. Its axis continues the geodesic from the origin to x beyond x, and
its half aperture is

    arcsin(2 min_radius / (√c |x_space|)) = arcsin(min_radius (1 − c |p|²) / (√c |p|)).

The exterior angle of y is the angle at x between the axis and the geodesic to y. The point y lies
in the cone if its exterior angle is at most the half aperture. In the Lorentz model the angle comes
from `lorentz.direction`. The ball is conformal, so there it is the Euclidean angle between p and
log_p(q), which is parallel to γ_p (q − p) − c |q − p|² p with γ_p = 1 − c |p|².

Conventions for points and c are as in `lorentz` and `poincare`; ``min_radius`` broadcasts like
``c``. Angles are in radians. Their absolute errors are below 1e-12 in float64 and 2e-5 in float32
for √c · norm up to 25, unless a docstring says otherwise.

References:
  HLFormer, eqs. 18-20 and 22-26. Ganea, Bécigneul and Hofmann, Hyperbolic entailment cones for
  learning hierarchical embeddings, ICML 2018, where min_radius is K.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.arguments import align, as_vectors, common_batch, per_batch, without_time
from hlformer_jax.ops.lorentz import Point, Scalar
from hlformer_jax.ops.numerics import (
    along_and_across,
    bounded_norm,
    dot,
    safe_atan2,
    safe_norm,
    safe_sqrt,
)
from hlformer_jax.ops.poincare import Ball, inside


def half_aperture(x: Point, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Return half the opening angle of the cone of x, in (0, π/2].

    If √c |x_space| <= 2 min_radius, the cone is a half-space: the angle is exactly π/2, with
    gradient 0. Slightly farther out, where √c |x_space| exceeds 2 min_radius by the factor 1 + δ,
    the angle is about π/2 − √(2δ). There its error is eps / √δ, and its gradient −1 / √(2δ) is
    large but finite.

    Args:
      x: points of the Lorentz model.
      c: curvature, positive; broadcasts to ``*batch``.
      min_radius: positive; half the value of √c |x_space| up to which the cone is a half-space. The
        paper uses 0.1 at curvature 1 and calls it c.

    Returns:
      Angles in radians.
    """
    space = without_time(x)
    sine = 2 * per_batch(min_radius, space, "min_radius")
    return aperture(jnp.sqrt(per_batch(c, space)) * safe_norm(space), sine)


def poincare_half_aperture(p: Ball, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Return `half_aperture` of a point of the Poincaré ball, in (0, π/2]."""
    p = as_vectors(p)
    c = per_batch(c, p)
    p, room = inside(p, c)
    radius = 2 * jnp.sqrt(c) * bounded_norm(p, 1 / jnp.sqrt(c)) / room
    return aperture(radius, 2 * per_batch(min_radius, p, "min_radius"))


def aperture(radius: Scalar, sine: Scalar) -> Scalar:
    """Return the half aperture from √c |x_space| and the numerator of its sine, 2 min_radius."""
    outside = ~(radius <= sine)  # True for NaN
    radius = jnp.where(outside, radius, 2 * sine)
    # In units of the radius, because the square of a large radius in a gradient loses digits.
    inverse = 1 / radius
    excess = ((radius - sine) * inverse) * ((radius + sine) * inverse)
    angle = jnp.arctan2(sine * inverse, safe_sqrt(excess))
    return jnp.where(outside, angle, jnp.asarray(math.pi / 2, radius.dtype))


def exterior_angle(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Return the angle in [0, π] at x between the cone's axis and the geodesic to y.

    It is π minus the angle O x y for the origin O. It is 0 if y lies straight behind x as seen from
    the origin, and π if y lies between the origin and x. In both cases the angle is not
    differentiable: the gradient is 0 if the transverse component is exactly 0, and otherwise that
    on the side of y after rounding. Two cases are defined by convention, with gradient 0:

    * 0 at y = x, because a point lies in its own cone;
    * π/2 at x = origin, y ≠ x, because no direction is radial there.

    Apexes nearer to the origin than 1e-18 (float32; 2e-153 in float64) count as the origin, because
    the second derivatives of the angle would overflow there. In float32 the gradient is lost to
    rounding if √c times the distance of x from the origin exceeds 27.

    Args:
      x: apexes of the cones, points of the Lorentz model.
      y: points of the Lorentz model.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Angles in radians.
    """
    radial, across = lorentz.direction(x, y, c)
    return safe_atan2(safe_norm(across), radial)


def poincare_exterior_angle(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return `exterior_angle` in the ball; points nearer than 2e-24 (float32) count as equal."""
    c, (p, q) = align(c, p, q)
    (p, room), (q, _) = inside(p, c), inside(q, c)
    difference = q - p
    r, along, across = along_and_across(p, q)
    return safe_atan2(room * across, room * along - c * dot(difference, difference) * r)


def energy(x: Point, y: Point, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Return the angle from y to the cone of x: max(0, exterior angle − half aperture), in [0, π].

    Inside the cone it is 0, with gradient 0.

    Args:
      x: apexes of the cones, points of the Lorentz model.
      y: points of the Lorentz model.
      c: curvature, positive; broadcasts to ``*batch``.
      min_radius: as in `half_aperture`.

    Returns:
      Angles in radians.
    """
    x, y = common_batch(x, y)
    return jax.nn.relu(exterior_angle(x, y, c) - half_aperture(x, c, min_radius))


def poincare_energy(p: Ball, q: Ball, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Return `energy` in the Poincaré ball, in radians; p are the apexes of the cones."""
    p, q = common_batch(p, q)
    return jax.nn.relu(poincare_exterior_angle(p, q, c) - poincare_half_aperture(p, c, min_radius))
