"""What all tests of the search share."""

import pytest

from hlformer_jax.parallel import runtime


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """How often a command asked for programs to be kept; none are, in a process of tests."""
    asked = []
    monkeypatch.setattr(runtime, "keep_programs", lambda: asked.append(None))
    return asked
