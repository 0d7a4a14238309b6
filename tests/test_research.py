"""The manual docs/research.md: its code blocks run, and its recipes break no older run."""

import json
import os
import re
import shutil
import sys

import pytest
import runs
from processes import ROOT, environment, finish

MANUAL = ROOT / "docs" / "research.md"


BLOCKS = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow  # it compiles two programs
@pytest.mark.usefixtures("standard_promotion")
def test_all_code_blocks_of_the_manual(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hlformer_jax.data.dataset.SOURCES", {})
    names = {"__name__": "research"}
    for block in BLOCKS:
        exec(compile(block, str(MANUAL), "exec"), names)
    out = capsys.readouterr().out
    assert "mine (random): train 8 videos, 8 captions; val 8 videos, 8 captions; test" in out
    assert "\n['0.0001', '0.0003', '0.001']\n" in out
    assert "['best epoch (1)', 'chance'" in out and "'last epoch (1)'" in out
    assert "MRR" in out and out.count("\nTrue\n") == 2
    assert "['a.npz', 'b.npz', 'ensemble']" in out


# Insertions of the recipes of docs/training.md (a loss term, a fusion and a model), each before a
# text that occurs once in its file.
RECIPES = {
    "config/fields.py": {
        '"distillation_temperature": Field': '"hubness": Field(0.0, WEIGHT), ',
        '"weighted", "mean", "concat")': '"largest", ',
    },
    "config/models.py": {
        '"ms_sl": {"model": _PLAIN': '"mine": {"model": _PLAIN_BLOCK, "loss": _CONTRASTIVE}, ',
    },
    "training/prvr.py": {
        '"query_diversity": "",\n': '"hubness": "gaze", ',
        '"distillation": divergence,\n': (
            '"hubness": lambda: retrieval.hubness(similar.frame_cosine, pairs), '
        ),
    },
    "losses/retrieval.py": {
        "def zero_padding(": (
            "@_checks_pairs\n"
            "def hubness(scores: Array, pairs: Pairs) -> Array:\n"
            "    means = masked_mean(scores, pairs.real(), axis=0)\n"
            "    return jnp.var(means, where=pairs.video_mask)\n\n\n"
        )
    },
    "losses/__init__.py": {"identity_pairs joint_nce": "hubness "},
    "nn/blocks.py": {
        "FUSIONS: Mapping": (
            "class Largest(Fusion):\n"
            "    @nn.compact\n"
            "    def __call__(self, bank, train):\n"
            "        return jnp.max(bank.blocks, axis=0)\n\n\n"
        ),
        '"maim": MeanGuided,': '"largest": Largest, ',
    },
    "models/__init__.py": {'"gmmformer": GMMFormer,': '"mine": GMMFormer, '},
}


def _edited(tmp_path):
    """Copy the package and apply the recipes of the manuals; return its folder."""
    package = shutil.copytree(ROOT / "hlformer_jax", tmp_path / "own" / "hlformer_jax")
    for name, insertions in RECIPES.items():
        text = (package / name).read_text(encoding="utf-8")
        for place, added in insertions.items():
            assert text.count(place) == 1, (name, place)
            text = text.replace(place, f"{added}{place}")
        (package / name).write_text(text, encoding="utf-8")
    return package.parent


@pytest.mark.slow  # trains in processes of their own
def test_runs_resume_after_the_recipes(tmp_path):
    edited, run, file = _edited(tmp_path), tmp_path / "run", tmp_path / "tiny_config.py"
    config = runs.retrieval(tmp_path / "prepared", **{"train.epochs": 2})
    file.write_text(
        "from hlformer_jax.config import default\n\n\ndef get_config():\n"
        f"    config = default()\n    config.update({config.to_dict()!r})\n    return config\n"
    )

    def train(package, directory, *options):
        paths = {"PYTHONPATH": os.pathsep.join([str(package), str(ROOT / "tests" / "helpers")])}
        command = [sys.executable, "-m", "hlformer_jax.main", f"--config={file}"]
        done = finish(
            [*command, f"--workdir={directory}", *options], env=environment() | paths, cwd=package
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stderr

    train(ROOT, run)
    before = (run / "metrics.jsonl").read_bytes()
    assert "resumed after step" in train(edited, run)  # the edited package has one more field
    assert (run / "metrics.jsonl").read_bytes() == before
    assert json.loads((run / "config.json").read_text())["config"]["loss"]["hubness"] == 0.0
    train(edited, tmp_path / "hubness", "--config.loss.hubness=0.5")
    steps = [record for record in runs.records(tmp_path / "hubness") if "loss" in record]
    assert steps and all("loss/hubness" in record for record in steps)
    train(edited, tmp_path / "largest", "--config.model.fusion=largest", "--config.model.name=mine")
