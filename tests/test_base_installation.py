"""Installations: the base without the extras, and the wheel in an empty environment."""

import os
import shlex
import shutil
import subprocess
import sys

import processes
import pytest

# Without the extras


PROGRAM = """
import runpy, sys

class Without:
    names = set(sys.argv.pop(1).split(","))

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
module = sys.argv.pop(1)
runpy.run_module(f"hlformer_jax.{module}", run_name="__main__", alter_sys=True)
"""

EXTRAS = {
    "figures": {"sklearn", "umap", "numba"},
    "search": {
        "anyio", "av", "chardet", "fastapi", "huggingface_hub", "langcodes", "pydantic", "pywt",
        "safetensors", "starlette", "tokenizers", "uvicorn",
    },
    "postgres": {"psycopg"},
    "editing": {"opentimelineio"},
    "mcp": {"mcp"},
    "ray": {"ray"},
    "speech": {"ctranslate2", "faster_whisper"},
    "cpu": {"openvino"},
    "ocr": {"cv2", "onnxruntime", "rapidocr"},
}  # fmt: skip
"""Packages that only this extra installs."""


def run(tmp_path, module, *arguments):
    """Runs a program where only the packages of the base installation can be imported."""
    blocked = ",".join(sorted(set().union(*EXTRAS.values())))
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, blocked, module, *arguments],
        capture_output=True, text=True, cwd=tmp_path, env=processes.environment(), timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["search", "index", "."], "search"),
        pytest.param(
            ["search", "features", ".", "--captions=captions", "--out=out"],
            "search",
            marks=pytest.mark.slow,
        ),
        pytest.param(["search", "demo", "--out=demo"], "search", marks=pytest.mark.slow),
    ],
)
def test_missing_extra_is_named_in_one_line(tmp_path, arguments, extra):
    (tmp_path / "captions").write_text('{"video": "a.mp4", "sentence": "red"}')
    done = run(tmp_path, *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and f"{processes.ROOT}[{extra}]" in errors[0]
    assert [path.name for path in tmp_path.iterdir()] == ["captions"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "status", "--index=nowhere"],
        ["main", f"--config={processes.ROOT}/configs/anet.py", "--mode=evaluate"],
        ["sweep", f"--config={processes.ROOT}/configs/sweeps/hlformer_table2.py"],
        ["figures", "curves", "--workdir=nowhere"],
        ["data.moments", "nowhere"],
        ["torch_checkpoint", "nowhere", "out"],
    ],
)
def test_base_programs_need_no_extra(tmp_path, arguments):
    done = run(tmp_path, *arguments)
    assert done.returncode in (0, 1) and "Traceback" not in done.stdout + done.stderr
    assert "more packages" not in done.stderr


# The wheel


def _start(directory, *command):
    """Runs a command in a directory that holds no checkout."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    bare["JAX_PLATFORMS"] = "cpu"
    return subprocess.run(
        [*map(str, command)], cwd=directory, capture_output=True, text=True, env=bare, timeout=900
    )


def _run(directory, *command):
    """Runs a command that must succeed; returns what it prints."""
    done = _start(directory, *command)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist of the files that git tracks."""
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
    """An empty environment: the paths of its programs by name, and `pip install` in it."""
    directory = tmp_path_factory.mktemp("environment")
    _run(directory, sys.executable, "-m", "venv", directory / "empty")
    program = (directory / "empty" / "bin").joinpath

    def install(requirement):
        constraints = processes.ROOT / "launch" / "constraints.txt"
        _run(directory, program("python"), "-m", "pip", "install", "-qq", "--no-input",
             "--disable-pip-version-check", "--constraint", constraints, requirement)  # fmt: skip

    return program, install


def install_by_hint(directory, *command):
    """Runs a command that lacks an extra, then the installation that its error names."""
    done = _start(directory, *command)
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    hint = shlex.split(error.partition(" packages: ")[2].partition(" (No module")[0])
    assert hint[1:4] == ["-m", "pip", "install"], error
    constraints = processes.ROOT / "launch" / "constraints.txt"
    _run(directory, *hint, "-qq", "--no-input", "--constraint", constraints)


@pytest.mark.slow
def test_wheel_trains_searches_and_draws_figures(tmp_path, wheel, environment):
    program, install = environment
    install(str(wheel))
    _run(tmp_path, program("hlformer-train"), "--config=synthetic:debug", "--workdir=run")
    assert (tmp_path / "run" / "test_metrics.json").exists()
    install_by_hint(tmp_path, program("hlformer-search"), "demo", "--out=demo")
    _run(tmp_path, program("hlformer-search"), "demo", "--out=demo")
    answer = _run(
        tmp_path, program("hlformer-search"), "query", "a red circle", "--index=demo/index"
    )
    assert ".mp4" in answer
    install(f"{wheel}[figures]")
    _run(tmp_path, program("hlformer-figures"), "report", "--workdir=run")
    assert list((tmp_path / "run").rglob("*.html"))
