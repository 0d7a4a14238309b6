"""What a program sets before it computes: the processes it is one of, precision, compilation."""

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
from ml_collections import ConfigDict


def compiler_options(config: ConfigDict) -> dict[str, str | bool] | None:
    """Options for the one program that takes long to compile, the training step."""
    # XLA's older code generator for CPUs takes a fifth less time for it. No later JAX was tried.
    known = (0, 6) <= jax.__version_info__[:2] <= (0, 10)
    if config.compile_fast and known and jax.default_backend() == "cpu":
        return {"xla_cpu_use_fusion_emitters": False}
    return None


def configure(config: ConfigDict) -> None:
    """Sets JAX's own options as a configuration needs them, and keeps programs."""
    if config.dtype == "float32":
        # Hardware may otherwise round the factors of float32 products to fewer bits.
        jax.config.update("jax_default_matmul_precision", "highest")
    if config.compile_fast:
        jax.config.update("jax_disable_most_optimizations", True)
    keep_programs()


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


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Looks for no garbage inside: to trace a large program takes a fifth less time.

    Tracing makes millions of objects that stay, and each of them is looked at again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
