"""`demo --out=DIR`: what is made for which flags, and the question that is suggested."""

import shlex
from types import SimpleNamespace

import pytest

from hlformer_jax.search.__main__ import main
from hlformer_jax.search.commands import demo


@pytest.fixture
def made(monkeypatch):
    """Names and arguments of the calls that would make a demo."""
    calls = []
    note = lambda name: lambda out, seed, tell: calls.append((name, out, seed))
    module = SimpleNamespace(make=note("make"), render_training=note("render_training"))
    monkeypatch.setattr(demo, "extra", {"search.demo": module}.__getitem__)
    return calls


@pytest.mark.parametrize(
    ("flags", "parts", "seed"),
    [
        ([], ["make"], 0),
        (["--seed=3"], ["make"], 3),
        (["--seed=3", "--training"], ["make", "render_training"], 3),
    ],
)
def test_the_parts_that_were_asked_for_are_made_of_one_seed(
    made, capsys, tmp_path, flags, parts, seed
):
    assert main(["demo", f"--out={tmp_path}", *flags]) == 0
    assert made == [(part, tmp_path, seed) for part in parts]
    index = shlex.quote(f"--index={tmp_path / 'index'}")
    assert f"query 'a red circle' {index}" in capsys.readouterr().out
