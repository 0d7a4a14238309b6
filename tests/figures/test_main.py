"""The command draws a figure of a run's directory; what is wrong is one line."""

import sys

import processes
import pytest


def _finish(*arguments):
    return processes.finish([sys.executable, "-m", "hlformer_jax.figures", *map(str, arguments)])


def test_a_figure_is_drawn_into_the_run_s_directory(directory):
    done = _finish("windows", f"--workdir={directory}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(directory / "figures" / "windows.png")
    names = {path.name for path in (directory / "figures").iterdir()}
    assert names == {"windows.png", "windows.svg", "windows.csv"}


@pytest.mark.slow  # a process each
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "give the name of one figure: frames, hyperbolic"),
        (["window", "--workdir=x"], "did you mean 'windows'"),
        (["windows"], "--workdir is missing"),
        (["windows", "--workdir=nowhere"], "nowhere has no config.json"),
        (["ball", "--workdir={run}"], "HLFormer embeds videos and captions"),
        (["heatmap", "--workdir={run}", "--video=x"], "--video=x: the split test has no such"),
    ],
)
def test_what_is_wrong_is_one_line(directory, arguments, line):
    done = _finish(*(argument.format(run=directory) for argument in arguments))
    assert done.returncode == 1
    [said] = done.stderr.strip().splitlines()
    assert said.startswith("error: ") and line in said
