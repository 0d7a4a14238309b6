"""Planned programs that are run on the present device: their times, and those of their kernels.

JAX's profiler records the kernels of one further run. A kernel that XLA generates has the name of
its instruction; kernels of libraries, such as cuBLAS, have names of their own, which no instruction
states.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from benchmarks import measure, plan
from benchmarks.measure import Options
from benchmarks.plan import Kernel, Program
from hlformer_jax import cli
from hlformer_jax.errors import UserError
from hlformer_jax.runtime import devices

DTYPES = ("bfloat16", "tf32", "float32")
"""The precisions of a step; `config.precision` selects the last two."""

MEASURING_SECONDS = 420
"""Seconds after which no further program begins, so that all end within about ten minutes."""

DEAREST = 20
"""Number of kernels that are shown."""


def measured(
    names: Sequence[str], gpu: str, config: ConfigDict, options: Options
) -> Iterator[dict[str, Any]]:
    """Compile programs for the first device and run them; yield their plans with measured times.

    The plan is that of the program that runs, with the rates of the described GPU. No program
    begins after `MEASURING_SECONDS`. Programs that do not begin or that fail are left out, with a
    message.

    Args:
      names: names of the programs; a step is measured in all `DTYPES`.
      gpu: name of the described GPU in `plan.GPUS`.
      config: the configuration.
      options: the sizes and the number of repeats.
    """
    device, start = devices.mesh(jax.local_devices()[:1]), time.perf_counter()
    kinds = [
        (name, dtype) for name in names for dtype in DTYPES if name == "step" or dtype == "bfloat16"
    ]
    for name, dtype in kinds:
        if time.perf_counter() - start > MEASURING_SECONDS:
            _leave_out(name, dtype, f"{MEASURING_SECONDS} s have passed; --program={name} runs it")
            continue
        precise = config.copy_and_resolve_references()
        precise.dtype = dtype if dtype == "bfloat16" else "float32"
        precise.precision = dtype if dtype == "tf32" else "highest"
        try:
            compile_start = time.perf_counter()
            program, source = plan.compiled(name, device, precise, options)
            compiling = time.perf_counter() - compile_start
            run = _runner(program, source)
            timing = measure.per_unit(measure.timed(run, repeats=options.repeats), source.units)
            recorded = record(run)
        except (UserError, jax.errors.JaxRuntimeError) as error:
            # For example, an extra is missing, or there is too little memory; others may run.
            _leave_out(name, dtype, str(error).strip().splitlines()[0])
            continue
        stats = jax.local_devices()[0].memory_stats() or {}
        used = {"peak_so_far": stats.get("peak_bytes_in_use"), "compile": compiling}
        planned = plan.kernels(plan.Hlo(program.as_text()), source.turns)
        rows = beside_plan(recorded, planned, plan.GPUS[gpu], source.units)
        yield plan.summary_of(name, gpu, precise, program, source) | {
            "measured": timing._asdict() | used,
            "kernels_measured": rows,
        }


def _leave_out(name: str, dtype: str, reason: str) -> None:
    print(f"left out: {name}, {dtype}: {reason}", file=sys.stderr)


def _runner(program: Any, source: Program) -> Callable[[], Any]:
    """Return a function that runs a compiled program once more."""
    inputs = list(source.arguments())

    def run() -> Any:
        result = program(*inputs)
        if source.carries:
            inputs[0] = result[0]
        return result

    return run


# Kernels


class Recorded(NamedTuple):
    """Seconds of all launches of a kernel, and their number."""

    seconds: float
    launches: int


def record(run: Callable[[], Any]) -> dict[str, Recorded]:
    """Run a program once under JAX's profiler; return its kernels on GPUs, by name.

    The result is empty without a GPU, and with a release of JAX that cannot read its own profiles.
    """
    reader = getattr(jax.profiler, "ProfileData", None)  # JAX 0.6 has none
    if reader is None or jax.local_devices()[0].platform != "gpu":
        return {}
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (path,) = Path(folder).rglob("*.xplane.pb")
        return sums(reader.from_file(str(path)).planes)


def sums(planes: Iterable[Any]) -> dict[str, Recorded]:
    """Return the kernels of a profile, by name.

    Args:
      planes: the `planes` of JAX's `ProfileData`. The lines of a GPU's plane that are named after a
        stream have one event for each launch.
    """
    kernels: dict[str, Recorded] = {}
    for plane in planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                seconds, launches = kernels.get(event.name, Recorded(0.0, 0))
                kernels[event.name] = Recorded(seconds + 1e-9 * event.duration_ns, launches + 1)
    return kernels


def beside_plan(
    recorded: Mapping[str, Recorded], planned: Iterable[Kernel], gpu: plan.Gpu, units: int
) -> list[dict[str, Any]]:
    """Return the recorded kernels, the most expensive first, each with its plan and source line.

    Args:
      recorded: the kernels of a run, by name.
      planned: the kernels of the program that ran.
      gpu: the GPU with whose rates they are planned.
      units: number of units (such as steps) of the run; the results are per unit.
    """
    # A kernel serves all instructions that do the same. Its name is that of the first.
    by_name: dict[str, Kernel] = {}
    for kernel in planned:
        by_name.setdefault(kernel.name.replace(".", "_").replace("-", "_"), kernel)
    rows = []
    for name, (seconds, launches) in recorded.items():
        of_plan = by_name.get(name)
        rows.append(
            {
                "kernel": name,
                "seconds": seconds / units,
                "times": launches / units,
                "planned": of_plan and launches / units * of_plan.seconds(gpu),
                "line": of_plan and of_plan.line,
            }
        )
    return sorted(rows, key=lambda row: -row["seconds"])


# Output

_digits = cli.three_digits


def show_measured(results: Sequence[Mapping[str, Any]], device: str) -> None:
    """Print planned and measured times of programs, and the most expensive kernels of each."""
    gpu = results[0]["gpu"]
    head = (
        "program, dtype, planned ms, measured ms, ratio, kernels ms, launches, bound, GB,"
        " compiled in s"
    ).split(", ")
    rows = []
    for result in results:
        planned, took = result["seconds"], result["measured"]
        low, median, high = (_digits(1e3 * took[name]) for name in ("low", "median", "high"))
        busy = sum(kernel["seconds"] for kernel in result["kernels_measured"])
        rows.append(
            [
                result["program"],
                result["dtype"],
                _digits(1e3 * planned),
                f"{median} ({low} - {high})",
                _digits(took["median"] / planned),
                _digits(1e3 * busy) if busy else "-",
                _digits(result["launches"]),
                next(iter(result["bound"])),
                _digits(result["memory"]["peak"] / 1e9),
                _digits(took["compile"]),
            ]
        )
    title = f"planned for {gpu}, measured on {device}"
    cli.print_table(head, rows, title, text_columns=head, width=140)
    for result in results:
        if result["kernels_measured"]:
            _show_kernels(result)


def _show_kernels(result: Mapping[str, Any]) -> None:
    head = ("ms", "planned ms", "times", "kernel", "line")
    rows = []
    for kernel in result["kernels_measured"][:DEAREST]:
        planned = "-" if kernel["planned"] is None else _digits(1e3 * kernel["planned"])
        numbers = _digits(1e3 * kernel["seconds"]), planned, _digits(kernel["times"])
        rows.append([*numbers, kernel["kernel"][:50], kernel["line"] or "-"])
    title = f"{result['program']}, {result['dtype']}: the most expensive kernels"
    cli.print_table(head, rows, title, text_columns=head, width=120)
