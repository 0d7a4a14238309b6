"""Errors that a user can mend have one base, so that every command shows them as one line."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import processes
import pytest

import hlformer_jax
from hlformer_jax import errors
from hlformer_jax.errors import UserError, command_line, suggestion


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


def test_a_command_can_be_pasted_as_it_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = 'it\'s $(touch gone) & "quoted"; ü\n.d'
    line = command_line("search", "status", f"--index={odd}")
    shown = 'it\'s $(touch gone) & "quoted"; ü .d holds no index'
    environment = processes.environment()
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 1 and shown in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_command_names_the_python_that_the_shell_would_not_find(tmp_path, monkeypatch):
    first = lambda: shlex.split(command_line("main"))[0]
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert first() == "python"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert first() == sys.executable
    monkeypatch.chdir(Path(sys.executable).parent.parent)
    assert first() == f"bin/{os.path.basename(sys.executable)}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@h/d", "postgresql://me:…@h/d"),
        ("postgresql://me@h/d?a=b", "postgresql://me@h/d?a=b"),
        ("postgresql://me:@/d?host=/x", "postgresql://me:…@/d?host=/x"),
        ("x://h/?password=secret&a=b", "x://h/?password=…&a=b"),
        ("sslpassword = 'a secret' user=me", "sslpassword = … user=me"),
        ("no a:b password here", "no a:b password here"),
    ],
)
def test_passwords_are_hidden(text, shown):
    assert errors.without_passwords(text) == shown
