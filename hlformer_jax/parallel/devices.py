"""Devices and processes: one axis, `data`, over all devices of all processes.

Parameters are replicated; videos and captions of a batch, the corpus and features that live on the
devices are sharded along their leading axis. Losses are written for the whole batch, and XLA adds
the communication, so that a result does not depend on how many devices shared the work.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hlformer_jax.typing import Array

AXIS = "data"


def mesh(devices: Any = None) -> Mesh:
    """All devices (or those given) along the axis `data`."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), (AXIS,))


def available_bytes(mesh: Mesh, free: bool = False) -> int | None:
    """Bytes that JAX may use on each of this process's devices; None where none tells (a CPU).

    Args:
      mesh: the devices.
      free: whether to leave out what is in use.
    """
    stats = [device.memory_stats() or {} for device in mesh.local_devices]
    limits = [
        device["bytes_limit"] - (device["bytes_in_use"] if free else 0)
        for device in stats
        if "bytes_limit" in device
    ]
    return min(limits, default=None)


def round_up(count: int, multiple: int) -> int:
    """The smallest multiple that is at least `count`: what devices can share evenly."""
    return -(-count // int(multiple)) * int(multiple)


def sharded(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """An array of which each device holds an equal part along `axis`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """An array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Puts a tree, the same in every process, on every device."""
    return place(tree, replicated(mesh))


def place(tree: Any, sharding: NamedSharding) -> Any:
    """Puts a tree, the same in every process, where the sharding says, and nowhere else."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    whole = lambda x: jax.make_array_from_callback(
        np.shape(x), sharding, lambda i: np.asarray(x)[i]
    )
    return jax.tree.map(whole, tree)


def abstract(mesh: Mesh, tree: Any) -> Any:
    """Shapes of a tree that every device holds whole, to compile for or to restore as."""
    whole = replicated(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), tree)


def constrain(mesh: Mesh, tree: Any, axis: int = 0) -> Any:
    """Inside of jit: shards every array of a tree along `axis`."""
    return jax.lax.with_sharding_constraint(tree, sharded(mesh, axis))


def host(array: Array) -> np.ndarray:
    """A global array as NumPy; one that is sharded over processes is gathered."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def take(mesh: Mesh, rows: Array, index: Array) -> Array:
    """Rows of a sharded array by a global index, sharded like the index's leading axis.

    Each device answers for the rows that it holds, and the answers, of which all but one are zero,
    are added: exact in every dtype, and no device ever holds all rows.

    Args:
      mesh: the devices.
      rows: [rows, ...], sharded along the first axis.
      index: integers of any shape, in range; its leading axis is a multiple of the devices.

    Returns:
      [*index.shape, ...].
    """
    if mesh.size == 1:
        return jnp.asarray(rows).at[index].get(mode="promise_in_bounds")

    def local(block: Array, index: Array) -> Array:
        row = index - jax.lax.axis_index(AXIS).astype(index.dtype) * block.shape[0]
        mine = (row >= 0) & (row < block.shape[0])
        taken = jnp.asarray(block)[jnp.where(mine, row, 0)]
        mine = mine.reshape(mine.shape + (1,) * (taken.ndim - mine.ndim))
        taken = jnp.where(mine, taken, jnp.zeros((), taken.dtype))
        return jax.lax.psum_scatter(taken, AXIS, scatter_dimension=0, tiled=True)

    whole, parts = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(local, mesh=mesh, in_specs=(parts, whole), out_specs=parts)(rows, index)
