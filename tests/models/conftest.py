"""Which tests of the models are slow."""

import pathlib

import pytest


def pytest_collection_modifyitems(items):
    """Parity in float32 repeats that in float64, on a program that compiles for as long again."""
    here = pathlib.Path(__file__).parent
    for item in items:
        parameters = getattr(item, "callspec", None)
        if item.path.parent == here and item.path.name.startswith("test_parity"):
            if parameters and parameters.params.get("dtype") == "float32":
                item.add_marker(pytest.mark.slow)
