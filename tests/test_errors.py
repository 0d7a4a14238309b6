"""Errors that a user can mend have one base, so that every command shows them as one line."""

import ast
from pathlib import Path

import hlformer_jax
from hlformer_jax.errors import UserError, suggestion


def test_every_error_of_the_package_has_the_base_and_a_builtin_beside_it():
    bases = {}
    for path in Path(hlformer_jax.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
    assert len(bases) > 8
    del bases[UserError.__name__]
    for name, above in bases.items():
        inherits = len(above) == 1 and above[0] in bases
        assert inherits or (above[0] == "UserError" and len(above) == 2), f"{name}: {above}"


def test_a_name_that_is_near_is_suggested():
    assert suggestion("hiden", ["hidden", "heads"]) == "; did you mean 'hidden'?"
    assert suggestion("x", ["hidden"]) == ""
