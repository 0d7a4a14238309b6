"""Settings of all tests: strict dtype and rank promotion, as the package promises to need none."""

import os
import tempfile

# Before JAX is imported: several virtual devices would only slow these tests down.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

CHECKED = (
    "benchmark", "command", "config", "data", "encoders", "errors", "main", "manifolds", "models",
    "nn", "ops", "parallel", "plots", "retrieval", "run", "sweep", "torch_checkpoint", "training",
    "typing", "video",
)  # fmt: skip
"""Packages whose annotations are executed in all tests."""

# Before any of them is imported.
install_import_hook([f"hlformer_jax.{name}" for name in CHECKED], "typechecker.check")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# The suite compiles far more than it computes. Values differ from optimised ones by rounding.
jax.config.update("jax_disable_most_optimizations", True)

PROGRAMS = "HLFORMER_TEST_PROGRAMS"
"""Environment variable: where the processes of a session of tests share compiled programs."""

LONGEST = ("test_sweeps_end_to_end.py", "test_devices.py", "test_processes.py", "test_prvr.py")
"""Files that take longest start first, lest one process end with them alone."""


def pytest_configure(config):
    """Makes one folder of programs, for pytest's own processes and those that tests start."""
    if PROGRAMS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="hlformer-programs-")
        config.add_cleanup(folder.cleanup)
        os.environ[PROGRAMS] = folder.name
        config.add_cleanup(lambda: os.environ.pop(PROGRAMS))


@pytest.fixture
def unchecked():
    """Leaves annotations unchecked, for tests of what the functions themselves refuse or stand in
    for."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def float64():
    """Switches double precision on for one test."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def standard_promotion():
    """Optax's Adam asks JAX for the promotion of integers to floating point."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Both precisions, with JAX's settings as each needs them."""
    before = jax.config.jax_enable_x64
    promotion = jax.config.jax_numpy_dtype_promotion
    if request.param == "float64":
        jax.config.update("jax_enable_x64", True)
        # Flax's layer norm asks JAX for the promotion of float64 and float32.
        jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield request.param
    jax.config.update("jax_enable_x64", before)
    jax.config.update("jax_numpy_dtype_promotion", promotion)


def pytest_collection_modifyitems(items):
    """Starts with the files that take longest."""
    place = lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST)
    items.sort(key=lambda item: place(item.path.name))
