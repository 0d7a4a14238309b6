"""Devices: the mesh, and the placement of arrays."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hlformer_jax.typing import Array

AXIS = "data"


def mesh(devices: Any = None) -> Mesh:
    """Return the mesh of all devices, or of the given ones, along the axis `data`."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), (AXIS,))


def available_bytes(mesh: Mesh, free: bool = False) -> int | None:
    """Return the bytes that JAX may use on each of this process's devices.

    Args:
      mesh: the devices.
      free: whether to subtract the bytes in use.

    Returns:
      The smallest number over the devices; None if no device reports its memory, as on a CPU.
    """
    stats = [device.memory_stats() or {} for device in mesh.local_devices]
    limits = [
        device["bytes_limit"] - (device["bytes_in_use"] if free else 0)
        for device in stats
        if "bytes_limit" in device
    ]
    return min(limits, default=None)


def round_up(count: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `count`."""
    return -(-count // int(multiple)) * int(multiple)


def sharded(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Return the sharding that divides `axis` equally among the devices."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that has the whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Put a tree, which must be equal in all processes, on every device."""
    return place(tree, replicated(mesh))


def place(tree: Any, sharding: NamedSharding) -> Any:
    """Put a tree, which must be equal in all processes, on devices as a sharding defines."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def place_array(x: Any) -> jax.Array:
        return jax.make_array_from_callback(np.shape(x), sharding, lambda i: np.asarray(x)[i])

    return jax.tree.map(place_array, tree)


def abstract(mesh: Mesh, tree: Any) -> Any:
    """Return the shapes of a replicated tree, to compile for or to restore into."""
    sharding = replicated(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def constrain(mesh: Mesh, tree: Any, axis: int = 0) -> Any:
    """Shard every array of a tree along `axis`; for use inside of jit."""
    return jax.lax.with_sharding_constraint(tree, sharded(mesh, axis))


def to_host(array: Array) -> np.ndarray:
    """Return a global array as NumPy, gathered from all processes if it is sharded over them."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def take_rows(mesh: Mesh, rows: Array, index: Array) -> Array:
    """Take rows of a sharded array by a global index; the result is sharded along its first axis.

    Each device contributes the rows that it holds, and zeros for other rows; the contributions are
    added. This is exact in every dtype, and no device ever holds all rows.

    Args:
      mesh: the devices.
      rows: an array that is sharded along its first axis.
      index: indices of the rows to take; their number is a multiple of the number of devices.
    """
    if mesh.size == 1:
        return jnp.asarray(rows).at[index].get(mode="promise_in_bounds")

    def take_local(block: Array, index: Array) -> Array:
        row = index - jax.lax.axis_index(AXIS).astype(index.dtype) * block.shape[0]
        is_local = (row >= 0) & (row < block.shape[0])
        local = jnp.asarray(block)[jnp.where(is_local, row, 0)]
        is_local = is_local.reshape(is_local.shape + (1,) * (local.ndim - is_local.ndim))
        local = jnp.where(is_local, local, jnp.zeros((), local.dtype))
        return jax.lax.psum_scatter(local, AXIS, scatter_dimension=0, tiled=True)

    everywhere, parts = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(take_local, mesh=mesh, in_specs=(parts, everywhere), out_specs=parts)(
        rows, index
    )


def nbytes(tree: Any) -> int:
    """Return the bytes of all arrays of a tree."""
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))
