"""The Poincaré ball of curvature −c: points, maps, distances, and the way to the Lorentz model.

Convention: p in R^n with √c |p| < 1; p = x_space / (1 + √c x_time), the stereographic projection
of the hyperboloid from [−1/√c, 0, …, 0] (see `lorentz`). A tangent vector has n coordinates too,
and its length at p is λ_p |v| with the conformal factor λ_p = 2 / (1 − c |p|²), 2 at the origin;
as c → 0 a distance becomes 2 |p − q|. A ball of floating-point numbers is small:
1 − √c |p| = 2 / (e^{√c d} + 1) at a distance d from the origin, so beyond √c d = −log(eps) (15.9 in
float32, 36.0 in float64) points would be rounded to the sphere. Points given farther out are moved
inside first, and so are results, by `project`.

Shapes, the rule for ``c`` and dtypes are those of `lorentz`.

Relative errors, in the norm of a result that is a vector, are below 1e-12 in float64 and 2e-5 in
float32, or 16 eps / (1 − √c |p|) for the outermost point p where that is more: it is what rounding
p is worth. Near points are as exact as their difference. Where a result may vanish though the
arguments do not (a geodesic through the origin), errors are relative to 1/√c. Values and gradients
are finite everywhere.

References:
  HOVER, section 3. Ganea, Bécigneul and Hofmann, Hyperbolic neural networks, NeurIPS 2018. Ungar, A
  gyrovector space approach to hyperbolic geometry, 2009.
"""

import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz
from hlformer_jax.ops.gyrovectors import Ball, Scalar, align, gap, inside, rotate
from hlformer_jax.ops.gyrovectors import exp_map0 as exp_map0
from hlformer_jax.ops.gyrovectors import gyration as gyration
from hlformer_jax.ops.gyrovectors import log_map0 as log_map0
from hlformer_jax.ops.gyrovectors import mobius_add as mobius_add
from hlformer_jax.ops.gyrovectors import mobius_matvec as mobius_matvec
from hlformer_jax.ops.gyrovectors import mobius_scalar_mul as mobius_scalar_mul
from hlformer_jax.ops.gyrovectors import project as project
from hlformer_jax.ops.hyperbolic_functions import asinhc_sqrt, cosh_sqrt, sinhc_sqrt
from hlformer_jax.ops.mobius_layers import concatenate as concatenate
from hlformer_jax.ops.mobius_layers import mobius_linear as mobius_linear
from hlformer_jax.ops.mobius_layers import split as split
from hlformer_jax.ops.numerics import (
    as_float,
    dot,
    limit_norm,
    max_hyperbolic_norm,
    per_batch,
    safe_norm,
    safe_normalize,
    shortest_direction,
    unit,
)
from hlformer_jax.ops.poincare_distance import distance as distance
from hlformer_jax.ops.poincare_distance import distance0 as distance0
from hlformer_jax.ops.poincare_distance import length
from hlformer_jax.ops.poincare_distance import pairwise_distance as pairwise_distance
from hlformer_jax.ops.poincare_distance import (
    pairwise_squared_distance as pairwise_squared_distance,
)
from hlformer_jax.ops.poincare_distance import squared_distance as squared_distance
from hlformer_jax.typing import Array


