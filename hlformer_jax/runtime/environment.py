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
    file = Path(__file__)
    with contextlib.suppress(OSError):  # git is not installed
        # An installed package may lie in a checkout of another project, which does not track it.
        if _ask_git(file, "ls-files", "--error-unmatch", file.name):
            versions["commit"] = _ask_git(file, "describe", "--always", "--dirty")
    for name in ("hlformer-jax", "jax", "jaxlib", "flax", "optax", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a checkout that was not installed
            continue
    return versions


def _ask_git(file: Path, *arguments: str) -> str:
    """Return what git prints in the folder of a file; "" if it fails."""
    command = ["git", "-C", str(file.parent), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""
