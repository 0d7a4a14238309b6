"""Functions whose values and gradients stay correct where the textbook formulas fail.

Some functions are smooth in a squared norm z: cosh √z, and f(√z) / √z for sinh, asinh, tanh and
artanh. They take z as their argument, because √z and v / |v| are not smooth at 0. Maps written with
them have correct derivatives of every order at the origin. If a norm itself is needed (a distance,
an angle), its gradient at 0 is defined as 0. `where` is applied to the results and to the argument
of the branch that is not selected, whose infinite gradient times 0 would otherwise give NaN.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.ops.arguments import (
    as_float,
    auto_sharded,
    check_shape,
    per_batch,
    same_length,
    shard_together,
)
from hlformer_jax.typing import Array

# Largest mean number of near pairs per point for which only the near pairs are computed. In the
# distances of a set to itself, each point is near at least itself.
_NEAR_PER_POINT = 4


def wide(dtype: DTypeLike) -> jnp.dtype:
    """Return the dtype for sums, exponentials and comparisons: float32 for narrower dtypes."""
    return jnp.dtype(dtype) if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)


def exact_precision() -> jax.lax.Precision | None:
    """Return the precision for products that must be exact even if dense layers are rounded.

    It is HIGHEST if JAX's default matmul precision is set. Otherwise, as in runs in bfloat16, it is
    None: the hardware chooses the precision of all products.
    """
    # Reading the setting is safe under `jax.jit`, because JAX compiles again if it changes.
    is_set = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  # it has no stub
    return jax.lax.Precision.HIGHEST if is_set else None


@jax.custom_jvp
def inverse(c: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return 1 / c for a positive c, with a derivative that does not overflow early.

    If 1 / c² would overflow, the derivative is applied as two factors. So its product with a small
    tangent can be finite, and its product with 0 is 0.
    """
    return 1 / c


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (c,), (dc,) = primals, tangents
    tiny = c < 2 / math.sqrt(float(jnp.finfo(c.dtype).max))
    first = jnp.where(tiny, 1 / c, 1)
    second = jnp.where(tiny, 1 / c, jax.lax.integer_pow(jnp.where(tiny, 1, c), -2))
    return 1 / c, -dc * second * first


def dot(x: Float[Array, "*#batch n"], y: Float[Array, "*#batch n"]) -> Float[Array, "*#batch"]:
    """Return the Euclidean inner product over the last axis; ValueError if the lengths differ."""
    same_length(x, y)
    return jnp.sum(x * y, axis=-1)


