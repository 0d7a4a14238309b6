"""Primitives whose values and gradients stay right where the textbook formulas fail.

Functions of a squared norm z that are smooth at 0 (cosh √z, and f(√z) / √z for sinh, asinh, tanh
and artanh) are computed as such: √z and v / |v| are not smooth, and a map written without them has
the right derivatives, of every order, at the origin. Where a norm itself is wanted (a distance, an
angle) its gradient at 0 is defined to be 0. Choices are made by `where` on both sides: the branch
that is not taken is given a harmless argument, for its gradient is multiplied by 0 and 0 · inf is
NaN.
"""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Bool, Float, Int

from hlformer_jax.typing import Array

# As a share of all pairs of two sets: at least each point with itself are near, so a few to
# each point are provided for.
_NEAR_PER_POINT = 4


def as_float(x: ArrayLike) -> Array:
    """Casts to a floating dtype that the package computes in, and leaves those alone.

    float32 of narrower ones (bfloat16, float16, integers of up to 32 bits, booleans), float64 of
    integers of 64 bits. TypeError is raised for lists, as everywhere in JAX, and complex numbers.
    """
    if isinstance(x, (list, tuple)):
        raise TypeError(f"a {type(x).__name__} is no array: give jax.numpy.asarray of it")
    x = jnp.asarray(x)
    if x.dtype in (jnp.float32, jnp.float64):
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{x.dtype} is not real: give its real or its absolute part")
    return x.astype(jnp.float64 if x.dtype in (jnp.int64, jnp.uint64) else jnp.float32)


def check_floating(*arrays: Array) -> None:
    """Raises TypeError for what has no real floating dtype: lists, integers, complex numbers.

    For functions that keep the dtype they are given.
    """
    for x in arrays:
        dtype = getattr(x, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"takes floating arrays, not {dtype or type(x).__name__}")


def wide(dtype: DTypeLike) -> jnp.dtype:
    """The dtype to accumulate, exponentiate and compare in: float32 for narrower ones."""
    return jnp.dtype(dtype) if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)


def exact_precision() -> jax.lax.Precision | None:
    """The precision of products that stay exact where dense layers may be rounded.

    None where a run asks for no precision, as in bfloat16: the hardware then chooses for all.
    """
    # Part of the key of JAX's compiled programs.
    is_set = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  # it has no stub
    return jax.lax.Precision.HIGHEST if is_set else None


def check_positive(name: str, value: ArrayLike, allow_zero: bool = False, hint: str = "") -> None:
    """Refuse numbers that are not positive, where their values are known.

    Traced values (under `jax.jit`, `jax.vmap` or `jax.grad`) and arrays of other processes are not
    known, and pass.

    Args:
      name: name of the argument.
      value: a number or an array.
      allow_zero: whether 0 is taken.
      hint: what to add to the message.

    Raises:
      ValueError: for a number that is not positive, or not a number.
    """
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
        return
    array = np.asarray(value)
    if not np.all(array >= 0 if allow_zero else array > 0):
        least = "0 or more" if allow_zero else "positive"
        raise ValueError(f"{name} {array}: give a number that is {least}{hint}")


_UNBOUNDED = ("t", "r")
"""Numbers for each entry of a batch that may have any sign."""
_CURVATURE_HINT = " (the curvature is -c, so a curvature of -0.5 is c = 0.5)"


def per_batch(
    c: ArrayLike, x: Float[Array, "*#batch n"], name: str = "c"
) -> Float[Array, "*#batch"]:
    """Cast a curvature to the dtype of ``x`` and give it one axis for each batch axis of ``x``.

    Args:
      c: a curvature, or another number for each entry of the batch.
      x: vectors.
      name: name of the argument, in errors.

    Returns:
      The curvature; axes of length 1 are put before its own.

    Raises:
      ValueError: for a curvature with more axes than the batch, or longer ones; for a negative
        curvature and for another number that is not positive, where their values are known.
    """
    argument = c
    c = jnp.asarray(as_float(c), x.dtype)
    batch = x.shape[:-1]
    missing = len(batch) - c.ndim
    if missing < 0 or any(
        size not in (1, full_size) for size, full_size in zip(c.shape, batch[missing:], strict=True)
    ):
        raise ValueError(f"{name} {c.shape} does not broadcast to the batch {batch} of {x.shape}")
    if name == "c":
        check_positive(name, argument, allow_zero=True, hint=_CURVATURE_HINT)
    elif name not in _UNBOUNDED:
        check_positive(name, argument)
    return c.reshape((1,) * missing + c.shape)


