"""All measurements of one machine, each in a process with a time limit of its own.

They run one after the other, the most valuable first. Each writes its own files as it goes, so a
measurement that fails, hangs or is stopped costs no other.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hlformer_jax import cli, files
from hlformer_jax.config import ConfigError

ROOT = Path(__file__).parents[1]

SECONDS_TO_END = 10
"""Seconds that a process has to end after SIGTERM, before it is killed."""


class Measurement(NamedTuple):
    """One command.

    Attributes:
      command: the program and its arguments.
      seconds: the time after which it is stopped.
      env: environment variables, besides those of this process.
    """

    command: Sequence[str]
    seconds: float
    env: Mapping[str, str] = {}


class Outcome(NamedTuple):
    """The end of a measurement.

    Attributes:
      name: name of the measurement.
      state: "done", "failed with status N", "stopped after N s" or "not started".
      seconds: the time that it took.
    """

    name: str
    state: str
    seconds: float


def measurements(
    out: Path, flags: Sequence[str], small: bool, peer: str | None
) -> dict[str, Measurement]:
    """Return all measurements by name, in their order.

    Args:
      out: directory of their files.
      flags: the flags of this command, which other benchmarks have too.
      small: whether the training run is small.
      peer: checkout of the released code, or None.
    """
    python = (sys.executable, "-m")
    has_gpu = shutil.which("nvidia-smi") is not None

    def benchmark(results: str, seconds: float, *command: str, peer: str = "") -> Measurement:
        last = f"--peer={peer}", f"--json={out / results}.json"
        return Measurement((*python, "benchmarks", *command, *flags, *last), seconds)

    def program(name: str, seconds: float) -> Measurement:
        return benchmark(name, seconds, "plan", "--measure", f"--program={name}")

    by_name = {}
    if has_gpu:
        by_name["device"] = Measurement(("nvidia-smi", "-q"), 30)
    by_name["step"] = program("step", 540)
    if peer is not None:
        by_name["peer"] = benchmark("peer", 300, "step", peer=peer)
    tests = ("pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/ops/test_float32.py"))
    platforms = {"JAX_PLATFORMS": "cuda,cpu"} if has_gpu else {}
    by_name["numbers"] = Measurement((*python, *tests), 240, platforms)
    config = f"--config=configs/synthetic.py{':debug' if small else ''}"
    run = (*python, "hlformer_jax.main", config, f"--workdir={out / 'run'}")
    by_name["train"] = Measurement(run, 300)
    by_name |= {name: program(name, 180) for name in ("extract", "evaluate", "queries", "search")}
    by_name["epoch"] = benchmark("epoch", 300, "epoch")
    demo = (*python, "hlformer_jax.search", "demo", f"--out={out / 'demo'}")
    by_name["decode"] = Measurement(demo, 300)
    return by_name


def select(names: Sequence[str], by_name: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Return the measurements with these names, in the order of the names; all without names.

    Raises:
      ConfigError: if a name is unknown.
    """
    for name in names:
        if name not in by_name:
            raise ConfigError(f"--only={name}: give names of {', '.join(by_name)}")
    return {name: by_name[name] for name in names} if names else dict(by_name)


def run_all(
    out: Path, by_name: Mapping[str, Measurement], seconds: float, replace: files.Replace
) -> Iterator[Outcome]:
    """Run measurements one after the other; yield the outcome of each.

    Standard output and error of a measurement go to OUT/NAME.log.

    Args:
      out: directory of the files.
      by_name: the measurements by name.
      seconds: time for all of them together. The one that it interrupts is stopped; the remaining
        ones are not started.
      replace: which files may be replaced.

    Raises:
      OutputError: if a file exists that may not be replaced.
    """
    for name in by_name:
        for path in (out / f"{name}.log", out / f"{name}.json"):
            files.check_output(path, replace)
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    for name, measurement in by_name.items():
        start = time.monotonic()
        limit = min(measurement.seconds, end - start)
        if limit <= 0:
            yield Outcome(name, "not started", 0.0)
            continue
        with (out / f"{name}.log").open("wb") as log:
            log.write((" ".join(measurement.command) + "\n").encode())
            log.flush()
            state = _run(measurement, limit, log.fileno())
        yield Outcome(name, state, time.monotonic() - start)


def _run(measurement: Measurement, limit: float, log: int) -> str:
    """Run one command in a process group of its own; return its `Outcome.state`."""
    try:
        process = subprocess.Popen(
            measurement.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **measurement.env},
            start_new_session=True,
        )
    except OSError as error:
        return f"failed: {error}"
    try:
        status = process.wait(limit)
        return "done" if status == 0 else f"failed with status {status}"
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(SECONDS_TO_END)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def show(out: Path, outcomes: Sequence[Outcome]) -> None:
    """Print the outcome of each measurement, and where its results are."""
    rows = []
    for name, state, seconds in outcomes:
        results = out / f"{name}.json"  # of an earlier time, if this one has failed
        has_results = state == "done" and results.exists()
        written = str(results if has_results else out / f"{name}.log")
        if state == "not started":
            written = ""
        rows.append((name, state, f"{cli.three_digits(seconds)} s", written))
    cli.print_table(("", "", "took", "results"), rows, str(out), text_columns=("", "results"))
