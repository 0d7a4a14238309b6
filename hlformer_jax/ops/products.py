"""Products of two arrays that are narrower than float32, accumulated in float32.

XLA compiles such a product for a GPU as it is written. For a CPU it has fast kernels only for
results in float32 and for a first factor whose last axis is summed, so a CPU gets these.

Such products have no derivatives in forward mode (`jax.jvp`, `jax.jacfwd`), and their gradients for
a CPU cannot be exported by `jax.export`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
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
        gradient is rounded to the dtype of the factors before it is multiplied.

    Returns:
      The result; unless `exact`, in the dtype to which JAX promotes those of the factors.
    """
    dtype = jnp.promote_types(x.dtype, y.dtype)
    if wide(dtype) == dtype:
        return jnp.einsum(subscripts, x, y, precision=exact_precision() if exact else None)
    x, y = x.astype(dtype), y.astype(dtype)
    otherwise = functools.partial(_widened if exact else jnp.einsum, subscripts)
    first, second, _ = _parts(subscripts)
    is_broadcast = _batch_shape(first, x) != _batch_shape(second, y)
    # The constraint of layout in `_for_cpu` would gather an array that several devices hold.
    if is_broadcast or jax.device_count() > 1:
        return otherwise(x, y)
    on_cpu = functools.partial(_for_cpu, subscripts, wide(dtype) if exact else dtype)
    result: Array = jax.lax.platform_dependent(x, y, cpu=on_cpu, default=otherwise)
    return result


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _widened(subscripts: str, x: Array, y: Array) -> Array:
    return jnp.einsum(subscripts, x, y, preferred_element_type=wide(x.dtype))


def _widened_forward(subscripts: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _widened(subscripts, x, y), (x, y)


def _widened_backward(
    subscripts: str, factors: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    # JAX's own rule would cast the factors to float32 and multiply in float32.
    _, pull = jax.vjp(functools.partial(jnp.einsum, subscripts), *factors)
    pulled: tuple[Array, Array] = pull(gradient.astype(factors[0].dtype))
    return pulled


_widened.defvjp(_widened_forward, _widened_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _for_cpu(subscripts: str, dtype: Any, x: Array, y: Array) -> Array:
    first, second, result = _parts(subscripts)
    if first[-1] in result and len(first.removeprefix("...")) > 1:
        # Without the constraint, XLA would read the untransposed factor. For several of them it has
        # no kernel at all: it fails when the program runs.
        axes = tuple(range(x.ndim))
        x = with_layout_constraint(jnp.swapaxes(x, -1, -2), Layout(axes))
        first = first[:-2] + first[-1] + first[-2]
    product: Array = jnp.einsum(
        f"{first},{second}->{result}", x, y, preferred_element_type=wide(x.dtype)
    )
    return product.astype(dtype)


def _forward_for_cpu(
    subscripts: str, dtype: Any, x: Array, y: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _for_cpu(subscripts, dtype, x, y), (x, y)


def _backward_for_cpu(
    subscripts: str, dtype: Any, factors: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    x, y = factors
    first, second, result = _parts(subscripts)
    gradient = gradient.astype(x.dtype)
    return (
        _for_cpu(f"{result},{second}->{first}", x.dtype, gradient, y),
        _for_cpu(f"{first},{result}->{second}", y.dtype, x, gradient),
    )


_for_cpu.defvjp(_forward_for_cpu, _backward_for_cpu)


def _parts(subscripts: str) -> tuple[str, str, str]:
    """Return the subscripts of both factors and of the result."""
    factors, result = subscripts.split("->")
    first, second = factors.split(",")
    return first, second, result


def _batch_shape(subscript: str, factor: Array) -> tuple[int, ...]:
    """Return the shape of the axes that an ellipsis stands for."""
    return factor.shape[: factor.ndim - len(subscript.removeprefix("..."))]
