"""Devices and processes: one axis, `data`, over all devices of all processes.

Parameters are replicated; videos and captions of a batch, the corpus and features that live on the
devices are sharded along their leading axis. Losses are written for the whole batch, and XLA adds
the communication, so that a result does not depend on how many devices shared the work.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hlformer_jax.typing import Array

AXIS = "data"


class ProcessError(RuntimeError):
    """The processes of a run could not find one another, or disagree; the message says how."""


def join(coordinator: str, processes: int, process: int) -> None:
    """Makes this process one of several; a no-op for one process outside of Slurm.

    Args:
      coordinator: HOST:PORT of process 0; empty: from Slurm where it started several tasks.
      processes: how many there are.
      process: number of this one, from 0.

    Raises:
      ProcessError: when the numbers make no sense, or the others do not answer.
    """
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if not coordinator and processes == 1 and tasks == 1:
        return
    # What CPU processes talk through; GPUs have their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        if not coordinator and processes == 1:
            jax.distributed.initialize()
            return
        if not (coordinator and 0 <= process < processes):
            raise ProcessError(
                f"--coordinator={coordinator!r} --processes={processes} --process={process}: give"
                " HOST:PORT of process 0, and a process number below the number of processes"
            )
        # launch/local.sh shows each process its own GPU; JAX must not choose another.
        local = [0] if os.environ.get("CUDA_VISIBLE_DEVICES") else None
        jax.distributed.initialize(coordinator, processes, process, local)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ProcessError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ProcessError(f"process {process} of {processes}: no start: {reason}") from error


def is_first() -> bool:
    """Whether this process writes what a run leaves outside of checkpoints."""
    return jax.process_index() == 0


@contextlib.contextmanager
def first_alone(name: str) -> Iterator[None]:
    """Runs a block in process 0 first, and then, when that is done, in the others."""
    from jax.experimental import multihost_utils

    several = jax.process_count() > 1
    if several and not is_first():
        multihost_utils.sync_global_devices(name)
    yield
    if several and is_first():
        multihost_utils.sync_global_devices(name)


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all must ask at the same place."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def mesh(devices: Any = None) -> Mesh:
    """All devices (or those given) along the axis `data`."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), (AXIS,))


def sharded(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """An array of which each device holds an equal part along `axis`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """An array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Puts a tree, the same in every process, on every device."""
    sharding = replicated(mesh)
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    whole = lambda x: jax.make_array_from_callback(
        np.shape(x), sharding, lambda i: np.asarray(x)[i]
    )
    return jax.tree.map(whole, tree)


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
        place = index - jax.lax.axis_index(AXIS).astype(index.dtype) * block.shape[0]
        mine = (place >= 0) & (place < block.shape[0])
        found = jnp.asarray(block)[jnp.where(mine, place, 0)]
        mine = mine.reshape(mine.shape + (1,) * (found.ndim - mine.ndim))
        found = jnp.where(mine, found, jnp.zeros((), found.dtype))
        return jax.lax.psum_scatter(found, AXIS, scatter_dimension=0, tiled=True)

    whole, parts = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(local, mesh=mesh, in_specs=(parts, whole), out_specs=parts)(rows, index)
