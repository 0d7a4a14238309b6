"""Launch scripts: the commands that search.sh starts, and the CUDA of the environment."""

import os
import shutil
import subprocess

import processes
import pytest

from hlformer_jax.search.cli.commands import COMMANDS

ENVIRONMENT = """
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
die() { printf 'error: %s\\n' "$*" >&2; exit 1; }
environment() { [[ $1 == search ]]; }
"""
PYTHON = '#!/usr/bin/env bash\nprintf "%s|" "$@"; echo\n[[ $4 != "$FAILS" ]]\n'


@pytest.fixture
def launch(tmp_path):
    """Calls the script with a Python that prints its arguments."""
    (tmp_path / "launch").mkdir()
    (tmp_path / "my films").mkdir()
    shutil.copy(processes.ROOT / "launch" / "search.sh", tmp_path / "launch")
    (tmp_path / "launch" / "environment.sh").write_text(ENVIRONMENT)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)

    def call(*flags, fails="-"):
        done = subprocess.run(
            ["bash", tmp_path / "launch" / "search.sh", *flags],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "FAILS": fails},
        )  # fmt: skip
        prefix = "-P|-m|hlformer_jax.search|"
        return done, [line.removeprefix(prefix) for line in done.stdout.splitlines()]

    return call


def test_folder_is_indexed_into_itself_and_served(launch):
    page = "--port=8001", "--allow-host=nas", "--token-file=a b", "--no-token"
    indexing = "--fps=2", "--retry", "--every-frame", "--precision=float32", "--ray=local"
    done, started = launch("my films", *indexing, *page)
    assert done.returncode == 0 and started == [
        f"index|--index=my films/.hlformer-search|{'|'.join(indexing)}|--|my films|",
        f"serve|--index=my films/.hlformer-search|--open|{'|'.join(page)}|",
    ]


def test_index_elsewhere_and_demo_are_served(launch):
    assert launch("--index=my index", "my films")[1] == [
        "index|--index=my index|--|my films|",
        "serve|--index=my index|--open|",
    ]
    assert launch("--demo")[1] == [
        "demo|--out=runs/search-demo|",
        "serve|--index=runs/search-demo/index|--open|",
    ]


def test_every_command_is_passed_on_unchanged(launch):
    for name in COMMANDS:
        done, started = launch(name, "a red circle", "--index=my index", "--help")
        assert done.returncode == 0
        assert started == [f"{name}|a red circle|--index=my index|--help|"]


def test_server_does_not_start_if_indexing_fails(launch):
    done, started = launch("my films", fails="index")
    assert done.returncode == 1 and len(started) == 1


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "usage: bash launch/search.sh FOLDER"),
        (["nowhere"], "nowhere is not a folder"),
        (["my", "films"], "quote names with spaces"),
        (["my films", "--fsp=2"], "unknown flag --fsp=2"),
        (["--demo", "my films"], "--demo takes no folder"),
        (["--demo", "--fps=2"], "--demo takes no folder"),
    ],
)
def test_wrong_flags_are_one_line_before_anything_is_installed(launch, flags, complaint):
    done, started = launch(*flags)
    assert done.returncode == 1 and not started
    assert done.stderr.count("\n") == 1 and complaint in done.stderr


@pytest.mark.parametrize("script", ["local", "search", "sweep", "slurm", "slurm_sweep", "test"])
def test_every_script_has_help_without_installing(tmp_path, script):
    shutil.copytree(processes.ROOT / "launch", tmp_path / "launch")
    place = tmp_path / "launch" / f"{script}.sh"
    for flag in ("--help", "-h"):
        done = subprocess.run(["bash", place, flag], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and f"launch/{script}.sh" in done.stdout and not done.stderr
        assert "#" not in done.stdout
    assert sorted(tmp_path.iterdir()) == [tmp_path / "launch"]


def test_mark_of_an_environment_is_deleted_last(tmp_path):
    shutil.copytree(processes.ROOT / "launch", tmp_path / "launch")
    (tmp_path / "pyproject.toml").touch()
    for name in ("lib/a.py", "bin/python", ".launch"):
        (tmp_path / ".venv" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".venv" / name).touch()
    (tmp_path / "rm").write_text("#!/bin/sh\nexit 1\n")  # the launch is stopped here
    (tmp_path / "rm").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"source {tmp_path}/launch/environment.sh; environment"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 1 and "making" in done.stderr
    assert os.listdir(tmp_path / ".venv") == [".launch"]


NVIDIA_SMI = """#!/usr/bin/env bash
case $1 in
  -L) echo "GPU 0: NVIDIA" ;;
  *=driver_version*) printf '%b' "$DRIVERS" ;;
  *=compute_cap*) printf '%b' "$CAPABILITIES" ;;
esac
"""


@pytest.mark.parametrize(
    ("drivers", "capabilities", "extra"),
    [
        ("580.65.06\\n", "9.0\\n", "cuda13"),
        ("580.65.06\\n" * 2, "12.0\\n7.5\\n", "cuda13"),
        ("595.10\\n" * 2, "10.0\\n7.0\\n", "cuda12"),  # CUDA 13 does not support Volta
        ("580.65.06\\n", "", "cuda12"),
        ("575.57.08\\n", "9.0\\n", "cuda12"),
        ("525.60.13\\n", "8.0\\n", "cuda12"),
        ("470.256.02\\n", "8.0\\n", ""),
        ("", "", ""),
    ],
)
def test_driver_decides_which_cuda_is_installed(tmp_path, drivers, capabilities, extra):
    stand_in = tmp_path / "nvidia-smi"
    stand_in.write_text(NVIDIA_SMI)
    stand_in.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "DRIVERS": drivers, "CAPABILITIES": capabilities}
    environment.pop("HLFORMER_EXTRAS", None)
    find = f"source {processes.ROOT}/launch/environment.sh; find_accelerator"

    def call(**variables):
        return subprocess.run(
            ["bash", "-c", find], capture_output=True, text=True, env=environment | variables
        )

    done = call()
    assert done.returncode == 0 and done.stdout.strip() == extra
    assert ("using the CPU" in done.stderr) == (not extra)
    assert call(HLFORMER_EXTRAS="cuda12").stdout.strip() == "cuda12"
