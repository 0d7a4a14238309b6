"""A run as a person starts it, and as a machine ends it: by the command line, and by SIGKILL."""

import json
import re
import signal
import time

import processes
import runs


def _options(tmp_path, data_dir, workdir):
    """The options of a run with the configuration of the fixture's."""
    runs.write(runs.retrieval(data_dir, **{"train.baseline": True}), tmp_path / "config.py")
    return f"--config={tmp_path / 'config.py'}", f"--workdir={workdir}"


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


def test_runs_killed_without_warning_end_bit_for_bit_like_one_that_was_not(
    tmp_path, retrieval, data_dir
):
    killed = tmp_path / "killed"
    options = _options(tmp_path, data_dir, killed)

    def lines(count):
        path = killed / "metrics.jsonl"
        return path.exists() and path.read_bytes().count(b"\n") >= count

    newest = killed / "checkpoints" / "newest"
    # In mid epoch; then in the middle of a save, while orbax's temporary directory is there.
    _kill_when(lambda: lines(3), *options)
    _kill_when(lambda: any("tmp" in path.name for path in newest.glob("*")), *options)
    again = processes.run("main", *options)
    assert again.returncode == 0, again.stderr
    assert re.search(r"best epoch.*\n.*last epoch", again.stdout)
    assert "chance" in again.stdout
    runs.assert_same(killed, retrieval.path)


def test_a_run_is_evaluated_by_the_command_to_the_metrics_it_reported(
    tmp_path, retrieval, data_dir
):
    options = _options(tmp_path, data_dir, tmp_path / "other")
    checkpoint = f"--checkpoint={retrieval.path}"
    evaluated = processes.run("main", "--mode=evaluate", checkpoint, *options)
    assert evaluated.returncode == 0, evaluated.stderr
    reported = json.loads((retrieval.path / "test_metrics.json").read_text())
    assert json.loads((tmp_path / "other" / "test_metrics.json").read_text()) == reported
    assert f"{reported['queries']} queries, 5 videos" in evaluated.stdout
