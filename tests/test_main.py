"""The training command: an error is one line on standard error, with exit status 1."""

import sys
from pathlib import Path

import pytest
from processes import ROOT, calls, check_error, finish, run

ANET = "--config=configs/anet.py"

CASES = {
    "no config": ((), "--config is missing"),
    "missing file": (("--config=configs/nowhere.py",), "nowhere.py"),
    "file that fails": (("--config=misspelt.py",), "misspelt.py:6: config.model.hiden_size = 3"),
    "unknown variant": ((f"{ANET}:fast",), "no variant 'fast'"),
    "unknown field": (
        ("--config", "configs/anet.py", "--config.model.hiden_size=3"),
        "hidden_size",
    ),
    "common name": ((ANET, "--config.optim.lr=3"), "config.optim.learning_rate"),
    "setting of the environment": ((ANET, "--config.train.gpus=2"), "CUDA_VISIBLE_DEVICES"),
    "wrong type": ((ANET, "--config.train.epochs=10.0"), "is 10.0: it must be a whole number"),
    "group of fields": (
        (ANET, "--config.train=3"),
        "config.train is a group of fields, not 3: set config.train.baseline, config.train.batch",
    ),
    "wrong value": ((ANET, "--config.train.batch_size=0"), "config.train.batch_size is 0"),
    "name of another model": (
        (ANET, "--config.model.name=gmmformer_v2", "--config.loss.partial_order=0"),
        "configs/gmmformer_v2.py",
    ),
    "unknown metric": (
        (f"{ANET}:debug", "--config.eval.select=SunR", "--workdir=unused"),
        "'SumR'",
    ),
    "sweep": (("--config=configs/sweeps/lorentz_window.py",), "hlformer_jax.sweep"),
    "positional argument": ((ANET, "extra"), "'extra'"),
    "flag of another mode": ((ANET, "--mode=evaluate", "--init=x"), "--init"),
    "split of an evaluation": (
        ("--mode=evaluate", "--workdir=x", "--split=val"),
        "--split goes with --mode=query, not with --mode=evaluate",
    ),
    "scores of a query": (
        ("--mode=query", "--workdir=x", "--scores=F"),
        "--scores goes with --mode=evaluate, not",
    ),
    "configuration of an ensemble": (
        ("--mode=ensemble", ANET, "--member=a.npz", "--member=b.npz"),
        "--config goes with --mode=train or --mode=evaluate or --mode=query, not",
    ),
    "query of a training": ((ANET, "--workdir=unused", "--query=x"), "--query goes with"),
    "overwriting of a training": ((ANET, "--workdir=unused", "--overwrite"), "--overwrite goes"),
    "processes of a query": (
        ("--mode=query", "--workdir=x", "--processes=2"),
        "--processes goes with",
    ),
    "empty initial parameters": (
        (f"{ANET}:debug", "--init=", "--workdir=unused", "--config.data.data_dir=p"),
        "--init is empty",
    ),
    "empty member": (("--mode=ensemble", "--member=a.npz", "--member="), "--member is empty"),
    "wrong coordinator": ((ANET, "--processes=2", "--coordinator=here"), "HOST:PORT"),
    "missing run": (("--config=run:nowhere", "--mode=evaluate"), "nowhere"),
    "missing checkpoint": ((ANET, "--mode=evaluate", "--checkpoint=nowhere"), "nowhere"),
    "missing checkpoint at home": (
        (ANET, "--mode=evaluate", "--checkpoint=~/nowhere"),
        str(Path.home() / "nowhere"),
    ),
    "missing data": (
        (ANET, "--config.data.manual_dir=nowhere", "--config.data.data_dir=p", "--workdir=unused"),
        "nowhere/activitynet",
    ),
    "single member": (("--mode=ensemble", "--member=a.npz"), "two score files"),
}
"""Command lines, and a part of their error."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("main")
    (directory / "configs").symlink_to(ROOT / "configs")
    (directory / "misspelt.py").write_text(
        "from hlformer_jax.config import default\n\n\ndef get_config():\n"
        "    config = default()\n    config.model.hiden_size = 3\n    return config\n"
    )
    results = calls("hlformer_jax.main", [line for line, _ in CASES.values()], directory)
    assert not (directory / "unused").exists()
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_wrong_command_prints_one_line(case, results):
    check_error(results[case], CASES[case][1])


FLAGS = """
from absl import flags
from hlformer_jax import main

defined = {flag.name for flag in flags.FLAGS.flags_by_module_dict()[main.__name__]}
names = {name for name in defined if not name.startswith("config.")}
assert set(main.MODES) == names - {"mode", "workdir"}, names
modes = {f"--mode={mode}" for mode in flags.FLAGS["mode"].parser.enum_values}
assert {mode for allowed in main.MODES.values() for mode in allowed} == modes
"""


def test_every_flag_has_its_modes():
    # In a process of its own: other programs define flags of the same names.
    done = finish([sys.executable, "-c", FLAGS])
    assert done.returncode == 0, done.stderr


# All programs parse their options with one function, so each option is tested once.
@pytest.mark.parametrize(
    ("module", "option"),
    [("main", "--help"), ("sweep", "--helpshort"), ("figures", "-?"), ("main", "--helpfull")],
)
def test_help_ends_with_success(module, option):
    done = run(module, option)
    assert done.returncode == 0 and "--workdir" in done.stdout, done.stderr


@pytest.mark.parametrize("module", ["main", "sweep.__main__", "figures.__main__"])
def test_console_command_has_the_help_of_its_module(module):
    command = f"from hlformer_jax.{module} import program; program()"
    done = finish([sys.executable, "-c", command, "--help"])
    assert done.stdout.startswith("Command line") and "--workdir" in done.stdout, done.stderr


def test_configuration_that_exits_is_a_failure(tmp_path):
    (tmp_path / "ends.py").write_text("import sys\n\nsys.exit(3)\n")
    assert run("main", f"--config={tmp_path / 'ends.py'}").returncode != 0
