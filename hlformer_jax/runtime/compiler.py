"""The compiler: precision, options, the cache of programs, and the costs of a program."""

import contextlib
import gc
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from ml_collections import ConfigDict

from hlformer_jax import files, terminal


def configure(config: ConfigDict) -> None:
    """Set JAX's options for a configuration, and the cache of compiled programs."""
    if config.dtype == "float32":
        jax.config.update("jax_default_matmul_precision", precision(config))
    if config.compile_fast:
        jax.config.update("jax_disable_most_optimizations", True)
    keep_programs()


def precision(config: ConfigDict) -> str | None:
    """Return JAX's default precision of matrix products for a configuration.

    A GPU may round float32 factors to fewer bits unless "highest" is requested. With
    `config.precision` "tf32" only geometry, logits and losses request it
    (`numerics.exact_precision`).
    """
    if config.dtype != "float32":
        return None
    return "tensorfloat32" if config.precision == "tf32" else "highest"


@contextlib.contextmanager
def configured(config: ConfigDict) -> Iterator[None]:
    """Configure JAX for one of several runs of a process, and restore the precision afterwards.

    Once a run has set `compile_fast`, it stays on, because JAX does not report its previous value.
    """
    name = "jax_default_matmul_precision"
    before = getattr(jax.config, name)
    configure(config)
    try:
        yield
    finally:
        jax.config.update(name, before)


def keep_programs() -> None:
    """Cache compiled programs between processes below ~/.cache/hlformer_jax.

    JAX_COMPILATION_CACHE_DIR, or JAX's option of that name, chooses another folder. If no file can
    be written there, as in a container without a home, a line says so and nothing is cached.
    """
    if getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    # Programs for a CPU may use instructions that another machine of a cluster lacks.
    machine = os.uname().nodename if jax.default_backend() == "cpu" else ""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(caches, "hlformer_jax", machine)
    reason = "this user has no home" if caches.startswith("~") else ""
    if not reason:
        try:
            files.check_writable(cache)
        except OSError as error:
            reason = str(error.strerror)
    if reason:
        terminal.warn(
            f"compiled programs cannot be kept in {cache} ({reason}), so each start compiles them:"
            " set XDG_CACHE_HOME to a folder that can be written"
        )
    else:
        jax.config.update("jax_compilation_cache_dir", str(cache))


def compiler_options(config: ConfigDict) -> dict[str, str | bool] | None:
    """Return the options for the training step, the one program that takes long to compile."""
    # XLA's older code generator for CPUs compiles in a fifth less time. Tested up to JAX 0.10.
    is_tried = (0, 6) <= jax.__version_info__[:2] <= (0, 10)
    if config.compile_fast and is_tried and jax.default_backend() == "cpu":
        return {"xla_cpu_use_fusion_emitters": False}
    return None


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection, which traces a large program in a fifth less time.

    Tracing makes millions of objects that stay alive, and each collection visits all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def count_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Count the floating-point operations of a function, before the compiler simplifies them.

    The compiler for CPUs counts them, whatever the device. A GPU's compiler calls a library for
    matrix products and does not count their operations.

    Args:
      function: the function.
      *arguments: its arguments, or their shapes.

    Returns:
      The number of operations; NaN if JAX has no CPU device in this process.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it
        return math.nan
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    with jax.default_device(cpu):
        with jax.disable_jit():  # unrolls a scan; otherwise only one iteration is counted
            unrolled = jax.make_jaxpr(function)(*shapes)
        flat = jax.jit(jaxpr_as_fun(unrolled))
        return flops(flat.lower(*jax.tree.leaves(shapes)))


def flops(compiled: Any) -> float:
    """Return the compiler's count of the floating-point operations on one device.

    A loop whose length is unknown at compile time counts as one iteration.
    """
    analysis = compiled.cost_analysis() or {}
    if isinstance(analysis, list):  # one for each program, in some releases of JAX
        analysis = analysis[0]
    return float(analysis.get("flops", math.nan))


def memory_plan(compiled: Any) -> dict[str, float]:
    """Return the bytes that a program needs on one device, as planned by the compiler.

    Returns:
      Bytes of "arguments", "results" (without results that reuse donated arguments) and "temporary"
      arrays, and their sum, "peak". Empty if the compiler has no plan.
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
