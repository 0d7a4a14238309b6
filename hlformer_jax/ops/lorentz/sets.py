"""Sets of points of the Lorentz model: distances of all pairs, and centroids."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops.arguments import (
    align_sets,
    as_floats,
    as_sets,
    as_vectors,
    per_batch,
    shard_together,
    without_time,
)
from hlformer_jax.ops.lorentz.pairs import point_from_space, squared_distance_of_pair
from hlformer_jax.ops.lorentz.usual import distance_of_pair, length_of_chord
from hlformer_jax.ops.numerics import (
    dot,
    dot_all,
    inverse,
    is_any,
    largest_coordinate,
    mean_weights,
    precise_matmul,
    replace_near,
    sum_products,
)
from hlformer_jax.typing import Array

# Pairs for which m / 2 is less than this fraction of (τ_x τ_y − 1) / c are computed one by one.
# Random pairs are never that near.
_NEAR = 1 / 16


def pairwise_inner(
    x: Float[Array, "*#batch L n1"], y: Float[Array, "*#batch M n1"]
) -> Float[Array, "*#batch L M"]:
    """Return the Lorentzian inner products ⟨x_i, y_j⟩ of all pairs, by one matrix product.

    The product has full float32 (or float64) precision on every device. The error is as in `inner`,
    so for squared distances between near points use `pairwise_squared_distance`.
    """
    x, y = as_floats(*(as_vectors(as_sets(v), least=2) for v in (x, y)))
    if x.ndim == y.ndim:
        x, y = shard_together(x.ndim - 2, x, y)
    x = jnp.concatenate([-x[..., :1], x[..., 1:]], axis=-1)
    return dot_all(x, y)


def pairwise_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Return geodesic distances of all pairs, by one matrix product and `distance` for near points.

    Half the squared Lorentzian distance is lift − x · y with lift = (τ_x τ_y − 1) / c. If that is
    less than a sixteenth of lift, the difference would amplify rounding more than 16 times. Such
    pairs are computed from coordinate differences, at the cost that `numerics.replace_near` states;
    equal points have the distance 0, with gradient 0. For all other pairs the relative error is
    below 8 eps times the error of x · y in units of eps |x| |y|, which is a small number, and at
    most n / 2 for n coordinates.
    """
    x, y, c = align_sets(without_time(as_sets(x)), without_time(as_sets(y)), c)
    m, is_near = _chords(x, y, c)
    by_product = length_of_chord(m, c[..., None, None])
    return replace_near(by_product, is_near, x, y, c, distance_of_pair)


