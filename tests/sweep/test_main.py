"""A sweep as a person runs it: wrong commands, and one that is stopped and goes on."""

import json
import signal
import subprocess
import time

import processes
import pytest
from processes import calls

from hlformer_jax.config import debug, default
from hlformer_jax.sweep.definition import METRICS

WINDOW = "--config=configs/sweeps/lorentz_window.py"
CASES = {
    "nothing": ((), "--config is missing"),
    "no sweep": (("--config=configs/anet.py",), "no sweep"),
    "no file": (("--config=configs/sweeps/nowhere.py",), "nowhere.py"),
    "no variant": ((f"{WINDOW}:fast",), "no variant 'fast'"),
    "a task alone": ((WINDOW, "--task=1"), "go together"),
    "parts of seeds": ((WINDOW, "--config.seeds=(0.5,)"), "whole numbers"),
    "no task": ((WINDOW, "--task=3", "--tasks=3"), "--task=3"),
    "unknown section": ((WINDOW, "--config.base.modl.x=3"), "did you mean 'model'?"),
    "choice": ((WINDOW, "--config.base.dtype=x"), "config.dtype"),
    "no data": (
        (WINDOW, "--config.base.data.manual_dir=nowhere", "--config.base.data.data_dir=prepared"),
        "nowhere/activitynet",
    ),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep")
    (directory / "configs").symlink_to(processes.ROOT / "configs")
    results = calls("hlformer_jax.sweep", [given for given, _ in CASES.values()], directory)
    assert not list(directory.rglob("seed0"))
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_command_is_one_clear_line(case, done):
    status, stderr = done[case]
    assert status == 1
    assert "Traceback" not in stderr
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and errors == stderr.strip().splitlines()[-1:]
    assert CASES[case][1] in errors[0]


EPOCHS = 24  # enough to be stopped before the last
SWEEP = """
from hlformer_jax.sweep.definition import define

def get_config(name=""):
    variants = {"w/ MAIM": {}, "w/ MP": {"model": {"fusion": "mean"}}}
    return define(
        __file__, name, title="tiny", base="base.py", variants=variants, seeds=(0,),
        published={"w/ MAIM": {"SumR": 300.0}},
    )
"""


@pytest.mark.slow  # two processes, each of which compiles its programs
def test_a_sweep_that_is_stopped_goes_on_and_ends_with_its_table(tmp_path):
    config = debug(default())
    config.data.update(
        data_dir=str(tmp_path / "data"), visual_dim=8, text_dim=8, synthetic_videos=(10, 4, 5),
        max_frames=8, max_clips=4, max_words=6,
    )  # fmt: skip
    # As little to compile as there can be.
    config.model.update(hidden_size=8, euclidean_blocks=1, lorentz_blocks=0, gaze=False)
    config.loss.update(partial_order=0.0, query_diversity=0.0)
    config.train.update(batch_size=4, epochs=EPOCHS, patience=99, log_every=2)
    config.train.checkpoint_seconds = 0.0  # what is waited for below
    (tmp_path / "base.py").write_text(
        "from ml_collections import ConfigDict\n\n\ndef get_config(name):\n"
        f"    return ConfigDict({config.to_dict()!r})\n"
    )
    (tmp_path / "sweep.py").write_text(SWEEP)
    root = tmp_path / "sweep"
    line = processes.command("sweep", f"--config={tmp_path / 'sweep.py'}", f"--workdir={root}")
    environment = processes.environment()
    first, second = root / "w-MAIM" / "seed0", root / "w-MP" / "seed0"
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(second.glob("checkpoints/newest/[0-9]*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    assert "run 2 of 2: w/ MP, seed 0" in told
    assert "resumes from there" in told.splitlines()[-1]
    result = (first / "result.json").read_bytes()
    assert not (second / "result.json").exists()
    assert json.loads((root / "table.json").read_text())["finished"] == 1

    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 2 runs are finished already" in done.stderr
    assert (first / "result.json").read_bytes() == result
    lines = [json.loads(x) for x in (second / "metrics.jsonl").read_text().splitlines()]
    assert [x["epoch"] for x in lines if "validation/SumR" in x] == list(range(EPOCHS))
    assert all(set(x) >= {"loss/clip_nce", "loss"} for x in lines if "loss" in x)
    full, other = json.loads((root / "table.json").read_text())["variants"]
    for row, path in ((full, first), (other, second)):
        test = json.loads((path / "test_metrics.json").read_text())
        assert row["mean"] == {name: test[name] for name in METRICS}
        assert row["seconds_per_epoch"] > 0
        assert row["flops_video"] > 0 and row["flops_caption"] > 0
        assert (path / "curves.svg").exists()
    assert full["parameters"] > other["parameters"]
    assert (root / "sweep.png").exists()
    assert done.stdout.splitlines()[-2].split()[:2] == ["w/", "MP"]
