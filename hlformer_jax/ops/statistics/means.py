"""Fréchet means in both models of hyperbolic space.

The Fréchet mean minimises the weighted sum of squared geodesic distances. It has no closed form;
the minimum for squared Lorentzian distances has one, `lorentz.centroid`. Let f(μ) be half the sum,
divided by the sum of the weights, u_i = log_μ(x_i), a_i = √c |u_i| and e_i = u_i / |u_i|. The
gradient of f is −g with g = Σ w_i u_i / Σ w_i, and the Hessian is

    Σ w_i (e_i e_iᵀ + a_i coth a_i (1 − e_i e_iᵀ)) / Σ w_i.

The Hessian's eigenvalues are at least 1, so the mean is within |g| of μ. Newton's method starts
from the centroid. Derivatives come from the implicit function theorem for g = 0, so no iteration is
stored for them.

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
from hlformer_jax.ops.arguments import as_sets, auto_sharded, per_batch, vary_together
from hlformer_jax.ops.lorentz import Scalar, Space
from hlformer_jax.ops.lorentz.maps import log_map_in_frame
from hlformer_jax.ops.numerics import dot, mean_weights, unit
from hlformer_jax.typing import Array

_STEPS = 50


def lorentz_mean(
    points: Float[Array, "*#batch L n1"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    tolerance: float | None = None,
) -> Float[Array, "*#batch M n1"]:
    """Return Fréchet means in the Lorentz model: points μ that minimise Σ_i weight_i d(x_i, μ)².

    The iteration makes at most 50 steps; 4 to 8 are usual.

    Args:
      points: points.
      weights: non-negative weights of any scale, not all 0, with one row per mean; None for one
        mean with equal weights.
      c: curvature, positive; broadcasts to ``*batch``.
      tolerance: distance from the mean at which the iteration stops, as a fraction of the root mean
        square distance of the points from it (default: 16 eps, the effect of rounding).

    Returns:
      Means [*batch, M, n + 1].

    Raises:
      ValueError: for weights of other axes, as in `lorentz.centroid`.
    """
    points = as_sets(points)
    start = lorentz.centroid(points, weights, c)
    weights = mean_weights(weights, points)
    if tolerance is None:
        tolerance = 16 * float(jnp.finfo(points.dtype).eps)
    curvature = per_batch(c, points[..., 0])[..., None]
    means = auto_sharded(partial(_means, tolerance=tolerance), start)
    space = means(start, points, weights, curvature)
    return lorentz.from_space(space, jnp.broadcast_to(curvature, space.shape[:-1]))


def _means(start: Array, points: Array, weights: Array, c: Array, tolerance: float) -> Array:
    """Compute the space components of `lorentz_mean` from those of the centroids and the points."""
    lead = start.shape[:-1]

    def spread(x: Array, *tail: int) -> Array:
        return jnp.broadcast_to(x, (*lead, *tail)).reshape(-1, *tail)

    x = spread(points[..., None, :, 1:], *points.shape[-2:-1], points.shape[-1] - 1)
    w, c_each = spread(weights, weights.shape[-1]), spread(c)
    first = spread(start[..., 1:], start.shape[-1] - 1)
    space = jax.vmap(partial(_mean, tolerance=tolerance))(first, x, w, c_each)
    return space.reshape(*lead, space.shape[-1])


def poincare_mean(
    points: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    tolerance: float | None = None,
) -> Float[Array, "*#batch M n"]:
    """Return Fréchet means in the Poincaré ball; arguments and errors are as in `lorentz_mean`."""
    points = as_sets(points)
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
    """Return the space components of one mean, of points given by their space components."""
    share = weights / jnp.sum(weights)

    def mean_logarithm(x: Space) -> Float[Array, " n"]:
        return share @ _logarithms(x, points, c)

    def solve(_: object, x: Space) -> Space:
        return _newton(x, points, share, c, tolerance)

    def solve_linear(linear: Callable[[Array], Array], y: Array) -> Array:
        return jnp.linalg.solve(jax.jacfwd(linear)(y), y)

    return jax.lax.custom_root(mean_logarithm, jax.lax.stop_gradient(start), solve, solve_linear)


def _logarithms(x: Float[Array, " n"], points: Float[Array, "L n"], c: Scalar) -> Array:
    """Return the logarithms of points at x, in the frame transported from the origin."""
    start, points = lorentz.from_space(x, c)[None], lorentz.from_space(points, c)
    return log_map_in_frame(start, points, c)


def _newton(
    x: Float[Array, " n"],
    points: Float[Array, "L n"],
    share: Float[Array, " L"],
    c: Float[Array, ""],
    tolerance: float,
) -> Float[Array, " n"]:
    """Run Newton's method in the frame at x.

    After a step that does not reduce the gradient, the next step is one of gradient descent. After
    two such steps in a row the iteration ends.
    """

    def going(state: tuple) -> Array:
        step, _, _, failures = state
        return (step < _STEPS) & (failures < 2)

    def advance(state: tuple) -> tuple:
        step, x, before, failures = state
        u = _logarithms(x, points, c)
        squares, g = dot(u, u), share @ u
        size = dot(g, g)
        failures = jnp.where(size < before, 0, failures + 1)
        # Within the tolerance the count of failures is set to 2, which ends the loop.
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
    state = (zero, *vary_together(x, jnp.full((), jnp.inf, x.dtype), zero))
    return jax.lax.while_loop(going, advance, state)[1]


def _move(x: Float[Array, " n"], u: Float[Array, " n"], c: Scalar) -> Array:
    """Return the space components of exp_x(u), for u in the frame at x."""
    return lorentz.boost(lorentz.from_space(x, c), lorentz.exp_map0(u, c), c)[1:]
