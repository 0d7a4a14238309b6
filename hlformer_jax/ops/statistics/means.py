"""Fréchet means in both models of hyperbolic space.

The Fréchet mean minimises the weighted sum of squared geodesic distances. It has no closed form
(for the squared Lorentzian distance it is `lorentz.centroid`). At μ the gradient of half that sum,
over the sum of the weights, is −g = −Σ w_i u_i / Σ w_i with u_i = log_μ(x_i), and its Hessian
Σ w_i (e_i e_iᵀ + a_i coth a_i (1 − e_i e_iᵀ)) / Σ w_i with a_i = √c |u_i| and e_i = u_i / |u_i|. It
is at least 1, so the mean is within |g| of μ. Newton's method starts from the centroid.
Derivatives belong to the solution of g = 0, by the implicit function theorem; nothing of the
iterations is kept.

References:
  Karcher, Riemannian center of mass and mollifier smoothing, 1977. Lou et al., Differentiating
  through the Fréchet mean, ICML 2020.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.lorentz import Scalar, Space
from hlformer_jax.ops.lorentz.maps import log_map_in_frame
from hlformer_jax.ops.numerics import as_float, dot, per_batch, unit
from hlformer_jax.typing import Array

_STEPS = 50


def lorentz_mean(
    points: Float[Array, "*#batch L n1"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    tolerance: float | None = None,
) -> Float[Array, "*#batch M n1"]:
    """Fréchet means in the Lorentz model: the points μ that minimise Σ_i weight_i d(x_i, μ)².

    Args:
      points: points.
      weights: non-negative, not all 0, their scale is free; None for one mean with equal weights.
        Refused as by `lorentz.centroid`.
      c: curvature, positive; broadcasts to ``*batch``.
      tolerance: largest distance from the mean at which the iteration stops, in units of the root
        mean square distance of the points; None: 16 eps, which is what rounding leaves. At most 50
        steps are made; 4 to 8 are usual.
    """
    points = as_float(points)
    start = lorentz.centroid(points, weights, c)
    if weights is None:
        weights = jnp.ones((*points.shape[:-2], 1, points.shape[-2]), points.dtype)
    weights = jnp.asarray(as_float(weights), points.dtype)
    if tolerance is None:
        tolerance = 16 * float(jnp.finfo(points.dtype).eps)
    curvature = per_batch(c, points[..., 0])[..., None]
    lead = start.shape[:-1]

    def spread(x: Array, *tail: int) -> Array:
        return jnp.broadcast_to(x, (*lead, *tail)).reshape(-1, *tail)

    x = spread(points[..., None, :, 1:], *points.shape[-2:-1], points.shape[-1] - 1)
    w, c_each = spread(weights, weights.shape[-1]), spread(curvature)
    first = spread(start[..., 1:], start.shape[-1] - 1)
    space = jax.vmap(partial(_mean, tolerance=tolerance))(first, x, w, c_each)
    return lorentz.from_space(
        space.reshape(*lead, space.shape[-1]), jnp.broadcast_to(curvature, lead)
    )


def poincare_mean(
    points: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    tolerance: float | None = None,
) -> Float[Array, "*#batch M n"]:
    """Fréchet mean in the Poincaré ball; arguments and errors as in `lorentz_mean`."""
    points = as_float(points)
    c = per_batch(c, points[..., 0])[..., None]
    mean = lorentz_mean(poincare.to_lorentz(points, c), weights, c[..., 0], tolerance)
    return poincare.from_lorentz(mean, c)


def _mean(
    start: Float[Array, " n"],
    points: Float[Array, "L n"],
    weights: Float[Array, " L"],
    c: Float[Array, ""],
    tolerance: float,
) -> Float[Array, " n"]:
    """One mean, of points given by their space components."""
    share = weights / jnp.sum(weights)

    def mean_logarithm(x: Space) -> Float[Array, " n"]:
        return share @ _logarithms(x, points, c)

    def solve(_: object, x: Space) -> Space:
        return _newton(x, points, share, c, tolerance)

    def solve_linear(linear: Callable[[Array], Array], y: Array) -> Array:
        return jnp.linalg.solve(jax.jacfwd(linear)(y), y)

    return jax.lax.custom_root(mean_logarithm, jax.lax.stop_gradient(start), solve, solve_linear)


def _logarithms(x: Float[Array, " n"], points: Float[Array, "L n"], c: Scalar) -> Array:
    """Logarithms of points at x, in the frame transported from the origin."""
    start, points = lorentz.from_space(x, c)[None], lorentz.from_space(points, c)
    return log_map_in_frame(start, points, c)


def _newton(
    x: Float[Array, " n"],
    points: Float[Array, "L n"],
    share: Float[Array, " L"],
    c: Float[Array, ""],
    tolerance: float,
) -> Float[Array, " n"]:
    """Newton's method in the frame at x; after a step that led away, one of gradient descent."""

    def going(state: tuple) -> Array:
        step, _, _, failures = state
        return (step < _STEPS) & (failures < 2)

    def advance(state: tuple) -> tuple:
        step, x, before, failures = state
        u = _logarithms(x, points, c)
        squares, g = dot(u, u), share @ u
        size = dot(g, g)
        failures = jnp.where(size < before, 0, failures + 1)
        # At the goal two failures are put down, which end the loop.
        failures = jnp.where(size <= tolerance**2 * (share @ squares), 2, failures)
        a2 = c * squares
        a = jnp.sqrt(jnp.where(a2 < 1e-4, 1, a2))
        bend = jnp.where(a2 < 1e-4, 1 + a2 / 3, a / jnp.tanh(a))
        e = unit(u)
        outer = jnp.einsum("l,ln,lm->nm", share * (1 - bend), e, e)
        steepest = share @ bend
        newton = jnp.linalg.solve(outer + steepest * jnp.eye(len(x), dtype=x.dtype), g)
        move = jnp.where(failures == 0, newton, g / steepest)
        moved = jnp.where(failures < 2, _move(x, move, c), x)
        return step + 1, moved, jnp.where(size < before, size, before), failures

    zero = jnp.zeros((), jnp.int32)
    state = (zero, x, jnp.full((), jnp.inf, x.dtype), zero)
    return jax.lax.while_loop(going, advance, state)[1]


def _move(x: Float[Array, " n"], u: Float[Array, " n"], c: Scalar) -> Array:
    """Space components of the point reached from x by u, of the frame at x."""
    return lorentz.boost(lorentz.from_space(x, c), lorentz.exp_map0(u, c), c)[1:]
