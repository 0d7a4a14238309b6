"""The wheel, made of the sdist, does in an empty environment what the checkout does."""

import os
import shutil
import subprocess
import sys

import processes
import pytest

pytestmark = pytest.mark.slow


def _run(directory, *command):
    """Runs a command in a directory that holds no checkout; returns what it prints."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    bare["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(
        [*map(str, command)], cwd=directory, capture_output=True, text=True, env=bare, timeout=900
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, made of the sdist, which is made of the files that git keeps."""
    directory = tmp_path_factory.mktemp("distributions")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=processes.ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        source, copy = processes.ROOT / name, directory / "source" / name
        if source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy, follow_symlinks=False)
    _run(directory, sys.executable, "-m", "build", "--outdir", directory, directory / "source")
    assert len(list(directory.glob("*.tar.gz"))) == 1
    [wheel] = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An empty environment; its programs by name, and `pip install` of what is given."""
    directory = tmp_path_factory.mktemp("environment")
    _run(directory, sys.executable, "-m", "venv", directory / "empty")
    program = (directory / "empty" / "bin").joinpath

    def install(requirement):
        constraints = processes.ROOT / "launch" / "constraints.txt"
        _run(directory, program("python"), "-m", "pip", "install", "-qq", "--no-input",
             "--disable-pip-version-check", "--constraint", constraints, requirement)  # fmt: skip

    return program, install


def test_the_wheel_trains_then_searches_and_then_draws(tmp_path, wheel, environment):
    program, install = environment
    install(str(wheel))
    _run(tmp_path, program("hlformer-train"), "--config=synthetic:debug", "--workdir=run")
    assert (tmp_path / "run" / "test_metrics.json").exists()
    install(f"{wheel}[search]")
    _run(tmp_path, program("hlformer-search"), "demo", "--out=demo")
    answer = _run(
        tmp_path, program("hlformer-search"), "query", "a red circle", "--index=demo/index"
    )
    assert ".mp4" in answer
    install(f"{wheel}[figures]")
    _run(tmp_path, program("hlformer-figures"), "report", "--workdir=run")
    assert list((tmp_path / "run").rglob("*.html"))