def broadcast_number(
    t: ArrayLike, v: Float[Array, "*batch n"], *vectors: Float[Array, "..."], name: str = "t"
) -> Sequence[Array]:
    """Give a number and vectors the same number of axes; the number may have more than the batch.

    Args:
      t: a number for each entry of the batch, or an array that broadcasts with ``*batch``; axes
        before the batch axes are new axes of the result.
      v: vectors.
      vectors: further vectors with as many axes.
      name: name of the number, in errors.

    Returns:
      The number with one more axis, of coordinates, and the vectors, with axes of length 1 in
      front where they had fewer.

    Raises:
      ValueError: for shapes that do not broadcast.
    """
    t, batch = jnp.asarray(as_float(t), v.dtype), v.shape[:-1]
    try:
        rank = len(np.broadcast_shapes(t.shape, batch))
    except ValueError as error:
        raise ValueError(
            f"{name} {t.shape} does not broadcast with the batch {batch} of {v.shape}: for each"
            f" entry of the batch at each {name} give {name} as [..., 1]"
        ) from error
    t = t.reshape((1,) * (rank - t.ndim) + t.shape)
    return t[..., None], *(x.reshape((1,) * (rank + 1 - x.ndim) + x.shape) for x in (v, *vectors))


def check_shape(name: str, x: Array, shape: tuple[int, ...]) -> None:
    """Raises ValueError for an array of another shape."""
    if x.shape != shape:
        raise ValueError(f"{name} {x.shape}: the other arguments ask for {shape}")


def as_indices(name: str, indices: Any, count: int, where: Any = None) -> Int[Array, "*shape"]:
    """Cast indices to int32 and refuse those that do not exist, where values are known.

    Args:
      name: argument that the error names.
      indices: indices of any integer dtype: a list, or an array of NumPy or JAX.
      count: number of elements that are indexed; indices from 0 to count - 1 exist.
      where: True for the indices that matter; None for all.

    Returns:
      The indices. Inside `jax.jit`, where values are not known, those that do not exist may be
      among them, and the caller decides what they mean.

    Raises:
      ValueError: for another dtype, and for an index that does not exist.
    """
    if not isinstance(indices, jax.Array):
        indices = np.asarray(indices)
        indices = indices if indices.size else indices.astype(np.int32)
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise ValueError(f"{name} has dtype {indices.dtype}: give integers")
    if not isinstance(indices, jax.core.Tracer) and not isinstance(where, jax.core.Tracer):
        missing = (indices < 0) | (indices >= count)
        missing = np.asarray(missing if where is None else missing & np.asarray(where))
        if missing.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(missing))
            raise ValueError(
                f"{name}[{', '.join(map(str, place))}] is {int(indices[place])}: it must be from 0"
                f" to {count - 1}"
            )
    if isinstance(indices, np.ndarray):
        # JAX would warn of int64 and wrap what int32 does not hold; clipped, it stays out of range.
        indices = np.clip(indices, -(2**31), 2**31 - 1).astype(np.int32)
    return jnp.asarray(indices, jnp.int32)


def same_length(x: Array, y: Array) -> None:
    """Raises ValueError for vectors of different lengths, which arithmetic would broadcast."""
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"vectors of {x.shape[-1]} and of {y.shape[-1]} coordinates")


def common_batch(*vectors: ArrayLike) -> Sequence[Array]:
    """Vectors of the same length with the same batch axes, in the dtype to compute in."""
    floats = [as_float(v) for v in vectors]
    for vector in floats[1:]:
        same_length(floats[0], vector)
    return jnp.broadcast_arrays(*floats)


