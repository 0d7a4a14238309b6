"""Processes of their own that prepare the tiny corpus."""

import os
import subprocess
import sys

import pytest


def start(code: str, *args: object, **environment: str) -> subprocess.Popen:
    """Starts a process that has a `collection` and a `data_dir`."""
    head = (
        "import sys, os; from hlformer_jax.data.released.collection import Collection; "
        "from hlformer_jax.data.prepared.preparation import prepare; "
        "from hlformer_jax.data.prepared.records import Records; "
        "collection = Collection(sys.argv[1], 'tiny', 'feat', 6, 5); data_dir = sys.argv[2]\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="session")
def python():
    """Starts a process; see `start`."""
    return start
