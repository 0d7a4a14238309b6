"""Devices, the processes of a run, and the compiler.

One axis, `data`, runs over all devices of all processes. Parameters are replicated; videos and
captions of a batch, the corpus and features that live on the devices are sharded along their
leading axis. Losses are written for the whole batch, and XLA adds the communication, so that a
result does not depend, but for rounding, on how many devices shared the work.
"""

import contextlib
import functools
import gc
import inspect
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from hlformer_jax.errors import UserError
from hlformer_jax.typing import Array

AXIS = "data"

SHUTDOWN_SECONDS = 60
"""Limit of waiting at the end for the other processes, which are seconds apart."""


class ProcessError(UserError, RuntimeError):
    """The processes of a run could not find one another, or disagree; the message says how."""


# Devices


def mesh(devices: Any = None) -> Mesh:
    """All devices (or those given) along the axis `data`."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), (AXIS,))


def available_bytes(mesh: Mesh, free: bool = False) -> int | None:
    """Bytes that JAX may use on each of this process's devices; None where none tells (a CPU).

    `free` leaves out what is in use.
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


def to_host(array: Array) -> np.ndarray:
    """A global array as NumPy; one that is sharded over processes is gathered."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def take_rows(mesh: Mesh, rows: Array, index: Array) -> Array:
    """Rows of a sharded array by a global index, sharded like the index's leading axis.

    Each device answers for the rows that it holds, and the answers, of which all but one are zero,
    are added: exact in every dtype, and no device ever holds all rows.
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


# Processes


def is_first() -> bool:
    """Whether this process writes what a run leaves outside of checkpoints."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all must ask at the same place."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


@contextlib.contextmanager
def first_alone(name: str) -> Iterator[None]:
    """Runs a block in process 0 first, then in the others, which fail where it failed."""
    if not is_first() and any_process(False):
        raise ProcessError(f"process 0 gave up ({name}): it says why")
    try:
        yield
    except BaseException:
        if is_first():
            any_process(True)
        raise
    if is_first():
        any_process(False)


def join_processes(coordinator: str, processes: int, process: int) -> None:
    """Makes this process one of several; a no-op for one process outside of Slurm.

    The coordinator is HOST:PORT of process 0; empty: from Slurm, where it started several tasks.
    """
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if not coordinator and processes == 1 and tasks == 1:
        return
    from jax.experimental import multihost_utils

    # What CPU processes talk through; GPUs have their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    terminated = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    initialize = jax.distributed.initialize
    if "shutdown_timeout_seconds" in inspect.signature(initialize).parameters:
        # What a process that fails alone waits for the others, who wait for it: else five minutes.
        initialize = functools.partial(initialize, shutdown_timeout_seconds=SHUTDOWN_SECONDS)
    try:
        if not coordinator and processes == 1:
            # Else JAX takes the GPU numbered as the task is on its node, though Slurm may show each
            # task GPUs of its own, numbered from 0.
            initialize(local_device_ids=_visible_gpus())
        elif not (re.fullmatch(r".+:\d+", coordinator) and 0 <= process < processes):
            raise ProcessError(
                f"--coordinator={coordinator!r} --processes={processes} --process={process}: give"
                " HOST:PORT of process 0, and a process number below the number of processes"
            )
        else:
            initialize(coordinator, processes, process)
        # The processes connect now, while they are together. Later one may be far behind the
        # others, which would wait for its connection half a minute and give up.
        multihost_utils.sync_global_devices("joined")
        # JAX has installed a handler that notes SIGTERM, for something that does not ask.
        signal.signal(signal.SIGTERM, terminated)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ProcessError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ProcessError(f"process {process} of {processes}: no start: {reason}") from error


def _visible_gpus() -> list[int] | None:
    """Numbers of the GPUs that the environment shows this process; None where it does not say."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(range(len(shown.split(",")))) if shown else None


# The compiler: precision, how to compile, and what a program costs


def configure(config: ConfigDict) -> None:
    """Sets JAX's own options as a configuration needs them, and keeps programs."""
    if config.dtype == "float32":
        jax.config.update("jax_default_matmul_precision", precision(config))
    if config.compile_fast:
        jax.config.update("jax_disable_most_optimizations", True)
    keep_programs()


def precision(config: ConfigDict) -> str | None:
    """JAX's default precision of matrix products for a configuration.

    In float32 a GPU may otherwise round factors to fewer bits. With "tf32" it may, but in geometry,
    logits and losses, which ask for all bits themselves (`numerics.exact_precision`).
    """
    if config.dtype != "float32":
        return None
    return "tensorfloat32" if config.precision == "tf32" else "highest"


@contextlib.contextmanager
def configured(config: ConfigDict) -> Iterator[None]:
    """`configure` for one of several runs of a process: the next finds the precision as it was.

    `compile_fast`, once on, stays on, since JAX does not tell whether it was.
    """
    name = "jax_default_matmul_precision"
    before = getattr(jax.config, name)
    configure(config)
    try:
        yield
    finally:
        jax.config.update(name, before)


def keep_programs() -> None:
    """Keeps compiled programs from one process to the next below ~/.cache/hlformer_jax.

    JAX_COMPILATION_CACHE_DIR, or JAX's option of that name, names another place.
    """
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hlformer_jax"
        if jax.default_backend() == "cpu":
            # Programs for a CPU may use instructions that another machine of a cluster lacks.
            cache = cache / os.uname().nodename
        jax.config.update("jax_compilation_cache_dir", str(cache))


def compiler_options(config: ConfigDict) -> dict[str, str | bool] | None:
    """Options for the one program that takes long to compile, the training step."""
    # XLA's older code generator for CPUs takes a fifth less time for it. No later JAX was tried.
    known = (0, 6) <= jax.__version_info__[:2] <= (0, 10)
    if config.compile_fast and known and jax.default_backend() == "cpu":
        return {"xla_cpu_use_fusion_emitters": False}
    return None


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Traces a large program in a fifth less time.

    Tracing makes millions of objects that stay, and each of them is looked at again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def count_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Floating-point operations of a function, counted before a compiler simplifies them.

    The CPU's compiler counts, on whatever device the rest runs: that of a GPU makes its products
    calls of a library, into which its count does not see. NaN in a process that JAX gives no CPU.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return math.nan
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    with jax.default_device(cpu):
        with jax.disable_jit():  # a scan becomes its turns, of which a compiler would count one
            unrolled = jax.make_jaxpr(function)(*shapes)
        flat = jax.jit(jaxpr_as_fun(unrolled))
        return flops(flat.lower(*jax.tree.leaves(shapes)))


def flops(compiled: Any) -> float:
    """Floating-point operations of a compiled program on one device, by the compiler's count.

    A loop whose length is not known when it is compiled counts as one turn of its body.
    """
    analysis = compiled.cost_analysis() or {}
    if isinstance(analysis, list):  # one for each program, in some releases of JAX
        analysis = analysis[0]
    return float(analysis.get("flops", math.nan))


def memory_plan(compiled: Any) -> dict[str, float]:
    """Bytes of a compiled program on one device, by the compiler's plan, and their sum as `peak`.

    Results are those beyond donated arguments.
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
