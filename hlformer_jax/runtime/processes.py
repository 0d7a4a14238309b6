"""Processes of a run: joining them, and agreeing on flags."""

import contextlib
import functools
import inspect
import os
import re
import signal
from collections.abc import Iterator

import jax
import numpy as np

from hlformer_jax.errors import UserError

SHUTDOWN_SECONDS = 60
"""Longest wait at the end of a run for the other processes, which end within seconds."""


class ProcessError(UserError, RuntimeError):
    """The processes of a run did not find one another, or disagree."""


def is_first() -> bool:
    """Return whether this process writes the files of a run other than checkpoints."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Return whether the flag is set in any process; all processes must call this together."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


@contextlib.contextmanager
def first_alone(name: str) -> Iterator[None]:
    """Run a block in process 0 first, and then in the other processes.

    Args:
      name: name of the block, for the error message.

    Raises:
      ProcessError: in the other processes, if process 0 failed.
    """
    if not is_first() and any_process(False):
        raise ProcessError(f"process 0 failed ({name}): see its output")
    try:
        yield
    except BaseException:
        if is_first():
            any_process(True)
        raise
    if is_first():
        any_process(False)


def join_processes(coordinator: str, processes: int, process: int) -> None:
    """Join the processes of a run; do nothing for a single process.

    Args:
      coordinator: HOST:PORT of process 0; "" reads it from Slurm, if Slurm started several tasks.
      processes: number of processes.
      process: index of this process, from 0.

    Raises:
      ProcessError: if the arguments are wrong or the processes do not find one another.
    """
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    uses_defaults = not coordinator and processes == 1
    if uses_defaults and tasks == 1:
        return
    has_address = re.fullmatch(r".+:\d+", coordinator) is not None
    if not uses_defaults and not (has_address and 0 <= process < processes):
        raise ProcessError(
            f"`coordinator`={coordinator!r}, `processes`={processes}, `process`={process}:"
            " give HOST:PORT of process 0, and a `process` from 0 to `processes` minus 1"
        )
    from jax.experimental import multihost_utils

    # Processes on CPUs communicate through gloo; GPUs have a library of their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    terminated = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    initialize = jax.distributed.initialize
    if "shutdown_timeout_seconds" in inspect.signature(initialize).parameters:
        # If a single process fails, it and the other processes wait for each other; JAX's default
        # is five minutes.
        initialize = functools.partial(initialize, shutdown_timeout_seconds=SHUTDOWN_SECONDS)
    try:
        if uses_defaults:
            # By default JAX takes the GPU with the number of the task on its node, but Slurm may
            # show each task only its own GPUs, numbered from 0.
            initialize(local_device_ids=_visible_gpus())
        else:
            initialize(coordinator, processes, process)
        # Connect now, while the processes are at the same point. Later a process may be far behind;
        # the others would wait half a minute for its connection and give up.
        multihost_utils.sync_global_devices("joined")
        # JAX has installed a handler for SIGTERM, which nothing here reads.
        signal.signal(signal.SIGTERM, terminated)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProcessError(f"process {process} of {processes} could not start: {reason}") from error


def _visible_gpus() -> list[int] | None:
    """Return the numbers of the GPUs that the environment shows; None if it shows no list."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(range(len(shown.split(",")))) if shown else None
