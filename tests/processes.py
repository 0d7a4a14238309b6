"""Commands of the package as a person starts them: processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(devices=1):
    """The environment of a process that computes as this one does, on so many virtual devices.

    Programs are shared with the other processes of a session of tests (see conftest.py).
    """
    more = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"} if devices > 1 else {}
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": os.environ["HLFORMER_TEST_PROGRAMS"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        **more,
    }


def command(module, *arguments):
    """The command of a module of the package."""
    return [sys.executable, "-m", f"hlformer_jax.{module}", *map(str, arguments)]


def run(module, *arguments, **options):
    """Runs a module of the package to its end."""
    return finish(command(module, *arguments), **options)


def finish(command, env=None, timeout=300, **options):
    """Runs a command to its end; the result has its status and what it wrote."""
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
    """Starts a module of the package; what it writes is to be read by `communicate`."""
    return subprocess.Popen(
        command(module, *arguments),
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
