"""Series of measurements: their selection, order and time limits, failures and hangs."""

import json
import os
import sys
import time
from pathlib import Path

import processes
import pytest

from benchmarks.series import Measurement, measurements, run_all, select
from hlformer_jax.config import ConfigError
from hlformer_jax.files import OutputError, Replace

HANGING_PROGRAM = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def _python(code, seconds=60.0):
    return Measurement((sys.executable, "-c", code), seconds)


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow  # it takes seconds
def test_failed_or_hanging_measurement_does_not_stop_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.series.SECONDS_TO_END", 0.5)
    measurements = {
        "hangs": _python(HANGING_PROGRAM, 3.0),
        "fails": _python("raise SystemExit(3)"),
        "missing": Measurement((str(tmp_path / "no-program"),), 60.0),
        "works": _python("print('seven')"),
    }
    outcomes = list(run_all(tmp_path / "out", measurements, 100.0, Replace.NOTHING))
    states = [outcome.state for outcome in outcomes]
    assert states[:2] == ["stopped after 3 s", "failed with status 3"]
    assert states[2].startswith("failed: ") and "no-program" in states[2]
    assert states[3] == "done"
    assert (tmp_path / "out" / "works.log").read_text().splitlines()[-1] == "seven"
    # The process that ignored SIGTERM is gone, and so is the process that it had started.
    pids = (tmp_path / "out" / "hangs.log").read_text().splitlines()[-1].split()
    assert len(pids) == 2
    for _ in range(100):
        if not any(map(_is_alive, pids)):
            break
        time.sleep(0.05)
    assert not any(map(_is_alive, pids))


@pytest.mark.slow  # it takes seconds
def test_no_measurement_starts_when_the_time_is_over(tmp_path):
    measurements = {"first": _python("import time; time.sleep(60)"), "second": _python("")}
    outcomes = list(run_all(tmp_path, measurements, 1.0, Replace.NOTHING))
    assert [outcome.state for outcome in outcomes] == ["stopped after 1 s", "not started"]
    assert not (tmp_path / "second.log").exists()


def test_results_are_not_replaced(tmp_path):
    (tmp_path / "first.json").write_text("{}")
    with pytest.raises(OutputError, match=r"first\.json"):
        list(run_all(tmp_path, {"zero": _python(""), "first": _python("")}, 9.0, Replace.NOTHING))
    assert not (tmp_path / "zero.log").exists()


def test_measurements_are_selected_by_name(tmp_path):
    available = measurements(tmp_path, ["--repeats=2"], True, "checkout")
    assert list(select(["epoch", "step"], available)) == ["epoch", "step"]
    assert list(select([], available)) == list(available)
    with pytest.raises(ConfigError, match="--only=speed: give names of .*step, peer, numbers"):
        select(["speed"], available)
    # The flags of the command come first, so the measurement's flags take precedence.
    command = available["peer"].command
    assert command.index("--repeats=2") < command.index("--peer=checkout")
    assert "peer" not in measurements(tmp_path, [], True, None)


@pytest.mark.slow  # it starts three processes that import JAX, and one compiles
def test_command_reports_done_and_failed_measurements(tmp_path):
    config = f"{processes.ROOT}/configs/synthetic.py:debug"
    out = tmp_path / "out"
    done = processes.run(
        "benchmarks", "all", f"--out={out}", "--only=peer,evaluate", f"--config={config}",
        "--peer=nowhere", cwd=processes.ROOT,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "peer: failed with status 1" in done.stderr and "evaluate: done" in done.stderr
    assert "nowhere" in (out / "peer.log").read_text()
    [program] = json.loads((out / "evaluate.json").read_text())["programs"]
    assert program["program"] == "evaluate" and program["measured"]["median"] > 0
    assert os.listdir(out) and not (out / "step.log").exists()
