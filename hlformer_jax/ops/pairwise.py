"""Inner products and distances of all pairs of two sets of points; `lorentz` is the front.

The inner products x · y come from one matrix product, the squared Lorentzian distances from
m / 2 = lift − x · y with lift = (τ_x τ_y − 1) / c (see `hyperboloid`). Where a pair is near, which
is to say where m / 2 is less than a sixteenth of lift, the difference would amplify rounding by
more than that; there the distance is that of `geodesic`, from exact differences of coordinates.
Elsewhere its relative error is below 8 eps times the error of x · y in units of eps |x| |y|: a few,
at most n / 2, for n coordinates.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops import geodesic, hyperboloid
from hlformer_jax.ops.hyperbolic_functions import asinhc_sqrt
from hlformer_jax.ops.numerics import as_float, dot, inverse, per_batch, safe_sqrt, same_length
from hlformer_jax.typing import Array

# As a share of lift. Of random pairs none is near; of a set with itself at least those of a point
# with itself are, so a few to each point are provided for.
_NEAR, _NEAR_PER_POINT = 1 / 16, 4


def pairwise_inner(
    x: Float[Array, "*#batch L n1"], y: Float[Array, "*#batch M n1"]
) -> Float[Array, "*#batch L M"]:
    """Lorentzian inner products of all pairs, by one matrix product.

    It is computed at full float32 (or float64) precision whatever the device's default. As with
    `inner`, the error is relative to x_time y_time: where a squared distance between near points
    counts, use `squared_distance`.

    Args:
      x: vectors of R^{n+1}.
      y: vectors of R^{n+1}.

    Returns:
      ⟨x_i, y_j⟩.

    References:
      HLFormer, eq. 2.
    """
    x, y = as_float(x), as_float(y)
    x = jnp.concatenate([-x[..., :1], x[..., 1:]], axis=-1)
    return jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=jax.lax.Precision.HIGHEST)


def pairwise_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Geodesic distances of all pairs, by one matrix product and, for near points, `distance`.

    Time and memory are those of the product and of some M × N arrays, unless more than
    4 max(M, N) pairs a batch element are near (see above): then all are computed by
    `distance`, row by row, in the time of that. Under `jax.vmap` both are: add batch axes instead.

    Args:
      x: points.
      y: points. Where two are the same the distance and its gradient are 0.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      distance(x_i, y_j).
    """
    x, y, c = align_sets(as_float(x)[..., 1:], as_float(y)[..., 1:], c)
    m, near = _chords(x, y, c)
    far = safe_sqrt(m) * asinhc_sqrt(c[..., None, None] * m / 4)
    return replace_near(far, near, x, y, c, geodesic.distance)


def pairwise_squared_distance(
    x: Float[Array, "*#batch M n1"], y: Float[Array, "*#batch N n1"], c: ArrayLike = 1.0
) -> Float[Array, "*#batch M N"]:
    """Squared Lorentzian distances of all pairs; time, memory and error as `pairwise_distance`.

    Args:
      x: points.
      y: points.
      c: curvature, positive; broadcasts to ``*batch``.

    Returns:
      ⟨x_i − y_j, x_i − y_j⟩, see `lorentz.squared_distance`.
    """
    x, y, c = align_sets(as_float(x)[..., 1:], as_float(y)[..., 1:], c)
    m, near = _chords(x, y, c)
    return replace_near(m, near, x, y, c, _squared_chord)


def _squared_chord(x: Array, y: Array, c: Array) -> Array:
    scale, *pair = hyperboloid.rescale(x, y, c)
    return hyperboloid.squared_chord(*pair) * jnp.squeeze(scale, -1) ** 2


def align_sets(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: ArrayLike
) -> tuple[Float[Array, "*batch M n"], Float[Array, "*batch N n"], Float[Array, "*batch"]]:
    """Two sets of vectors and curvatures with the same batch axes.

    Raises:
      ValueError: for vectors of different lengths, or batch axes that do not broadcast.
    """
    same_length(x, y)
    lead = jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (jnp.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (x, y))
    return x, y, jnp.broadcast_to(per_batch(c, x[..., 0]), lead)


def _chords(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: Float[Array, "*#batch"]
) -> tuple[Float[Array, "*#batch M N"], Bool[Array, "*#batch M N"]]:
    """Squared Lorentzian distances of all pairs of space components, and which are near.

    Args:
      x: space components of points.
      y: space components of points.
      c: curvature.

    Returns:
      The squared distances, 2 where points are near; True there.
    """
    curvature = c[..., None, None]
    xx, yy = dot(x, x)[..., :, None], dot(y, y)[..., None, :]
    tau_x, tau_y = jnp.sqrt(1 + curvature * xx), jnp.sqrt(1 + curvature * yy)
    xy = jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=jax.lax.Precision.HIGHEST)
    tau = tau_x * tau_y
    # As in `hyperboloid.squared_chord`: without cancellation near the origin, nor overflow afar.
    curved = tau > 2
    flat = (xx + yy + curvature * jnp.where(curved, 0, xx * yy)) / (tau + 1)
    lift = jnp.where(curved, (tau - 1) * inverse(jnp.where(curved, curvature, 1)), flat)
    near = ~(lift - xy > _NEAR * lift)  # NaN is near
    return 2 * jnp.where(near, 1, lift - xy), near


def replace_near(
    far: Float[Array, "*#batch M N"],
    near: Bool[Array, "*#batch M N"],
    x: Float[Array, "*#batch M n"],
    y: Float[Array, "*#batch N n"],
    c: Float[Array, "*#batch"],
    exact: Callable[[Array, Array, Array], Array],
) -> Float[Array, "*#batch M N"]:
    """Puts exact values where a matrix product would not be exact enough.

    Args:
      far: values of all pairs.
      near: the pairs to replace; see `pairwise_distance` for what that costs.
      x: points.
      y: points.
      c: curvature.
      exact: the value of points [pairs, n], points [pairs, n] and curvatures [pairs].

    Returns:
      ``exact`` of x_i and y_j where they are near, else what ``far`` has.
    """
    shape, (rows, columns) = far.shape, far.shape[-2:]
    count = far.size
    capacity = min(_NEAR_PER_POINT * max(rows, columns) * (count // max(rows * columns, 1)), count)
    x, y, c = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), c.reshape(-1)
    flat_near = near.reshape(-1)

    @jax.checkpoint
    def of(pair: Array) -> Array:
        """Exact values of the pairs at these indices of the flattened result."""
        batch = pair // (rows * columns)
        first, second = pair // columns, batch * columns + pair % columns
        take = lambda v, at: jnp.take(v, at, axis=0, mode="fill", fill_value=1)
        return exact(take(x, first), take(y, second), take(c, batch))

    @jax.checkpoint
    def of_few(far: jax.Array) -> jax.Array:
        (pair,) = jnp.nonzero(flat_near, size=capacity, fill_value=count)
        return far.at[pair].set(of(pair), mode="drop")

    @jax.checkpoint
    def of_many(far: jax.Array) -> jax.Array:
        every = jnp.arange(count).reshape(-1, columns)
        return jnp.where(flat_near, jax.lax.map(of, every).reshape(-1), far)

    far = far.reshape(-1)
    if capacity == count:
        return jnp.where(flat_near, of(jnp.arange(count)), far).reshape(shape)
    few = jnp.sum(flat_near, dtype=jnp.int32) <= capacity
    return jax.lax.cond(few, of_few, of_many, far).reshape(shape)
