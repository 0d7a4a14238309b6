"""The output of commands on a terminal (a pty of 80 columns), in a pipe, and with --quiet."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from processes import ROOT

from hlformer_jax import cli, terminal

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def screen(monkeypatch):
    """Calls a function with a terminal as standard output and error; returns its output."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def show(function):
        reader, writer = os.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        with os.fdopen(reader, "rb", buffering=0) as screen, monkeypatch.context() as patch:
            with os.fdopen(writer, "w", buffering=1) as stream:
                patch.setattr(sys, "stdout", stream)
                patch.setattr(sys, "stderr", stream)
                function()
                stream.write("END")
                stream.flush()
                text = b""
                while not text.endswith(b"END"):
                    text += screen.read(65536)
        return text.removesuffix(b"END").decode()

    return show


@pytest.fixture(autouse=True)
def restored():
    yield
    terminal.silence(False)


def advance(bar):
    bar.update(2)
    bar.refresh()


def test_bar_is_one_line_with_speed_and_time_left(screen):
    def work():
        with terminal.bar("video", 8) as bar:
            advance(bar)
            bar.set_postfix_str("a name " * 30)
            terminal.warn("a.mp4 is damaged")

    frames = [ESCAPE.sub("", part) for part in re.split(r"[\r\n]", screen(work))]
    assert any(re.match(r" 25%\|.*2/8 \[00:00<00:0\d, .*video", frame) for frame in frames)
    assert max(map(len, frames)) <= 80
    assert "a.mp4 is damaged" in frames  # on a line of its own


def test_quiet_hides_progress_but_no_warning(screen):
    def work():
        for _ in terminal.track([1, 2], "clip"):
            terminal.report("reading")
        terminal.warn("a.mp4 is damaged")
        terminal.show("result")

    assert "reading" in screen(work) and "0/2" in screen(work)
    terminal.silence()
    assert screen(work).splitlines() == ["a.mp4 is damaged", "result"]


def test_pipe_gets_lines_without_bars_or_colours(capsys):
    with terminal.bar("video", 8) as bar:
        advance(bar)
        terminal.report("reading")
    cli.fail("no video")
    cli.print_table(["name", *["R@1"] * 90], [["a" * 120, *["1.0"] * 90]], "title")
    out, err = capsys.readouterr()
    assert err == "reading\nerror: no video\n"
    assert "a" * 120 in out and "\x1b" not in out
    assert 90 in [line.count("1.0") for line in out.splitlines()]


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_environment_switches_colours_off(screen, monkeypatch, variable):
    def work():
        cli.fail("no video")

    assert screen(work) == "\x1b[1;31merror:\x1b[0m no video\r\n"
    monkeypatch.setenv(variable, "dumb")
    assert screen(work) == "error: no video\r\n"


def test_a_table_fits_the_terminal(screen):
    head = ["", *(f"R@{k}" for k in (1, 5, 10, 50, 100)), "SumR", "MedianRank", "MeanRank"]
    rows = [["a long name of a model", *["12.345"] * 8]]
    lines = ESCAPE.sub("", screen(lambda: cli.print_table(head, rows, "title"))).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).count("12.345") == 8  # in two parts, nothing is cut short


def test_time_left_follows_the_mean_of_finished_parts():
    seconds = iter([0.0, 600.0, 7200.0])
    time_left = terminal.TimeLeft(lambda: next(seconds))
    assert time_left.text(3) == ""
    time_left.add()
    assert time_left.text(3) == ", about 30 min left"
    assert time_left.text(0) == ""
    time_left.add()
    assert time_left.text(1) == ", about 1 h 0 min left"


@pytest.mark.parametrize(
    ("line", "completion"),
    [
        ("hlformer-search tran", "transcribe"),
        ("hlformer-search query --calib", ""),
        pytest.param("hlformer-search query --min", "--min-score", marks=pytest.mark.slow),
        ("hlformer-train --quiet --mode=ev", "--mode=evaluate"),
        pytest.param("hlformer-train --verb", "", marks=pytest.mark.slow),
        ("hlformer-sweep --config=sweeps/rob", "--config=sweeps/robust"),
        pytest.param("hlformer-figures --video=a --vid", "--video", marks=pytest.mark.slow),
    ],
)
def test_shell_completes_commands_and_options(line, completion, tmp_path):
    pytest.importorskip("argcomplete", reason="extra search")
    answer = tmp_path / "answer"
    module = line.partition(" ")[0].replace("train", "main").replace("hlformer-", "hlformer_jax.")
    subprocess.run(
        [sys.executable, "-m", module], check=True, cwd=ROOT,
        env=os.environ | {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
                          "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)},
    )  # fmt: skip
    assert answer.read_text().strip() == completion