def align(c: ArrayLike, *vectors: ArrayLike) -> tuple[Array, Sequence[Array]]:
    """The curvature by `per_batch`, and vectors by `common_batch`."""
    floats = common_batch(*vectors)
    return per_batch(c, floats[0]), floats


def align_sets(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: ArrayLike
) -> tuple[Float[Array, "*batch M n"], Float[Array, "*batch N n"], Float[Array, "*batch"]]:
    """Two sets of vectors of the same length, and curvatures, with the same batch axes."""
    same_length(x, y)
    lead = jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (jnp.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (x, y))
    return x, y, jnp.broadcast_to(per_batch(c, x[..., 0]), lead)


def split_coordinates(v: Float[Array, "*batch n"], dims: Sequence[int]) -> list[jax.Array]:
    """Parts of consecutive coordinates; ValueError where these dimensions do not sum up to n."""
    if sum(dims) != v.shape[-1]:
        raise ValueError(f"dimensions {tuple(dims)} of a point of dimension {v.shape[-1]}")
    return jnp.split(v, [sum(dims[: k + 1]) for k in range(len(dims) - 1)], axis=-1)


@jax.custom_jvp
def inverse(c: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """1 / c of a positive c; its derivative is applied in two factors where 1 / c² would overflow.

    Times a small number it may be an ordinary one, and times 0 it is 0.
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
    """Euclidean inner product over the last axis; raises ValueError where that differs."""
    same_length(x, y)
    return jnp.sum(x * y, axis=-1)


def sum_products(
    weights: Float[Array, "*#batch M L"], values: Float[Array, "*#batch L n"]
) -> Float[Array, "*#batch M n"]:
    """Matrix product whose rounding grows with log L, not with L: in blocks of 8, then in pairs.

    A sum of L positive terms is exact to (8 + log2(L / 8)) / 2 eps.
    """
    length = weights.shape[-1]
    blocks = 1 << max(0, -(-length // 8) - 1).bit_length()
    extra = (0, 8 * blocks - length)
    weights = jnp.pad(weights, [(0, 0)] * (weights.ndim - 1) + [extra])
    values = jnp.pad(values, [(0, 0)] * (values.ndim - 2) + [extra, (0, 0)])
    weights = jnp.moveaxis(weights.reshape(*weights.shape[:-1], blocks, 8), -2, -3)
    values = values.reshape(*values.shape[:-2], blocks, 8, values.shape[-1])
    sums = jnp.matmul(weights, values, precision=jax.lax.Precision.HIGHEST)
    while blocks > 1:
        blocks //= 2
        sums = sums[..., :blocks, :, :] + sums[..., blocks:, :, :]
    return sums[..., 0, :, :]


def weigh_each(
    weights: Float[Array, "*#batch M L"], values: Float[Array, "*#batch M L n"]
) -> Float[Array, "*#batch M n"]:
    """Sum M sets of L vectors, each by its own weights; XLA for CPUs adds rows up slowly."""
    sums = jnp.matmul(weights[..., None, :], values, precision=jax.lax.Precision.HIGHEST)
    return sums[..., 0, :]


def safe_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Square root, 0 with gradient 0 for every z below the smallest normal number."""
    zero = z < jnp.finfo(z.dtype).tiny
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, z)))


def smallest(dtype: jnp.dtype) -> float:
    """The smallest normal number, 1.2e-38 in float32."""
    return float(jnp.finfo(dtype).tiny)


def shortest_direction(dtype: jnp.dtype) -> float:
    """The length below which a vector counts as zero where its direction is derived twice.

    It is 16 / √(largest number), 8.7e-19 in float32: second derivatives of the direction grow with
    1 / length², and for shorter vectors they are beyond the numbers.
    """
    return 16 / math.sqrt(float(jnp.finfo(dtype).max))


def max_hyperbolic_norm(dtype: DTypeLike) -> float:
    """Largest √c · distance from the origin of the points that the exponential maps return.

    It is −2 log eps, 31.9 in float32 and 72.1 in float64. There √c x_time is 1 / (2 eps²), and
    inner products of two points, with their derivatives, are still far from overflow.
    """
    return -2 * math.log(float(jnp.finfo(dtype).eps))


