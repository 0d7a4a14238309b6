"""Times, what the hardware can do at best, and the floor that both set for a piece of work.

A floor is the larger of two times: the work's floating-point operations at the rate of a large
matrix product, and the bytes that it must move at the rate of a large copy, both measured on this
device in this run. No program for the same work takes much less.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


class Timing(NamedTuple):
    """Seconds of repeated runs, the warm-up excluded."""

    median: float
    low: float
    high: float
    repeats: int


class Ceilings(NamedTuple):
    """What one device does at best: operations and bytes (read or written) a second."""

    flops: float
    bytes: float


class Floor(NamedTuple):
    """The least that a piece of work takes on one device.

    Attributes:
      flops: floating-point operations.
      bytes: bytes that must be read or written.
      seconds: the larger of both times.
    """

    flops: float
    bytes: float
    seconds: float


def timed(
    run: Callable[..., Any], *arguments: Any, repeats: int = 7, seconds: float = 10.0
) -> Timing:
    """Times a function whose results are waited for.

    Args:
      run: returns arrays (or anything without arrays, when it is done).
      arguments: what to call it with.
      repeats: how often at most, beside one run to warm up; at least 3 are done.
      seconds: no further repeat is begun after so long.

    Returns:
      Its time.
    """
    clock(run, *arguments)
    seconds_taken: list[float] = []
    while len(seconds_taken) < 3 or (len(seconds_taken) < repeats and sum(seconds_taken) < seconds):
        seconds_taken.append(clock(run, *arguments))
    return summary(seconds_taken)


def clock(run: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that a function takes until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start


def summary(seconds: Sequence[float]) -> Timing:
    """Median and range of clocked times."""
    return Timing(float(np.median(seconds)), min(seconds), max(seconds), len(seconds))


def ceilings(dtype: DTypeLike = "float32") -> Ceilings:
    """What this process's first device does at best, measured once."""
    return Ceilings(matrix_rate(jnp.dtype(dtype).name), copy_rate())


@functools.cache
def matrix_rate(dtype: str = "float32") -> float:
    """Floating-point operations a second of a large matrix product.

    The product is large enough to fill the device; the factors are random, since zeros run faster.

    Args:
      dtype: dtype of the matrices; float32 products as precise as the package asks for.
    """
    device = jax.local_devices()[0]
    # A GPU is asked for several products at once, lest the asking count as work.
    size, times = (1024, 1) if device.platform == "cpu" else (8192, 10)
    key = jax.random.key(0)
    with jax.default_device(device):
        matrix = jax.random.normal(key, (size, size), jnp.dtype(dtype))
        # About 1 after every product, so that a chain of them neither over- nor underflows.
        matrix = matrix / jnp.asarray(math.sqrt(size), matrix.dtype)
        product = jax.jit(lambda x: functools.reduce(lambda x, _: x @ matrix, range(times), x))
        best = min(timed(product, matrix, repeats=5, seconds=1.0).low for _ in range(2))
    return 2 * size**3 * times / best


@functools.cache
def copy_rate() -> float:
    """Bytes, read or written, a second of a copy larger than any cache."""
    device = jax.local_devices()[0]
    with jax.default_device(device):
        long = jnp.ones(2**26 if device.platform == "cpu" else 2**28, jnp.float32)
        moved = timed(jax.jit(lambda x: x + 1), long, repeats=5, seconds=1.0).low
    return 2 * long.nbytes / moved


def floor(flops: float, moved: float, dtype: DTypeLike = "float32") -> Floor:
    """The floor of some work on one device.

    Args:
      flops: its floating-point operations.
      moved: the bytes that it must read or write: inputs once, outputs once.
      dtype: in which it multiplies matrices.
    """
    most = ceilings(dtype)
    return Floor(flops, moved, max(flops / most.flops, moved / most.bytes))
