"""The package as a library: a namespace is loaded at its first use, and what it needs alone."""

import subprocess
import sys

import processes
import pytest

import hlformer_jax as hl

PROGRAM = """
import sys
import flax.linen, jax, jaxtyping, numpy, optax
before = set(sys.modules)
import hlformer_jax as hl
for name in sys.argv[1:]:
    getattr(hl, name)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""


def test_every_namespace_is_there_and_no_other():
    assert set(hl.__all__) <= set(dir(hl))
    assert [getattr(hl, name).__name__.rpartition(".")[2] for name in hl.__all__] == hl.__all__
    with pytest.raises(AttributeError):
        hl.nowhere  # noqa: B018


def test_functions_load_no_data_no_checkpoints_and_no_pictures():
    loaded = subprocess.run(
        [sys.executable, "-c", PROGRAM, *hl.__all__],
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(loaded.stdout.split()) == {"hlformer_jax"}