def largest_coordinate(
    v: Float[Array, "*#batch n"], negligible: float | Float[Array, "*#batch 1"] | None = None
) -> Float[Array, "*#batch 1"]:
    """Largest absolute coordinate, a constant to differentiation; 0 where that is negligible.

    Dividing by it keeps squares from under- and overflowing. A function that is homogeneous in v
    may treat it as a constant: its own derivative cancels. Negligible is by default a number below
    the 5/8-th power of the smallest normal number, 2e-24 in float32, so that 1 / |v|, the size of
    the derivative of v / |v|, has room for factors as large as points may be
    (`max_hyperbolic_norm`); another bound is `smallest` at least, and a constant to
    differentiation.
    """
    if negligible is None:
        negligible = smallest(v.dtype) ** 0.625
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(v)), axis=-1, keepdims=True)
    # XLA may multiply by the reciprocal, which of the largest numbers is 0.
    largest = jnp.minimum(largest, float(jnp.finfo(v.dtype).max) / 8)
    return jnp.where(largest < negligible, 0, largest)


def mean_weights(
    weights: Float[Array, "*#batch M L"] | None,
    points: Float[Array, "*#batch L n"],
    relative: bool = True,
) -> Float[Array, "*#batch M L"]:
    """Weights of means of points, checked; None is one mean of equal weights.

    With ``relative`` they are those beside the largest of each mean, so that squares of their sums
    neither over- nor underflow.

    Raises:
      ValueError: for weights that do not have the axes [*batch, M, L] for points [*batch, L, n].
    """
    if weights is None:
        return jnp.ones((*points.shape[:-2], 1, points.shape[-2]), points.dtype)
    weights = as_float(weights)
    if weights.ndim != points.ndim or weights.shape[-1] != points.shape[-2]:
        raise ValueError(
            f"weights {weights.shape} of points {points.shape}: give [*batch, M, L] for"
            " [*batch, L, n], with M = 1 for one mean"
        )
    if not relative:
        return weights
    largest = largest_coordinate(weights, smallest(weights.dtype))
    return weights / jnp.where(largest == 0, 1, largest)


def safe_normalize(
    v: Float[Array, "*#batch n"], negligible: float | Float[Array, "*#batch 1"] | None = None
) -> tuple[Float[Array, "*#batch n"], Float[Array, "*#batch"]]:
    """Direction and length of a vector, without under- or overflow of the square.

    Both are 0, with gradient 0, for vectors without a coordinate above ``negligible``, by default
    as in `largest_coordinate`: 2e-24 in float32.
    """
    v = as_float(v)
    return _safe_normalize(v, largest_coordinate(v, negligible))


@jax.custom_jvp
def _safe_normalize(v: Array, scale: Array) -> tuple[Array, Array]:
    nonzero = scale != 0  # true of NaN, which must not pass for a zero
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
    """`safe_norm` of vectors of at most a length ``longest``, by one pass over the coordinates.

    A norm below 2e-34 times that, or 1e-35 (float32), counts as zero.
    """
    scale = bounded_scale(longest, v.dtype)
    scaled = jax.lax.stop_gradient(v) / scale[..., None]
    return with_norm(v, jnp.sqrt(dot(scaled, scaled)) * scale)


def bounded_scale(longest: Array, dtype: DTypeLike) -> Array:
    """Return the unit in which no square of a coordinate of `bounded_norm` under- or overflows."""
    return power_of_two(longest, -510 if dtype == jnp.float64 else -62)


def with_norm(v: Array, norm: Array) -> Array:
    """Give a norm that is known the derivative of |v|, 0 where it is 0 or below 1e-35 (float32)."""
    return _with_norm(v, jnp.where(norm < 1024 * smallest(v.dtype), 0, norm))


@jax.custom_jvp
def _with_norm(v: Array, norm: Array) -> Array:
    """`with_norm` of a norm that is 0 or large enough."""
    return norm


@_with_norm.defjvp
def _with_norm_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
    return _with_norm(*primals), dot(over_norm(*primals), tangents[0])


