"""Checks and casts of the arguments of operations: dtypes, shapes, batch axes, curvatures."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import ArrayLike, Float, Int

from hlformer_jax.typing import Array


def as_float(x: ArrayLike) -> Array:
    """Cast to float32 or float64, the dtypes in which the package computes.

    float32 and float64 stay unchanged. Narrower dtypes (bfloat16, float16, integers of up to 32
    bits, booleans) become float32, and integers of 64 bits become float64.

    Raises:
      TypeError: for lists and tuples, as elsewhere in JAX, and for complex numbers.
    """
    if isinstance(x, (list, tuple)):
        raise TypeError(f"expected an array, got a {type(x).__name__}: pass jax.numpy.asarray(x)")
    if isinstance(x, np.ndarray | np.generic) and x.dtype in (np.int64, np.uint64):
        x = x.astype(np.float64)  # JAX would wrap large numbers to 32 bits
    x = jnp.asarray(x)
    if x.dtype in (jnp.float32, jnp.float64):
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(
            f"expected real numbers, got {x.dtype}: pass the real part or the absolute value"
        )
    return x.astype(jnp.float64 if x.dtype in (jnp.int64, jnp.uint64) else jnp.float32)


def as_floats(*arrays: ArrayLike) -> Sequence[Array]:
    """Cast arrays by `as_float`, all of them to float64 if one of them has that dtype."""
    floats = [as_float(x) for x in arrays]
    is_double = any(x.dtype == jnp.float64 for x in floats)
    return vary_together(*(x.astype(jnp.float64 if is_double else jnp.float32) for x in floats))


def vary_together(*arrays: Array) -> Sequence[Array]:
    """Mark arrays as different on each device if one of them is, inside `jax.shard_map`.

    There the type of an array says whether it is. Both branches of a condition must return the same
    type, and JAX would sum a gradient that a formula takes of an array which is the same on all
    devices over the devices.
    """
    meshes = [jax.typeof(x).sharding.mesh for x in arrays]
    if not any(AxisType.Manual in mesh.axis_types for mesh in meshes):
        return arrays
    # No element is any, and the type of the answer says what the type of the array does.
    is_any = functools.reduce(jnp.logical_or, (jnp.any(x.ravel()[:0] != 0) for x in arrays))
    return [jnp.where(is_any, jnp.zeros_like(x), x) for x in arrays]


def shard_together(axes: int, *arrays: Array) -> Sequence[Array]:
    """Shard leading axes of arrays alike, on a mesh with explicit axes.

    There the type of an array says which of its axes are sharded. The factors of a matrix product
    and the results of both branches of a condition must agree in it.

    Args:
      axes: number of axes to shard, if an array has them sharded. Axes that broadcast stay whole.
      arrays: the arrays, each with at least as many axes.
    """
    shardings = [jax.typeof(x).sharding for x in arrays]
    if not any(AxisType.Explicit in sharding.mesh.axis_types for sharding in shardings):
        return arrays
    mesh = max((sharding.mesh for sharding in shardings), key=lambda mesh: mesh.size)
    specs = [list(sharding.spec) for sharding in shardings]
    for axis, size in enumerate(np.broadcast_shapes(*(x.shape[:axes] for x in arrays))):
        name = next((spec[axis] for spec in specs if spec[axis] is not None), None)
        for x, spec in zip(arrays, specs, strict=True):
            if spec[axis] is None and x.shape[axis] == size:
                spec[axis] = name
    return [
        jax.lax.broadcast_in_dim(
            x, x.shape, range(x.ndim), out_sharding=NamedSharding(mesh, PartitionSpec(*spec))
        )
        for x, spec in zip(arrays, specs, strict=True)
    ]


def auto_sharded(function: Callable[..., Array], like: Array) -> Callable[..., Array]:
    """Return a function that leaves sharding to the compiler, on a mesh with explicit axes.

    Args:
      function: a function of arrays, for whose results JAX cannot tell a sharding.
      like: an array with the shape and the sharding of the result.
    """
    sharding = jax.typeof(like).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return function
    automatic: Callable[..., Array] = jax.sharding.auto_axes(function, out_sharding=sharding)
    return automatic


def as_vectors(x: ArrayLike, least: int = 1) -> Array:
    """Cast an array whose last axis has the coordinates of vectors by `as_float`.

    Args:
      x: the array.
      least: smallest number of coordinates: 2 for vectors of the Lorentz model, which have a time
        component.

    Raises:
      TypeError: as in `as_float`.
      ValueError: for a number, which has no such axis, and for fewer coordinates.
    """
    x = as_float(x)
    check_vectors(x, least)
    return x


def check_vectors(x: Array, least: int = 1) -> None:
    """Refuse numbers, and vectors of fewer coordinates than ``least``; see `as_vectors`."""
    if x.ndim == 0:
        raise ValueError("expected vectors, of shape [..., n], got a number")
    if x.shape[-1] < least:
        raise ValueError(
            f"expected vectors of at least {least} coordinate{'s' * (least > 1)}, got the shape"
            f" {x.shape}"
        )


def without_time(x: ArrayLike) -> Array:
    """Return the space components of vectors of the Lorentz model, cast by `as_vectors`."""
    return as_vectors(x, least=2)[..., 1:]


def as_sets(x: ArrayLike, least: int = 0) -> Array:
    """Cast an array of sets of M vectors, of shape [..., M, n], by `as_float`.

    Args:
      x: the array.
      least: smallest M.

    Raises:
      TypeError: as in `as_float`.
      ValueError: for a single vector, a number, vectors without coordinates, and smaller sets.
    """
    x = as_float(x)
    if x.ndim < 2:
        raise ValueError(
            f"expected sets of vectors, of shape [..., M, n], got the shape {x.shape}: a set of one"
            " vector is x[None]"
        )
    if x.shape[-2] < least:
        raise ValueError(f"expected sets of at least {least} vector, got the shape {x.shape}")
    return as_vectors(x)


def as_matrix(name: str, matrix: ArrayLike, vectors: Array) -> Sequence[Array]:
    """Cast a matrix whose rows are as long as some vectors, and the vectors, by `as_floats`.

    Args:
      name: name of the argument, for errors.
      matrix: the matrix, of shape [m, n].
      vectors: the vectors, of shape [..., n].

    Raises:
      TypeError: as in `as_float`.
      ValueError: for an array of another shape.
    """
    columns = vectors.shape[-1]
    matrix, vectors = as_floats(matrix, vectors)
    if matrix.ndim != 2 or matrix.shape[1] != columns:
        raise ValueError(f"{name} must have shape [m, {columns}], got the shape {matrix.shape}")
    return matrix, vectors


def check_floating(*arrays: Array) -> None:
    """Refuse arguments without a real floating dtype, for functions that keep the dtype.

    Raises:
      TypeError: for lists, integers and complex numbers.
    """
    for x in arrays:
        dtype = getattr(x, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"expected arrays of a floating dtype, got {dtype or type(x).__name__}")


def check_positive(name: str, value: ArrayLike, allow_zero: bool = False, hint: str = "") -> None:
    """Refuse numbers that are not positive, if their values are known.

    The values are not known, and not checked, if they are traced (under `jax.jit`, `jax.vmap` or
    `jax.grad`) or if parts of the array are in other processes.

    Args:
      name: name of the argument, for the message.
      value: a number or an array.
      allow_zero: whether to accept 0.
      hint: text to append to the message.

    Raises:
      ValueError: for a number that is not positive, or NaN.
    """
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
        return
    array = np.asarray(value)
    if not np.all(array >= 0 if allow_zero else array > 0):
        allowed = "at least 0" if allow_zero else "positive"
        raise ValueError(f"{name} must be {allowed}, got {array}{hint}")


_CURVATURE_HINT = " (the curvature is -c, so a curvature of -0.5 is c = 0.5)"


def per_batch(
    c: ArrayLike, x: Float[Array, "*#batch n"], name: str = "c"
) -> Float[Array, "*#batch"]:
    """Cast a curvature to the dtype of ``x`` and to one axis for each batch axis of ``x``.

    Args:
      c: a curvature, or another number for each entry of the batch.
      x: vectors.
      name: name of the argument, for errors.

    Returns:
      The curvature, with additional axes of length 1 in front. A negative curvature whose value is
      not known is replaced by NaN, because many formulas give finite numbers for it.

    Raises:
      ValueError: for a curvature with more or longer axes than the batch. Also, if values are
        known, for a negative curvature and for any other number that is not positive.
    """
    argument = c
    c = jnp.asarray(as_float(c), x.dtype)
    batch = x.shape[:-1]
    missing = len(batch) - c.ndim
    if missing < 0 or any(
        size not in (1, full_size) for size, full_size in zip(c.shape, batch[missing:], strict=True)
    ):
        raise ValueError(
            f"{name} of shape {c.shape} does not broadcast to the batch {batch} of an array of"
            f" shape {x.shape}"
        )
    if name == "c":
        check_positive(name, argument, allow_zero=True, hint=_CURVATURE_HINT)
        if isinstance(argument, jax.core.Tracer):
            c = jnp.where(c >= 0, c, jnp.nan)
    else:
        check_positive(name, argument)
    c, x = vary_together(c.reshape((1,) * missing + c.shape), x)
    return shard_together(c.ndim, c, x)[0]


def broadcast_number(
    t: ArrayLike, v: Float[Array, "*batch n"], *vectors: Float[Array, "..."], name: str = "t"
) -> Sequence[Array]:
    """Reshape a number and vectors to the same number of axes.

    Args:
      t: a number or an array that broadcasts with ``*batch``. It may have additional axes before
        the batch axes.
      v: vectors.
      vectors: further vectors with the same number of axes.
      name: name of the number, for errors.

    Returns:
      The number with an additional last axis for coordinates, and the vectors with axes of length 1
      put in front.

    Raises:
      ValueError: for shapes that do not broadcast.
    """
    t, batch = jnp.asarray(as_float(t), v.dtype), v.shape[:-1]
    try:
        rank = len(jnp.broadcast_shapes(t.shape, batch))
    except ValueError as error:
        raise ValueError(
            f"{name} of shape {t.shape} does not broadcast with the batch {batch} of an"
            f" array of shape {v.shape}: to combine every {name} with every entry of the"
            f" batch, pass {name} with the shape [..., 1]"
        ) from error
    t = t.reshape((1,) * (rank - t.ndim) + t.shape)
    return t[..., None], *(x.reshape((1,) * (rank + 1 - x.ndim) + x.shape) for x in (v, *vectors))


def check_shape(name: str, x: Array, shape: tuple[int, ...]) -> None:
    """Raise ValueError for an array of another shape than ``shape``."""
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {x.shape}")


def as_indices(name: str, indices: Any, count: int, where: Any = None) -> Int[Array, "*shape"]:
    """Cast indices to int32 and refuse indices that are out of range, if values are known.

    Args:
      name: name of the argument, for errors.
      indices: indices of any integer dtype: a list, or an array of NumPy or JAX.
      count: number of elements; valid indices are 0 to count - 1.
      where: True for the indices to check; None to check all.

    Returns:
      The indices. Inside `jax.jit` values are not known, so indices out of range pass, and the
      caller must handle them.

    Raises:
      ValueError: for a dtype that is not integer, and for an index out of range.
    """
    if not isinstance(indices, jax.Array):
        indices = np.asarray(indices)
        indices = indices if indices.size else indices.astype(np.int32)
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got the dtype {indices.dtype}")
    if not isinstance(indices, jax.core.Tracer) and not isinstance(where, jax.core.Tracer):
        # NumPy compares with any count. JAX would wrap it to the dtype of narrow indices.
        values = np.asarray(indices)
        missing = (values < 0) | (values >= count)
        missing = missing if where is None else missing & np.asarray(where)
        if missing.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(missing))
            raise ValueError(
                f"{name}[{', '.join(map(str, place))}] must be from 0 to {count - 1}, got"
                f" {int(indices[place])}"
            )
    if isinstance(indices, np.ndarray):
        # JAX would warn about int64 and wrap large values. Clipped values stay out of range.
        indices = np.clip(indices, -(2**31), 2**31 - 1).astype(np.int32)
    return jnp.asarray(indices, jnp.int32)


def same_length(x: Array, y: Array) -> None:
    """Raise ValueError for vectors of different lengths, which arithmetic might broadcast."""
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"vectors must have the same number of coordinates, got {x.shape[-1]} and {y.shape[-1]}"
        )


def common_batch(*vectors: ArrayLike, least: int = 1) -> Sequence[Array]:
    """Cast vectors of the same length to one dtype by `as_floats` and broadcast their batch axes.

    They are checked as in `as_vectors`.
    """
    floats = as_floats(*(as_vectors(v, least) for v in vectors))
    for vector in floats[1:]:
        same_length(floats[0], vector)
    floats = jnp.broadcast_arrays(*floats)
    return shard_together(floats[0].ndim, *floats)


def align(c: ArrayLike, *vectors: ArrayLike) -> tuple[Array, Sequence[Array]]:
    """Return the curvature, prepared by `per_batch`, and vectors, prepared by `common_batch`."""
    floats = common_batch(*vectors)
    c, *floats = vary_together(per_batch(c, floats[0]), *floats)
    c, *floats = shard_together(c.ndim, c, *floats)
    return c, floats


def align_sets(
    x: Float[Array, "*#batch M n"], y: Float[Array, "*#batch N n"], c: ArrayLike
) -> tuple[Float[Array, "*batch M n"], Float[Array, "*batch N n"], Float[Array, "*batch"]]:
    """Broadcast two sets of vectors, and curvatures, to the same batch axes and one dtype."""
    same_length(x, y)
    x, y = as_floats(x, y)
    lead = jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (jnp.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (x, y))
    c, x, y = vary_together(jnp.broadcast_to(per_batch(c, x[..., 0]), lead), x, y)
    c, x, y = shard_together(c.ndim, c, x, y)
    return x, y, c


def split_coordinates(v: Float[Array, "*batch n"], dims: Sequence[int]) -> list[jax.Array]:
    """Split vectors into consecutive coordinates; ValueError for ``dims`` that do not fit them."""
    if sum(dims) != v.shape[-1] or min(dims) < 1:
        raise ValueError(f"dims must be positive and sum up to {v.shape[-1]}, got {tuple(dims)}")
    return jnp.split(v, [sum(dims[: k + 1]) for k in range(len(dims) - 1)], axis=-1)
