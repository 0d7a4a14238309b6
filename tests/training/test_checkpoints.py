"""Checkpoints and loaded runs: saving, restoring, and damage."""

import json
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import runs
import tiny
from tiny import configuration, write_run

from hlformer_jax import training
from hlformer_jax.config import ConfigError
from hlformer_jax.runtime import devices
from hlformer_jax.training import checkpoints, loaded_run, run_directory
from hlformer_jax.training.checkpoints import CheckpointError, Progress, RunCheckpoints, Series
from hlformer_jax.training.loaded_run import RunError, evaluate_checkpoint
from hlformer_jax.training.run_directory import Fingerprints, WorkdirError
from hlformer_jax.training.step import TrainState

TREE = {"block": {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3)}, "bias": np.ones(2)}


@pytest.fixture
def series(tmp_path):
    series = Series(tmp_path / "series")
    series.save(3, TREE, {"epoch": 0, "metric": 1.5})
    return series


def _flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_arrays_and_information_are_restored(series, tmp_path):
    again = Series(tmp_path / "series")
    assert again.latest() == 3
    assert again.info() == {"epoch": 0, "metric": 1.5}
    jax.tree.map(np.testing.assert_array_equal, again.restore(TREE), TREE)


def test_existing_step_is_not_written_again(series):
    series.save(3, {"other": np.zeros(1)}, {})
    series.save(2, {"other": np.zeros(1)}, {})
    assert series.latest() == 3 and series.info()["epoch"] == 0


def test_best_series_keeps_the_previous_and_drops_later_steps(tmp_path):
    best = checkpoints.best(tmp_path)
    for step in (3, 6, 9):
        best.save(step, TREE, {"epoch": step})
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints/best").iterdir()) == [6, 9]
    best.forget_after(6)
    assert best.latest() == 6
    best.forget_after(None)
    assert best.latest() is None


@pytest.mark.parametrize("damage", [Path.unlink, _flip_a_bit])
@pytest.mark.parametrize("pattern", ["manifest.ocdbt", "d/*", "metadata"])
def test_damaged_checkpoint_is_one_line(series, tmp_path, pattern, damage):
    files = list((tmp_path / "series").rglob(pattern))
    assert files
    for file in files:
        damage(file)
    with pytest.raises(CheckpointError, match="step 3"):
        Series(tmp_path / "series").restore(TREE)


def test_save_killed_before_its_digests_is_readable(series, tmp_path):
    step = tmp_path / "series" / "3"
    (step / "SHA256SUMS").unlink()
    Series(tmp_path / "series").announce(3)
    again = Series(tmp_path / "series")
    np.testing.assert_array_equal(again.restore(TREE)["bias"], TREE["bias"])
    again.announce(4)  # a save that is killed, too
    again = Series(tmp_path / "series")
    np.testing.assert_array_equal(again.restore(TREE)["bias"], TREE["bias"])
    again.save(4, TREE, {})
    assert again.latest() == 4
    assert {path.name for path in (tmp_path / "series").iterdir()} == {"4"}


def test_save_that_ends_during_a_check_is_not_damage(series, tmp_path, monkeypatch):
    sums, saving = tmp_path / "series" / "3" / "SHA256SUMS", tmp_path / "series" / ".saving"
    content, exists = sums.read_bytes(), Path.exists
    sums.unlink()
    saving.write_text("3")

    def end_save(path):
        before = exists(path)
        if path == sums and not before:
            sums.write_bytes(content)
            saving.unlink()
        return before

    monkeypatch.setattr(Path, "exists", end_save)
    Series(tmp_path / "series").check()
    assert sums.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: None, "SHA256SUMS is missing"),
        (lambda lines: [], "SHA256SUMS is damaged"),
        (lambda lines: [*lines[:-1], lines[-1][:40]], "SHA256SUMS is damaged"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "SHA256SUMS is damaged"),
        (lambda lines: lines[1:], "SHA256SUMS does not list _CHECKPOINT_METADATA"),
    ],
    ids=["missing", "empty", "cut", "last byte", "line missing"],
)
def test_incomplete_list_of_digests_is_refused(series, tmp_path, change, message):
    sums = tmp_path / "series" / "3" / "SHA256SUMS"
    lines = change(sums.read_text().splitlines(keepends=True))
    sums.unlink()
    if lines is not None:
        sums.write_text("".join(lines))
    (tmp_path / "series" / ".saving").write_text("4")  # the next save was killed
    with pytest.raises(CheckpointError, match=rf"step 3 is damaged \({message}\)"):
        Series(tmp_path / "series").restore(TREE)


