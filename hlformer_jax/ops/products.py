"""Products of two arrays that are narrower than float32, accumulated in float32.

XLA compiles such a product for a GPU as it is written. For a CPU it has fast kernels only for
results in float32 and for a first factor whose last axis is summed, so a CPU gets these.

`jax.export` exports gradients for a CPU only with
`disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")]`, because their
program names the layout of an array.
"""

import functools
import string
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType
from jaxtyping import Float

from hlformer_jax.ops.numerics import exact_precision, wide
from hlformer_jax.typing import Array


def matmul(x: Float[Array, "R I"], kernel: Float[Array, "I O"]) -> Float[Array, "R O"]:
    """Multiply matrices.

    Args:
      x: the first matrix.
      kernel: the second matrix.

    Returns:
      The product, in the dtype to which JAX promotes those of the factors.
    """
    return einsum("ri,io->ro", x, kernel)


def einsum(
    subscripts: str, x: Float[Array, "*m"], y: Float[Array, "*n"], exact: bool = False
) -> Float[Array, "*k"]:
    """Compute an einsum of two factors, whose sums are in at least float32.

    Args:
      subscripts: subscripts of both factors and of the result, as for `jax.numpy.einsum`. Every
        axis of a factor belongs to the other factor or to the result.
      x: the first factor.
      y: the second factor.
      exact: whether the result is in at least float32 and computed with `exact_precision`. The
        gradient is rounded to the dtype of the factors before it is multiplied, but not where
        devices share a factor as its type says (in `jax.shard_map`, or on an explicit mesh).

    Returns:
      The result; unless `exact`, in the dtype to which JAX promotes those of the factors.
    """
    dtype = jnp.promote_types(x.dtype, y.dtype)
    if wide(dtype) == dtype:
        return jnp.einsum(subscripts, x, y, precision=exact_precision() if exact else None)
    x, y = x.astype(dtype), y.astype(dtype)
    result_dtype = wide(dtype) if exact else dtype
    if _is_partitioned(x) or _is_partitioned(y):
        return jnp.einsum(subscripts, x, y, preferred_element_type=result_dtype)
    # As `jax.numpy.einsum` reads it, but here and not when the program is lowered.
    precision = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  # it has no stub
    subscripts, x, y = _name_axes(subscripts, x, y)
    return _bind(subscripts, x, y, result_dtype, precision)


def _is_partitioned(x: Array) -> bool:
    """Return whether the type of an array says how devices share it, as in `jax.shard_map`."""
    kinds = jax.typeof(x).sharding.mesh.axis_types
    return any(kind != AxisType.Auto for kind in kinds)


def _name_axes(subscripts: str, x: Array, y: Array) -> tuple[str, Array, Array]:
    """Give the axes of an ellipsis letters, and leave out axes along which a factor is repeated."""
    first, second, result = _parts(subscripts)
    batch = jnp.broadcast_shapes(_batch_shape(first, x), _batch_shape(second, y))
    letters = string.ascii_uppercase[: len(batch)]

    def name(subscript: str, factor: Array) -> tuple[str, Array]:
        shape = _batch_shape(subscript, factor)
        start = len(batch) - len(shape)
        repeated = [i for i, size in enumerate(shape) if size != batch[start + i]]
        kept_letters = [letters[start + i] for i in range(len(shape)) if i not in repeated]
        return subscript.replace("...", "".join(kept_letters)), jnp.squeeze(factor, repeated)

    (first, x), (second, y) = name(first, x), name(second, y)
    return f"{first},{second}->{result.replace('...', letters)}", x, y


def _bind(subscripts: str, x: Array, y: Array, dtype: Any, precision: Any) -> Array:
    product: Array = _product.bind(x, y, subscripts=subscripts, dtype=dtype, precision=precision)
    return product


def _multiply(x: Array, y: Array, *, subscripts: str, dtype: Any, precision: Any) -> Array:
    product: Array = jnp.einsum(subscripts, x, y, precision=precision, preferred_element_type=dtype)
    return product


def _multiply_for_cpu(x: Array, y: Array, *, subscripts: str, dtype: Any, precision: Any) -> Array:
    # The constraint of layout would gather an array that several devices hold. Earlier versions of
    # JAX have other names for it, and other kernels.
    if jax.device_count() > 1 or jax.__version_info__ < (0, 10):
        return _multiply(x, y, subscripts=subscripts, dtype=dtype, precision=precision)
    first, second, result = _parts(subscripts)
    if first[-1] == result[-1]:
        x, y, first, second = y, x, second, first
    axes = sorted(range(x.ndim), key=lambda axis: first[axis] not in result)
    if first[-1] in result and first[axes[-1]] not in result:
        # Without the constraint, XLA would read the untransposed factor. For several of them it has
        # no kernel at all: it fails when the program runs.
        x = with_layout_constraint(jnp.transpose(x, axes), Layout(tuple(range(x.ndim))))
        first = "".join(first[axis] for axis in axes)
    subscripts = f"{first},{second}->{result}"
    wider = wide(x.dtype)
    product = _multiply(x, y, subscripts=subscripts, dtype=wider, precision=precision)
    return product.astype(dtype)


def _pull_to_first(
    gradient: Array, x: Any, y: Array, *, subscripts: str, dtype: Any, precision: Any
) -> Array:
    first, second, result = _parts(subscripts)
    return _pull(f"{result},{second}->{first}", gradient, y, precision)


def _pull_to_second(
    gradient: Array, x: Array, y: Any, *, subscripts: str, dtype: Any, precision: Any
) -> Array:
    first, second, result = _parts(subscripts)
    return _pull(f"{result},{first}->{second}", gradient, x, precision)


def _pull(subscripts: str, gradient: Array, factor: Array, precision: Any) -> Array:
    """Multiply the gradient of a product, in the dtype of a factor, by this factor."""
    return _bind(subscripts, gradient.astype(factor.dtype), factor, factor.dtype, precision)


def _batch(
    factors: tuple[Array, Array],
    axes: tuple[int | None, int | None],
    *,
    subscripts: str,
    **rest: Any,
) -> tuple[Array, int]:
    first, second, result = _parts(subscripts)
    letter = next(letter for letter in string.ascii_letters if letter not in subscripts)
    first, second = (
        part if axis is None else part[:axis] + letter + part[axis:]
        for part, axis in zip((first, second), axes, strict=True)
    )
    return _bind(f"{first},{second}->{letter}{result}", *factors, **rest), 0


def _infer(x: Any, y: Any, **parameters: Any) -> Any:
    return jax.make_jaxpr(functools.partial(_multiply, **parameters))(x, y).out_avals[0]


_product = Primitive("product_of_narrow_arrays")
_product.def_abstract_eval(_infer)
_product.def_impl(jax.jit(_product.bind, static_argnames=("subscripts", "dtype", "precision")))
ad.defbilinear(_product, _pull_to_first, _pull_to_second)
batching.primitive_batchers[_product] = _batch
mlir.register_lowering(_product, mlir.lower_fun(_multiply, multiple_results=False))
mlir.register_lowering(_product, mlir.lower_fun(_multiply_for_cpu, multiple_results=False), "cpu")


def _parts(subscripts: str) -> tuple[str, str, str]:
    """Return the subscripts of both factors and of the result."""
    factors, result = subscripts.split("->")
    first, second = factors.split(",")
    return first, second, result


def _batch_shape(subscript: str, factor: Array) -> tuple[int, ...]:
    """Return the shape of the axes that an ellipsis stands for."""
    return factor.shape[: factor.ndim - len(subscript.removeprefix("..."))]
