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


# Environments, made by a Python and a pip that print what they are called with


INSTALLER = """#!/usr/bin/env bash
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") echo "installed with $*" ;;
  "-c "*) echo "$0" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """Calls `environment` in a checkout, and then prints a variable."""
    shutil.copytree(processes.ROOT / "launch", tmp_path / "launch")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "programs").mkdir()

    def program(name, text):
        (tmp_path / "programs" / name).write_text(text)
        (tmp_path / "programs" / name).chmod(0o755)

    program("python", INSTALLER)
    program("nvidia-smi", "#!/bin/sh\nexit 6\n")

    def call(printed="root", **variables):
        done = subprocess.run(
            ["bash", "-c", f"source launch/environment.sh; environment; echo ${{{printed}-unset}}"],
            capture_output=True, text=True, cwd=tmp_path, timeout=60,
            env={
                "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}",
                "PYTHON": str(tmp_path / "programs" / "python"),
            } | variables,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    return call, program


def installed(done, root):
    """Return the extras of an installation; None if nothing was installed."""
    for line in done.stdout.splitlines():
        if line.startswith("installed with"):
            return line.split(" --editable ")[1].removeprefix(str(root)).strip("[]")
    return None


def test_environment_for_gpus_is_kept_on_a_node_without_gpus(tmp_path, checkout):
    call, program = checkout

    def launch(drivers, capabilities, **variables):
        program("nvidia-smi", NVIDIA_SMI if drivers else "#!/bin/sh\necho No devices; exit 6\n")
        return call("JAX_PLATFORMS", DRIVERS=drivers, CAPABILITIES=capabilities, **variables)

    hopper, volta, login = ("580.65.06", "9.0"), ("580.65.06", "7.0"), ("", "")
    assert installed(launch(*login), tmp_path) == ""
    assert installed(launch(*hopper), tmp_path) == "cuda13"
    done = launch(*login)
    assert installed(done, tmp_path) is None and done.stdout.endswith("cpu\n")
    assert "no GPU (No devices)" in done.stderr
    assert installed(launch(*volta), tmp_path) == "cuda12"
    done = launch(*hopper)
    assert installed(done, tmp_path) is None and done.stdout.endswith("unset\n")
    assert installed(launch(*login), tmp_path) is None
    assert installed(launch(*login, HLFORMER_EXTRAS=""), tmp_path) == ""


def test_environment_is_made_on_a_disk_without_locks(tmp_path, checkout):
    call, program = checkout
    program("flock", "#!/bin/sh\nexit 71\n")
    done = call()
    assert installed(done, tmp_path) == "" and "no other launch" in done.stderr
    assert installed(call(), tmp_path) is None


def test_settings_of_pip_and_python_stay_outside(checkout):
    call, _ = checkout
    done = call("PYTHONPATH", PYTHONPATH="elsewhere", PYTHONHOME="elsewhere")
    assert "--no-user" in done.stdout and done.stdout.endswith("unset\n")


@pytest.mark.parametrize("folders", [".:elsewhere", "elsewhere"])
def test_search_path_of_cd_does_not_move_the_checkout(tmp_path, checkout, folders):
    call, _ = checkout
    (tmp_path / "elsewhere" / "launch").mkdir(parents=True)
    assert call(CDPATH=folders).stdout.splitlines()[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("-1", ""), ("NoDevFiles", ""), ("", ""), ("2,3", "2 3"), ("GPU-8a,GPU-8b", "GPU-8a GPU-8b")],
)
def test_hidden_gpus_are_not_shared(visible, gpus):
    share = "processes=2; share_gpus --processes; echo ${gpus[*]-}"
    done = subprocess.run(
        ["bash", "-c", f"source {processes.ROOT}/launch/environment.sh; {share}"],
        capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": visible},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == gpus, done.stderr


@pytest.mark.parametrize("script", ["slurm", "slurm_sweep"])
def test_task_of_slurm_has_the_cores_of_its_job(tmp_path, checkout, script):
    call, program = checkout
    program("srun", '#!/bin/sh\nprintf "%s|" "$@"\nexit 143\n')
    program("scontrol", '#!/bin/sh\necho "$@"\n')
    call()
    environment = {
        "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}",
        "PYTHON": str(tmp_path / "programs" / "python"),
        "HLFORMER": str(tmp_path),
        "SLURM_JOB_ID": "7",
    }
    for cores in ({}, {"SLURM_CPUS_PER_TASK": "8"}):
        done = subprocess.run(
            ["bash", tmp_path / "launch" / f"{script}.sh", "--workdir=my run"],
            capture_output=True, text=True, env=environment | cores,
        )  # fmt: skip
        assert done.returncode == 143 and done.stdout.endswith("|--workdir=my run|requeue 7\n")
        assert ("|--cpus-per-task=8|" in f"|{done.stdout}") == bool(cores)
