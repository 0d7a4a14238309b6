"""What a program sets before it computes: the processes it is one of, precision, compilation."""

import contextlib
import functools
import inspect
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
from ml_collections import ConfigDict

SHUTDOWN_SECONDS = 60
"""How long a process that is done waits for the others; what follows their work takes seconds."""


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


def compiler_options(config: ConfigDict) -> dict[str, str | bool] | None:
    """Options for the one program that takes long to compile, the training step."""
    # XLA's older code generator for CPUs takes a fifth less time for it. No later JAX was tried.
    known = (0, 6) <= jax.__version_info__[:2] <= (0, 10)
    if config.compile_fast and known and jax.default_backend() == "cpu":
        return {"xla_cpu_use_fusion_emitters": False}
    return None


def configure(config: ConfigDict) -> None:
    """Sets JAX's own options as a configuration needs them.

    Compiled programs are kept between runs below ~/.cache/hlformer_jax; JAX_COMPILATION_CACHE_DIR
    names another place.
    """
    if config.dtype == "float32":
        # Hardware may otherwise round the factors of float32 products to fewer bits.
        jax.config.update("jax_default_matmul_precision", "highest")
    if config.compile_fast:
        jax.config.update("jax_disable_most_optimizations", True)
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hlformer_jax"
        if jax.default_backend() == "cpu":
            # Programs for a CPU may use instructions that another machine of a cluster lacks.
            cache = cache / os.uname().nodename
        jax.config.update("jax_compilation_cache_dir", str(cache))


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
