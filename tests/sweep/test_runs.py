"""The runs of a sweep: those that fail, are stopped, done already, or refused."""

import json
import signal
from pathlib import Path

import pytest

from hlformer_jax import files
from hlformer_jax.config import ConfigError
from hlformer_jax.sweep import runs, tables
from hlformer_jax.sweep.definition import expand
from hlformer_jax.training import loop
from hlformer_jax.training.checkpoints import OccupiedError, WorkdirError
from hlformer_jax.training.loop import NonFiniteLossError


def test_a_run_that_fails_leaves_the_others_and_is_tried_again(result_of, small, tmp_path):
    sweep, planned = small
    called, told = [], []

    def execute(run, directory):
        called.append(directory.relative_to(tmp_path))
        assert directory == tmp_path / run.directory
        if run.variant == "bad" and run.seed == 1 and len(called) <= len(planned):
            raise NonFiniteLossError("step 4: loss is not finite\nand more")
        return result_of(run, 10.0 + run.seed)

    failures = runs.perform(planned, tmp_path, told.append, execute=execute)
    assert called == [run.directory for run in planned]
    reason = "NonFiniteLossError: step 4: loss is not finite"
    assert failures == {Path("bad/seed1"): reason}
    assert told[0] == "run 1 of 6: full, seed 0"
    assert told[-1] == f"failed: bad, seed 1: {reason}"
    table = tables.collect(sweep, planned, tmp_path)
    assert (table["finished"], table["total"]) == (5, 6)
    assert table["variants"][2]["failures"] == [{"title": "bad, seed 1", "reason": reason}]
    assert reason in tables.markdown(table)
    assert "Traceback" in json.loads((tmp_path / "bad/seed1/failure.json").read_text())["traceback"]

    assert runs.perform(planned, tmp_path, told.append, execute=execute) == {}
    assert called[6:] == [Path("bad/seed1")]
    assert told[-2:] == ["5 of 6 runs are finished already", "run 6 of 6: bad, seed 1"]
    assert not (tmp_path / "bad/seed1/failure.json").exists()
    assert tables.notes(tables.collect(sweep, planned, tmp_path)) == []
    assert runs.perform(planned, tmp_path, told.append, execute=execute) == {}
    assert len(called) == 7


def test_a_run_that_is_stopped_ends_the_sweep_and_counts_as_neither(small, tmp_path):
    _, planned = small

    def execute(run, directory):
        raise loop.Stopped("stopped", signal.SIGTERM)

    with pytest.raises(loop.Stopped):
        runs.perform(planned, tmp_path, lambda line: None, execute=execute)
    assert not list(tmp_path.rglob("*.json"))


def test_a_run_that_another_process_has_done_meanwhile_is_not_done_again(small, tmp_path):
    _, planned = small
    called = []

    def execute(run, directory):
        called.append(run.directory)
        other = tmp_path / planned[1].directory
        other.mkdir(parents=True, exist_ok=True)
        (other / "result.json").write_text("{}")
        return {}

    assert runs.perform(planned, tmp_path, lambda line: None, execute=execute) == {}
    assert called == [planned[0].directory, *(run.directory for run in planned[2:])]


def test_a_run_that_another_process_does_is_left_to_it(result_of, small, tmp_path):
    _, planned = small
    told = []

    def execute(run, directory):
        if run == planned[1]:
            raise OccupiedError("a run is under way")
        return result_of(run, 10.0)

    assert runs.perform(planned, tmp_path, told.append, execute=execute) == {}
    assert "left to the process that does it" in told[2]
    assert not (tmp_path / planned[1].directory).exists()
    assert all(runs.finished(run, tmp_path) for run in planned if run != planned[1])


def test_a_changed_sweep_is_refused_where_another_was_begun(small, tmp_path):
    sweep, planned = small
    one = tmp_path / planned[1].directory
    content = {"config": json.loads(planned[1].config.to_json()), "data_fingerprint": "x"}
    files.write_json(one / "config.json", content)
    (one / "checkpoints" / "newest" / "7").mkdir(parents=True)
    runs.check(planned, tmp_path)
    sweep.base.data.manual_dir = "moved"  # not what it is, but where it lies
    runs.check(expand(sweep), tmp_path)
    sweep.base.optim.learning_rate = 0.5
    with pytest.raises(WorkdirError, match="w-a-b/seed0 .*learning_rate"):
        runs.check(expand(sweep), tmp_path)
    (one / "checkpoints" / "newest" / "7").rename(one / "checkpoints" / "newest" / "7.part")
    runs.check(expand(sweep), tmp_path)  # nothing was saved: no run to mix it up with


def test_a_model_that_cannot_be_is_refused_before_any_run(sweep_of, tmp_path):
    sweep = sweep_of({"full": {}, "both off": {"model": {"gaze": False, "glance": False}}})
    with pytest.raises(ConfigError, match="'both off': .*model.gaze"):
        runs.check(expand(sweep), tmp_path)
    nothing = {name: 0.0 for name in ("query_diversity", "partial_order")}
    nothing |= {
        f"{branch}_{term}": 0.0 for branch in ("clip", "frame") for term in ("triplet", "nce")
    }
    with pytest.raises(ConfigError, match="'no loss': .*nothing to train"):
        runs.check(expand(sweep_of({"no loss": {"loss": nothing}})), tmp_path)
