"""The environment of a run: its devices, and the versions of programs."""

import contextlib
import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax


def describe() -> dict[str, Any]:
    """Return the number and kind of the devices as "device", and `list_versions` as "versions"."""
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return {"device": device, "versions": dict(list_versions())}


@functools.cache
def list_versions() -> dict[str, str]:
    """Return the versions of Python and of packages, and the commit if this is a git checkout."""
    versions = {"python": platform.python_version()}
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # git is not installed
        described = subprocess.run(command, capture_output=True, text=True, check=False)
        if described.returncode == 0:
            versions["commit"] = described.stdout.strip()
    for name in ("hlformer-jax", "jax", "jaxlib", "flax", "optax", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a checkout that was not installed
            continue
    return versions
