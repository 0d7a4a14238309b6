"""Several processes on one machine: they train together, stop together, and hand over."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.config import debug, default
from hlformer_jax.run import lock

ROOT = Path(__file__).parents[2]
READY = ROOT / ".venv" / ".ready"


def _environment(directory, devices):
    return os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(directory / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }


def _options(directory, workdir):
    config = debug(default())
    config.data.update(
        data_dir=str(directory / "prepared"), visual_dim=8, text_dim=8, synthetic_videos=(10, 4, 5)
    )
    config.data.update(max_frames=8, max_clips=4, max_words=6)
    config.model.update(hidden_size=8, lorentz_dim=7, euclidean_blocks=1, lorentz_blocks=1)
    config.model.glance = False  # compiles in half the time
    # More epochs than it can come to before it is stopped, and so no time to warm up.
    config.train.update(batch_size=4, epochs=10_000, log_every=2, patience=10_000)
    config.optim.warmup = 0.0
    path = directory / "config.py"
    path.write_text(
        "from ml_collections import ConfigDict\n\n\n"
        f"def get_config():\n    return ConfigDict({config.to_dict()!r})\n"
    )
    return [f"--config={path}", f"--workdir={workdir}"]


def _start(directory, workdir, processes, devices):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hlformer_jax.main", *_options(directory, workdir)]
    return [
        subprocess.Popen(
            [
                *command,
                f"--coordinator=127.0.0.1:{port}",
                f"--processes={processes}",
                f"--process={number}",
            ],
            env=_environment(directory, devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(processes)
    ]


def _records(workdir):
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _wait_for(records, workdir, processes):
    deadline = time.monotonic() + 240
    while len(_records(workdir)) < records and time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            break
        time.sleep(0.05)


def test_processes_stop_together_and_any_number_goes_on(tmp_path):
    workdir = tmp_path / "run"
    running = _start(tmp_path, workdir, 2, devices=2)
    _wait_for(5, workdir, running)
    running[1].send_signal(signal.SIGTERM)  # one is told, and both stop at the same step
    output = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [143, 143], output
    before = _records(workdir)
    several = (workdir / "metrics.jsonl").read_bytes()
    (alone,) = _start(tmp_path, workdir, 1, devices=1)
    _wait_for(len(before) + 60, workdir, [alone])
    alone.send_signal(signal.SIGTERM)
    output = alone.communicate(timeout=120)[0]
    assert alone.returncode == 143, output
    assert (workdir / "metrics.jsonl").read_bytes().startswith(several)
    # What 2 processes with 2 devices each computed, one process with one device computes as well.
    (whole,) = _start(tmp_path, tmp_path / "whole", 1, devices=1)
    _wait_for(5, tmp_path / "whole", [whole])
    whole.send_signal(signal.SIGTERM)
    output = whole.communicate(timeout=120)[0]
    for one, other in zip(before[:5], _records(tmp_path / "whole"), strict=False):
        assert one.keys() == other.keys(), output
        for name, value in one.items():
            # Sums in another order, through a few steps of float32.
            np.testing.assert_allclose(value, other[name], rtol=1e-4, atol=1e-6, err_msg=name)
    steps = [record["step"] for record in _records(workdir) if "loss" in record]
    assert steps == list(range(1, 2 * len(steps), 2))
    losses = [record["loss"] for record in _records(workdir) if "loss" in record]
    assert np.mean(losses[-10:]) < np.mean(losses[:5])


def test_a_run_that_is_under_way_is_refused_in_all_processes(tmp_path):
    with lock.hold(tmp_path / "run"):
        running = _start(tmp_path, tmp_path / "run", 2, devices=1)
        output = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [1, 1], output
    assert "error: a run is under way in" in output[0]
    assert "error: process 0 gave up (workdir)" in output[1]


def test_a_process_that_cannot_join_says_so():
    result = subprocess.run(
        [
            *(sys.executable, "-m", "hlformer_jax.main", f"--config={ROOT}/configs/anet.py:debug"),
            *("--coordinator=127.0.0.1:1", "--processes=2", "--process=2"),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert "--process=2" in result.stderr.splitlines()[-1]


@pytest.mark.skipif(not READY.exists(), reason="launch/local.sh would install the package")
def test_a_process_that_dies_ends_the_run(tmp_path):
    workdir = tmp_path / "run"
    run = subprocess.Popen(
        ["bash", str(ROOT / "launch" / "local.sh"), "--processes=2", *_options(tmp_path, workdir)],
        env=_environment(tmp_path, 1) | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        _wait_for(5, workdir, [run])
        found = subprocess.run(
            ["pgrep", "-g", str(run.pid), "-f", "process=1"], capture_output=True, text=True
        )
        os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
        output = run.communicate(timeout=60)[0]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 137, output
    assert "a process of 2 ended with status 137" in output
