"""Runs in one process or several, and their ends by signals and by failures of processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import processes
import pytest
import runs

from hlformer_jax import files

# One process, killed


def _options(tmp_path, config, workdir):
    """Return the options of a run with a configuration."""
    runs.write(config, tmp_path / "config.py")
    return f"--config={tmp_path / 'config.py'}", f"--workdir={workdir}"


def _retrieval(data_dir):
    return runs.retrieval(data_dir, **{"train.baseline": True})


def _kill_when(condition, *options):
    """Start a run and kill it without warning as soon as the condition holds."""
    process = processes.start("main", *options)
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if condition():
            process.kill()
            break
        time.sleep(0.0005)
    output = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, f"it ended before it could be killed: {output}"


@pytest.fixture
def uninterrupted(request):
    """The directory and the configuration of a run of a family that was never interrupted."""
    if request.param == "retrieval":
        data_dir = request.getfixturevalue("data_dir")
        return request.getfixturevalue("retrieval").path, _retrieval(data_dir)
    return request.getfixturevalue("hover_run")[0], runs.hover(request.getfixturevalue("trees_dir"))


@pytest.mark.slow  # minutes: each moment costs a start of the program
@pytest.mark.parametrize(
    ("uninterrupted", "moments"),
    [
        ("retrieval", ("in an epoch", "in a save")),
        ("hover", ("in preparation", "in an epoch", "before the test")),
    ],
    indirect=["uninterrupted"],
    ids=["retrieval", "hover"],
)
def test_killed_runs_end_bit_for_bit_the_same(tmp_path, uninterrupted, moments):
    finished, config = uninterrupted
    killed, data_dir = tmp_path / "killed", tmp_path / "prepared"
    if "in preparation" in moments:
        config.data.data_dir = str(data_dir)
    options = _options(tmp_path, config, killed)
    newest, total = killed / "checkpoints" / "newest", len(runs.records(finished))

    def lines(count):
        path = killed / "metrics.jsonl"
        return path.exists() and path.read_bytes().count(b"\n") >= count

    conditions = {
        "in preparation": lambda: any(path.is_file() for path in data_dir.rglob("*")),
        "in an epoch": lambda: lines(3),
        # While orbax's temporary directory exists.
        "in a save": lambda: any("tmp" in path.name for path in newest.glob("*")),
        "before the test": lambda: lines(total),
    }
    for moment in moments:
        _kill_when(conditions[moment], *options)
    assert not (killed / "test_metrics.json").exists()
    again = processes.run("main", *options)
    assert again.returncode == 0, again.stderr
    assert re.search(r"best epoch.*\n.*last epoch", again.stdout)
    assert ("chance" in again.stdout) == bool(config.train.get("baseline"))
    runs.assert_same(killed, finished)


# Several processes on one machine


IS_READY = """
source launch/environment.sh
python=$(find_python)
is_ready "$(environment_key "$python" "$(find_accelerator)")" ""
"""


@pytest.fixture
def installed():
    """Skip if launch/local.sh would replace .venv, from which the tests may be running."""
    environment = processes.environment() | {"PYTHON": sys.executable}
    process = subprocess.run(["bash", "-c", IS_READY], cwd=processes.ROOT, env=environment)
    if process.returncode:
        pytest.skip("launch/local.sh would install the package")


def _endless(directory, workdir):
    """Return the options of a run that does not end before it is stopped."""
    # A warm-up of a share of the epochs would never end.
    options = {"train.epochs": 10_000, "train.patience": 10_000, "optim.warmup": 0.0}
    options["train.checkpoint_seconds"] = 60.0
    runs.write(runs.retrieval(directory / "data", **options), directory / "config.py")
    return f"--config={directory / 'config.py'}", f"--workdir={workdir}"


def _start(directory, workdir, count, devices):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = *_endless(directory, workdir), f"--coordinator=127.0.0.1:{port}"
    environment = processes.environment(devices)
    return [
        processes.start(
            "main", *options, f"--processes={count}", f"--process={number}", env=environment
        )
        for number in range(count)
    ]


def _records(workdir):
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _wait_for(records, workdir, running):
    deadline = time.monotonic() + 600  # a busy machine compiles for minutes
    while (count := len(_records(workdir))) < records:
        assert time.monotonic() < deadline, f"{count} of {records} records"
        if any(process.poll() is not None for process in running):
            break
        time.sleep(0.05)


def _output(running):
    return [process.communicate(timeout=120)[0] for process in running]


@pytest.mark.slow
def test_processes_stop_together_and_any_number_resumes(tmp_path):
    workdir = tmp_path / "run"
    running = _start(tmp_path, workdir, 2, devices=2)
    _wait_for(5, workdir, running)
    running[1].send_signal(signal.SIGTERM)  # both processes stop at the same step
    output = _output(running)
    assert [process.returncode for process in running] == [143, 143], output
    before = _records(workdir)
    several = (workdir / "metrics.jsonl").read_bytes()
    # A single process with one device resumes the run of two processes with two devices each, and
    # another starts the same run from the beginning.
    [resumed], [fresh] = (_start(tmp_path, x, 1, devices=1) for x in (workdir, tmp_path / "fresh"))
    _wait_for(len(before) + 60, workdir, [resumed])
    _wait_for(5, tmp_path / "fresh", [fresh])
    for process in (resumed, fresh):
        process.send_signal(signal.SIGTERM)
    output = _output([resumed, fresh])
    assert [resumed.returncode, fresh.returncode] == [143, 143], output
    assert (workdir / "metrics.jsonl").read_bytes().startswith(several)
    for record, expected in zip(before[:5], _records(tmp_path / "fresh"), strict=False):
        assert record.keys() == expected.keys(), output
        for name, value in record.items():
            # Sums in a different order, through a few steps of float32.
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    records = [record for record in _records(workdir) if "loss" in record]
    assert [record["step"] for record in records] == list(range(1, 2 * len(records), 2))
    losses = [record["loss"] for record in records]
    assert np.mean(losses[-10:]) < np.mean(losses[:5])


@pytest.mark.slow
def test_running_run_is_refused_in_all_processes(tmp_path):
    with files.lock(tmp_path / "run"):
        running = _start(tmp_path, tmp_path / "run", 2, devices=1)
        output = _output(running)
    assert [process.returncode for process in running] == [1, 1], output
    assert "error: another process trains in" in output[0]
    assert "error: process 0 failed (workdir)" in output[1]


@pytest.mark.slow  # it takes seconds
def test_process_that_cannot_join_reports_it():
    config = f"--config={processes.ROOT}/configs/anet.py:debug"
    result = processes.run(
        "main", config, "--coordinator=127.0.0.1:1", "--processes=2", "--process=2"
    )
    assert result.returncode == 1
    assert "--process=2" in result.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_dead_process_ends_the_run(tmp_path):
    workdir = tmp_path / "run"
    launch = ["bash", str(processes.ROOT / "launch" / "local.sh"), "--processes=2"]
    run = subprocess.Popen(
        [*launch, *_endless(tmp_path, workdir)],
        env=processes.environment() | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        _wait_for(5, workdir, [run])
        matches = subprocess.run(
            ["pgrep", "-g", str(run.pid), "-f", "process=1"], capture_output=True, text=True
        )
        os.kill(int(matches.stdout.split()[0]), signal.SIGKILL)
        output = run.communicate(timeout=60)[0]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 137, output
    assert "a process of 2 ended with status 137" in output
