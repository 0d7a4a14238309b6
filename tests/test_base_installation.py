"""Programs in an environment without the extras: what needs one says which, in one line."""

import subprocess
import sys

import processes
import pytest

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
        "anyio", "av", "fastapi", "huggingface_hub", "pydantic", "pywt", "safetensors", "starlette",
        "tokenizers", "uvicorn",
    },
    "qdrant": {"qdrant_client"},
    "ray": {"ray"},
}  # fmt: skip
"""The packages that an extra brings and that nothing else does."""


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
        (["search", "features", ".", "--captions=captions", "--out=out"], "search"),
        (["search", "demo", "--out=demo"], "search"),
        (["benchmark", "extract"], "search"),
        (["benchmark", "search"], "search"),
    ],
)
def test_a_program_that_needs_an_extra_says_which_in_one_line(tmp_path, arguments, extra):
    (tmp_path / "captions").write_text('{"video": "a.mp4", "sentence": "red"}')
    done = run(tmp_path, *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and f"hlformer-jax[{extra}]" in errors[0]
    assert [path.name for path in tmp_path.iterdir()] == ["captions"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "--help"],
        ["search", "status", "--index=nowhere"],
        ["main", "--helpshort"],
        ["main", f"--config={processes.ROOT}/configs/anet.py", "--mode=evaluate"],
        ["sweep", "--helpshort"],
        ["sweep", f"--config={processes.ROOT}/configs/sweeps/hlformer_table2.py"],
        ["figures", "windows", "--workdir=nowhere"],
        ["figures", "curves", "--workdir=nowhere"],
        ["data.moments", "nowhere"],
        ["torch_checkpoint", "nowhere", "out"],
        ["benchmark", "nothing"],
    ],
)
def test_the_others_need_none(tmp_path, arguments):
    done = run(tmp_path, *arguments)
    assert done.returncode in (0, 1) and "Traceback" not in done.stdout + done.stderr
    assert "hlformer-jax[" not in done.stderr
