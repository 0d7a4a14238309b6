"""Times of this package's programs, compared with the highest rates of the hardware.

    python -m benchmarks NAME [--config=configs/anet.py] [--json=FILE]

NAME is one of

    step       a training step of a batch with all its captions
    epoch      an epoch of training, features resident and streamed, and a checkpoint
    evaluate   encoding and ranking of a validation split
    query      search in a corpus of 2,500 videos, single queries and batches of 256
    prepare    released files to records
    compile    tracing and compiling of the programs of a run, without a cache
    search     sentences in archives of up to 1,000 hours
    index      a new video in 1,000 hours, a pass over 50,000 unchanged files, a first query
    geometry   functions of hyperbolic space and their errors, beside hyperbolix and geoopt
    plan       the programs that XLA compiles for an absent GPU: --gpu, --program, --figure; or
               --diff A.json B.json compares two plans; or --measure times all programs on the
               present device, beside their plans
    all        what a GPU should be asked, each in a process with a time limit: the plans' programs,
               errors of float32, a training run, an epoch, the demo; --out=DIR, --only, --seconds

Without --config the sizes of ActivityNet Captions are used. A configuration on synthetic data, such
as every `:debug`, has its own sizes. Features are random. Every line has the median and the range
of the repeats, the floor (see `measure`) and the ratio of median and floor. docs/benchmark.md has
all options and results.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from benchmarks import measure
from benchmarks.measure import Options, Row
from hlformer_jax import cli, files
from hlformer_jax.config import ConfigError, check, default, family_of
from hlformer_jax.data.sources.synthetic import is_synthetic
from hlformer_jax.errors import UserError, describe
from hlformer_jax.lazy import optional
from hlformer_jax.runtime import compiler

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Configuration that gives the sizes to measure (default: ActivityNet Captions)."
)
JSON = flags.DEFINE_string("json", None, "Also write the results to this JSON file.")
OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace an existing file of --json.")
PEER = flags.DEFINE_string(
    "peer", None, "step, all: checkout of the released code, to measure as well."
)
VIDEOS = flags.DEFINE_integer(
    "videos",
    0,
    "Videos of a split or a corpus (default: the configuration's synthetic corpus, else"
    " ActivityNet's); index: unchanged files (default: 50,000; 200 with synthetic data).",
    lower_bound=0,
)
ENCODER = flags.DEFINE_string(
    "encoder",
    None,
    "search, plan: base, tiny, a folder or an id of the hub (default: base; tiny with synthetic"
    " data).",
)
HOURS = flags.DEFINE_float(
    "hours",
    None,
    "search, index, plan: hours of the largest archive (default: 1,000; 1 with synthetic data).",
)
OUT = flags.DEFINE_string("out", None, "all: directory of the results.")
ONLY = flags.DEFINE_list("only", [], "all: names of measurements, in their order (default: all).")
SECONDS = flags.DEFINE_float(
    "seconds", 3600.0, "all: time for all measurements together.", lower_bound=1.0
)
STORE = flags.DEFINE_string(
    "store", "", "search: also upload to this PostgreSQL database (…?schema=NAME) and query it."
)
REPEATS = flags.DEFINE_integer(
    "repeats", 20, "Repeats of each measurement, at most; with synthetic data at most 3."
)
GPU = flags.DEFINE_enum(
    "gpu", "h200", ("h100", "h200", "a100-80", "a6000"), "plan: the GPU to plan for."
)
PROGRAM = flags.DEFINE_enum(
    "program",
    None,
    ("step", "evaluate", "query", "queries", "search", "extract"),
    "plan: the program (default: step; with --measure all programs).",
)
MEASURE = flags.DEFINE_bool("measure", False, "plan: also run the programs on the first device.")
FIGURE = flags.DEFINE_string(
    "figure", None, "plan: draw the time of each line to FIGURE.png and other formats."
)
DIFF = flags.DEFINE_string(
    "diff", None, "plan: compare this file of --json with the file given next."
)

PROGRAMS = {
    "step": "step.step",
    "epoch": "step.epoch",
    "evaluate": "query.evaluate",
    "query": "query.query",
    "prepare": "step.prepare",
    "compile": "step.compilation",
    "search": "query.search",
    "index": "index.index",
    "geometry": "geometry.geometry",
}
"""The programs by name. The module of a program is imported when the program runs."""


def main(argv: Sequence[str]) -> int:
    """Run one benchmark; return the exit status. A wrong input prints one line, with status 1."""
    names = argv[1:]
    try:
        if names[:1] == ["plan"] and len(names) == 1 + bool(DIFF.value):
            return _plan(names[1:])
        if names == ["all"]:
            return _measure_all()
        if len(names) != 1 or names[0] not in PROGRAMS:
            return cli.fail(f"give one name: {', '.join(PROGRAMS)}, plan, all")
        return _benchmark(names[0])
    except (UserError, OSError) as error:
        return cli.fail(describe(error))


def _benchmark(name: str) -> int:
    """Run one of the `PROGRAMS`."""
    config = CONFIG.value or default()
    options, replace = _options(config), files.replacing(OVERWRITE.value)
    if JSON.value:
        files.check_output(Path(JSON.value), replace)
    check(config)
    if family_of(config) != "prvr":
        return cli.fail(
            f"--config is of the model {config.model.name!r}: give one of partially relevant"
            " video retrieval, for example configs/anet.py"
        )
    compiler.configure(config)
    arguments: list[Any] = [config, options]
    if PEER.value:
        if name != "step":
            return cli.fail("--peer goes with step")
        from benchmarks.step import Released

        # By default JAX takes most of the memory at its start; the released code needs some.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        platform = "cuda" if jax.default_backend() == "gpu" else "cpu"
        arguments.append(Released(Path(PEER.value), config, platform))
    rows = []
    for row in _program(name)(*arguments):
        print(f"measured: {row.what.strip()}, {_seconds(row.timing.median)}", file=sys.stderr)
        rows.append(row)
    _print(name, rows)
    if JSON.value:
        files.write_json(Path(JSON.value), _as_json(name, rows, config), replace)
    return 0


def _plan(paths: Sequence[str]) -> int:
    """Plan a program, or compare two written plans."""
    from benchmarks import plan

    if DIFF.value:
        plan.show(*(plan.read(Path(path)) for path in (DIFF.value, *paths)))
        return 0
    config, replace = CONFIG.value or default(), files.replacing(OVERWRITE.value)
    options = _options(config)
    check(config)
    for path in (JSON.value, FIGURE.value and f"{FIGURE.value}.png"):
        if path:
            files.check_output(Path(path), replace)
    if MEASURE.value:
        _measure(config, options, replace)
        return 0
    result = plan.plan(PROGRAM.value or "step", GPU.value, config, options)
    plan.show(result)
    if JSON.value:
        files.write_json(Path(JSON.value), result, replace)
    if FIGURE.value:
        plan.tree_map(result, Path(FIGURE.value), replace)
    return 0


def _measure(config: ConfigDict, options: Options, replace: files.Replace) -> None:
    """Plan and measure programs; write the results after each, in case the next one hangs."""
    from benchmarks import measured, plan

    device = jax.devices()[0]
    kind = device.device_kind.lower()
    gpu = next((name for name in plan.GPUS if name.split("-")[0] in kind), GPU.value)
    about = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
    results: list[dict] = []
    programs = plan.PROGRAMS if family_of(config) == "prvr" else plan.OF_EVERY_FAMILY
    names = [PROGRAM.value] if PROGRAM.value else list(programs)
    for result in measured.measured(names, gpu, config, options):
        results.append(result)
        seconds = _seconds(result["measured"]["median"])
        print(f"measured: {result['program']}, {result['dtype']}, {seconds}", file=sys.stderr)
        if JSON.value:
            written = about | {"config": config.to_dict(), "programs": results}
            files.write_json(Path(JSON.value), written, replace)
            replace = files.Replace.ANY
    if not results:
        raise ConfigError("no program could be measured: the reasons are printed above")
    measured.show_measured(results, device.device_kind)


def _measure_all() -> int:
    """Run the measurements of `series`; the status is 1 if one was not done."""
    from benchmarks import series

    if not OUT.value:
        return cli.fail("all needs --out=DIR, the directory of the results")
    config, outcomes = CONFIG.value or default(), []
    out = Path(OUT.value).absolute()
    arguments = list(sys.argv[1:])
    arguments.remove("all")  # the processes take all flags as they are
    check(config)
    measurements = series.measurements(out, arguments, config.compile_fast, PEER.value)
    selected = series.select(ONLY.value, measurements)
    for outcome in series.run_all(out, selected, SECONDS.value, files.replacing(OVERWRITE.value)):
        print(f"{outcome.name}: {outcome.state}", file=sys.stderr)
        outcomes.append(outcome)
    series.show(out, outcomes)
    return int(any(outcome.state != "done" for outcome in outcomes))


def _options(config: ConfigDict) -> Options:
    """Return the options of the flags; the defaults are small with a synthetic corpus."""
    small = is_synthetic(config.data)
    hours = (1.0 if small else 1000.0) if HOURS.value is None else HOURS.value
    if not 0 < hours <= 10_000:
        raise ConfigError(f"--hours={hours:g}: give hours above 0 and up to 10,000")
    encoder = ENCODER.value or ("tiny" if small else "base")
    repeats = max(min(REPEATS.value, 3) if small else REPEATS.value, 1)
    return Options(VIDEOS.value, repeats, encoder, hours, STORE.value)


def _program(name: str) -> Callable[..., Iterator[Row]]:
    """Return the program with a name."""
    module, function = PROGRAMS[name].split(".")
    program = optional(f"benchmarks.{module}", "search")
    run: Callable[..., Iterator[Row]] = getattr(program, function)
    return run


def _print(name: str, rows: Sequence[Row]) -> None:
    device = jax.devices()[0].device_kind
    title = f"{name}, {jax.device_count()} x {device}, jax {jax.__version__}"
    lines = []
    for row in rows:
        low, high = _seconds(row.timing.low), _seconds(row.timing.high)
        floor = _seconds(row.floor.seconds) if row.floor else "-"
        ratio = f"{row.timing.median / row.floor.seconds:.2f}" if row.floor else "-"
        facts = [f"{name} {cli.three_digits(value)}" for name, value in row.facts.items()] or [""]
        median = _seconds(row.timing.median)
        lines.append((row.what, median, f"{low} - {high}", floor, ratio, facts[0]))
        lines += [("", "", "", "", "", fact) for fact in facts[1:]]
    head = ("", "median", "range", "floor", "ratio", "")
    cli.print_table(head, lines, title, text_columns=("",))
    used = {dtype: measure.ceilings(dtype) for dtype in ("float32", "bfloat16")}
    for dtype, ceiling in used.items():
        print(
            f"{dtype}: matrix product {cli.three_digits(ceiling.flops / 1e12)} TFLOP/s,"
            f" copy {cli.three_digits(ceiling.bytes / 1e9)} GB/s"
        )


def _as_json(name: str, rows: Sequence[Row], config: ConfigDict) -> dict:
    device = jax.devices()[0]
    return {
        "benchmark": name,
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "config": config.to_dict(),
        "ceilings": {x: measure.ceilings(x)._asdict() for x in ("float32", "bfloat16")},
        "rows": [
            {
                "what": row.what.strip(),
                "seconds": row.timing._asdict(),
                "floor": row.floor and row.floor._asdict(),
                "facts": row.facts,
            }
            for row in rows
        ],
    }


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale or unit == "us":
            return f"{cli.three_digits(value / scale)} {unit}"
    return ""


if __name__ == "__main__":
    cli.run_program(main)
