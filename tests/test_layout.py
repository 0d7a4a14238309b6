"""The layout rule: tests stand where one looks for them, in files that are read whole."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "hlformer_jax"

NO_NAMESAKE = {
    "typing": "the glossary of axes",
    "encoders/errors": "declares an exception",
    "torch_checkpoint/errors": "declares exceptions",
    "benchmark/fresh": "a program of its own, which test_asking runs",
    "data/trees/moment": "declares two tuples",
    "models/gmmformer": "declares class attributes; test_parity compares the model",
    "models/gmmformer_v2": "declares an empty class; test_parity compares the model",
    "retrieval/scoring": "declares protocols",
    "search/errors": "declares exceptions",
    "training/registers": "the losses of nn/registers, whose test has them",
    "training/train_state": "a pytree and its first value, which test_step trains",
}
"""Modules without behaviour of their own, each with what it is."""

MOST_LINES = 400


def violations(package: Path, tests: Path, no_namesake=()) -> list[str]:
    """What is not where the rule says, and exceptions that are none."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).with_suffix("").as_posix()
        if path.stem.startswith("__"):
            continue
        namesake = tests / Path(name).parent / f"test_{path.stem}.py"
        if namesake.exists() == (name in no_namesake):
            found.append(
                f"{name}: has a test, strike it from NO_NAMESAKE"
                if namesake.exists()
                else f"{name}: has no tests/{namesake.relative_to(tests).as_posix()}"
            )
    for path in sorted(tests.rglob("*.py")):
        name = path.relative_to(tests).as_posix()
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MOST_LINES:
            found.append(f"tests/{name}: has {lines} lines, more than {MOST_LINES}")
    gone = [name for name in no_namesake if not (package / f"{name}.py").exists()]
    return found + [f"{name}: is no module, strike it from NO_NAMESAKE" for name in gone]


def test_each_module_has_a_namesake_test_and_no_test_file_is_too_long():
    found = violations(PACKAGE, TESTS, NO_NAMESAKE)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"package/nn/bank.py": ""}, "nn/bank: has no tests/nn/test_bank.py"),
        ({"package/nn/bank.py": "", "tests/test_bank.py": ""}, "has no tests/nn/test_bank.py"),
        ({"package/nn/bank.py": "", "tests/nn/test_bank.py": ""}, None),
        ({"package/nn/names.py": "", "tests/nn/test_names.py": ""}, "has a test, strike it"),
        ({"package/bank.py": ""}, "bank: has no tests/test_bank.py"),
        ({"tests/nn/test_bank.py": "x = 0\n" * 401}, "has 401 lines"),
        ({"tests/nn/test_bank.py": "x = 0\n" * 400}, None),
        ({"package/nn/names.py": None}, "nn/names: is no module"),
    ],
)
def test_the_check_sees_what_it_forbids(tmp_path, files, complaint):
    for name, content in {"package/nn/names.py": "", "package/__init__.py": "", **files}.items():
        path = tmp_path / name
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        elif path.exists():
            path.unlink()
    found = violations(tmp_path / "package", tmp_path / "tests", ("nn/names",))
    if complaint is None:
        assert found == []
    else:
        assert len(found) == 1 and complaint in found[0]
