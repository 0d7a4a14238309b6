"""HoroPCA: principal components of points of hyperbolic space, by projections along horospheres.

An ideal point lies on the sphere at infinity. It is given by the unit vector ξ that points to it
from the origin. The Busemann function of ξ is the distance to ξ minus the (infinite) distance of
the origin to ξ: it is 0 at the origin and −t at a distance t towards ξ. Its level sets are
horospheres. A projection along horospheres keeps the distances to several ideal points. So, unlike
an orthogonal projection, it keeps points apart that are far from the origin and from each other.

K components are K ideal points, in orthonormal directions q_1 … q_K as seen from a base point b.
The projection of a point (`lorentz_horospherical`) keeps its Busemann functions of all K. It lies
on the geodesic submanifold that b and the ideal points span, on the same side as b of the
hyperplane through the ideal points. On that part of the submanifold the projection is the identity.
It increases no distance, and every base point on that side gives the same projection. Components
maximise the generalised variance of the projections,

    σ² = Σ_ij d(π(x_i), π(x_j))² / N²,

one after another: q_{k+1} is the best direction to add to q_1 … q_k. With `joint`, as in the
authors' code, all K are optimised together; that problem may have several local optima. Curvature
is −c, as in `ops.lorentz`.

The search evaluates the directions of tangent PCA and random directions, each with both signs,
because q and −q are different ideal points. From the best ones it runs gradient ascent on the
sphere, by a variant of Adam that is invariant under rotations, with a rate that falls to 0, and
returns the best point visited. For joint components the starts are frames of K directions: the
components found one after another, those of tangent PCA, and random ones, each with several signs.

References:
  Chami, Gu, Nguyen and Ré, HoroPCA: Hyperbolic dimensionality reduction via horospherical
  projections, ICML 2021.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from hlformer_jax.errors import UserError
from hlformer_jax.ops import lorentz, poincare, statistics
from hlformer_jax.ops.arguments import (
    align,
    as_floats,
    as_matrix,
    as_sets,
    as_vectors,
    check_shape,
    per_batch,
    same_length,
    without_time,
)
from hlformer_jax.ops.lorentz import Scalar
from hlformer_jax.ops.numerics import dot, precise_matmul, safe_sqrt, unit
from hlformer_jax.ops.optim import scale_by_length_adam
from hlformer_jax.ops.poincare import Ball, inside
from hlformer_jax.typing import Array

FIRST_STEP = 0.1
"""Approximate length of the first steps of the ascent, in radians."""

CLIMBED, CLIMBED_JOINTLY = 2, 6
"""Number of best starts from which the ascent runs, for one component and for joint ones."""


def lorentz_busemann(
    x: Float[Array, "*#batch n1"], ideal: Float[Array, "*#batch n"], c: ArrayLike = 1.0
) -> Scalar:
    """Return the Busemann function log(√c x_time − √c ξ · x_space) / √c in the Lorentz model.

    For points in nearly the direction of ξ, errors are the effect of rounding ξ: up to about
    log(1 + eps² c x_time²) / √c for the value, and relative to eps · c x_time² for the gradient.

    Args:
      x: points.
      ideal: ideal points ξ, as directions of any nonzero length.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Values [*batch], in lengths of the space.
    """
    c, (x, ideal) = align(c, without_time(x), ideal)
    ideal, root = unit(ideal), jnp.sqrt(c)
    square, along = c * dot(x, x), root * dot(ideal, x)
    tau = jnp.sqrt(1 + square)
    is_near = square < 1
    close = jnp.log1p(jnp.where(is_near, square / (1 + tau) - along, 0))
    # τ − √c r + √c r (1 − cos), in terms that do not cancel.
    x = jnp.where(is_near[..., None], 1, x)
    turn, r = unit(x) - ideal, jnp.sqrt(c * dot(x, x))
    distant = jnp.log(1 / (jnp.sqrt(1 + r * r) + r) + r * dot(turn, turn) / 2)
    return jnp.where(is_near, close, distant) / root


def poincare_busemann(p: Ball, ideal: Ball, c: ArrayLike = 1.0) -> Scalar:
    """Return `lorentz_busemann` in the Poincaré ball: log(|ξ − √c p|² / (1 − c |p|²)) / √c."""
    c, (p, ideal) = align(c, p, ideal)
    (p, room), root = inside(p, c), jnp.sqrt(c)
    x, ideal = root[..., None] * p, unit(ideal)
    difference = x - ideal
    is_near = room > 0.5
    close = jnp.log1p(jnp.where(is_near, 2 * dot(x, difference) / room, 0))
    distant = jnp.log(jnp.where(is_near, 1, dot(difference, difference))) - jnp.log(room)
    return jnp.where(is_near, close, distant) / root


def lorentz_horospherical(
    x: Float[Array, "*#batch n1"], directions: Float[Array, "k n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch k1"]:
    """Project points of the Lorentz model along horospheres to a space of k dimensions.

    The projection keeps the Busemann functions B_i of k ideal points ξ_i. It leaves points in place
    that lie in the subspace spanned by the origin and the ideal points, on the origin's side of the
    hyperplane through the ideal points. With b_i = exp(√c B_i(x)), √c times the time of the result
    is (1 + Σ b_i²) / (Σ b_i + √Δ), where Δ = (√c x_time − √c Σ ξ_i · x_space)² + (k − 1) c |x_⊥|²
    and x_⊥ is the part of x_space orthogonal to the directions. The error is relative to
    eps · √c x_time (Chami et al., section 3).

    Args:
      x: points.
      directions: orthonormal directions of the ideal points, the axes of the result.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      Points [*batch, k + 1] of the Lorentz model.
    """
    directions, x = as_matrix("directions", directions, without_time(x))
    c = per_batch(c, x)
    root, count = jnp.sqrt(c)[..., None], len(directions)
    x = x * root  # of curvature −1

    along = precise_matmul(x, directions.T)
    across = x - precise_matmul(along, directions)
    across2 = dot(across, across)[..., None]
    tau = jnp.sqrt(1 + dot(x, x))[..., None]
    # b_i = τ − x_i, where (τ − x_i)(τ + x_i) is one plus the squares of all other coordinates.
    other_squares = precise_matmul(along * along, 1 - jnp.eye(count, dtype=x.dtype))
    rest = (1 + across2 + other_squares) / (tau + jnp.abs(along))
    exponentials = jnp.where(along > 0, rest, tau - along)
    spine = exponentials if count == 1 else tau - jnp.sum(along, axis=-1, keepdims=True)
    length = safe_sqrt(spine * spine + (count - 1) * across2)
    is_ahead = spine > 0
    slack = (count - 1) * across2 / jnp.where(is_ahead, spine + length, 1)
    slack = jnp.where(is_ahead, slack, length - spine)
    # τ less the time of the result, in terms that do not cancel near the origin.
    fall = (across2 + tau * slack) / (jnp.sum(exponentials, axis=-1, keepdims=True) + length)
    return lorentz.from_space((along - fall) / root, c)


def poincare_horospherical(
    p: Float[Array, "*#batch n"], directions: Float[Array, "k n"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch k"]:
    """Apply `lorentz_horospherical` from the Poincaré ball to the ball of dimension k."""
    directions, p = as_matrix("directions", directions, as_vectors(p))
    return poincare.from_lorentz(lorentz_horospherical(poincare.to_lorentz(p, c), directions, c), c)


class ComponentsError(UserError, ValueError):
    """Raised for components that do not exist for the given points."""


class HoroPCA(NamedTuple):
    """Components of points of the Lorentz model.

    The ideal points are the images of the directions under the boost that takes the origin to the
    base point.

    Attributes:
      base: base point b.
      directions: orthonormal directions q_k, in the frame at b that is parallel transported from
        the origin.
      c: curvature, positive.
    """

    base: Float[Array, " n1"]
    directions: Float[Array, "K n"]
    c: Float[Array, ""]


def fit(
    points: Float[Array, "N n1"],
    num_components: int = 2,
    c: ArrayLike = 1.0,
    base: Float[Array, " n1"] | None = None,
    joint: bool = False,
    seed: int = 0,
    starts: int = 16,
    steps: int = 100,
) -> HoroPCA:
    """Compute the components of points; a pure function of its arguments.

    Time and memory grow with the square of the number of points; a sample of a thousand is enough.

    Args:
      points: points of the Lorentz model, at least two.
      num_components: K, at most n.
      c: curvature, positive, one number.
      base: the base point (default: the Fréchet mean of the points).
      joint: whether to optimise all components together instead of one after another.
      seed: seed of the random directions.
      starts: number of random directions to try for each component.
      steps: steps of each ascent.

    Returns:
      The components.

    Raises:
      ComponentsError: if there are more components than dimensions, or fewer than two points.
      ValueError: for points or a base point of another shape.
    """
    points = as_sets(points)
    if points.ndim != 2:
        raise ValueError(f"points must have shape [N, n + 1], got the shape {points.shape}")
    if base is not None:
        points, base = as_floats(points, base)
        check_shape("base", base, points.shape[-1:])
    n = without_time(points).shape[-1]
    if not 1 <= num_components <= n:
        raise ComponentsError(
            f"num_components must be from 1 to {n}, the dimension of the points, got"
            f" {num_components}"
        )
    if len(points) < 2:
        raise ComponentsError(f"points must be two or more, got {len(points)}")
    c = jnp.asarray(c, points.dtype)
    if base is None:
        base = statistics.lorentz_mean(points, c=c)[0]
    # From here on the points have curvature −1 and are boosted so that the base is the origin.
    relative = _boost_to_origin(base, points, c)[..., 1:] * jnp.sqrt(c)
    x = lorentz.from_space(relative)
    key = jax.random.key(seed)
    directions = jnp.zeros((0, n), points.dtype)
    for k in range(num_components):
        drawn = jax.random.normal(jax.random.fold_in(key, k), (starts, n), points.dtype)
        best = _next_direction(x, directions, drawn, steps)
        directions = jnp.concatenate([directions, best[None]])
    if joint and num_components > 1:
        shape = (starts, num_components, n)
        drawn = jax.random.normal(jax.random.fold_in(key, num_components), shape, points.dtype)
        directions = _together(x, directions, drawn, steps)
    return HoroPCA(base, directions, c)


def project(components: HoroPCA, points: Float[Array, "*batch n1"]) -> Float[Array, "*batch k1"]:
    """Project points to the Lorentz model of dimension K, with b as the origin and q_k as axes.

    Args:
      components: components that `fit` returned.
      points: points of the Lorentz model that they were fitted in, [*batch, n + 1].

    Returns:
      Points [*batch, K + 1] of the same curvature.
    """
    points = as_vectors(points)
    same_length(components.base, points)
    relative = _boost_to_origin(components.base, points, components.c)
    return lorentz_horospherical(relative, components.directions, components.c)


def embed(components: HoroPCA, projected: Float[Array, "*batch k1"]) -> Float[Array, "*batch n1"]:
    """Return the points of the submanifold that `project` maps to the given points.

    Args:
      components: components that `fit` returned.
      projected: points [*batch, K + 1].

    Returns:
      Points [*batch, n + 1] of the Lorentz model.

    Raises:
      ValueError: for points of another dimension than K.
    """
    c = components.c
    space = without_time(projected)
    check_shape("projected", projected, (*space.shape[:-1], len(components.directions) + 1))
    embedded = precise_matmul(space, components.directions)
    base = jnp.broadcast_to(components.base, (*space.shape[:-1], len(components.base)))
    return lorentz.boost(base, lorentz.from_space(embedded, c), c)


def variance(points: Float[Array, "N n1"], c: ArrayLike = 1.0) -> Float[Array, ""]:
    """Return the generalised variance: the mean squared distance over all N² ordered pairs.

    Args:
      points: points of the Lorentz model.
      c: curvature, positive, one number.
    """
    return jnp.mean(jnp.square(lorentz.pairwise_distance(points, points, c)))


def _boost_to_origin(
    base: Float[Array, " n1"], points: Float[Array, "*batch n1"], c: Float[Array, ""]
) -> Float[Array, "*batch n1"]:
    """Apply the boost that takes the base point to the origin."""
    reflected_base = jnp.broadcast_to(lorentz.antipode(base, c), points.shape)
    return lorentz.boost(reflected_base, points, c)


def _retained_variance(
    x: Float[Array, "N n1"], directions: Float[Array, "K n"]
) -> Float[Array, ""]:
    """Return the generalised variance of the projections of points of curvature −1."""
    if len(directions) == 1:  # on a line, distances are differences of the Busemann function
        along = lorentz_busemann(x, jnp.broadcast_to(directions, x[..., 1:].shape))
        return 2 * jnp.var(along)
    return variance(lorentz_horospherical(x, directions))


@partial(jax.jit, static_argnames="steps")
def _next_direction(
    x: Float[Array, "N n1"],
    basis: Float[Array, "K n"],
    drawn: Float[Array, "starts n"],
    steps: int,
) -> Float[Array, " n"]:
    """Return the direction, orthogonal to a basis, that together with it retains most variance."""
    tried = jnp.concatenate([_principal(x), drawn])
    candidates = _normal(jnp.concatenate([tried, -tried]), basis)

    def extend(direction: Array) -> Array:
        return jnp.concatenate([basis, _normal(direction, basis)])

    # `_normal` returns 0 for a candidate in the span of the basis.
    real = dot(candidates, candidates) > 0.5
    best = _best_end(
        lambda direction: _retained_variance(x, extend(direction)),
        candidates[:, None],
        real,
        steps,
        CLIMBED,
    )
    return extend(best)[-1]


@partial(jax.jit, static_argnames="steps")
def _together(
    x: Float[Array, "N n1"],
    greedy: Float[Array, "K n"],
    drawn: Float[Array, "starts K n"],
    steps: int,
) -> Float[Array, "K n"]:
    """Return the orthonormal directions that together retain the most variance."""
    count = len(greedy)
    frames = jnp.concatenate([jnp.stack([greedy, _principal(x)[:count]]), drawn])
    # At most 16 choices of signs, however many components there are.
    choices = jnp.arange(2 ** min(count, 4))[:, None] >> jnp.arange(count)[None]
    signs = (1 - 2 * (choices % 2)).astype(x.dtype)
    candidates = (signs[:, None, :, None] * frames[None]).reshape(-1, *greedy.shape)

    def variance(candidates: Array) -> Array:
        return _retained_variance(x, _orthonormal(candidates))

    real = jnp.ones(len(candidates), bool)
    return _orthonormal(_best_end(variance, candidates, real, steps, CLIMBED_JOINTLY))


def _principal(x: Float[Array, "N n1"]) -> Float[Array, "n n"]:
    """Return the directions of tangent PCA, in order of decreasing variance."""
    tangent = lorentz.log_map0(x)
    tangent = tangent - jnp.mean(tangent, axis=0, keepdims=True)
    _, vectors = jnp.linalg.eigh(precise_matmul(tangent.T, tangent))
    return vectors.T[::-1]


def _best_end(
    height: Callable[[Array], Array],
    starts: Float[Array, "starts K n"],
    real: Array,
    steps: int,
    climbed: int,
) -> Float[Array, "K n"]:
    """Run ascents from the ``climbed`` best starts for which ``real`` is True; return the best end.

    Args:
      height: the function to maximise.
      starts: starts.
      real: whether a start is valid.
      steps: steps of each ascent.
      climbed: number of ascents.
    """
    values = jnp.where(real, jax.lax.map(height, starts), -jnp.inf)
    _, best = jax.lax.top_k(values, min(climbed, len(starts)))
    ends, heights = jax.lax.map(lambda start: _ascend(height, start, steps), starts[best])
    end: Array = ends[jnp.argmax(heights)]
    return end


def _ascend(
    height: Callable[[Array], Array], start: Float[Array, "K n"], steps: int
) -> tuple[Float[Array, "K n"], Float[Array, ""]]:
    """Run gradient ascent of unit vectors; return the highest point on the way and its height."""
    optimizer = scale_by_length_adam(b1=0.9, b2=0.99)
    fraction = jnp.arange(steps, dtype=start.dtype) / steps
    size = jnp.sqrt(jnp.asarray(start.shape[-1], start.dtype))
    rates = FIRST_STEP * (1 + jnp.cos(jnp.pi * fraction)) / (2 * size)

    def step(state: tuple, rate: Array) -> tuple[tuple, None]:
        frame, moments, best, highest = state
        value, gradient = jax.value_and_grad(height)(frame)
        better = value > highest
        best, highest = jnp.where(better, frame, best), jnp.where(better, value, highest)
        update, moments = optimizer.update(gradient, moments)
        return (unit(frame + rate * update), moments, best, highest), None

    highest = jnp.asarray(-jnp.inf, start.dtype)
    state = (start, optimizer.init(start), start, highest)
    (_, _, best, highest), _ = jax.lax.scan(step, state, rates)
    return best, highest


def _rejected(vectors: Float[Array, "M n"], basis: Float[Array, "K n"]) -> Float[Array, "M n"]:
    """Return the part of vectors that is orthogonal to orthonormal vectors."""
    return vectors - precise_matmul(precise_matmul(vectors, basis.T), basis)


def _normal(vectors: Float[Array, "M n"], basis: Float[Array, "K n"]) -> Float[Array, "M n"]:
    """Make vectors orthogonal to a basis and of length 1; 0 for vectors in its span."""
    size = jnp.sqrt(dot(vectors, vectors))[:, None]
    once = _rejected(vectors, basis)
    small = jnp.sqrt(dot(once, once))[:, None] < 1e-4 * size
    # The second pass, on vectors of length 1, removes the components that rounding has left.
    return jnp.where(small, 0, unit(_rejected(unit(once), basis)))


def _orthonormal(vectors: Float[Array, "K n"]) -> Float[Array, "K n"]:
    """Orthonormalise vectors by the Gram-Schmidt process."""
    basis = jnp.zeros((0, vectors.shape[-1]), vectors.dtype)
    for k in range(len(vectors)):
        basis = jnp.concatenate([basis, _normal(vectors[k : k + 1], basis)])
    return basis