def pairwise_squared_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Return squared Lorentzian distances of all pairs, computed as in `pairwise_distance`."""
    x, y, c = align_sets(without_time(as_sets(x)), without_time(as_sets(y)), c)
    m, is_near = _chords(x, y, c)
    return replace_near(m, is_near, x, y, c, squared_distance_of_pair)


def _chords(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: Float[Array, "*#batch"]
) -> tuple[Float[Array, "*#batch M N"], Bool[Array, "*#batch M N"]]:
    """Return squared Lorentzian distances of all pairs (2 for near pairs), and which are near."""
    xx, yy = dot(x, x), dot(y, y)
    tau_x, tau_y = jnp.sqrt(1 + c[..., None] * xx), jnp.sqrt(1 + c[..., None] * yy)
    xy = dot_all(x, y)
    # (τ_x τ_y − 1) / c = (x² τ_y² + y²) / (τ_x τ_y + 1). Numerator and denominator are divided by
    # τ_x τ_y, because they may be large.
    low_x, low_y = (1 / tau_x)[..., :, None], (1 / tau_y)[..., None, :]
    along, beside = (xx / tau_x)[..., :, None], (yy / tau_y)[..., None, :]
    height = (along * tau_y[..., None, :] + low_x * beside) / (1 + low_x * low_y)
    is_near = ~(height - xy > _NEAR * height)  # NaN is near
    return 2 * jnp.where(is_near, 1, height - xy), is_near


def centroid(
    points: Float[Array, "*#batch L n1"],
    weights: Float[Array, "*#batch M L"] | None = None,
    c: ArrayLike = 1.0,
    exact: bool = True,
) -> Float[Array, "*#batch M n1"]:
    """Return centroids: points μ that minimise Σ_i weight_i ⟨x_i − μ, x_i − μ⟩ (HLFormer, eq. 6).

    A centroid is the weighted sum of the points divided by its Lorentzian norm, and that norm is a
    difference of squares. The exact form computes the norm from terms that do not cancel, one for
    each point and centroid. It takes M L n operations, and a gradient may store as many numbers. It
    reads space components only. Errors of values and gradients are a few eps at any distance,
    whether the points coincide or lie far apart; errors of gradients in the weights and in c are
    relative to the centroid. The exception is points at several distances along nearly one ray:
    gradients in such points are lost to rounding beyond √c times a distance of 12 (float64: 20),
    and values beyond 18 (35).

    The other form is one matrix product, which reads the time components as given. It amplifies the
    rounding of the sum: the relative error is up to L eps · c x_time². In float32 at √c x_time = 16
    that is 1e-3 for 32 points (1e-4 was measured) and 0.03 for 1,000 (3e-3 was measured). The true
    norm is at least the sum of the weights divided by √c, so a smaller norm is set to that.

    Args:
      points: points.
      weights: non-negative weights of any scale, with one row per centroid; None for one centroid
        with equal weights. If all are 0, the result is the origin.
      c: curvature, positive; broadcasts to ``*batch``.
      exact: whether to use the exact form (default), or the faster matrix product.

    Returns:
      Centroids [*batch, M, n + 1].

    Raises:
      ValueError: for weights that do not have the axes [*batch, M, L] for points [*batch, L, n+1]:
        weights of one centroid are [*batch, 1, L].
    """
    points = as_vectors(as_sets(points, least=1), least=2)
    weights = mean_weights(weights, points, relative=exact)
    curvature = per_batch(c, points[..., 0])[..., None]
    if exact:
        return point_from_space(_exact_centroid(points[..., 1:], weights, curvature), curvature)
    # Without the barrier, XLA fills an array of all weights with the gradient of their sum, so that
    # a GPU can accumulate the matrix product of the backward pass into it.
    factor = jax.lax.optimization_barrier(weights)
    total = precise_matmul(factor, points)
    scale = largest_coordinate(total)
    scale = jnp.where(scale == 0, 1, scale)
    mass = jnp.sum(weights, axis=-1) / jnp.squeeze(scale, -1)
    total = total / scale
    # −⟨total, total⟩
    norm2 = -(dot(total[..., 1:], total[..., 1:]) - total[..., 0] * total[..., 0]) * curvature
    is_lost = 2 * norm2 < mass * mass
    # Far out the derivative of the root of mass² would overflow.
    norm = jnp.where(is_lost, mass, _norm(jnp.where(is_lost, 1, norm2)))
    return point_from_space(total[..., 1:] / norm[..., None], curvature)


class _Sums(NamedTuple):
    """Weighted sums of points, in units in which c is 1."""

    space: Float[Array, "*#batch M n"]
    time: Float[Array, "*#batch M"]
    square: Float[Array, "*#batch M"]  # of the length of `space`
    scaled: Float[Array, "*#batch L n"]  # space components of the points
    times: Float[Array, "*#batch 1 L"]  # time components of the points
    cancels: Bool[Array, "*#batch M"]  # whether time² − square loses digits


def _weighted_sums(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
) -> _Sums:
    scaled = x * jnp.sqrt(c)[..., None]
    times = jnp.sqrt(1 + dot(scaled, scaled))[..., None, :]
    space = sum_products(weights, scaled)
    time = sum_products(weights, jnp.swapaxes(times, -1, -2))[..., 0]
    square = dot(space, space)
    return _Sums(space, time, square, scaled, times, 2 * square > time * time)


@jax.custom_jvp
def _exact_centroid(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
) -> Float[Array, "*#batch M n"]:
    """Return the space components of centroids, from the space components of points."""
    sums = _weighted_sums(x, weights, c)
    norm = jax.lax.cond(
        is_any(sums.cancels),
        lambda: _split_norm(x, weights, c, sums)[0],
        lambda: _norm(sums.time * sums.time - sums.square),
    )
    return sums.space / (norm * jnp.sqrt(c))[..., None]


def _norm(square: Array) -> Array:
    """Return the root; 1 where the square is 0, which all weights of 0 give."""
    return jnp.sqrt(jnp.where(square == 0, 1, square))


def _split_norm(
    x: Float[Array, "*#batch L n"],
    weights: Float[Array, "*#batch M L"],
    c: Float[Array, "*#batch 1"],
    sums: _Sums,
) -> tuple[Array, ...]:
    """Compute the norm of the weighted sum of points where its square would cancel.

    Let S and T be the sums of the space and time components and u = S / |S|. The Lorentzian norm is
    the root of (T − |S|) (T + |S|), and T − |S| is the weighted sum of t − p, with t = x_time,
    r = |x_space| and p = u · x_space. It splits into t − r = 1 / (t + r) and
    r − p = |x_⊥|² / (r + p), where x_⊥ is the part of x_space orthogonal to S. The weighted sum of
    all x_⊥ must be 0, but rounding u would spoil that. So, for points near the heaviest one, x_⊥ is
    computed from the exact difference from that point, and corrected so that the sum is 0.

    If T² − |S|² does not cancel, nothing is split: u = 0 and x_⊥ = x.

    Returns:
      The norm [*batch, M]; |S| [*batch, M], 0 where nothing is split; u; x_⊥ [*batch, M, L, n]; p
      [*batch, M, L]; and t − p.
    """
    root = jnp.sqrt(c)[..., None]
    t, square, split = sums.times, sums.square, sums.cancels
    xx = dot(sums.scaled, sums.scaled)[..., None, :]
    small = xx <= 1
    r = jnp.sqrt(jnp.where(small, 1, xx))
    length = jnp.sqrt(jnp.where(split, square, 1))
    axis = jnp.where(split, 1 / length, 0)[..., None] * sums.space

    heaviest = jnp.argmax(weights * r, axis=-1)[..., None]
    base = jnp.take_along_axis(x, heaviest, axis=-2)[..., :, None, :]
    gaps = x[..., None, :, :] - base
    beside = split[..., None] & (dot(gaps, gaps) * c[..., None] <= xx)
    # Multiply by 0 or 1: `where` would copy the arrays that are summed.
    is_beside = beside.astype(x.dtype)[..., None]
    gaps = (x[..., None, :, :] - is_beside * base) * root[..., None]
    across = gaps - dot(gaps, axis[..., None, :])[..., None] * axis[..., None, :]
    mass = jnp.sum(jnp.where(beside, weights, 0), axis=-1)
    rest = jnp.sum(weights[..., None] * across, axis=-2) / jnp.where(mass == 0, 1, mass)[..., None]
    across = across - is_beside * rest[..., None, :]

    p = dot_all(axis, sums.scaled)
    turn = jnp.where(p > 0, dot(across, across) / jnp.where(p > 0, r + p, 1), r - p)
    rise = jnp.where(small | ~split[..., None], t - p, 1 / (t + r) + turn)  # t − p
    gap = sum_products(weights[..., :, None, :], rise[..., None])[..., 0, 0]
    norm = _norm(jnp.where(split, gap * (sums.time + length), sums.time * sums.time - square))
    return norm, jnp.where(split, length, 0), axis, across, p, rise


@_exact_centroid.defjvp
def _exact_centroid_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Return Σ weight_i (dx_i + ⟨μ, dx_i⟩ μ) / N + Σ dweight_i (x_i + ⟨μ, x_i⟩ μ) / N for c = 1.

    N = −Σ weight_i ⟨μ, x_i⟩ is the norm of the weighted sum.
    """
    (x, weights, c), (dx, dweights, dc) = primals, tangents
    sums = _weighted_sums(x, weights, c)
    root = jnp.sqrt(c)[..., None]
    # The derivative in c: time components of points and √c μ grow with c.
    growth = (dc * inverse(c) / 2)[..., None]
    mean, change = jax.lax.cond(
        is_any(sums.cancels),
        lambda: _split_tangent(x, weights, c, sums, dx * root, dweights, growth),
        lambda: _direct_tangent(weights, sums, dx * root, dweights, growth),
    )
    return mean / root, change / root


