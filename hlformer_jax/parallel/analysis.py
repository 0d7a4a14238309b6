"""What a program costs, by a compiler's count and plan: operations and memory."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def count(function: Callable[..., Any], *arguments: Any) -> float:
    """Floating-point operations of a function, counted before a compiler simplifies them.

    It is the CPU's compiler that counts, on whatever device the rest runs: that of a GPU makes its
    products calls of a library, into which its count does not see.

    Args:
      function: a function of arrays.
      arguments: arrays, or their shapes.

    Returns:
      The count; NaN in a process that JAX gives no CPU.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return math.nan
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    with jax.default_device(cpu):
        return flops(jax.jit(function).lower(*shapes))


def flops(compiled: Any) -> float:
    """Floating-point operations of a compiled program on one device, by the compiler's count.

    A loop whose length is not known when it is compiled counts as one turn of its body.
    """
    analysis = compiled.cost_analysis() or {}
    if isinstance(analysis, list):  # one for each program, in some releases of JAX
        analysis = analysis[0]
    return float(analysis.get("flops", math.nan))


def memory(compiled: Any) -> dict[str, float]:
    """Bytes of a compiled program on one device, by the compiler's plan: what it takes and needs.

    Returns:
      `arguments`, `results` (beyond donated arguments) and `temporary`, and their sum as `peak`.
    """
    plan = compiled.memory_analysis()
    if plan is None:
        return {}
    parts = {
        "arguments": plan.argument_size_in_bytes,
        "results": plan.output_size_in_bytes - plan.alias_size_in_bytes,
        "temporary": plan.temp_size_in_bytes,
    }
    return parts | {"peak": sum(parts.values())}


def nbytes(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))
