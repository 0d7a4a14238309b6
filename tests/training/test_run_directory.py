"""Directories of runs: which runs and evaluations their settings and data allow."""

import json

import jax
import pytest
import runs

from hlformer_jax import files
from hlformer_jax.training import loaded_run, run_directory
from hlformer_jax.training.loaded_run import RunError
from hlformer_jax.training.run_directory import Fingerprints, OccupiedError, WorkdirError


def _claim(path, fingerprint="data", writes=True, **options):
    """Claim a directory for a run of a tree."""
    return run_directory.claim_workdir(
        path, runs.tree(**options), Fingerprints(fingerprint), writes
    )


@pytest.fixture
def started(tmp_path):
    """The directory of a run that has a checkpoint."""
    _claim(tmp_path).close()
    (tmp_path / "checkpoints" / "newest" / "3").mkdir(parents=True)
    return tmp_path


def test_run_records_its_environment_and_resumes_in_another(started):
    path = started / "config.json"
    content = json.loads(path.read_text())
    assert content["device"].endswith(jax.devices()[0].device_kind)
    assert content["versions"]["jax"] == jax.__version__
    path.write_text(json.dumps(content | {"device": "8 x H100", "versions": {"jax": "0.1"}}))
    _claim(started).close()
    assert json.loads(path.read_text()) == content


def test_run_resumes_after_moves_of_data_and_settings(started):
    run_directory.check_workdir(started, runs.tree())
    path = started / "config.json"
    content = json.loads(path.read_text())
    older = json.loads(path.read_text())
    # As recorded before these fields existed.
    del older["config"]["precision"], older["config"]["loss"]["margin"]
    path.write_text(json.dumps(older))
    with pytest.raises(WorkdirError, match=r"loss\.margin"):
        _claim(started, **{"loss.margin": 0.3})
    _claim(started).close()
    assert json.loads(path.read_text()) == content
    content["config"]["loss"]["unknown"] = 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(WorkdirError, match="unknown"):
        _claim(started)
    content["config"]["loss"].pop("unknown")
    path.write_text(json.dumps(content))
    moved = {
        "data.manual_dir": "a", "data.data_dir": "b", "data.resident": "never",
        "data.cache_gib": 7.0, "eval.moments": "data", "train.checkpoint_seconds": 7.0,
        "train.baseline": True, "train.log_every": 7,
        "eval.video_batch": 7, "eval.query_batch": 7,
    }  # fmt: skip
    assert {*moved, "eval.node_batch"} == set(run_directory.MOVABLE)  # only HOVER has the last
    _claim(started, **moved).close()


def test_metrics_of_edited_moments_are_refused(started, tmp_path):
    config = runs.tree(**{"eval.moments": "m.json"})
    old, new = Fingerprints("data", "old"), Fingerprints("data", "new")
    run_directory.claim_workdir(started, config, old).close()
    assert run_directory.recorded_inputs(started) == old
    run_directory.check_workdir(started, config, new)  # the run resumes: times change no step
    run_directory.check_evaluation(started, started, config, old)
    beside = tmp_path / "beside"
    run_directory.record_evaluation(beside, started, config, old)
    for directory in (started, beside):
        with pytest.raises(WorkdirError, match=r"eval\.moments \(m\.json\) was replaced"):
            run_directory.check_evaluation(directory, started, config, new)
    run_directory.check_evaluation(beside, started, config, new, True)


def test_run_does_not_resume_with_an_edited_list_of_trees(tmp_path):
    config = runs.hover("", **{"trees.train_subset": "few.txt"})
    before = Fingerprints("data", None, "old")
    run_directory.claim_workdir(tmp_path, config, before).close()
    assert run_directory.recorded_inputs(tmp_path) == before
    (tmp_path / "checkpoints" / "newest" / "3").mkdir(parents=True)
    run_directory.check_workdir(tmp_path, config, before)
    edited = Fingerprints("data", None, "new")
    with pytest.raises(WorkdirError, match=r"config\.trees\.train_subset \(few\.txt\) was edited"):
        run_directory.check_workdir(tmp_path, config, edited)
    run_directory.check_evaluation(tmp_path, tmp_path, config, edited)  # metrics stay the same
    full = runs.hover("")
    with pytest.raises(WorkdirError, match=r"differs in .*train_subset \(few\.txt there, full now"):
        run_directory.check_workdir(tmp_path, full, Fingerprints("data"))


