"""The processes of a run: joining them, and what they agree on."""

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


def is_first() -> bool:
    """Whether this process writes what a run leaves outside of checkpoints."""
    return jax.process_index() == 0


@contextlib.contextmanager
def first_alone(name: str) -> Iterator[None]:
    """Runs a block in process 0 first, and then, when that is done, in the others.

    Args:
      name: what the block does, for a message.

    Raises:
      ProcessError: in the others, when it failed in process 0.
    """
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


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all must ask at the same place."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


SHUTDOWN_SECONDS = 60
"""How long a process that is done waits for the others; what follows their work takes seconds."""


class ProcessError(UserError, RuntimeError):
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
