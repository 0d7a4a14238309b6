"""Commands of the package as a person starts them: processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(devices=1):
    """The environment of a process that computes as this one does, on so many virtual devices.

    conftest.py has set the rest, kept programs among it.
    """
    flags = [os.environ.get("XLA_FLAGS", "")]
    if devices > 1:
        flags.append(f"--xla_force_host_platform_device_count={devices}")
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": " ".join(flags),
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