def test_older_run_without_recorded_list_resumes(tmp_path):
    config = runs.hover("", **{"trees.train_subset": "few.txt"})
    run_directory.claim_workdir(tmp_path, config, Fingerprints("data")).close()
    (tmp_path / "checkpoints" / "newest" / "3").mkdir(parents=True)
    run_directory.check_workdir(tmp_path, config, Fingerprints("data", None, "new"))


def test_patience_may_only_grow_and_only_before_the_end(started):
    patience = runs.tree().train.patience
    for change in (-1, 1):
        with pytest.raises(
            WorkdirError, match=rf"patience \({patience} there, {patience + change}"
        ):
            changed = runs.tree(**{"train.patience": patience + change})
            run_directory.check_finished(started, changed)
    with pytest.raises(WorkdirError, match="train.patience"):
        run_directory.check_workdir(started, runs.tree(**{"train.patience": patience - 1}))
    _claim(started, **{"train.patience": patience + 1}).close()
    with pytest.raises(WorkdirError, match="train.patience"):
        run_directory.check_workdir(started, runs.tree())


def test_finished_run_accepts_moved_data_but_no_new_moments(started):
    moved = {"data.manual_dir": "a", "train.log_every": 7, "train.baseline": True}
    run_directory.check_finished(started, runs.tree(**moved))
    with pytest.raises(WorkdirError, match=r"eval\.moments"):
        run_directory.check_finished(started, runs.tree(**{"eval.moments": "data"}))


@pytest.mark.parametrize(
    ("options", "fingerprint", "message"),
    [
        ({"optim.learning_rate": 0.5}, "data", r"learning_rate \(0\.1 .*0\.5 now"),
        ({}, "other data", "the data has other files"),
    ],
    ids=str,
)
def test_refusal_of_another_run_names_the_difference(started, options, fingerprint, message):
    for writes in (True, False):  # also processes that do not write
        with pytest.raises(WorkdirError, match=message):
            _claim(started, fingerprint, writes, **options)


@pytest.mark.parametrize("select", ["mIoU", "ratio=0.4-1/SumR", "SumR"])
def test_moments_of_the_selection_metric_may_not_change(tmp_path, select):
    options = {"eval.select": select}
    _claim(tmp_path, **options, **{"eval.moments": "data"}).close()
    (tmp_path / "checkpoints" / "newest" / "3").mkdir(parents=True)
    moved = options | {"eval.moments": "other.json"}
    if select == "SumR":
        _claim(tmp_path, **moved).close()
    else:
        with pytest.raises(WorkdirError, match=r"eval\.moments \(data there, other\.json now\)"):
            _claim(tmp_path, **moved)


def test_edited_moments_of_the_selection_metric_are_refused(tmp_path):
    config = runs.tree(**{"eval.select": "mIoU", "eval.moments": "m.json"})

    def claim(moments, writes=True):
        return run_directory.claim_workdir(tmp_path, config, Fingerprints("data", moments), writes)

    claim(None).close()
    (tmp_path / "checkpoints" / "newest" / "3").mkdir(parents=True)
    for moments in ("old", "old"):  # the first follows a run without a record of times
        claim(moments).close()
    refused = r"best epoch .*eval\.moments \(m\.json\) was replaced"
    with pytest.raises(WorkdirError, match=refused):
        claim("new")
    with pytest.raises(WorkdirError, match=refused):  # a process that does not write
        claim("new", writes=False)