def _direct_tangent(
    weights: Array, sums: _Sums, moved: Array, dweights: Array, growth: Array
) -> tuple[Array, Array]:
    """Return centroids and their tangents where no sum cancels, in units in which c is 1.

    ⟨μ, dx_i⟩ = (μ − (μ_time / t) x_i) · dx_i in space components.
    """
    norm = _norm(sums.time * sums.time - sums.square)
    mean = sums.space / norm[..., None]
    tau = jnp.sqrt(1 + dot(mean, mean))[..., None]
    height = tau * sums.times - dot_all(mean, sums.scaled)  # −⟨μ, x_i⟩
    turned = dot(sums.scaled, moved)[..., None, :] - growth
    grown = jnp.sum(-tau * weights / sums.times * turned - weights * height * growth, axis=-1)
    grown = grown - jnp.sum(dweights * height, axis=-1)
    total = precise_matmul(weights, moved)
    grown = grown + dot(mean, total)
    total = total + precise_matmul(dweights, sums.scaled)
    return mean, (total + grown[..., None] * mean) / norm[..., None]


def _split_tangent(
    x: Array, weights: Array, c: Array, sums: _Sums, moved: Array, dweights: Array, growth: Array
) -> tuple[Array, Array]:
    """Return centroids and their tangents where a sum cancels, in units in which c is 1.

    In terms of `_split_norm` and of m = |μ_space|, where −⟨μ, x_i⟩ = m (t − p) + t / (μ_time + m)
    and lean = m t − μ_time p = m (t − p) − p / (μ_time + m),

        ⟨μ, dx_i⟩ = (lean / t) u · dx_i − (μ_time / t) x_⊥ · dx_i
        x_i + ⟨μ, x_i⟩ μ = x_⊥ − μ_time lean u.
    """
    norm, length, axis, across, p, rise = _split_norm(x, weights, c, sums)
    t = sums.times
    mean = sums.space / norm[..., None]
    split = (length > 0)[..., None]
    m, tau = (length / norm)[..., None], jnp.sqrt(1 + dot(mean, mean))[..., None]
    lean = m * rise - p / (tau + m)
    # Where nothing is split, use μ itself, with −⟨μ, x_i⟩ = μ_time t − μ · x_i.
    along = dot_all(mean, sums.scaled)
    height = jnp.where(split, m * rise + t / (tau + m), tau * t - along)
    ahead = jnp.where(split, axis, mean)
    pull, push = jnp.where(split, lean / t, 1), jnp.where(split, tau * lean, height)

    grown = pull * dot_all(ahead, moved) - tau / t * dot(across, moved[..., None, :, :])
    grown = grown + (tau / t - height) * growth
    grown = jnp.sum(weights * grown, axis=-1)
    change = precise_matmul(weights, moved) + jnp.sum(dweights[..., None] * across, axis=-2)
    change = change - jnp.sum(dweights * push, axis=-1)[..., None] * ahead
    return mean, (change + grown[..., None] * mean) / norm[..., None]
