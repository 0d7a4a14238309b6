"""Entailment cones, in both models: what a point entails lies in the cone that it opens.

The cone of x has its apex at x, its axis along the geodesic from the origin through x and away from
it, and opens as wide as the half aperture

    arcsin(2 min_radius / (√c |x_space|)) = arcsin(min_radius (1 − c |p|²) / (√c |p|));

y lies in it where its exterior angle, at x between the axis and the geodesic to y, is at most that.
In the Lorentz model the angle comes from `lorentz.direction`. The ball is conformal: there it is
the angle of the Euclidean directions p and log_p(q), which is along γ_p (q − p) − c |q − p|² p.

Conventions for points and c are as in `lorentz` and `poincare`; ``min_radius`` broadcasts as
``c`` does. Angles are in radians, and their errors absolute: below 1e-12 in float64 and 2e-5 in
float32 for √c · norm up to 25, unless a docstring says otherwise.

References:
  HLFormer, eqs. 18-20 and 22-26. Ganea, Bécigneul and Hofmann, Hyperbolic entailment cones for
  learning hierarchical embeddings, ICML 2018, where min_radius is K.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.lorentz import Point, Scalar
from hlformer_jax.ops.numerics import (
    align,
    along_and_across,
    as_float,
    bounded_norm,
    common_batch,
    dot,
    per_batch,
    safe_atan2,
    safe_norm,
    safe_sqrt,
)
from hlformer_jax.ops.poincare import Ball, inside


def half_aperture(x: Point, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Half the opening angle of the cone of x, in (0, π/2].

    Where √c |x_space| <= 2 min_radius the cone is a half-space: exactly π/2, with gradient 0. Just
    beyond, at a relative excess δ of √c |x_space|, the angle falls like √(2δ), so that its error
    is eps / √δ, and its gradient, −1 / √(2δ), is large but finite. ``min_radius`` is half the
    distance scale of the saturation, positive: 0.1 in the paper, where it is the constant c and the
    curvature is 1.
    """
    space = as_float(x)[..., 1:]
    sine = 2 * per_batch(min_radius, space, "min_radius")
    return aperture(jnp.sqrt(per_batch(c, space)) * safe_norm(space), sine)


def poincare_half_aperture(p: Ball, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """`half_aperture` of a point of the Poincaré ball, in (0, π/2]."""
    p = as_float(p)
    c = per_batch(c, p)
    p, room = inside(p, c)
    radius = 2 * jnp.sqrt(c) * bounded_norm(p, 1 / jnp.sqrt(c)) / room
    return aperture(radius, 2 * per_batch(min_radius, p, "min_radius"))


def aperture(radius: Scalar, sine: Scalar) -> Scalar:
    """The angle from √c |x_space| and the sine's numerator, 2 min_radius."""
    outside = radius > sine
    radius = jnp.where(outside, radius, 2 * sine)
    # In units of the radius, whose square a gradient would multiply into the numbers that are left.
    inverse = 1 / radius
    excess = ((radius - sine) * inverse) * ((radius + sine) * inverse)
    angle = jnp.arctan2(sine * inverse, safe_sqrt(excess))
    return jnp.where(outside, angle, jnp.asarray(math.pi / 2, radius.dtype))


def exterior_angle(x: Point, y: Point, c: ArrayLike = 1.0) -> Scalar:
    """Angle in [0, π] at x between the cone's axis and the geodesic to y: π minus the angle O x y.

    It is 0 where y lies straight behind x as seen from the origin, and π where y lies between the
    origin and x. There it has a kink, with gradient 0 where no transverse component is left, else
    with that of the side on which rounding has put y. Where it is not defined it is taken to be

    * 0 at y = x: a point lies in its own cone;
    * π/2 at x = origin, y ≠ x: no direction is radial;

    with gradient 0 in either case. Apexes nearer to the origin than 1e-18 (float32; 2e-153 in
    float64) count as the origin, for the angle's second derivatives there are beyond the numbers.
    In float32 the gradient is lost where √c times the distance of x from the origin exceeds 27.
    """
    radial, across = lorentz.direction(x, y, c)
    return safe_atan2(safe_norm(across), radial)


def poincare_exterior_angle(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Scalar:
    """`exterior_angle` in the Poincaré ball, in [0, π]; points nearer than 2e-24 are the same."""
    c, (p, q) = align(c, p, q)
    (p, room), (q, _) = inside(p, c), inside(q, c)
    difference = q - p
    r, along, across = along_and_across(p, difference)
    return safe_atan2(room * across, room * along - c * dot(difference, difference) * r)


def energy(x: Point, y: Point, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """Angle from y to the cone of x: max(0, exterior angle − half aperture), in [0, π].

    It is 0, with gradient 0, inside of the cone.
    """
    x, y = common_batch(x, y)
    return jax.nn.relu(exterior_angle(x, y, c) - half_aperture(x, c, min_radius))


def poincare_energy(p: Ball, q: Ball, c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1) -> Scalar:
    """`energy` in the Poincaré ball."""
    p, q = common_batch(p, q)
    return jax.nn.relu(poincare_exterior_angle(p, q, c) - poincare_half_aperture(p, c, min_radius))
