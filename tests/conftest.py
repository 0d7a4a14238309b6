"""Settings and fixtures of all tests.

Tests run with strict dtype promotion and without rank promotion, because the package promises to
need neither. With `--all`, annotations of arrays are checked at run time in the tests that are not
slow; the checks would double the time of a slow one (`--nightly` checks all). Otherwise functions
are called as users call them.
"""

import contextlib
import gc
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

# Before JAX is imported: several virtual devices would only slow these tests down.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The suite compiles far more than it computes, so programs are not optimised, except with
# `launch/test.sh --nightly`, which tests the programs that users have. Values differ by rounding.
if not os.environ.get("HLFORMER_TEST_OPTIMISED"):
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    # XLA's older code generator for CPUs, with one thread per program, takes two thirds of the
    # time. Other versions of XLA do not know these options and would not start.
    if (0, 6) <= tuple(map(int, version("jax").split(".")[:2])) <= (0, 10):
        quicker = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if quicker not in os.environ.get("XLA_FLAGS", ""):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quicker}".strip()

import jax
import jaxtyping
import optax
import pytest
from jaxtyping import install_import_hook

CHECKED = (
    "cli", "config", "data", "encoders", "errors", "figures", "files", "losses",
    "main", "models", "nn", "ops", "pytrees", "retrieval", "runtime", "search", "sweep",
    "text", "torch_checkpoint", "training", "typing", "video",
)  # fmt: skip
"""Packages whose annotations are checked."""

if os.environ.get("HLFORMER_TEST_ALL"):  # before any of them is imported
    install_import_hook(
        ["benchmarks", *(f"hlformer_jax.{name}" for name in CHECKED)], "typechecker.check"
    )

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Optax's assignment needs standard promotion; its callers in the package do not.
_assign = optax.assignment.hungarian_algorithm


def _assign_with_promotion(costs):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return _assign(costs)


optax.assignment.hungarian_algorithm = _assign_with_promotion

SHARED = "HLFORMER_TEST_SHARED"
"""Environment variable: a folder that the processes of a session of tests share."""

PROGRAMS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""Settings of JAX that keep compiled programs for other processes and the next session."""

MAX_PROGRAM_BYTES = 2**31
"""Size of the cache of compiled programs above which a session empties it."""

FIRST_FILES = (
    "test_sweeps_end_to_end.py", "test_public.py", "test_parallel.py", "test_prvr.py",
    "test_parity.py", "test_processes.py", "test_base_installation.py", "test_cluster.py",
    "test_demo.py", "test_documentation.py",
)  # fmt: skip
"""Files that start first: the slowest ones, lest one process end with them alone.

The run that test_processes.py starts from is by then made by test_prvr.py.
"""


def pytest_configure(config):
    """Makes the folders for pytest's own processes and those that tests start."""
    if SHARED not in os.environ:  # not in a worker
        folder = tempfile.TemporaryDirectory(prefix="hlformer-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ[SHARED] = folder.name
        config.add_cleanup(lambda: os.environ.pop(SHARED))
        cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
        programs = Path(folder.name) / "programs" if cache is None else cache.mkdir("programs")
        if cache and sum(path.stat().st_size for path in programs.iterdir()) > MAX_PROGRAM_BYTES:
            shutil.rmtree(programs)
        PROGRAMS["jax_compilation_cache_dir"] = str(programs)
        os.environ |= {name.upper(): str(value) for name, value in PROGRAMS.items()}
        for name, value in PROGRAMS.items():
            jax.config.update(name, value)


MAX_RESIDENT_BYTES = 4 * 2**30
"""Memory of a process of tests above which it drops its compiled programs after a file."""


@pytest.fixture(autouse=True, scope="module")
def release_programs():
    """Drops compiled programs after a file, lest all files' together exhaust a machine's memory."""
    yield
    with contextlib.suppress(OSError):  # no /proc outside Linux
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") > MAX_RESIDENT_BYTES:
            jax.clear_caches()
            gc.collect()


@pytest.fixture
def unchecked():
    """Leaves annotations unchecked, for tests of the functions' own checks and for stand-ins."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def leave_slow_tests_unchecked(request):
    if request.node.get_closest_marker("slow") and not os.environ.get("HLFORMER_TEST_OPTIMISED"):
        request.getfixturevalue("unchecked")


@pytest.fixture
def float64():
    """Switches double precision on for one test."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def standard_promotion():
    """Allows the promotion of integers to floating point, which optax's Adam asks of JAX."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Runs a test in both precisions, with the settings of JAX that each needs."""
    before = jax.config.jax_enable_x64
    promotion = jax.config.jax_numpy_dtype_promotion
    if request.param == "float64":
        jax.config.update("jax_enable_x64", True)
        # Flax's layer norm asks JAX for the promotion of float64 and float32.
        jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield request.param
    jax.config.update("jax_enable_x64", before)
    jax.config.update("jax_numpy_dtype_promotion", promotion)


def pytest_collection_finish():
    """Collects garbage rarely, and never among imported objects.

    Tracing makes millions of objects that stay; collecting garbage among them took a sixth of the
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def pytest_collection_modifyitems(items):
    """Starts with `FIRST_FILES`; marks most tests of parity as slow.

    The fast tests cover HLFormer and MS-SL in float64; each other model, and float32, compiles a
    program of its own.
    """
    for item in items:
        dtype = getattr(getattr(item, "callspec", None), "params", {}).get("dtype")
        if item.path.name == "test_parity.py" and dtype:
            slow_names = ("gmmformer", "dl_dkd", "distillation", "optimiser_steps")
            if dtype == "float32" or any(name in item.name for name in slow_names):
                item.add_marker(pytest.mark.slow)

    def position(item):
        name = item.path.name
        return FIRST_FILES.index(name) if name in FIRST_FILES else len(FIRST_FILES)

    items.sort(key=position)
