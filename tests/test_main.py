"""The command line: what is wrong is one line on standard error, and the exit status is 1."""

import os

import pytest
from absl import flags
from processes import ROOT, calls

from hlformer_jax import command

ANET = "--config=configs/anet.py"

CASES = {
    "nothing": ((), "--config is missing"),
    "no file": (("--config=configs/nowhere.py",), "nowhere.py"),
    "unknown field": ((ANET, "--config.model.hiden_size=3"), "did you mean 'hidden_size'?"),
    "apart": (("--config", "configs/anet.py", "--config.model.x=3"), "there is no such field"),
    "common name": ((ANET, "--config.optim.lr=3"), "did you mean config.optim.learning_rate?"),
    "another section": ((ANET, "--config.model.epochs=3"), "did you mean config.train.epochs?"),
    "number of devices": ((ANET, "--config.train.num_devices=2"), "CUDA_VISIBLE_DEVICES"),
    "batch": ((ANET, "--config.batch=2"), "did you mean config.train.batch_size?"),
    "initial parameters": ((ANET, "--config.train.pretrained=x"), "are --init"),
    "init of an evaluation": ((ANET, "--mode=evaluate", "--init=x"), "--init goes with"),
    "no metric": (
        (f"{ANET}:debug", "--config.eval.select=SunR", "--workdir=unused"),
        "did you mean 'SumR'?",
    ),
    "one member": (("--mode=ensemble", "--member=a.npz"), "two score files or more"),
    "no such run": (("--config=run:nowhere", "--mode=evaluate"), "nowhere has no config.json"),
    "unknown section": ((ANET, "--config.modl.x=3"), "config.modl.x: there is no such field"),
    "field as a section": ((ANET, "--config.seed.x=3"), "config.seed.x: there is no such field"),
    "no address": ((ANET, "--processes=2", "--coordinator=here"), "give HOST:PORT"),
    "misspelt": (("--config=misspelt.py",), "misspelt.py:6: config.model.hiden_size = 3: Key"),
    "no Python": (("--config=syntax.py",), "syntax.py:1: SyntaxError"),
    "no number": ((ANET, "--config.train.epochs=many"), "train.epochs"),
    "no whole number": (
        (ANET, "--config.train.epochs=10.0"),
        "config.train.epochs is 10.0: it must be a whole number from 1 to 1,000,000",
    ),
    "no mode": ((ANET, "--mode=test"), "mode"),
    "no variant": ((f"{ANET}:fast",), "configs/anet.py: there is no variant 'fast'"),
    "no data set": (("--config=configs/ms_sl.py:msrvtt",), "use debug, anet, anet-debug, tvr,"),
    "range": ((ANET, "--config.train.batch_size=0"), "config.train.batch_size is 0"),
    "heads": ((ANET, "--config.model.lorentz_dim=126"), "lorentz_dim"),
    "other mode": ((ANET, "--checkpoint=x"), "--mode=evaluate"),
    "parts of videos": ((ANET, "--config.data.synthetic_videos=(1.5,2.5,3.5)"), "three whole"),
    "another model's name": (
        (ANET, "--config.model.name=gmmformer_v2", "--config.loss.partial_order=0"),
        "start from configs/gmmformer_v2.py",
    ),
    "sweep": (("--config=configs/sweeps/lorentz_window.py",), "hlformer_jax.sweep"),
    "argument": ((ANET, "extra"), "unexpected argument 'extra'"),
    "no data": (
        (ANET, "--config.data.manual_dir=nowhere", "--config.data.data_dir=p", "--workdir=unused"),
        "nowhere/activitynet",
    ),
    "no checkpoint": (
        (ANET, "--mode=evaluate", "--checkpoint=nowhere"),
        "nowhere holds no checkpoint",
    ),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    directory = tmp_path_factory.mktemp("main")
    (directory / "configs").symlink_to(ROOT / "configs")
    (directory / "syntax.py").write_text("def get_config(:\n")
    (directory / "misspelt.py").write_text(
        "from hlformer_jax.config import default\n\n\ndef get_config():\n"
        "    config = default()\n    config.model.hiden_size = 3\n    return config\n"
    )
    results = calls("hlformer_jax.main", [given for given, _ in CASES.values()], directory)
    assert not (directory / "unused").exists()
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_command_is_one_clear_line(case, done):
    status, stderr = done[case]
    assert status == 1, stderr
    assert "Traceback" not in stderr
    [line] = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert line == stderr.strip().splitlines()[-1]
    assert CASES[case][1] in line


def test_an_interrupted_program_has_the_status_that_a_shell_gives_it(capsys):
    assert command.interrupted() == 130
    assert "resumes" in capsys.readouterr().err


def test_cores_are_counted_where_a_process_has_no_set_of_them(monkeypatch):
    assert 1 <= command.cores() <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert command.cores() == os.cpu_count()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"), (-2e13, "-20,000,000,000,000"), (99.96, "100"), (1.5, "1.5"),
        (0.123456, "0.123"), (1.5e-7, "0.00000015"), (0.0, "0"),
    ],
)  # fmt: skip
def test_a_number_is_never_written_with_an_exponent(value, text):
    assert command.three_digits(value) == text


@pytest.mark.parametrize(
    ("file", "workdir"),
    [
        ("configs/anet.py", "runs/anet"),
        ("x/gmmformer_v2.py:tvr-debug", "runs/gmmformer_v2-tvr-debug"),
    ],
)
def test_a_run_is_kept_by_the_name_of_its_configuration(monkeypatch, file, workdir):
    class Flag:
        config_filename = file

    monkeypatch.setattr(flags, "FLAGS", {"config": Flag})
    assert command.default_workdir() == workdir
