"""Helpers of commands: printable commands, flags, numbers, exit statuses."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from absl import flags

from hlformer_jax import cli, terminal


def test_interrupt_has_the_status_of_a_shell(capsys):
    assert cli.interrupted() == 130
    assert "resumes from the newest checkpoint, if there is one" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["main", "data.moments"])
def test_interrupted_import_of_a_command_is_one_line(tmp_path, module):
    (tmp_path / "absl.py").write_text("raise KeyboardInterrupt")
    environment = processes.environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = processes.run(module, "--help", env=environment)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")
    library = [sys.executable, "-c", f"import hlformer_jax.{module}"]
    done = processes.finish(library, env=environment)
    assert done.stderr.startswith("Traceback")


IGNORED_INTERRUPT = """
import gc, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
gc.callbacks.append(lambda phase, info: phase == "stop" and signal.raise_signal(signal.SIGINT))
gc.collect()  # Python ignores the KeyboardInterrupt of a callback
gc.callbacks.clear()
time.sleep(30)
"""


def test_ctrl_c_that_python_ignores_ends_a_command(tmp_path):
    (tmp_path / "absl.py").write_text(IGNORED_INTERRUPT)
    environment = processes.environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = processes.run("search", "--help", env=environment)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


LATE_INTERRUPT = """
import atexit, signal, threading
def start(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def interrupt():
    threading.Thread.start = start  # as in Python 3.12
    signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(interrupt)
raise SystemExit
"""


def test_ctrl_c_while_a_command_ends_prints_nothing(tmp_path):
    (tmp_path / "absl.py").write_text(LATE_INTERRUPT)
    environment = processes.environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = processes.run("search", "--help", env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_direction_marks_of_a_line_are_escaped(capsys):
    name = "clip\u202egnp.mp4"
    cli.fail(f"{name} is missing")
    terminal.warn(f"{name} failed")
    terminal.show(f"{name} שלום")
    shown = capsys.readouterr()
    assert shown.err == "error: clip\\u202egnp.mp4 is missing\nclip\\u202egnp.mp4 failed\n"
    assert shown.out == "clip\\u202egnp.mp4 שלום\n"


def test_arguments_in_an_error_are_printed_as_flags(capsys):
    message = "set `config.train.epochs`=3, leave out `without`, not `ray start --head` or `other`"
    assert cli.fail(message) == 1
    assert capsys.readouterr().err == (
        "error: set --config.train.epochs=3, leave out --except, not `ray start --head` or"
        " `other`\n"
    )


NOTES = """
import sys
from absl import app, logging
from hlformer_jax import cli, terminal

def main(argv):
    logging.info("a note"), logging.warning("a warning")

app.run(main, ["program", *sys.argv[1:]], flags_parser=cli.parse)
"""


@pytest.mark.parametrize(("flag", "shown"), [((), False), (("--verbosity=0",), True)])
def test_notes_of_libraries_are_hidden_unless_asked_for(flag, shown):
    done = subprocess.run(
        [sys.executable, "-c", NOTES, *flag],
        env=processes.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "a warning" in done.stderr and ("a note" in done.stderr) == shown


def test_cores_without_an_affinity_are_all_of_the_machine(monkeypatch):
    assert 1 <= cli.cores() <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert cli.cores() == os.cpu_count()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"), (-2e13, "-20,000,000,000,000"), (99.96, "100"), (1.5, "1.5"),
        (0.123456, "0.123"), (1.5e-7, "0.00000015"), (0.0, "0"),
    ],
)  # fmt: skip
def test_three_digits_have_no_exponent(value, text):
    assert cli.three_digits(value) == text


@pytest.mark.parametrize(
    ("file", "workdir"),
    [
        ("configs/anet.py", "runs/anet"),
        ("x/gmmformer_v2.py:tvr-debug", "runs/gmmformer_v2-tvr-debug"),
    ],
)
def test_default_workdir_follows_the_configuration(monkeypatch, file, workdir):
    class Flag:
        config_filename = file

    monkeypatch.setattr(flags, "FLAGS", {"config": Flag})
    assert cli.default_workdir() == workdir


def test_path_argument_may_begin_with_the_home_and_is_not_empty():
    assert cli.path_argument(".").is_dir()
    assert cli.path_argument("~/runs") == Path.home() / "runs"
    with pytest.raises(argparse.ArgumentTypeError):
        cli.path_argument("")


def test_command_line_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = 'it\'s $(touch gone) & "quoted"; ü\n.d'
    line = cli.command_line("search", "status", f"--index={folder}")
    shown = 'it\'s $(touch gone) & "quoted"; ü .d'
    environment = processes.environment()
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 1 and shown in done.stderr
    assert not list(tmp_path.iterdir())


def test_command_line_names_a_python_that_the_shell_finds(tmp_path, monkeypatch):
    def program():
        return shlex.split(cli.command_line("main"))[0]

    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert program() == "python"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert program() == sys.executable
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python3"))
    assert program() == "bin/python3"
