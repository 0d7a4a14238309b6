"""The package as a library: a namespace loads at its first use, with no more than it needs."""

import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest

import hlformer_jax as hl

PROGRAM = """
import sys
import flax.linen, jax, jaxtyping, numpy, optax
before = set(sys.modules)
import hlformer_jax as hl
for path in sys.argv[1:]:
    value = hl
    for name in path.split("."):
        value = getattr(value, name)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""
PACKAGES = ("losses", "nn", "ops", "retrieval")


def test_package_has_exactly_its_namespaces():
    assert set(hl.__all__) <= set(dir(hl))
    assert [getattr(hl, name).__name__.rpartition(".")[2] for name in hl.__all__] == hl.__all__
    with pytest.raises(AttributeError):
        hl.nowhere  # noqa: B018


@pytest.mark.parametrize("name", PACKAGES)
def test_namespace_has_exactly_its_public_names(name):
    package = getattr(hl, name)
    assert len(set(package.__all__)) == len(package.__all__) and package.__doc__
    assert all(getattr(package, public) is not None for public in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="nowhere"):
        package.nowhere  # noqa: B018


def test_functions_load_no_unneeded_dependencies():
    """Use every public name, except for the modules that rank a split of a data set."""
    of_data = {"corpus", "evaluation", "hierarchy", "moments", "scoring", "segments"}
    names = [
        f"{name}.{public}"
        for name in hl.__all__
        for public in getattr(getattr(hl, name), "__all__", ())
        if not (name == "retrieval" and public in of_data)
    ]
    loaded = subprocess.run(
        [sys.executable, "-c", PROGRAM, *hl.__all__, *names, "optim.riemannian"],
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(loaded.stdout.split()) <= {"hlformer_jax"}


def test_package_and_changelog_name_the_same_version():
    root = Path(__file__).parent.parent
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## \[(\S+)\] - (unreleased|\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    assert latest and hl.__version__ == latest[1]