def test_directory_without_checkpoint_or_results_is_free(tmp_path):
    _claim(tmp_path).close()
    _claim(tmp_path, **{"optim.learning_rate": 0.5}).close()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["config"]["optim"]["learning_rate"] == 0.5
    (tmp_path / "test_metrics.json").write_text("{}")
    run_directory.check_workdir(tmp_path, runs.tree(**{"optim.learning_rate": 0.5}))
    with pytest.raises(WorkdirError, match=r"optim\.learning_rate"):
        run_directory.check_workdir(tmp_path, runs.tree())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "file") for name in (*run_directory.WRITTEN, "config.json")),
        ("config.json", "link"),
        ("config.json", "directory"),
    ],
)
def test_foreign_files_in_a_directory_are_refused(tmp_path, name, kind):
    directory, foreign = tmp_path / "run", tmp_path / "foreign"
    directory.mkdir()
    foreign.write_text('{"mine": 1}')
    place = directory / name
    make = {
        "file": lambda: place.write_bytes(foreign.read_bytes()),
        "link": lambda: place.symlink_to(foreign),
        "directory": place.mkdir,
    }
    make[kind]()
    before = place.lstat()
    with pytest.raises((run_directory.WorkdirError, files.OutputError)):
        run_directory.claim_workdir(directory, runs.tree(), Fingerprints("data"))
    assert place.lstat() == before and foreign.read_text() == '{"mine": 1}'


def test_record_behind_a_link_is_read_but_not_written(started, tmp_path):
    record, target = started / "config.json", tmp_path / "moved.json"
    inputs = run_directory.recorded_inputs(started)
    record.rename(target)
    record.symlink_to(target)
    assert run_directory.recorded_inputs(started) == inputs and inputs.data is not None
    run_directory.check_finished(started, runs.tree())
    run_directory.describe_unfinished(started)
    with pytest.raises(files.OutputError, match="is a link"):
        _claim(started)


def test_run_without_its_record_names_the_missing_file(started):
    (started / "config.json").unlink()
    with pytest.raises(WorkdirError, match=r"holds checkpoints, but no config\.json, so"):
        _claim(started)


def test_unrelated_files_are_accepted(tmp_path):
    (tmp_path / "slurm-1.out").write_text("foreign")
    run_directory.claim_workdir(tmp_path, runs.tree(), Fingerprints("data")).close()


def test_running_run_is_refused(tmp_path):
    with _claim(tmp_path):
        with pytest.raises(OccupiedError, match="another process trains"):
            _claim(tmp_path)
        _claim(tmp_path, writes=False)  # another process of the run
    _claim(tmp_path).close()


def test_metrics_of_other_data_are_not_mixed(started, tmp_path_factory):
    config, new = runs.tree(), tmp_path_factory.mktemp("new")
    run_directory.check_evaluation(started, started, config, Fingerprints("data"))
    run_directory.check_evaluation(new, started, config, Fingerprints("other data"))
    with pytest.raises(WorkdirError, match="other data"):
        run_directory.check_evaluation(started, started, config, Fingerprints("other data"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\0\xff\xfe", b"[]", b"{}", b'{"config": [], "data_fingerprint": null}']
)
def test_damaged_record_of_a_run_must_be_restored(started, content):
    path, best = started / "config.json", started / "checkpoints" / "best"
    path.write_bytes(content)
    message = rf"{path} is damaged \(.*\): restore it from a copy"
    for read in (
        lambda: run_directory.check_workdir(started, runs.tree()),
        lambda: _claim(started),
    ):
        with pytest.raises(WorkdirError, match=message) as refusal:
            read()
        assert "remove" not in str(refusal.value)
    best.mkdir()
    with pytest.raises(RunError, match=rf"{message}.* `config`, `checkpoint`={best} and another"):
        loaded_run.read_config(started)


def test_record_of_another_program_is_not_called_damaged(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(WorkdirError, match="was not written by a run .*: choose another `workdir`"):
        run_directory.check_workdir(tmp_path, runs.tree())
    with pytest.raises(RunError, match="was not written by a run .*: give the directory of a run"):
        loaded_run.read_config(tmp_path)
