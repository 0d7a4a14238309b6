"""The command line of the benchmark: a wrong one is one clear line."""

import sys

import processes
import pytest
from processes import calls

CASES = {
    "no name": ((), "give one name: step"),
    "unknown name": (("speed",), "give one name: step"),
    "peer of another": (("query", "--peer=nowhere"), "--peer goes with step"),
    "another family": (
        ("query", f"--config={processes.ROOT}/configs/hover.py:synthetic"),
        "configs/anet.py",
    ),
    "no checkout": (("step", "--peer=nowhere"), "nowhere"),
    "no folder": (("extract", "--videos=nowhere"), "--videos=nowhere"),
    "no number": (("query", "--videos=some"), "a number of videos"),
    "no hours": (("search", "--hours=0"), "--hours=0"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    arguments = [given for given, _ in CASES.values()]
    results = calls("hlformer_jax.benchmark", arguments, tmp_path_factory.mktemp("benchmark"))
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_command_is_one_clear_line(case, done):
    status, stderr = done[case]
    assert status == 1
    assert "Traceback" not in stderr
    assert CASES[case][1] in stderr.strip().splitlines()[-1]


WITHOUT_EXTRAS = """
import sys

sys.modules.update(dict.fromkeys({packages}))  # importing one of them is an ImportError now
from absl import flags
from hlformer_jax.benchmark import __main__ as benchmark

flags.FLAGS(["benchmark", "--encoder=tiny"])
for name in benchmark.PROGRAMS:
    if name in ("extract", "search"):
        assert benchmark.main(["benchmark", name]) == 1
    else:
        benchmark._program(name)
"""


def test_programs_need_no_extra_or_say_which():
    needed = {"av", "fastapi", "huggingface_hub", "PIL", "pywt", "safetensors", "tokenizers"}
    packages = [*needed, "uvicorn", "ray", "qdrant_client", "sklearn", "umap", "torch", "lancedb"]
    done = processes.finish([sys.executable, "-c", WITHOUT_EXTRAS.format(packages=packages)])
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and all("hlformer-jax[search]" in line for line in errors)