@jax.custom_jvp
def over_norm(v: Array, norm: Array) -> Array:
    """Return v / |v| for a norm that is known; 0 where it is 0."""
    return v * jnp.where(norm == 0, 0, 1 / jnp.where(norm == 0, 1, norm))[..., None]


@over_norm.defjvp
def _over_norm_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
    # Of v / norm the derivative would have the square of a tiny norm.
    unit, dv = over_norm(*primals), tangents[0]
    norm = primals[1]
    inverse_of_norm = jnp.where(norm == 0, 0, 1 / jnp.where(norm == 0, 1, norm))
    return unit, (dv - dot(unit, dv)[..., None] * unit) * inverse_of_norm[..., None]


def safe_norm(v: Float[Array, "*#batch n"]) -> Float[Array, "*#batch"]:
    """Euclidean norm over the last axis; gradient 0 at 0. See `safe_normalize`."""
    return safe_normalize(v)[1]


def unit(v: Float[Array, "*#batch n"]) -> Float[Array, "*#batch n"]:
    """Direction of a vector; zero stays zero, with gradient 0. See `safe_normalize`."""
    return safe_normalize(v)[0]


def inverse_norm(v: Float[Array, "*#batch n"]) -> Float[Array, "*#batch"]:
    """1 / |v|; 0 for zero vectors, with gradient 0, so that their cosine with everything is 0.

    Zero is a norm below 1.1e-19 in float32, 1.5e-154 in float64: its derivative would overflow.
    """
    norm = safe_norm(v)
    nonzero = norm > 2 / math.sqrt(float(jnp.finfo(norm.dtype).max))
    return jnp.where(nonzero, 1 / jnp.where(nonzero, norm, 1), 0)


def power_of_two(x: Array, shift: int = 0) -> Array:
    """A power of two near x · 2^shift, by which products are exact; a constant to derivatives."""
    x = jax.lax.stop_gradient(x) * 2.0**shift
    return jax.lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, mantissa_bits=0)


def limit_norm(v: Float[Array, "*#batch n"], limit: ArrayLike) -> Float[Array, "*#batch n"]:
    """Shortens vectors longer than ``limit`` to that length, keeping their direction.

    The limit is positive and broadcasts to ``*batch``. A vector short enough stays bit for bit;
    beyond the limit the gradient is tangential. Vectors longer than 8e37 limits (float32; 4e307 in
    float64) become 0, and infinite coordinates NaN.
    """
    return limit_norm_and_square(v, limit)[0]


def limit_norm_and_square(
    v: Float[Array, "*#batch n"], limit: ArrayLike
) -> tuple[Float[Array, "*#batch n"], Float[Array, "*#batch"]]:
    """`limit_norm`, and the squared norm of its result, by two sums over the coordinates.

    Squares below the smallest normal number are lost: this is for functions that are smooth in
    the square, as `cosh_sqrt` and 1 − c |p|² are.
    """
    v = as_float(v)
    return _limit_norm_and_square(v, per_batch(limit, v, "limit"))


class Shortening(NamedTuple):
    """Shortening of a vector by `limit_norm`.

    Attributes:
      is_long: whether the vector is longer than the limit.
      factor: the factor, 1 where the vector is short enough.
      square: the squared norm of the result.
    """

    is_long: Array
    factor: Array
    square: Array


def shortening(v: Array, limit: Array) -> Shortening:
    """Compute how `limit_norm` shortens a vector; its rules take derivatives of none of it."""
    # Two sums of the coordinates as they are cost less than a clip: XLA for CPUs writes that out.
    huge = dot(v, v) > float(jnp.finfo(v.dtype).max) / 4
    prescale = jnp.where(huge, 2.0 ** (-530 if v.dtype == jnp.float64 else -70), 1)
    prescale = prescale.astype(v.dtype)
    scaled = v * prescale[..., None]
    square, bound = dot(scaled, scaled), limit * prescale
    is_long = huge | (square > bound * bound)
    factor = jnp.where(is_long, limit / jnp.sqrt(jnp.where(is_long, square, 1)) * prescale, 1)
    return Shortening(is_long, factor, jnp.where(is_long, limit * limit, square))


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
    x: Float[Array, "*#batch n"], v: Float[Array, "*#batch n"]
) -> tuple[Float[Array, "*#batch"], Float[Array, "*#batch"], Float[Array, "*#batch"]]:
    """A vector v at x in two parts, away from the origin and across that, and the norm of x.

    Returns |x|; the component of v along x, 0 at the origin, for which points nearer than
    `shortest_direction` count; and the norm of the rest.
    """
    outward, radius = safe_normalize(x, shortest_direction(x.dtype))
    along = dot(outward, v)
    return radius, along, safe_norm(v - outward * along[..., None])


