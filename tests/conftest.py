"""Settings of all tests: strict dtype and rank promotion, as the package promises to need none."""

import os

# Before JAX is imported: several virtual devices would only slow these tests down.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# The suite compiles far more than it computes. Values differ from optimised ones by rounding.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def float64():
    """Switches double precision on for one test."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


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
    """Starts with the files that take longest, lest one process end with them alone."""
    longest = ("test_sweeps_end_to_end.py", "test_train.py")
    place = lambda name: longest.index(name) if name in longest else len(longest)
    items.sort(key=lambda item: place(item.path.name))
