"""What is wrong with a command line is said in one line, and where its run is kept."""

import os
import sys

import pytest
from absl import flags
from processes import ROOT

from hlformer_jax import command

ANET = str(ROOT / "configs" / "anet.py")


def test_a_wrong_input_is_one_line_and_status_1(capsys):
    assert command.fail("no such thing") == 1
    assert capsys.readouterr().err == "error: no such thing\n"
    assert command.interrupted() == 130  # as a shell has it
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
    ("error", "line"),
    [
        (ValueError("context\n\n  'the reason'\n"), "'the reason'"),
        (ValueError('"quoted"'), "quoted"),
        (KeyError(), "KeyError"),
    ],
)
def test_the_last_line_of_a_message_is_its_reason(error, line):
    assert command.last_line(error) == line


def _flags(monkeypatch, error):
    """A parser of flags that refuses all."""

    def refuse(argv):
        raise error

    monkeypatch.setattr(flags, "FLAGS", refuse)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((f"--config={ANET}", "--config.modl.x=3"), "config.modl.x: there is no such field"),
        (("--config", ANET, "--config.model.hiden_size=3"), "did you mean 'hidden_size'?"),
        ((f"--config={ANET}:fast",), "no variant 'fast'"),
        (("--config=nowhere.py",), "nowhere.py: there is no such configuration file"),
        (("--mode=x",), "the reason (--helpshort lists the options)"),
        ((f"--config={ANET}", "--config.seed=x"), "the reason (--helpshort lists the options)"),
    ],
)
def test_a_flag_that_is_refused_is_explained(monkeypatch, capsys, options, message):
    _flags(monkeypatch, ValueError("context\nthe reason"))
    with pytest.raises(SystemExit) as stopped:
        command.parse([sys.argv[0], *options])
    assert stopped.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


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
