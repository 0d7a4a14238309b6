"""What no memory could hold is refused; what it could is not, free or not."""

import os

import pytest

from hlformer_jax.data.memory import check_memory
from hlformer_jax.data.source import DataError


def test_the_whole_memory_is_the_limit(monkeypatch):
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    check_memory(4_096_000, "a corpus", "make it smaller")
    with pytest.raises(DataError, match="a corpus would take .* GB of memory.*; make it smaller"):
        check_memory(4_096_001, "a corpus", "make it smaller")
