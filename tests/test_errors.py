"""Errors that a user can correct: their base class, and messages of one line."""

import ast
import errno
import os
from pathlib import Path

import hlformer_jax
from hlformer_jax.errors import UserError, describe


def test_every_error_has_the_base_and_a_builtin():
    bases = {}
    for path in Path(hlformer_jax.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
    assert len(bases) > 8
    del bases[UserError.__name__]
    for name, parents in bases.items():
        inherits = len(parents) == 1 and parents[0] in bases
        assert inherits or (parents[0] == "UserError" and len(parents) == 2), f"{name}: {parents}"


def test_system_error_has_advice_instead_of_its_number():
    for number, end in (
        (errno.ENOSPC, "; make room"),
        (errno.EEXIST, "; give another path"),
        (errno.ENOTDIR, "; a file stands where a folder must be, so give another path"),
        (errno.EISDIR, ""),
    ):
        reason = os.strerror(number)
        assert describe(OSError(number, reason, b"a")) == f"a: {reason}{end}"
        assert describe(OSError(number, reason)) == f"{reason}{end}"
    for error in (OSError("a line"), ValueError("a line")):
        assert describe(error) == "a line"