@jax.custom_jvp
def subtract_multiple(
    v: Float[Array, "*#batch n"], factor: Float[Array, "*#batch"], x: Float[Array, "*#batch n"]
) -> Float[Array, "*#batch n"]:
    """Return v − factor x, with an error of about eps^1.5 |factor x| where the terms cancel.

    The product is split into four exact products (Dekker, 1971). Otherwise the rounded product
    would have an error of eps |factor x| in any direction, unless the compiler fuses the
    subtraction with the product.
    """
    bits = -(-jnp.finfo(v.dtype).nmant // 2) - 1
    exponent = jnp.finfo(v.dtype).nexp
    factor = factor[..., None]
    high, high_factor = (jax.lax.reduce_precision(y, exponent, bits) for y in (x, factor))
    low, low_factor = x - high, factor - high_factor
    rest = v - high_factor * high - high_factor * low - low_factor * high
    return rest - low_factor * low


@subtract_multiple.defjvp
def _subtract_multiple_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (_, factor, x), (dv, dfactor, dx) = primals, tangents
    return subtract_multiple(*primals), dv + (-factor)[..., None] * dx + (-dfactor)[..., None] * x


def precise_matmul(x: Array, y: Array) -> Array:
    """Return the matrix product, in the full precision of the dtype on every device."""
    product: Array = jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
    return product


def dot_all(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"]
) -> Float[Array, "*#batch M N"]:
    """Return the Euclidean inner products x_i · y_j of all pairs, by `precise_matmul`."""
    return precise_matmul(x, jnp.swapaxes(y, -1, -2))


def sum_products(
    weights: Float[Array, "*#batch M L"], values: Float[Array, "*#batch L n"]
) -> Float[Array, "*#batch M n"]:
    """Return the matrix product, with a rounding error that grows with log L instead of L.

    Terms are summed in blocks of 8, and the blocks in pairs. The relative error of a sum of L
    positive terms is at most (8 + log2(L / 8)) / 2 eps.
    """
    length = weights.shape[-1]
    blocks = 1 << max(0, -(-length // 8) - 1).bit_length()
    extra = (0, 8 * blocks - length)
    weights = jnp.pad(weights, [(0, 0)] * (weights.ndim - 1) + [extra])
    values = jnp.pad(values, [(0, 0)] * (values.ndim - 2) + [extra, (0, 0)])
    weights = jnp.moveaxis(weights.reshape(*weights.shape[:-1], blocks, 8), -2, -3)
    values = values.reshape(*values.shape[:-2], blocks, 8, values.shape[-1])
    sums = precise_matmul(weights, values)
    while blocks > 1:
        blocks //= 2
        sums = sums[..., :blocks, :, :] + sums[..., blocks:, :, :]
    return sums[..., 0, :, :]


def safe_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return the square root; 0 with gradient 0 for z below the smallest normal number."""
    zero = z < jnp.finfo(z.dtype).tiny
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, z)))


def smallest(dtype: jnp.dtype) -> float:
    """Return the smallest normal number of a dtype, 1.2e-38 for float32."""
    return float(jnp.finfo(dtype).tiny)


def shortest_direction(dtype: jnp.dtype) -> float:
    """Return the length below which vectors count as zero in twice differentiable directions.

    It is 16 / √(largest number), 8.7e-19 in float32. Second derivatives of the direction grow like
    1 / length², and would overflow for shorter vectors.
    """
    return 16 / math.sqrt(float(jnp.finfo(dtype).max))


def max_hyperbolic_norm(dtype: DTypeLike) -> float:
    """Return the largest √c · distance from the origin that exponential maps of points reach.

    It is −2 log eps, 31.9 in float32 and 72.1 in float64. At that distance √c x_time is
    1 / (2 eps²), and inner products of two points and their derivatives are far from overflow.
    """
    return -2 * math.log(float(jnp.finfo(dtype).eps))


def within_reach(
    distance: Float[Array, "*#batch"], c: Float[Array, "*#batch"]
) -> Float[Array, "*#batch"]:
    """Return the smaller of a distance and twice the largest one that maps of points reach."""
    return jnp.minimum(distance, 2 * max_hyperbolic_norm(distance.dtype) / jnp.sqrt(c))


def largest_coordinate(
    v: Float[Array, "*#batch n"], negligible: float | Float[Array, "*#batch 1"] | None = None
) -> Float[Array, "*#batch 1"]:
    """Return the largest absolute coordinate, without derivatives; 0 if it is negligible.

    Dividing by it prevents squares from underflow and overflow. In a function that is homogeneous
    in v its derivative cancels, so it may be treated as a constant.

    Args:
      v: vectors.
      negligible: size below which the largest coordinate is returned as 0; at least `smallest`,
        and without derivatives. By default it is the 5/8-th power of the smallest normal number,
        2e-24 in float32. Then 1 / |v|, the size of the derivative of v / |v|, can be multiplied by
        coordinates of any point (`max_hyperbolic_norm`) without overflow.
    """
    if negligible is None:
        negligible = smallest(v.dtype) ** 0.625
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(v)), axis=-1, keepdims=True)
    # XLA may multiply by the reciprocal, which is 0 for the largest numbers.
    largest = jnp.minimum(largest, float(jnp.finfo(v.dtype).max) / 8)
    return jnp.where(largest < negligible, 0, largest)


def mean_weights(
    weights: Float[Array, "*#batch M L"] | None,
    points: Float[Array, "*#batch L n"],
    relative: bool = True,
) -> Float[Array, "*#batch M L"]:
    """Check the weights of means of points.

    Args:
      weights: weights of M means; None gives the weights of one mean with equal weights.
      points: points.
      relative: whether to divide the weights of each mean by the largest one, so that squares of
        their sums neither overflow nor underflow.

    Raises:
      ValueError: for weights that do not have the axes [*batch, M, L] for points [*batch, L, n].
    """
    if weights is None:
        weights, relative = jnp.ones((*points.shape[:-2], 1, points.shape[-2]), points.dtype), False
    weights = jnp.asarray(as_float(weights), points.dtype)
    if weights.ndim != points.ndim or weights.shape[-1] != points.shape[-2]:
        raise ValueError(
            f"weights of shape {weights.shape} do not match points of shape {points.shape}:"
            " pass [*batch, M, L] for points [*batch, L, n], with M = 1 for one mean"
        )
    weights = shard_together(points.ndim - 2, weights, points)[0]
    if not relative:
        return weights
    largest = largest_coordinate(weights, smallest(weights.dtype))
    return weights / jnp.where(largest == 0, 1, largest)


def safe_normalize(
    v: Float[Array, "*#batch n"], negligible: float | Float[Array, "*#batch 1"] | None = None
) -> tuple[Float[Array, "*#batch n"], Float[Array, "*#batch"]]:
    """Return the direction and the length of a vector, without underflow or overflow.

    Both are 0, with gradient 0, if no coordinate exceeds ``negligible``, by default as in
    `largest_coordinate` (2e-24 in float32).
    """
    v = as_float(v)
    return _safe_normalize(v, largest_coordinate(v, negligible))


@jax.custom_jvp
def _safe_normalize(v: Array, scale: Array) -> tuple[Array, Array]:
    nonzero = scale != 0  # also True for NaN, which must not count as zero
    v = jnp.where(nonzero, v / jnp.where(nonzero, scale, 1), 0)
    norm = jnp.sqrt(jnp.where(nonzero, jnp.sum(v * v, axis=-1, keepdims=True), 1))
    return v / norm, jnp.squeeze(jnp.where(nonzero, scale * norm, 0), -1)


@_safe_normalize.defjvp
def _safe_normalize_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    dv, _ = tangents  # the scale is a constant
    unit, norm = _safe_normalize(*primals)
    nonzero = norm != 0
    growth = dot(unit, dv)
    turn = (dv - unit * growth[..., None]) / jnp.where(nonzero, norm, 1)[..., None]
    return (unit, norm), (jnp.where(nonzero[..., None], turn, 0), growth)


def bounded_norm(v: Float[Array, "*#batch n"], longest: Array) -> Float[Array, "*#batch"]:
    """Compute `safe_norm` of vectors no longer than ``longest``, in one pass over the coordinates.

    A norm below 2e-34 times ``longest``, or below 1e-35 (both in float32), counts as zero.
    """
    scale = bounded_scale(longest, v.dtype)
    scaled = jax.lax.stop_gradient(v) / scale[..., None]
    return with_norm(v, jnp.sqrt(dot(scaled, scaled)) * scale)


def bounded_scale(longest: Array, dtype: DTypeLike) -> Array:
    """Return a unit of length in which squares in `bounded_norm` do not underflow or overflow."""
    return power_of_two(longest, -510 if dtype == jnp.float64 else -62)


def with_norm(v: Array, norm: Array) -> Array:
    """Attach the derivative of |v| to a computed norm; norms below 1e-35 (float32) become 0."""
    return _with_norm(v, jnp.where(norm < 1024 * smallest(v.dtype), 0, norm))


@jax.custom_jvp
def _with_norm(v: Array, norm: Array) -> Array:
    """Return `with_norm` for a norm that is 0 or large enough."""
    return norm


@_with_norm.defjvp
def _with_norm_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
    return _with_norm(*primals), dot(over_norm(*primals), tangents[0])


@jax.custom_jvp
def over_norm(v: Array, norm: Array) -> Array:
    """Return v / |v| for a computed norm |v|; 0 where it is 0."""
    return v * jnp.where(norm == 0, 0, 1 / jnp.where(norm == 0, 1, norm))[..., None]


@over_norm.defjvp
def _over_norm_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
    # The derivative of v / norm would contain the square of a tiny norm.
    unit, dv = over_norm(*primals), tangents[0]
    norm = primals[1]
    inverse_of_norm = jnp.where(norm == 0, 0, 1 / jnp.where(norm == 0, 1, norm))
    return unit, (dv - dot(unit, dv)[..., None] * unit) * inverse_of_norm[..., None]


def safe_norm(v: Float[Array, "*#batch n"]) -> Float[Array, "*#batch"]:
    """Return the Euclidean norm over the last axis, with gradient 0 at 0; see `safe_normalize`."""
    return safe_normalize(v)[1]


def unit(v: Float[Array, "*#batch n"]) -> Float[Array, "*#batch n"]:
    """Return the direction of a vector; 0, with gradient 0, for zero. See `safe_normalize`."""
    return safe_normalize(v)[0]


def inverse_norm(v: Float[Array, "*#batch n"]) -> Float[Array, "*#batch"]:
    """Return 1 / |v|; 0, with gradient 0, for zero vectors, so that all their cosines are 0.

    A norm below 1.1e-19 in float32 (1.5e-154 in float64) counts as zero, because the derivative
    would overflow.
    """
    norm = safe_norm(v)
    nonzero = norm > 2 / math.sqrt(float(jnp.finfo(norm.dtype).max))
    return jnp.where(nonzero, 1 / jnp.where(nonzero, norm, 1), 0)


def power_of_two(x: Array, shift: int = 0) -> Array:
    """Return a power of two near x · 2^shift, without derivatives; products with it are exact."""
    x = jax.lax.stop_gradient(x) * 2.0**shift
    return jax.lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, mantissa_bits=0)


def limit_norm(v: Float[Array, "*#batch n"], limit: ArrayLike) -> Float[Array, "*#batch n"]:
    """Shorten vectors that are longer than ``limit`` to that length, keeping their direction.

    The limit is positive and broadcasts to ``*batch``. Other vectors stay unchanged, bit for bit.
    The gradient of a shortened vector is orthogonal to it. Vectors longer than 8e37 limits
    (float32; 4e307 in float64) become 0, and infinite coordinates become NaN.
    """
    return limit_norm_and_square(v, limit)[0]


def limit_norm_and_square(
    v: Float[Array, "*#batch n"], limit: ArrayLike
) -> tuple[Float[Array, "*#batch n"], Float[Array, "*#batch"]]:
    """Return `limit_norm` and the squared norm of its result, by two sums over the coordinates.

    Squares below the smallest normal number are lost. Use it for functions that are smooth in the
    square, such as `cosh_sqrt` and 1 − c |p|².
    """
    v = as_float(v)
    return _limit_norm_and_square(v, per_batch(limit, v, "limit"))


class Shortening(NamedTuple):
    """Shortening of a vector by `limit_norm`.

    Attributes:
      is_long: whether the vector is longer than the limit.
      factor: the factor of the vector, 1 if the vector is short enough.
      square: the squared norm of the result.
    """

    is_long: Array
    factor: Array
    square: Array


def shortening(v: Array, limit: Array) -> Shortening:
    """Compute how `limit_norm` shortens a vector; callers define the derivatives themselves."""
    square = dot(v, v)
    is_long = ~(square <= limit * limit)  # True for NaN
    return jax.lax.cond(
        is_any(is_long),
        _shorten,
        lambda _v, _limit, square: Shortening(
            jnp.zeros_like(square, bool), jnp.ones_like(square), square
        ),
        *(v, limit, square),
    )


def _shorten(v: Array, limit: Array, square: Array) -> Shortening:
    """Compute `shortening` where a vector may be long, or its square may have overflowed."""
    # Two sums over the coordinates cost less than a clip, which XLA for CPUs stores as an array.
    huge = square > float(jnp.finfo(v.dtype).max) / 4
    prescale = jnp.where(huge, 2.0 ** (-530 if v.dtype == jnp.float64 else -70), 1)
    prescale = prescale.astype(v.dtype)
    scaled = v * prescale[..., None]
    square, bound = dot(scaled, scaled), limit * prescale
    is_long = huge | (square > bound * bound) | jnp.isnan(bound)
    factor = jnp.where(is_long, limit / jnp.sqrt(jnp.where(is_long, square, 1)) * prescale, 1)
    return Shortening(is_long, factor, jnp.where(is_long, limit * limit, square))


@jax.custom_batching.custom_vmap
def is_any(mask: Bool[Array, "*shape"]) -> Bool[Array, ""]:
    """Return whether any element is true; under `jax.vmap`, any element of the whole batch.

    Under `jax.vmap`, a `jax.lax.cond` usually computes both branches. With this predicate it still
    computes only one, for the whole batch. So the branch for a true mask must also be right for
    elements whose mask is false.
    """
    return jnp.any(mask)


@is_any.def_vmap
def _is_any_of_batch(_size: int, _batched: list, mask: Array) -> tuple[Array, bool]:
    return is_any(mask), False


@jax.custom_jvp
def _limit_norm_and_square(v: Array, limit: Array) -> tuple[Array, Array]:
    short = shortening(v, limit)
    return v * short.factor[..., None], short.square


@_limit_norm_and_square.defjvp
def _limit_norm_and_square_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    (v, limit), (dv, dlimit) = primals, tangents
    short = shortening(v, limit)
    limited = v * short.factor[..., None]
    moved = dv * short.factor[..., None]
    along = dot(limited, moved)
    outward = jnp.where(short.is_long, (dlimit - along / limit) / limit, 0)
    growth = 2 * jnp.where(short.is_long, limit * dlimit, along)
    return (limited, short.square), (moved + outward[..., None] * limited, growth)


def along_and_across(
    x: Float[Array, "*#batch n"], y: Float[Array, "*#batch n"]
) -> tuple[Float[Array, "*#batch"], Float[Array, "*#batch"], Float[Array, "*#batch"]]:
    """Split the vector y − x into a part along x and a part orthogonal to x.

    Returns:
      |x|; the component along x; and the norm of the orthogonal part. Points x nearer to the
      origin than `shortest_direction` count as the origin, where the component along x is 0.
    """
    outward, radius = safe_normalize(x, shortest_direction(x.dtype))
    # y and y − x have the same orthogonal part. If y is much shorter than x, the difference has
    # lost digits of y.
    is_short = 4 * dot(y, y) < radius * radius
    v = jnp.where(is_short[..., None], y, y - x)
    along = dot(outward, v)
    across = safe_norm(v - outward * along[..., None])
    return radius, jnp.where(is_short, along - radius, along), across


def safe_atan2(y: Float[Array, "*#batch"], x: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return the angle of the vector (x, y) in [-π, π]; 0, with gradient 0, if both are 0.

    As in `jnp.arctan2`, for a negative x it is π for y = 0 and -π for y = -0. The gradient is
    correct even if x² + y² would underflow or overflow.
    """
    scale = jnp.squeeze(largest_coordinate(jnp.stack([x, y], axis=-1)), -1)
    nonzero = scale != 0
    scale = jnp.where(nonzero, scale, 1)
    return jnp.arctan2(jnp.where(nonzero, y / scale, 0), jnp.where(nonzero, x / scale, 1))


# Taylor coefficients, lowest order first. There are enough of them that below the thresholds even
# the second derivative of the sum is exact to rounding in float64; float32 uses the first few.
_COSH = tuple(1 / math.factorial(2 * k) for k in range(13))
_SINHC = tuple(1 / math.factorial(2 * k + 1) for k in range(13))
_ASINHC = tuple((-1) ** k * math.comb(2 * k, k) / (4**k * (2 * k + 1)) for k in range(28))
_ARTANHC = tuple(1 / (2 * k + 1) for k in range(20))


def _quotient(dividend: list[Fraction], divisor: list[Fraction]) -> tuple[float, ...]:
    """Return the coefficients of the quotient of two power series; the divisor starts with 1."""
    result: list[Fraction] = []
    for k, coefficient in enumerate(dividend):
        result.append(coefficient - sum(divisor[k - j] * result[j] for j in range(k)))
    return tuple(map(float, result))


_TANHC = _quotient(
    [Fraction(1, math.factorial(2 * k + 1)) for k in range(20)],
    [Fraction(1, math.factorial(2 * k)) for k in range(20)],
)
_FLOAT32_TERMS = 9
# The series are used for z below these thresholds.
_ENTIRE_BELOW = 1.0  # cosh and sinhc, whose series converge for all z
_ASINHC_BELOW = 0.2  # the series converges for z < 1
_ARTANHC_BELOW = 0.125  # the series converges for z < 1
_TANHC_BELOW = 0.25  # the series converges for z < 2.4


def _series(coefficients: tuple[float, ...], z: Float[Array, "*#batch"]) -> Array:
    """Sum a power series by Horner's scheme, with as many terms as the dtype of z needs."""
    if z.dtype != jnp.float64:
        coefficients = coefficients[:_FLOAT32_TERMS]
    result = jnp.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * z + coefficient
    return result


def _derivative(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(k * coefficient for k, coefficient in enumerate(coefficients))[1:]


def _split_at(threshold: float, z: Array) -> tuple[Array, Array, Array]:
    """Return whether z is small; z if it is small, else 0; and √z if it is not small, else 1."""
    small = z < threshold
    return small, jnp.where(small, z, 0), jnp.sqrt(jnp.where(small, 1, z))


# Each function defines its derivative. Differentiating Horner's scheme or the root would store
# every intermediate result and compile to many times the operations.
@jax.custom_jvp
def cosh_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return cosh √z, smooth at 0, for √z up to `max_hyperbolic_norm`."""
    small, z, root = _split_at(_ENTIRE_BELOW, z)
    return jnp.where(small, _series(_COSH, z), jnp.cosh(root))


@jax.custom_jvp
def sinhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return sinh √z / √z, smooth at 0, where it is 1, for √z up to `max_hyperbolic_norm`."""
    small, z, root = _split_at(_ENTIRE_BELOW, z)
    return jnp.where(small, _series(_SINHC, z), jnp.sinh(root) / root)


@jax.custom_jvp
def asinhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return asinh √z / √z, smooth at 0, where it is 1."""
    small, z, root = _split_at(_ASINHC_BELOW, z)
    return jnp.where(small, _series(_ASINHC, z), jnp.arcsinh(root) / root)


@jax.custom_jvp
def tanhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return tanh √z / √z, smooth at 0, where it is 1."""
    small, z, root = _split_at(_TANHC_BELOW, z)
    return jnp.where(small, _series(_TANHC, z), jnp.tanh(root) / root)


@jax.custom_jvp
def artanhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Return artanh √z / √z for z < 1, smooth at 0, where it is 1."""
    small, small_z, root = _split_at(_ARTANHC_BELOW, z)
    logarithm = jnp.log1p(root) - jnp.log1p(-z) / 2  # the logarithm of (1 + √z) / √(1 − z)
    return jnp.where(small, _series(_ARTANHC, small_z), logarithm / root)


def _slope(
    coefficients: tuple[float, ...], threshold: float, z: Array, value: Array, rate: Array
) -> Array:
    """Return the derivative of f(√z) / √z in z, from its value and the rate f'(√z)."""
    small, small_z, _ = _split_at(threshold, z)
    quotient = (rate - value) / (2 * jnp.where(small, 1, z))
    return jnp.where(small, _series(_derivative(coefficients), small_z), quotient)


cosh_sqrt.defjvps(lambda tangent, value, z: tangent * (sinhc_sqrt(z) / 2))
sinhc_sqrt.defjvps(
    lambda tangent, value, z: tangent * _slope(_SINHC, _ENTIRE_BELOW, z, value, cosh_sqrt(z))
)


def _asinhc_tangent(tangent: Array, value: Array, z: Array) -> Array:
    """Return the tangent of `asinhc_sqrt`, whose slope underflows in float32 for large z."""
    rate = 1 / jnp.sqrt(1 + z)
    is_large = z > 1e20
    slope = jnp.where(
        is_large, (rate - value) * rate, _slope(_ASINHC, _ASINHC_BELOW, z, value, rate)
    )
    return tangent * slope * jnp.where(is_large, rate / 2, 1)


asinhc_sqrt.defjvps(_asinhc_tangent)
tanhc_sqrt.defjvps(
    lambda tangent, value, z: (
        tangent * _slope(_TANHC, _TANHC_BELOW, z, value, 1 - z * value * value)
    )
)
artanhc_sqrt.defjvps(
    lambda tangent, value, z: tangent * _slope(_ARTANHC, _ARTANHC_BELOW, z, value, 1 / (1 - z))
)


@jax.custom_jvp
def scaled_asinh(rise: Float[Array, "*#batch"], c: Float[Array, "*#batch"]) -> Array:
    """Return arsinh(√c rise) / √c, smooth as c → 0, even if the square of ``rise`` overflows."""
    size = jnp.sqrt(c) * jnp.abs(rise)
    is_small = size * size < _ASINHC_BELOW
    z = jnp.where(is_small, size * size, 0)
    # The series and a logarithm take less time than log1p, whose argument would need a quotient.
    gentle = jnp.minimum(size, _gentle(rise.dtype))
    value = jnp.log(size + jnp.maximum(size, jnp.sqrt(1 + gentle * gentle)))
    by_logarithm = jnp.sign(rise) * value * (1 / jnp.sqrt(c))
    return jnp.where(is_small, rise * _series(_ASINHC, z), by_logarithm)


def _gentle(dtype: DTypeLike) -> float:
    """Return a size above which 1 + s² is s² to rounding, and whose square does not overflow."""
    return 16 / float(jnp.finfo(dtype).eps)


@scaled_asinh.defjvp
def _scaled_asinh_jvp(primals: tuple[Array, Array], tangents: tuple) -> tuple[Array, Array]:
    (rise, c), (drise, dc) = primals, tangents
    value = scaled_asinh(rise, c)
    size = jnp.sqrt(c) * jnp.abs(rise)
    gentle = jnp.minimum(size, _gentle(rise.dtype))
    rate = 1 / jnp.maximum(size, jnp.sqrt(1 + gentle * gentle))
    # The slope in c is rise³ times the slope of asinh √z / √z at z = c rise².
    small = size * size < _ASINHC_BELOW
    small_rise = jnp.where(small, rise, 0)
    # `dc` comes first, because the product of the other factors might overflow, and 0 · inf is NaN.
    by_series = dc * small_rise * small_rise * small_rise
    by_series = by_series * _series(_derivative(_ASINHC), c * small_rise * small_rise)
    by_quotient = dc * (rate * rise - value) / (2 * jnp.where(small, 1, c))
    return value, rate * drise + jnp.where(small, by_series, by_quotient)


@jax.custom_jvp
def scaled_sinh(v: Float[Array, "*#batch"], c: Float[Array, "*#batch"]) -> Array:
    """Return sinh(√c v) / √c, for √c |v| up to `max_hyperbolic_norm`; v for c = 0."""
    root = jnp.sqrt(c)
    x = root * v
    # XLA computes sinh by three exponential functions, with a larger error.
    is_small = jnp.abs(x) < _ENTIRE_BELOW
    small_x, growth = jnp.where(is_small, x, 0), jnp.exp(jnp.abs(x))
    by_series = v * _series(_SINHC, small_x * small_x)
    dividend = jnp.where(is_small, by_series, jnp.sign(x) * (growth * growth - 1))
    # It ends with a quotient, because XLA for CPUs computes cheaper numbers again for each element
    # of an array to which they are broadcast, as in `logits`.
    return dividend / jnp.where(is_small, 1, 2 * growth * root)


@scaled_sinh.defjvp
def _scaled_sinh_jvp(primals: tuple[Array, Array], tangents: tuple) -> tuple[Array, Array]:
    (v, c), (dv, dc) = primals, tangents
    z = c * v * v
    by_c = dc * v * v * v * _slope(_SINHC, _ENTIRE_BELOW, z, sinhc_sqrt(z), cosh_sqrt(z))
    value = scaled_sinh(v, c)
    sinh = jnp.sqrt(c) * value
    return value, jnp.sqrt(1 + sinh * sinh) * dv + by_c


def logits(
    space: Array, tau: Array, normals: Array, offsets: Array, c: Array, scale: Array | None = None
) -> Array:
    """Return the logits of `lorentz.mlr`; also used for the Poincaré ball.

    Args:
      space: space components of points, divided by ``scale``.
      tau: √c x_time of the points.
      normals: normals of the hyperplanes, prepared by `as_matrix`.
      offsets: signed distances of the hyperplanes from the origin.
      c: curvature.
      scale: a number for each point; None for 1.
    """
    offsets = jnp.asarray(as_float(offsets), space.dtype)
    if offsets.ndim:  # a number is the offset of all hyperplanes
        check_shape("offsets", offsets, normals.shape[:1])
    offsets = jnp.broadcast_to(offsets, normals.shape[:1])
    directions, length = safe_normalize(normals)
    c = c[..., None]
    offsets = offsets.reshape((1,) * (space.ndim - 1) + offsets.shape)
    limit = max_hyperbolic_norm(space.dtype)
    is_far = jnp.sqrt(c) * jnp.abs(offsets) > limit
    # At c = 0 the quotient by √c is infinite, and so is its derivative.
    farthest = jnp.sign(offsets) * limit / jnp.sqrt(jnp.where(is_far, c, 1))
    offsets = jnp.where(is_far, farthest, offsets)
    z = c * offsets * offsets
    stretch = cosh_sqrt(z)
    is_shared = stretch.size == len(normals)  # by all points: then fewer large arrays are needed
    if is_shared:
        directions = directions * stretch.reshape(-1, 1)
    along = precise_matmul(space, directions.T)
    if scale is not None:
        along = along * scale[..., None]
    if not is_shared:
        along = along * stretch
    rise = along - scaled_sinh(offsets, c) * tau[..., None]
    return length.reshape((1,) * (space.ndim - 1) + length.shape) * scaled_asinh(rise, c)


def is_short(rise: Array) -> Array:
    """Return whether sinh²(L / 2) = rise for a length L below 0.96."""
    return rise < 0.25


def is_between(t: Array, rise: Array) -> Array:
    """Return whether `weights_between` are exact: in [0, 1], and in [-1, 2] for short geodesics.

    Beyond the ends of a long geodesic, the weighted sum of the ends would cancel.
    """
    return jnp.abs(t - 0.5) <= jnp.where(is_short(rise), 1.5, 0.5)


def weights_between(t: Array, rise: Array) -> tuple[Array, Array, Array]:
    """Return the weights of both ends in the point at the fraction t of a geodesic.

    For the length L in units of 1/√c and u = 1 − t they are a = sinh(u L) / sinh L of the start and
    b = sinh(t L) / sinh L of the end. The sum of points of the Lorentz model with these weights
    does not cancel, because time components are positive. exp_map(x, t log_map(x, y)) loses digits
    by the factor cosh of the distance of x and y from the origin, because the tangent vector is
    rounded.

    Args:
      t: fractions; those that are not `is_between` are replaced by ½.
      rise: sinh²(L / 2), in which the weights are smooth: c / 4 times the squared Lorentzian
        distance of the ends.

    Returns:
      a, b, and 1 − a − b = 2 sinh(t L / 2) sinh(u L / 2) / cosh(L / 2).
    """
    t = jnp.where(is_between(t, rise), t, 0.5)
    u, uses_rise = 1 - t, is_short(rise)

    short_rise = jnp.where(uses_rise, rise, 0)
    z = 4 * short_rise * jnp.square(asinhc_sqrt(short_rise))  # L²
    per_whole = 1 / sinhc_sqrt(z)
    a = u * sinhc_sqrt(u * u * z) * per_whole
    b = t * sinhc_sqrt(t * t * z) * per_whole
    halves = sinhc_sqrt(t * t * z / 4) * sinhc_sqrt(u * u * z / 4)
    rest = t * u * z / 2 * halves / cosh_sqrt(z / 4)

    length = 2 * jnp.arcsinh(jnp.sqrt(jnp.where(uses_rise, 1, rise)))
    denominator = jnp.expm1(-2 * length)
    long_a = jnp.exp(-t * length) * (jnp.expm1(-2 * u * length) / denominator)
    long_b = jnp.exp(-u * length) * (jnp.expm1(-2 * t * length) / denominator)
    long_rest = jnp.expm1(-t * length) * jnp.expm1(-u * length) / (1 + jnp.exp(-length))
    return (
        jnp.where(uses_rise, a, long_a),
        jnp.where(uses_rise, b, long_b),
        jnp.where(uses_rise, rest, long_rest),
    )


def combine_ends(
    weights: tuple[Array, Array, Array],
    is_valid: Array,
    t: Array,
    x: Array,
    y: Array,
    move: Callable[[Array, Array, Array], Array],
) -> Array:
    """Return points of geodesics as weighted sums of their ends.

    Args:
      weights: weights of x, y and y − x.
      is_valid: whether to use them: `is_between`. If all are used, ``move`` is not called.
      t: fractions.
      x: starts.
      y: ends.
      move: function of one end, the other end and the fraction from the first, that returns the
        point otherwise. The first end is the nearer one.
    """

    def combine(weights: tuple[Array, Array, Array], t: Array, x: Array, y: Array) -> Array:
        by_x, by_y, by_difference = weights
        return by_x * x + by_y * y + by_difference * (y - x)

    def replace(weights: tuple[Array, Array, Array], t: Array, x: Array, y: Array) -> Array:
        is_x_nearer = t <= 0.5
        nearer, farther = jnp.where(is_x_nearer, x, y), jnp.where(is_x_nearer, y, x)
        moved = move(nearer, farther, jnp.where(is_x_nearer, t, 1 - t))
        return jnp.where(is_valid, combine(weights, t, x, y), moved)

    # Gradients compute both again, as in `lorentz.usual`. The sum is inside the condition, because
    # XLA for CPUs would compute the weights again for every coordinate.
    branches = jax.checkpoint(replace), jax.checkpoint(combine)
    return jax.lax.cond(is_any(~is_valid), *branches, weights, t, x, y)


def squares_between(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], sign: int = 1
) -> tuple[Float[Array, "*#batch M N"], Bool[Array, "*#batch M N"]]:
    """Return |x_i − sign y_j|² of all pairs by one matrix product, and where it lost digits."""
    size = dot(x, x)[..., :, None] + dot(y, y)[..., None, :]
    squares = size - 2 * sign * dot_all(x, y)
    # Squares of tiny vectors have lost digits. NaN counts as near.
    tiny = smallest(x.dtype) / float(jnp.finfo(x.dtype).eps)
    return squares, ~((squares > size / 16) & (squares > tiny))


def replace_near(
    by_product: Float[Array, "*#batch M N"],
    is_near: Bool[Array, "*#batch M N"],
    x: Float[Array, "*#batch M n"],
    y: Float[Array, "*#batch N n"],
    c: Float[Array, "*#batch"],
    exact: Callable[[Array, Array, Array], Array],
) -> Float[Array, "*#batch M N"]:
    """Replace the values of near pairs, for which a matrix product is not exact enough.

    If no pair is near, nothing more is computed. If at most 4 max(M, N) pairs per batch element are
    near, on average, ``exact`` computes these pairs, in the time and memory of a few M × N arrays.
    Otherwise it computes all pairs, row by row. `jax.vmap` evaluates all three cases, so add batch
    axes instead of using it.

    Args:
      by_product: values of all pairs, from the matrix product.
      is_near: True for the pairs to replace.
      x: points.
      y: points.
      c: curvature, one per batch element.
      exact: function of points [pairs, n], points [pairs, n] and curvatures [pairs] that returns
        their values [pairs].

    Returns:
      Values of all pairs.
    """
    replace = functools.partial(_replace_near, exact=exact)
    return auto_sharded(replace, by_product)(by_product, is_near, x, y, c)


def _replace_near(
    by_product: Array, is_near: Array, x: Array, y: Array, c: Array, exact: Callable
) -> Array:
    shape, (rows, columns) = by_product.shape, by_product.shape[-2:]
    count = by_product.size
    x, y, c = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), c.reshape(-1)

    @jax.checkpoint
    def pair_values(row: Array, column: Array) -> Array:
        """Return exact values of pairs; rows of all batch elements are numbered consecutively."""
        batch = row // rows
        take = functools.partial(jnp.take, axis=0, mode="fill", fill_value=1)
        return exact(take(x, row), take(y, batch * columns + column), take(c, batch))

    @jax.checkpoint
    def replace_listed(by_product: jax.Array) -> jax.Array:
        (pair,) = jnp.nonzero(is_near.reshape(-1), size=capacity, fill_value=count)
        values = pair_values(pair // columns, pair % columns)
        return by_product.reshape(-1).at[pair].set(values, mode="drop").reshape(shape)

    @jax.checkpoint
    def replace_by_rows(by_product: jax.Array) -> jax.Array:
        def row_values(row: Array) -> Array:
            return pair_values(jnp.full(columns, row), jnp.arange(columns))

        values = jax.lax.map(row_values, jnp.arange(x.shape[0]))
        return jnp.where(is_near, values.reshape(shape), by_product)

    # The number and the indices of near pairs may overflow, also if `jax.export` leaves it open.
    if not isinstance(count, int) or count > jnp.iinfo(jnp.int32).max:
        return jax.lax.cond(jnp.any(is_near), replace_by_rows, lambda values: values, by_product)
    capacity = min(_NEAR_PER_POINT * max(rows, columns) * (count // max(rows * columns, 1)), count)
    if capacity == count:
        pair = jnp.arange(count)
        values = pair_values(pair // columns, pair % columns)
        return jnp.where(is_near, values.reshape(shape), by_product)
    near_count = jnp.sum(is_near, dtype=jnp.int32)
    case = jnp.where(near_count == 0, 0, jnp.where(near_count <= capacity, 1, 2))
    branches = (lambda values: values), replace_listed, replace_by_rows
    # The values stay in rows: XLA's code for a CPU divides to find the row in a flat array.
    return jax.lax.switch(case, branches, by_product)