def from_lorentz(x: Float[Array, "*#batch n1"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n"]:
    """The point of the ball that stands for a point of the hyperboloid.

    Args:
      x: points of the hyperboloid, of which the space components are read; at most as far out as
        the exponential maps go.
      c: curvature, positive.

    Returns:
      Points of the ball, moved inside by `project` where they are too far out for it.

    References:
      HLFormer, the inverse of eq. 23.
    """
    space = as_float(x)[..., 1:]
    curvature = per_batch(c, space)
    tau = jnp.sqrt(1 + curvature * dot(space, space))
    return project(space / (1 + tau)[..., None], c)


def to_lorentz(p: Float[Array, "*#batch n"], c: ArrayLike = 1.0) -> Float[Array, "*#batch n1"]:
    """The point of the hyperboloid that stands for a point of the ball.

    The error is relative to eps · √c x_time, the effect of rounding p: near the sphere the ball
    does not tell points apart.

    Args:
      p: points of the ball, first moved inside by `project` where they are too far out.
      c: curvature, positive.

    Returns:
      Points with space components 2 p / (1 − c |p|²).

    References:
      HLFormer, eq. 23.
    """
    p = as_float(p)
    root = jnp.sqrt(per_batch(c, p))[..., None]
    # Of the unit ball, in which what is moved inside does not depend on c.
    p = project(p * root)
    return lorentz.from_space(2 * p / gap(p, jnp.ones((), p.dtype))[..., None] / root, c)


def antipode(p: Ball) -> Ball:
    """The point −p, as far from the origin on the other side; also the Möbius inverse of p."""
    return -as_float(p)


def conformal_factor(p: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Conformal factor λ = 2 / (1 − c |p|²), by which the metric at p is the Euclidean one.

    Args:
      p: points.
      c: curvature, positive.

    Returns:
      The factors, at least 2.

    References:
      HOVER, eq. 1.
    """
    p = as_float(p)
    c = per_batch(c, p)
    return 2 / gap(inside(p, c), c)


def tangent_norm(p: Ball, v: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Length λ_p |v| of a tangent vector at p; gradient 0 at v = 0.

    Args:
      p: points.
      v: tangent vectors at ``p``.
      c: curvature, positive.

    Returns:
      The norms.
    """
    c, (p, v) = align(c, p, v)
    room = gap(inside(p, c), c)
    return 2 * length(v, room) / room


def exp_map(p: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Exponential map at p.

    With a = √c λ_p |v|, u = v / |v| and γ = 1 − c |p|² it is (A p + γ sinh a / (2 √c) u) / B where

        A = cosh a + √c p · u sinh a,    2 B = γ + (2 − γ) cosh a + 2 √c p · u sinh a.

    Where the way leads inwards from afar these cancel. There, with r = √c |p|, e = p / |p| and
    b = e + u, they are sums of positive terms:

        2 B = γ + (1 − r)² cosh a + 2 r e^{−a} + r |b|² sinh a,
        A r − γ sinh a / 2 = ((1 + r)² e^{−a} − (1 − r)² e^{a}) / 4 + r² |b|² sinh a / 2,

    the latter being what remains along e beside γ sinh a b / 2.

    Args:
      p: points.
      v: tangent vectors at ``p``; those with √c λ_p |v| beyond `max_hyperbolic_norm` (31.9 in
        float32, 72.1 in float64), which lead to the rim in any case, are shortened to that.
      c: curvature, positive.

    Returns:
      Points p ⊕ (tanh(√c λ_p |v| / 2) v / (√c |v|)), moved inside by `project`.

    References:
      Ganea, Bécigneul and Hofmann, 2018.
    """
    c, (p, v) = align(c, p, v)
    p = inside(p, c)
    room = gap(p, c)
    longest = max_hyperbolic_norm(p.dtype) / jnp.sqrt(c)
    v = limit_norm(v, longest * room / 2) * (2 / room)[..., None]
    z = c * dot(v, v)
    cosh, step = cosh_sqrt(z), sinhc_sqrt(z)[..., None] * v
    lean = c * dot(p, step)  # √c p · u sinh a
    steep = 2 * lean < -cosh  # so neither p nor v is 0

    below = (room + (2 - room) * cosh) / 2 + lean
    gentle = (cosh + lean)[..., None] * p + (room / 2)[..., None] * step

    a, root = jnp.sqrt(jnp.where(steep, z, 1)), jnp.sqrt(c)
    p, v = (jnp.where(steep[..., None], w, 1) for w in (p, v))
    outward, r = unit(p), root * safe_norm(p)
    bend = outward + unit(v)
    slack = jnp.where(steep, room, 1) / (1 + r)  # 1 − r
    grow, shrink, sinh = jnp.exp(a), jnp.exp(-a), jnp.sinh(a)
    turn = r * dot(bend, bend) * sinh
    steep_below = room + slack**2 * cosh + 2 * r * shrink + turn
    along = ((1 + r) ** 2 * shrink - slack**2 * grow) / 2 + r * turn
    steep_above = along[..., None] * outward + (room * sinh)[..., None] * bend

    below = jnp.where(steep, steep_below, 2 * below)
    above = jnp.where(steep[..., None], steep_above / root[..., None], 2 * gentle)
    return project(above / below[..., None], c)


def log_map(p: Ball, q: Ball, c: ArrayLike = 1.0) -> Ball:
    """Logarithmic map at p, the inverse of `exp_map`; smooth at q = p.

    Args:
      p: points.
      q: points.
      c: curvature, positive.

    Returns:
      Tangent vectors (2 / (√c λ_p)) artanh(√c |w|) w / |w| with w = (−p) ⊕ q, at ``p``; their
      length is the distance.

    References:
      Ganea, Bécigneul and Hofmann, 2018.
    """
    c, (p, q) = align(c, p, q)
    p, q = inside(p, c), inside(q, c)
    gap_p, gap_q, way = gap(p, c), gap(q, c), q - p
    way2 = c * dot(way, way)
    # artanh(√c |w|) is the asinh of √z, and w = (γ_p D − c |D|² p) / (γ_p γ_q (1 + z)).
    z = way2 / (gap_p * gap_q)
    size = asinhc_sqrt(z) / jnp.sqrt(1 + z) / gap_q
    return size[..., None] * (gap_p[..., None] * way - way2[..., None] * p)


def parallel_transport(p: Ball, q: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Transports a tangent vector along the geodesic from p to q.

    Args:
      p: points.
      q: points.
      v: tangent vectors at ``p``.
      c: curvature, positive.

    Returns:
      Tangent vectors (λ_p / λ_q) gyr[q, −p] v at ``q``.

    References:
      Ungar, 2009.
    """
    c, (p, q, v) = align(c, p, q, v)
    p, q = inside(p, c), inside(q, c)
    return (gap(q, c) / gap(p, c))[..., None] * rotate(q, -p, v, c)


def transport0(q: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """Transports a tangent vector from the origin to q.

    Args:
      q: points.
      v: tangent vectors at the origin.
      c: curvature, positive.

    Returns:
      Tangent vectors (1 − c |q|²) v at ``q``.
    """
    c, (q, v) = align(c, q, v)
    return gap(inside(q, c), c)[..., None] * v


def egrad_to_rgrad(p: Ball, gradient: Ball, c: ArrayLike = 1.0) -> Ball:
    """Riemannian gradient of a function at p, from its gradient in the coordinates.

    Args:
      p: points.
      gradient: gradients in the coordinates, as `jax.grad` gives them.
      c: curvature, positive.

    Returns:
      Tangent vectors gradient / λ_p², whose inner product with a tangent vector is the derivative
      along it.

    References:
      Nickel and Kiela, Poincaré embeddings, NeurIPS 2017.
    """
    c, (p, gradient) = align(c, p, gradient)
    half_gap = gap(inside(p, c), c)[..., None] / 2
    return gradient * half_gap * half_gap


def retract(p: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """The retraction p + v, moved inside by `project`; to first order in v the exponential map."""
    c, (p, v) = align(c, p, v)
    return project(p + v, c)


def geodesic(t: ArrayLike, p: Ball, q: Ball, c: ArrayLike = 1.0) -> Ball:
    """The point at the share t of the way from p to q; beyond them for t outside [0, 1].

    Args:
      t: shares; a number or array that broadcasts to ``*batch``.
      p: points, reached at t = 0.
      q: points, reached at t = 1.
      c: curvature, positive.

    Returns:
      Points exp_map(p, t log_map(p, q)).
    """
    v = log_map(p, q, c)
    return exp_map(p, per_batch(t, v, "t")[..., None] * v, c)


def geodesic_unit(t: ArrayLike, p: Ball, v: Ball, c: ArrayLike = 1.0) -> Ball:
    """The point at a distance t from p in the direction v.

    Args:
      t: distances; a number or array that broadcasts to ``*batch``.
      p: points.
      v: tangent vectors at ``p``, of any length; where it is 0 the result is ``p``. Coordinates
        below 1e-18 (float32; 2e-153 in float64) count as 0.
      c: curvature, positive.

    Returns:
      Points exp_map(p, t v / (λ_p |v|)).
    """
    curvature, (p, v) = align(c, p, v)
    reach = per_batch(t, v, "t") * gap(inside(p, curvature), curvature) / 2
    way, _ = safe_normalize(v, shortest_direction(v.dtype))
    return exp_map(p, reach[..., None] * way, curvature)


def gyromidpoint(
    points: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
) -> Float[Array, "*#batch M n"]:
    """Weighted midpoint of points; it is their centroid in the Lorentz model.

    Args:
      points: points.
      weights: non-negative, their scale is free; None for one midpoint with equal weights. Where
        all are 0 the result is the origin.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Points ½ ⊗ (Σ_i weight_i λ_i p_i / Σ_i weight_i (λ_i − 1)).

    Raises:
      ValueError: for weights without the axes [*batch, M, L], see `lorentz.centroid`.

    References:
      Ungar, 2009. Shimizu, Mukuta and Harada, Hyperbolic neural networks++, ICLR 2021.
    """
    points = as_float(points)
    curvature = per_batch(c, points[..., 0])[..., None]
    centroid = lorentz.centroid(to_lorentz(points, curvature), weights, curvature[..., 0])
    return from_lorentz(centroid, curvature)


def limit_distance0(p: Ball, limit: ArrayLike, c: ArrayLike = 1.0) -> Ball:
    """Moves points farther than a distance from the origin radially to that distance.

    Args:
      p: points.
      limit: largest distance from the origin, positive; a number or array that broadcasts to
        ``*batch``.
      c: curvature, positive.

    Returns:
      ``p`` where it is near enough, bit for bit, and not outside of the ball.
    """
    p = as_float(p)
    limit, curvature = per_batch(limit, p, "limit"), per_batch(c, p)
    return project(
        limit_norm(p, jnp.tanh(jnp.sqrt(curvature) * limit / 2) / jnp.sqrt(curvature)), c
    )