def safe_atan2(y: Float[Array, "*#batch"], x: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """Angle of the vector (x, y) in [-π, π]; 0 with gradient 0 where both are 0.

    As in `jnp.arctan2`, for a negative x it is π for y = 0 and -π for y = -0. It keeps its
    gradient where x² + y² would under- or overflow.
    """
    scale = jnp.squeeze(largest_coordinate(jnp.stack([x, y], axis=-1)), -1)
    nonzero = scale != 0
    scale = jnp.where(nonzero, scale, 1)
    return jnp.arctan2(jnp.where(nonzero, y / scale, 0), jnp.where(nonzero, x / scale, 1))


# Taylor coefficients, lowest order first. Enough of them for the second derivative of the sum to
# be exact to rounding below the thresholds at which they are used; float32 needs the first few.
_COSH = tuple(1 / math.factorial(2 * k) for k in range(13))
_SINHC = tuple(1 / math.factorial(2 * k + 1) for k in range(13))
_ASINHC = tuple((-1) ** k * math.comb(2 * k, k) / (4**k * (2 * k + 1)) for k in range(16))
_ARTANHC = tuple(1 / (2 * k + 1) for k in range(20))


def _quotient(dividend: list[Fraction], divisor: list[Fraction]) -> tuple[float, ...]:
    """Coefficients of the quotient of two power series; the second starts with 1."""
    result: list[Fraction] = []
    for k, coefficient in enumerate(dividend):
        result.append(coefficient - sum(divisor[k - j] * result[j] for j in range(k)))
    return tuple(map(float, result))


_TANHC = _quotient(
    [Fraction(1, math.factorial(2 * k + 1)) for k in range(20)],
    [Fraction(1, math.factorial(2 * k)) for k in range(20)],
)
_FLOAT32_TERMS = 9
_ENTIRE_BELOW = 1.0  # the series of cosh and sinhc converge everywhere
_ASINHC_BELOW = 0.0625  # for asinhc and artanhc only for z < 1
_ARTANHC_BELOW = 0.125
_TANHC_BELOW = 0.25  # for tanhc with z < 2.4


def _series(coefficients: tuple[float, ...], z: Float[Array, "*#batch"]) -> Array:
    """A power series by Horner's scheme, as far as the dtype of z can tell."""
    if z.dtype != jnp.float64:
        coefficients = coefficients[:_FLOAT32_TERMS]
    result = jnp.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * z + coefficient
    return result


def _derivative(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(k * coefficient for k, coefficient in enumerate(coefficients))[1:]


def _split_at(threshold: float, z: Array) -> tuple[Array, Array, Array]:
    """Return whether z is small; z where it is, else 0; √z where it is not, else 1."""
    small = z < threshold
    return small, jnp.where(small, z, 0), jnp.sqrt(jnp.where(small, 1, z))


# Each function brings its derivative along: through Horner's scheme or through the root, a gradient
# would keep every intermediate result, and compile to many times the operations.
@jax.custom_jvp
def cosh_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of cosh √z, smooth at 0; √z at most `max_hyperbolic_norm`."""
    small, z, root = _split_at(_ENTIRE_BELOW, z)
    return jnp.where(small, _series(_COSH, z), jnp.cosh(root))


@jax.custom_jvp
def sinhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of sinh √z / √z, smooth at 0, where it is 1; √z at most `max_hyperbolic_norm`."""
    small, z, root = _split_at(_ENTIRE_BELOW, z)
    return jnp.where(small, _series(_SINHC, z), jnp.sinh(root) / root)


@jax.custom_jvp
def asinhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of asinh √z / √z, smooth at 0, where it is 1."""
    small, z, root = _split_at(_ASINHC_BELOW, z)
    return jnp.where(small, _series(_ASINHC, z), jnp.arcsinh(root) / root)


@jax.custom_jvp
def tanhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of tanh √z / √z, smooth at 0, where it is 1."""
    small, z, root = _split_at(_TANHC_BELOW, z)
    return jnp.where(small, _series(_TANHC, z), jnp.tanh(root) / root)


@jax.custom_jvp
def artanhc_sqrt(z: Float[Array, "*#batch"]) -> Float[Array, "*#batch"]:
    """The value of artanh √z / √z for z < 1, smooth at 0, where it is 1."""
    small, small_z, root = _split_at(_ARTANHC_BELOW, z)
    logarithm = jnp.log1p(root) - jnp.log1p(-z) / 2  # the logarithm of (1 + √z) / √(1 − z)
    return jnp.where(small, _series(_ARTANHC, small_z), logarithm / root)


def _slope(
    coefficients: tuple[float, ...], threshold: float, z: Array, value: Array, rate: Array
) -> Array:
    """The derivative of f(√z) / √z from its value and the rate f'(√z)."""
    small, small_z, _ = _split_at(threshold, z)
    quotient = (rate - value) / (2 * jnp.where(small, 1, z))
    return jnp.where(small, _series(_derivative(coefficients), small_z), quotient)


cosh_sqrt.defjvps(lambda tangent, value, z: tangent * (sinhc_sqrt(z) / 2))
sinhc_sqrt.defjvps(
    lambda tangent, value, z: tangent * _slope(_SINHC, _ENTIRE_BELOW, z, value, cosh_sqrt(z))
)


def _asinhc_tangent(tangent: Array, value: Array, z: Array) -> Array:
    """The tangent of `asinhc_sqrt`, whose slope is below float32's numbers where √z > sinh 30.6."""
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
    """The value of arsinh(√c rise) / √c, smooth as c → 0, where the square may overflow."""
    return rise * _asinh_ratio(_bounded_size(rise, c))


def _bounded_size(rise: Array, c: Array) -> Array:
    """Return √c |rise|, but at least so much that arsinh of it is itself to rounding."""
    return jnp.maximum(jnp.sqrt(c) * jnp.abs(rise), math.sqrt(float(jnp.finfo(rise.dtype).eps)))


def _asinh_ratio(size: Array) -> Array:
    """Return arsinh(s) / s of positive sizes s, by one logarithm and without cancelling."""
    gentle = jnp.minimum(size, 16 / float(jnp.finfo(size.dtype).eps))
    return jnp.log1p(size * (1 + gentle / (1 + jnp.sqrt(1 + gentle * gentle)))) / size


@scaled_asinh.defjvp
def _scaled_asinh_jvp(primals: tuple[Array, Array], tangents: tuple) -> tuple[Array, Array]:
    (rise, c), (drise, dc) = primals, tangents
    size = _bounded_size(rise, c)
    gentle = jnp.minimum(size, 16 / float(jnp.finfo(rise.dtype).eps))
    rate, ratio = gentle / size / jnp.sqrt(1 + gentle * gentle), _asinh_ratio(size)
    # rise³ times the slope of asinh √z / √z, for c times the slope in c.
    small = size * size < _ASINHC_BELOW
    small_rise = jnp.where(small, rise, 0)
    near = small_rise**3 * _series(_derivative(_ASINHC), c * small_rise * small_rise)
    far = rise * (rate - ratio) / (2 * jnp.where(small, 1, c))
    return rise * ratio, rate * drise + jnp.where(small, near, far) * dc


@jax.custom_jvp
def scaled_sinh(v: Float[Array, "*#batch"], c: Float[Array, "*#batch"]) -> Array:
    """The value of sinh(√c v) / √c for a positive c; √c |v| at most `max_hyperbolic_norm`."""
    root = jnp.sqrt(c)
    return jnp.sinh(root * v) / root


@scaled_sinh.defjvp
def _scaled_sinh_jvp(primals: tuple[Array, Array], tangents: tuple) -> tuple[Array, Array]:
    (v, c), (dv, dc) = primals, tangents
    z = c * v * v
    by_c = v**3 * _slope(_SINHC, _ENTIRE_BELOW, z, sinhc_sqrt(z), cosh_sqrt(z))
    return scaled_sinh(v, c), jnp.cosh(jnp.sqrt(c) * v) * dv + by_c * dc


def logits(
    space: Array, tau: Array, normals: Array, offsets: Array, c: Array, scale: Array | None = None
) -> Array:
    """Compute `lorentz.mlr` for both models.

    Args:
      space: space components of points, over ``scale``.
      tau: √c x_time of the points.
      normals: normals of the hyperplanes.
      offsets: their signed distances from the origin.
      c: curvature.
      scale: a number for each point; None for 1.
    """
    normals, offsets = as_float(normals), as_float(offsets)
    same_length(space, normals)
    directions, length = safe_normalize(normals)
    along = jnp.matmul(space, directions.T, precision=jax.lax.Precision.HIGHEST)
    if scale is not None:
        along = along * scale[..., None]
    c = c[..., None]
    limit = max_hyperbolic_norm(space.dtype) / jnp.sqrt(c)
    offsets = jnp.clip(offsets.reshape((1,) * (space.ndim - 1) + offsets.shape), -limit, limit)
    z = c * offsets * offsets
    rise = cosh_sqrt(z) * along - sinhc_sqrt(z) * offsets * tau[..., None]
    return length.reshape((1,) * (space.ndim - 1) + length.shape) * scaled_asinh(rise, c)


def replace_near(
    by_product: Float[Array, "*#batch M N"],
    is_near: Bool[Array, "*#batch M N"],
    x: Float[Array, "*#batch M n"],
    y: Float[Array, "*#batch N n"],
    c: Float[Array, "*#batch"],
    exact: Callable[[Array, Array, Array], Array],
) -> Float[Array, "*#batch M N"]:
    """Puts exact values where a matrix product would not be exact enough.

    Where no pair is near nothing more is computed. Else time and memory are some M × N arrays,
    unless more than 4 max(M, N) pairs a batch element are near: then all are computed by ``exact``,
    row by row, in the time of that. Under `jax.vmap` all of it is: add batch axes instead.

    Args:
      by_product: values of all pairs.
      is_near: the pairs to replace.
      x: points.
      y: points.
      c: curvature.
      exact: the value of points [pairs, n], points [pairs, n] and curvatures [pairs].
    """
    shape, (rows, columns) = by_product.shape, by_product.shape[-2:]
    count = by_product.size
    capacity = min(_NEAR_PER_POINT * max(rows, columns) * (count // max(rows * columns, 1)), count)
    x, y, c = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), c.reshape(-1)
    flat_near = is_near.reshape(-1)

    @jax.checkpoint
    def pair_values(pair: Array) -> Array:
        """Exact values of the pairs at these indices of the flattened result."""
        batch = pair // (rows * columns)
        first, second = pair // columns, batch * columns + pair % columns
        take = functools.partial(jnp.take, axis=0, mode="fill", fill_value=1)
        return exact(take(x, first), take(y, second), take(c, batch))

    @jax.checkpoint
    def of_few(by_product: jax.Array) -> jax.Array:
        (pair,) = jnp.nonzero(flat_near, size=capacity, fill_value=count)
        return by_product.at[pair].set(pair_values(pair), mode="drop")

    @jax.checkpoint
    def of_many(by_product: jax.Array) -> jax.Array:
        indices = jnp.arange(count).reshape(-1, columns)
        return jnp.where(flat_near, jax.lax.map(pair_values, indices).reshape(-1), by_product)

    by_product = by_product.reshape(-1)
    if capacity == count:
        return jnp.where(flat_near, pair_values(jnp.arange(count)), by_product).reshape(shape)
    near = jnp.sum(flat_near, dtype=jnp.int32)
    case = jnp.where(near == 0, 0, jnp.where(near <= capacity, 1, 2))
    return jax.lax.switch(case, (lambda values: values, of_few, of_many), by_product).reshape(shape)