@pytest.mark.parametrize(
    "template",
    [
        {"block": {"kernel": jnp.zeros((2, 4))}, "bias": jnp.zeros(2)},
        {"block": {"kernel": jnp.zeros((2, 3))}},
        {"block": {"kernel": jnp.zeros((2, 3)), "scale": jnp.zeros(2)}, "bias": jnp.zeros(2)},
    ],
    ids=["shape", "missing", "additional"],
)
def test_parameters_of_another_shape_name_the_fields(series, template):
    with pytest.raises(CheckpointError, match="shape"):
        series.restore(template)


def test_directory_without_a_checkpoint_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="no checkpoint"):
            checkpoints.open_params(path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoints.best(tmp_path).info()


def test_parameters_are_saved_into_a_new_directory(tmp_path):
    checkpoints.save_params(tmp_path / "converted", TREE, {"step": 7})
    saved = checkpoints.open_params(tmp_path / "converted")
    np.testing.assert_array_equal(saved.restore(TREE)["bias"], TREE["bias"])
    assert saved.latest() == 7
    with pytest.raises(CheckpointError, match="not empty"):
        checkpoints.save_params(tmp_path / "converted", TREE, {})


def test_disk_that_fills_during_a_save_is_one_line(tmp_path, caplog):
    series = Series(tmp_path / "series")
    numbers = np.random.default_rng(0).normal(size=2**18).astype(np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="step 3 cannot be written"):
            series.save(3, {"numbers": jnp.asarray(numbers)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [record for record in caplog.records if record.exc_info]
    assert series.latest() is None


def _state(step):
    return TrainState(jnp.asarray(step), {"x": jnp.full(3, float(step))}, ())


def test_state_progress_and_best_parameters_are_restored(tmp_path):
    series, state = RunCheckpoints(tmp_path, 0.0), _state(3)
    assert series.restore(_state(0)) is None and series.is_due()
    series.keep_best(3, state.params, {"epoch": 0})
    assert series.best.latest() is None  # saved with the next state
    state.params["x"].delete()  # donated to the next step
    second = Progress().validated(0, 3.5).validated(1, 2.0)
    series.save(_state(6), second)
    again = RunCheckpoints(tmp_path, 1e9)
    assert not again.is_due()
    restored, progress = again.restore(_state(0))
    assert int(restored.step) == 6 and progress == second
    np.testing.assert_array_equal(restored.params["x"], np.full(3, 6.0))
    np.testing.assert_array_equal(again.best.restore(_state(0).params)["x"], np.full(3, 3.0))


def test_removed_newest_state_does_not_remove_the_best(tmp_path):
    def claim():
        return run_directory.claim_workdir(tmp_path, runs.tree(), Fingerprints("data"))

    claim().close()
    series = RunCheckpoints(tmp_path, 0.0)
    series.keep_best(3, _state(3).params, {"epoch": 0})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(series.newest, "save", _out_of_memory)
        series.save(_state(3), _after(1.0))
    claim().close()  # killed in the first save: it begins again
    series = RunCheckpoints(tmp_path, 0.0)
    assert series.best.latest() is None
    series.keep_best(3, _state(3).params, {"epoch": 0})
    series.save(_state(3), _after(1.0))
    claim().close()
    newest = tmp_path / "checkpoints" / "newest"
    for remove in (lambda: shutil.rmtree(newest / "3"), newest.rmdir):
        remove()
        with pytest.raises(WorkdirError, match=r"newest has no state .*best has the best"):
            claim()
        assert checkpoints.open_params(tmp_path).latest() == 3


def _out_of_memory(*_):
    raise MemoryError


def _after(*metrics):
    progress = Progress()
    for epoch, metric in enumerate(metrics):
        progress = progress.validated(epoch, metric)
    return progress


def test_first_of_equal_epochs_is_best_and_starts_patience():
    progress = _after(1.0, 3.0, 3.0, 2.0)
    assert (progress.best_epoch, progress.best_metric, progress.epochs) == (1, 3.0, 4)
    assert _after(-2.0, -1.0).best_epoch == 1
    assert not Progress().is_over(1)
    assert not _after(1.0).is_over(1)
    assert _after(1.0, 1.0).is_over(1)
    assert not _after(1.0, 0.5, 0.5).is_over(3)
    assert _after(1.0, 0.5, 0.5, 0.5).is_over(3)


# Loaded runs


def test_loaded_run_has_its_parameters_and_moved_data(tmp_path):
    config = configuration("gmmformer_v2")
    write_run(tmp_path / "run", config)
    changes = {"data.data_dir": "elsewhere", "trees.form": "shallow"}  # only HOVER has a form
    run = loaded_run.load(str(tmp_path / "run"), changes)
    assert run.directory == tmp_path / "run"
    assert run.config.model == config.model
    assert run.config.data.data_dir == "elsewhere"
    jax.tree.map(np.testing.assert_array_equal, run.params, tiny.params(config))
    with pytest.raises(ConfigError, match=r"config\.data\.dir: there is no such field"):
        loaded_run.load(tmp_path / "run", {"data.dir": "elsewhere"})


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("make", [runs.retrieval, runs.hover])
def test_replaced_training_data_are_reported(tmp_path, caplog, make):
    config = make(tmp_path / "data")
    mesh = devices.mesh()
    family, path = training.build(config, mesh), tmp_path / "run"
    checkpoints.save_params(path / "checkpoints" / "best", family.init_params(), {"epoch": 1})
    for recorded, is_warned in ((None, False), (family.fingerprint, False), ("before", True)):
        content = {"config": json.loads(config.to_json()), "data_fingerprint": recorded}
        (path / "config.json").write_text(json.dumps(content))
        loaded = loaded_run.load(path).family
        opened, _ = loaded_run.open_checkpoint(config, path, lambda line: None, mesh)
        warning = f"trained on other data (fingerprint before, now {family.fingerprint}:"
        for reopened in (loaded, opened):
            caplog.clear()
            assert reopened.data
            assert (warning in caplog.text) == is_warned


@pytest.mark.parametrize("make", [runs.retrieval, runs.hover])
def test_configuration_is_read_with_default_of_missing_field(tmp_path, make):
    config = make(tmp_path)
    recorded = json.loads(config.to_json())
    recorded.pop("precision")
    (tmp_path / "config.json").write_text(json.dumps({"config": recorded}))
    assert loaded_run.read_config(tmp_path) == config


def test_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="config.json"):
        loaded_run.load(tmp_path / "nowhere")
    for recorded in ("{}", '{"model": 3}', '{"model": {"a.b": 1}}'):
        (tmp_path / "config.json").write_text(f'{{"config": {recorded}}}')
        with pytest.raises(RunError, match="version"):
            loaded_run.load(tmp_path)
    with pytest.raises(RunError, match=r"config\.json has no config\.json"):
        loaded_run.load(tmp_path / "config.json")
    config = configuration("gmmformer_v2")
    content = {"config": json.loads(config.to_json())}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        loaded_run.load(tmp_path)
    content["config"]["model"]["fusion"] = "sum"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="model.fusion"):
        loaded_run.load(tmp_path)


def test_facts_of_a_checkpoint_count_epochs_from_1():
    info = {"epoch": 0, "step": 14, "validation_SumR": 233.16062, "model.name": "hlformer"}
    assert checkpoints.summary(info) == "epoch 1, step 14, validation SumR 233.2"
    last_epoch = {"epoch": 2, "step": 9, "validation_last": 2.0}
    assert checkpoints.summary(last_epoch) == "epoch 3, step 9"
    assert checkpoints.summary({"source": "best.ckpt", "step": 0}) == "source best.ckpt, step 0"


def test_checkpoint_of_another_model_names_the_field(retrieval, data_dir):
    config = runs.retrieval(data_dir, **{"model.fusion": "maim"})
    config.model.hidden_size = 16
    with pytest.raises(checkpoints.CheckpointError, match="hidden_size`=8"):
        evaluate_checkpoint(config, retrieval.path, None, print)


def test_unwritable_scores_are_refused_before_computing(tmp_path):
    with pytest.raises(OSError, match="directory"):
        evaluate_checkpoint(runs.retrieval(tmp_path), tmp_path / "nowhere", tmp_path, print)
