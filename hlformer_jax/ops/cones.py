"""Entailment cones of the Lorentz model: what a point entails lies in the cone that it opens.

Convention: the curvature is −c with c > 0; points have their time component first, of which only
the space components are read (see `lorentz`). The cone of x has its apex at x, its axis along the
geodesic from the origin through x and away from it, and opens as wide as `half_aperture`; y lies in
it where `exterior_angle` is at most that. Angles are in radians, and their errors absolute: below
1e-12 in float64 and 2e-5 in float32 for √c · norm up to 25, unless a docstring says otherwise.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.numerics import (
    as_float,
    common_batch,
    per_batch,
    safe_atan2,
    safe_norm,
    safe_sqrt,
)
from hlformer_jax.typing import Array


def half_aperture(
    x: Float[Array, "*#batch n1"], c: ArrayLike = 1.0, min_radius: ArrayLike = 0.1
) -> Float[Array, "*#batch"]:
    """Half the opening angle of the cone of x, arcsin(2 min_radius / (√c |x_space|)).

    Where √c |x_space| <= 2 min_radius the cone is a half-space: exactly π/2, with gradient 0. Just
    beyond, at a relative excess δ of √c |x_space|, the angle falls like √(2δ), so that its error
    is eps / √δ, and its gradient, −1 / √(2δ), is large but finite.

    Args:
      x: points.
      c: curvature, positive.
      min_radius: half the distance scale of the saturation, positive (0.1 in the paper);
        broadcasts as ``c`` does.

    Returns:
      Angles in (0, π/2].

    References:
      HLFormer, eqs. 18 and 22-24, where min_radius is the constant c and the curvature is 1.
    """
    space = as_float(x)[..., 1:]
    sine = 2 * per_batch(min_radius, space, "min_radius")
    return aperture(jnp.sqrt(per_batch(c, space)) * safe_norm(space), sine)


def aperture(
    radius: Float[Array, "*#batch"], sine: Float[Array, "*#batch"]
) -> Float[Array, "*#batch"]:
    """The angle of `half_aperture` from √c |x_space| and the sine's numerator, 2 min_radius."""
    outside = radius > sine
    # √(radius² − sine²), as a product so that it does not cancel.
    excess = jnp.where(outside, (radius - sine) * (radius + sine), 1)
    angle = jnp.arctan2(sine, safe_sqrt(excess))
    return jnp.where(outside, angle, jnp.asarray(math.pi / 2, radius.dtype))


def exterior_angle(
    x: Float[Array, "*#batch n1"], y: Float[Array, "*#batch n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch"]:
    """Angle at x between the cone's axis and the geodesic to y: π minus the angle O x y.

    It is 0 where y lies straight behind x as seen from the origin, and π where y lies between the
    origin and x. There it has a kink, with gradient 0 where no transverse component is left, else
    with that of the side on which rounding has put y. Where it is not defined it is taken to be

    * 0 at y = x: a point lies in its own cone;
    * π/2 at x = origin, y ≠ x: no direction is radial;

    with gradient 0 in either case. Apexes nearer to the origin than 1e-18 (float32; 2e-153 in
    float64) count as the origin, for the angle's second derivatives there are beyond the numbers.

    Args:
      x: the apexes.
      y: points.
      c: curvature, positive.

    Returns:
      Angles in [0, π].

    References:
      HLFormer, eqs. 19, 25 and 26.
    """
    radial, across = lorentz.direction(x, y, c)
    return safe_atan2(safe_norm(across), radial)


def energy(
    x: Float[Array, "*#batch n1"],
    y: Float[Array, "*#batch n1"],
    c: ArrayLike = 1.0,
    min_radius: ArrayLike = 0.1,
) -> Float[Array, "*#batch"]:
    """How far y lies outside the cone of x: max(0, exterior angle − half aperture).

    Args:
      x: the apexes.
      y: points.
      c: curvature, positive.
      min_radius: radius within which the aperture is saturated, see `half_aperture`.

    Returns:
      Angles in [0, π]; 0, with gradient 0, inside of the cone.

    References:
      HLFormer, eq. 20. Ganea, Bécigneul and Hofmann, Hyperbolic entailment cones for learning
      hierarchical embeddings, ICML 2018.
    """
    x, y = common_batch(x, y)
    return jax.nn.relu(exterior_angle(x, y, c) - half_aperture(x, c, min_radius))
