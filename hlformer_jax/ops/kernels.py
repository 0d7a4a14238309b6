"""What the Pallas kernels share: how they are run and compiled, and sizes that Triton takes."""

from typing import Any

import jax
import jax.numpy as jnp

from hlformer_jax.typing import Array

SMALLEST = 16  # side of a matrix that Triton multiplies


def interpreted(interpret: bool | None) -> bool:
    """Whether to run a kernel as JAX operations: as asked, or wherever there is no GPU."""
    return jax.default_backend() != "gpu" if interpret is None else interpret


def compiler_params(num_warps: int, num_stages: int) -> Any:
    """Parameters that also ask for Triton; older releases of JAX name their class otherwise."""
    from jax.experimental.pallas import triton

    name = "CompilerParams" if hasattr(triton, "CompilerParams") else "TritonCompilerParams"
    return getattr(triton, name)(num_warps=num_warps, num_stages=num_stages)


def power_of_two(size: int) -> int:
    """The least power of two that is a size of a matrix to Triton and not below `size`."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


def pad(x: Array, sizes: tuple[int, ...], value: float = 0.0) -> Array:
    """Pads the last axes of an array to the given sizes."""
    widths = [(0, 0)] * (x.ndim - len(sizes))
    widths += [(0, size - have) for size, have in zip(sizes, x.shape[-len(sizes) :], strict=True)]
    return x if not any(after for _, after in widths) else jnp.pad(x, widths, constant_values=value)
