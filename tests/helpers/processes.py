"""Commands of the package, each run in a process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


def environment(devices=1):
    """Return the environment of a process with so many virtual devices.

    The process computes as this one does and can import the helpers of tests. conftest.py has set
    the other variables, such as the cache of compiled programs.
    """
    flags = [os.environ.get("XLA_FLAGS", "")]
    if devices > 1:
        flags.append(f"--xla_force_host_platform_device_count={devices}")
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")]),
        "XLA_FLAGS": " ".join(flags),
    }


def command(module, *arguments):
    """Return the command of a module of the package, or of `benchmarks`."""
    name = module if module == "benchmarks" else f"hlformer_jax.{module}"
    return [sys.executable, "-m", name, *map(str, arguments)]


def run(module, *arguments, **options):
    """Run a module of the package to its end."""
    return finish(command(module, *arguments), **options)


def finish(command, env=None, timeout=300, **options):
    """Run a command to its end and return its status and output."""
    return subprocess.run(
        command,
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


def start(module, *arguments, env=None, **options):
    """Start a module of the package, whose output the caller reads with `communicate`."""
    return subprocess.Popen(
        command(module, *arguments),
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


class CallResult(NamedTuple):
    """Exit status and standard error of a call."""

    status: int
    stderr: str


def calls(module, arguments, directory):
    """Call `python -m MODULE` in a directory once per list of arguments and return the results.

    Each call is a separate process, because flags and the settings of JAX belong to a process.
    """
    server = subprocess.run(
        [sys.executable, __file__, module],
        input=json.dumps([list(map(str, flags)) for flags in arguments]),
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment(),
        timeout=300,
        check=True,
    )
    return [CallResult(*result) for result in json.loads(server.stdout)]


def check_error(result, message):
    """Assert that a call printed one error line, as its last, which contains a message."""
    assert result.status == 1, result.stderr
    assert "Traceback" not in result.stderr
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert error == result.stderr.strip().splitlines()[-1]
    assert message in error


def _serve(module):
    import importlib
    import tempfile

    package, _, last = module.rpartition(".")
    name = f"{module}.__main__" if last in ("sweep", "benchmarks", "figures") else module
    program = importlib.import_module(name)
    # Modules that the commands import once their flags are valid.
    for lazy in ("training.loop", "training.loaded_run", "sweep.tables", "sweep.runs"):
        importlib.import_module(f"hlformer_jax.{lazy}")
    results = []
    for arguments in json.load(sys.stdin):
        with tempfile.TemporaryFile() as errors:
            child = os.fork()
            if child == 0:
                _call(program, [module, *arguments], errors.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            errors.seek(0)
            results.append((status, errors.read().decode()))
    print(json.dumps(results))


def _call(program, argv, errors):
    import traceback

    from absl import app

    from hlformer_jax import cli

    os.dup2(errors, 1)
    os.dup2(errors, 2)
    sys.argv = argv
    status = 0
    try:
        app.run(program.main, flags_parser=cli.parse)
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
