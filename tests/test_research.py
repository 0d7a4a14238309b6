"""The manual of one's own research: its code blocks run, and its recipes break no older run."""

import re

import pytest
from processes import ROOT

MANUAL = ROOT / "docs" / "research.md"


@pytest.mark.usefixtures("standard_promotion")
def test_code_blocks_of_the_research_manual_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hlformer_jax.data.dataset.SOURCES", {})
    blocks = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    names = {"__name__": "research"}
    for block in blocks:
        exec(compile(block, str(MANUAL), "exec"), names)
    out = capsys.readouterr().out
    assert "['best epoch (1)', 'chance'" in out and "'last epoch (1)'" in out
    assert re.search(r"MRR", out) and out.count("\nTrue\n") == 2
    assert "['a.npz', 'b.npz', 'ensemble']" in out
    assert "mine (random): train 8 videos, 8 captions; val 8 videos" in out
    assert "['0.0001', '0.0003', '0.001']" in out
