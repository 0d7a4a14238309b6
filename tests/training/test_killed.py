"""A run as a person starts it, and as a machine ends it: by the command line, and by SIGKILL."""

import json
import re
import signal
import time

import processes
import pytest
import runs


def _options(tmp_path, config, workdir):
    """The options of a run with a configuration."""
    runs.write(config, tmp_path / "config.py")
    return f"--config={tmp_path / 'config.py'}", f"--workdir={workdir}"


def _retrieval(data_dir):
    return runs.retrieval(data_dir, **{"train.baseline": True})


def _kill_when(condition, *options):
    """Starts a run and kills it without warning as soon as the condition holds."""
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
    """A run of a family that was never interrupted: its directory, and its configuration."""
    if request.param == "retrieval":
        data_dir = request.getfixturevalue("data_dir")
        return request.getfixturevalue("retrieval").path, _retrieval(data_dir)
    return request.getfixturevalue("hover_run")[0], runs.hover(request.getfixturevalue("trees_dir"))


MOMENTS = ("in an epoch", "in a save")


@pytest.mark.slow  # minutes: each moment costs a start of the program
@pytest.mark.parametrize(
    ("uninterrupted", "moments"),
    [
        ("retrieval", MOMENTS),
        ("hover", ("in preparation", *MOMENTS, "before the test")),
    ],
    indirect=["uninterrupted"],
    ids=["retrieval", "hover"],
)
def test_runs_killed_without_warning_end_bit_for_bit_like_one_that_was_not(
    tmp_path, uninterrupted, moments
):
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
        # While orbax's temporary directory is there.
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


def test_a_run_is_evaluated_by_the_command_to_the_metrics_it_reported(
    tmp_path, retrieval, data_dir
):
    options = _options(tmp_path, _retrieval(data_dir), tmp_path / "other")
    checkpoint = f"--checkpoint={retrieval.path}"
    evaluated = processes.run("main", "--mode=evaluate", checkpoint, *options)
    assert evaluated.returncode == 0, evaluated.stderr
    reported = json.loads((retrieval.path / "test_metrics.json").read_text())
    assert json.loads((tmp_path / "other" / "test_metrics.json").read_text()) == reported
    assert f"{reported['queries']} queries, 5 videos" in evaluated.stdout
