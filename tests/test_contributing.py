"""The list of places of a change in CONTRIBUTING.md: three changes are made in a copy."""

import json
import os
import re
import shutil
import subprocess
import sys

import processes
import pytest

OUTSIDE = ("benchmarks", "configs", "docs", "launch", "pyproject.toml", "tests")
"""Folders and files of the repository, beside the package, that the table names."""

GOLDEN = processes.ROOT / "tests" / "encoders" / "golden"


def places_of(change):
    """Return the files and folders in the row of a change, relative to the repository."""
    table = (processes.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (places,) = re.findall(rf"^\| {change} \| (.*?) \|", table, re.MULTILINE)
    paths = [path for path in re.findall(r"`([\w./]+)`", places) if "/" in path or "." in path]
    return [
        path if path.split("/")[0] in OUTSIDE else f"hlformer_jax/{path}"
        for path in paths
        if not path[0].isupper()
    ]


class Copy:
    """A copy of the package, in which a change touches only the places of its row."""

    def __init__(self, root):
        self.root = root
        ignored = shutil.ignore_patterns("__pycache__")
        for folder in ("hlformer_jax", "launch"):
            shutil.copytree(processes.ROOT / folder, root / folder, ignore=ignored)

    def edit(self, change, path, old, new):
        """Replace the text `old` of a file, or create the file if `old` is empty."""
        places = places_of(change)
        assert any(path == place or place[-1] == "/" and path.startswith(place) for place in places)
        file = self.root / path
        content = file.read_text(encoding="utf-8") if old else ""
        assert content.count(old) == 1 or not old and not file.exists(), (path, old)
        file.write_text(content.replace(old, new) if old else new, encoding="utf-8")

    def run(self, program, *arguments):
        """Run a program with this package; return its last line."""
        paths = os.pathsep.join([str(self.root), str(processes.ROOT / "tests" / "helpers")])
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, *map(str, arguments)],
            env={**processes.environment(), "PYTHONPATH": paths},
            capture_output=True, text=True, cwd=self.root, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()[-1]


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path / "copy")


@pytest.mark.slow  # it takes seconds
def test_encoder_is_added_at_the_listed_places(copy, tmp_path):
    """Add a SigLIP that pools the mean of a text's states instead of the last."""
    families = "hlformer_jax/encoders/families"
    copy.edit("an encoder", f"{families}/mean_siglip.py", "", (
        '"""A SigLIP with the mean of a text."""\n'
        "from hlformer_jax.encoders.families.siglip import Siglip\n"
        "from hlformer_jax.encoders.transformer import linear\n"
        "class MeanSiglip(Siglip):\n"
        "    name = 'mean_siglip'\n"
        "    def pool_texts(self, params, config, states, ids):\n"
        "        return linear(params['head'], states.mean(1))\n"
    ))  # fmt: skip
    entry = f"{families}/__init__.py"
    copy.edit("an encoder", entry, "import Roberta\n", (
        "import Roberta\nfrom hlformer_jax.encoders.families.mean_siglip import MeanSiglip\n"
    ))  # fmt: skip
    copy.edit("an encoder", entry, "Siglip(), Roberta()", "Siglip(), Roberta(), MeanSiglip()")
    folder = tmp_path / "mean_siglip"
    shutil.copytree(GOLDEN / "siglip", folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"model_type": "mean_siglip"}))
    program = (
        "import sys, numpy as np\n"
        "from hlformer_jax import encoders\n"
        "mean, last = map(encoders.load, sys.argv[1:])\n"
        "same = lambda f: bool(np.array_equal(f(mean), f(last)))\n"
        "pixels = np.full((1, 36, 36, 3), 7, np.uint8)\n"
        "print(mean.kind, same(lambda encoder: encoder.encode_images(pixels)),\n"
        "      same(lambda encoder: encoder.encode_texts(['a'])))\n"
    )
    assert copy.run(program, folder, GOLDEN / "siglip") == "mean_siglip True False"


def test_ranker_is_added_at_the_listed_places(copy, tmp_path):
    copy.edit(
        "a ranker", "hlformer_jax/search/signals/rankers.py",
        '    "top_3_frames": Pooling(top=3),\n',
        '    "top_3_frames": Pooling(top=3),\n    "top_9_frames": Pooling(top=9),\n',
    )  # fmt: skip
    program = (
        "import sys, archive\n"
        "from pathlib import Path\n"
        "folder = Path(sys.argv[1])\n"
        "archive.film(folder / 'films' / 'a.film', ['red'] * 9)\n"
        "archive.film(folder / 'films' / 'b.film', ['red'] * 3 + ['blue'] * 6)\n"
        "index = archive.indexed(folder / 'index', folder / 'films')\n"
        "hits = archive.opened(index, ranker='top_9_frames').query('red')\n"
        "print(*(hit.video for hit in hits), hits[0].score > 0.99 > hits[1].score)\n"
    )
    assert copy.run(program, tmp_path) == "a.film b.film True"


def test_command_is_added_at_the_listed_places(copy):
    change = "a command of the search"
    copy.edit(change, "hlformer_jax/search/cli/greeting.py", "", (
        '"""A greeting."""\n'
        "from hlformer_jax.search.cli.options import command, option\n"
        "@command(option('--to', 'whom to greet', default='you'))\n"
        "def greet(options):\n"
        '    """Print a greeting."""\n'
        "    print('hello', options.to)\n"
    ))  # fmt: skip
    entry = "hlformer_jax/search/cli/commands.py"
    copy.edit(change, entry, "import demo, evaluate,", "import demo, evaluate, greeting,")
    copy.edit(
        change, entry, "upkeep.upload, demo.demo,", "upkeep.upload, demo.demo, greeting.greet,"
    )
    copy.edit(
        change, "launch/search.sh", "features | upload | demo)", "features | upload | demo | greet)"
    )
    program = (
        "import sys; from hlformer_jax.search.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    assert copy.run(program, "greet", "--to=all") == "hello all"
    (copy.root / "launch" / "environment.sh").write_text(
        f"root={copy.root}\nenvironment() {{ :; }}\n"
    )
    python = copy.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    launched = ["bash", copy.root / "launch" / "search.sh", "greet", "--to=all"]
    done = subprocess.run(launched, capture_output=True, text=True, check=True)
    assert done.stdout == "-P -m hlformer_jax.search greet --to=all\n"


def test_every_listed_place_exists():
    table = (processes.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    changes = re.findall(r"^\| (an? [\w ]+) \|", table, re.MULTILINE)
    assert len(changes) >= 11
    for change in changes:
        places = places_of(change)
        assert places and all((processes.ROOT / place).exists() for place in places), change
