"""The loop: it trains, stops when it should, resumes to the same bits, and says why it refuses.

What it trains here is a tree (tests/toy.py): the loop does not know the difference.
"""

import dataclasses
import json
import os
import re
import shutil
import signal

import jax
import numpy as np
import pytest
import runs
import toy

from hlformer_jax import files
from hlformer_jax.config import ConfigError
from hlformer_jax.training import checkpoints, loop
from hlformer_jax.training.metrics import NonFiniteLossError


def _signal_before(trainer, last, *numbers):
    """Makes the process receive signals before the steps of a chunk."""
    steps = trainer.steps

    def stop(state, chunk):
        if chunk.first + chunk.num_steps == last:
            for number in numbers:
                os.kill(os.getpid(), number)
        return steps(state, chunk)

    trainer.steps = stop


def _fail(*_):
    raise MemoryError


def _scored(trainer, *metrics):
    """Makes the validations of a run come out with these metrics."""
    validate, metrics = trainer.family.validate, iter(metrics)
    trainer.family.validate = lambda params: dataclasses.replace(
        validate(params), metrics={"nearest": next(metrics)}
    )


def test_a_run_leaves_its_records(finished):
    assert [line["step"] for line in runs.records(finished) if "loss" in line] == [1, 3, 5, 7]
    validations = [line for line in runs.records(finished) if "validation/nearest" in line]
    assert [line["epoch"] for line in validations] == [0, 1, 2]
    metrics = json.loads((finished / "test_metrics.json").read_text())
    assert list(metrics) == ["nearest", "queries", "videos"]
    assert list((finished / "tensorboard").glob("events.*"))
    saved = json.loads((finished / "config.json").read_text())
    assert saved["config"]["eval"]["select"] == "nearest"


def test_the_best_epoch_is_the_one_with_the_best_validation(finished):
    found = [x["validation/nearest"] for x in runs.records(finished) if "validation/nearest" in x]
    info = checkpoints.best(finished).info()
    assert info["epoch"] == int(np.argmax(found))
    assert info["validation_nearest"] == max(found)
    assert info["nodes"] == 11  # what the family says of itself


def test_a_metric_that_a_validation_does_not_give_is_refused_by_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"eval\.select is 'SumR': .* gives nearest"):
        runs.trainer(runs.tree(**{"eval.select": "SumR"}), tmp_path).run()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("last", "number"),
    [(4, signal.SIGTERM), (6, signal.SIGINT)],  # in mid epoch, at the end of one
)
def test_a_run_stopped_by_a_signal_ends_as_if_it_never_was(tmp_path, finished, last, number):
    config = runs.tree(**{"train.checkpoint_seconds": 1e9})  # what is saved is by the signal
    trainer = runs.trainer(config, tmp_path)
    _signal_before(trainer, last, number)
    with pytest.raises(loop.Stopped, match=f"{number.name}: saved step {last}") as stopped:
        trainer.run()
    assert stopped.value.status == 128 + number
    assert trainer.checkpoints.newest.latest() == last
    runs.train(config, tmp_path)
    runs.assert_same(tmp_path, finished)


def test_a_signal_that_comes_last_is_not_lost(tmp_path, finished):
    trainer = runs.trainer(runs.tree(), tmp_path)
    validate = trainer.family.validate

    def late(params):
        if trainer.progress.epochs == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return validate(params)

    trainer.family.validate = late
    with pytest.raises(loop.Stopped, match="saved step 9"):
        trainer.run()
    runs.train(runs.tree(), tmp_path)
    runs.assert_same(tmp_path, finished)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_stops_at_once(tmp_path):
    trainer = runs.trainer(runs.tree(), tmp_path)
    _signal_before(trainer, 2, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.checkpoints.newest.latest() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_is_seldom_saved_ends_the_same_and_starts_again_if_it_dies(
    tmp_path, finished, monkeypatch
):
    config = runs.tree(**{"train.checkpoint_seconds": 1e9})
    trainer = runs.trainer(config, tmp_path)
    steps = trainer.steps
    trainer.steps = lambda state, chunk: (_fail if chunk.first == 8 else steps)(state, chunk)
    with pytest.raises(MemoryError):
        trainer.run()
    assert trainer.progress.epochs == 2 and trainer.checkpoints.newest.latest() is None
    saved, save = [], checkpoints.Series.save
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoints.Series, "save", lambda *given: (saved.append(given[1]), save(*given))
        )
        runs.train(config, tmp_path)
    assert saved == [checkpoints.best(tmp_path).latest(), runs.STEPS]
    runs.assert_same(tmp_path, finished)


def test_a_best_epoch_that_a_run_does_not_come_to_again_is_forgotten(tmp_path, monkeypatch):
    trainer = runs.trainer(runs.tree(), tmp_path)
    save = trainer.checkpoints.newest.save

    def full(step, *given):
        if step == 6:
            raise checkpoints.CheckpointError("no space left")
        save(step, *given)

    monkeypatch.setattr(trainer.checkpoints.newest, "save", full)
    _scored(trainer, 50.0, 60.0)
    with pytest.raises(checkpoints.CheckpointError):
        trainer.run()
    assert trainer.checkpoints.best.latest() == 6
    again = runs.trainer(runs.tree(), tmp_path)
    assert again.checkpoints.best.latest() == again.checkpoints.newest.latest() == 3
    _scored(again, 40.0, 30.0)
    again.run()
    assert again.progress.best_epoch == again.checkpoints.best.info()["epoch"] == 0
    assert next(iter(again.test())) == "best epoch (1)"


def test_patience_ends_a_run(tmp_path):
    trainer = runs.trainer(runs.tree(**{"train.patience": 1}), tmp_path)
    _scored(trainer, 50.0, 50.0)
    trainer.run()
    assert checkpoints.newest(tmp_path).info()["epochs"] == 2
    assert checkpoints.best(tmp_path).info()["epoch"] == 0


def test_a_finished_run_reports_again_and_changes_nothing(finished, capsys):
    names = ("metrics.jsonl", "test_metrics.json")
    before = [(finished / name).read_bytes() for name in names]
    (finished / "test_metrics.json").unlink()
    runs.train(runs.tree(), finished)
    assert [(finished / name).read_bytes() for name in names] == before
    assert re.search(r"best epoch.*\n.*last epoch \(3\)", capsys.readouterr().out)


def test_another_configuration_or_data_is_refused_with_the_difference_named(finished):
    config = runs.tree(**{"optim.learning_rate": 0.5})
    with pytest.raises(checkpoints.WorkdirError, match=r"optim\.learning_rate .*0\.5 now"):
        runs.trainer(config, finished)
    family = toy.Tree(runs.tree())
    family.fingerprint = "another tree"
    with pytest.raises(checkpoints.WorkdirError, match="another tree now"):
        loop.Trainer(runs.tree(), finished, family=family)


def test_a_directory_whose_run_is_under_way_is_refused(tmp_path, monkeypatch):
    refused = pytest.raises(checkpoints.OccupiedError, match="a run is under way in")
    with files.lock(tmp_path), refused:
        runs.trainer(runs.tree(), tmp_path)
    trainer = runs.trainer(runs.tree(), tmp_path)
    with refused:
        runs.trainer(runs.tree(), tmp_path)
    trainer.run()
    with monkeypatch.context() as patch, pytest.raises(MemoryError) as kept:
        patch.setattr(loop, "compile_steps", _fail)
        runs.trainer(runs.tree(), tmp_path)
    assert kept.traceback  # with the frame of a Trainer that was not finished, which holds nothing
    runs.trainer(runs.tree(), tmp_path)


def test_what_did_not_start_may_be_started_with_another_configuration(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(loop, "compile_steps", _fail)
        runs.trainer(runs.tree(), tmp_path)
    runs.trainer(runs.tree(**{"optim.learning_rate": 0.5}), tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["config"]["optim"]["learning_rate"] == 0.5


def test_what_cannot_be_trained_is_refused_before_its_directory_is_made(tmp_path):
    def refuse():
        raise ConfigError("no tree")

    family = toy.Tree(runs.tree())
    family.check_trainable = refuse
    with pytest.raises(ConfigError, match="no tree"):
        loop.Trainer(runs.tree(), tmp_path / "run", family=family)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("step", "poison", "message", "saved"),
    [
        # In mid epoch: what is saved is the end of the first epoch.
        (4, {"loss": np.nan, "loss/near": np.nan}, r"step 4 \(epoch 1\): loss/near is", 3),
        # At the end of an epoch, before it is saved, though the loss is finite.
        (2, {"gradient_norm": np.inf}, r"step 2 \(epoch 0\): gradient_norm", None),
    ],
)
def test_what_is_not_finite_is_named_with_its_step_and_not_saved(
    tmp_path, step, poison, message, saved
):
    trainer = runs.trainer(runs.tree(), tmp_path)
    steps = trainer.steps

    def poisoned(state, chunk):
        state, scalars = steps(state, chunk)
        at = np.arange(len(scalars["loss"])) == step - chunk.first
        put = lambda name, value: np.where(at, value, scalars[name])
        return state, scalars | {name: put(name, value) for name, value in poison.items()}

    trainer.steps = poisoned
    with pytest.raises(NonFiniteLossError, match=message):
        trainer.run()
    assert trainer.checkpoints.newest.latest() == saved


def test_nothing_is_compiled_after_the_first_epoch_and_a_chunk_can_be_traced(tmp_path):
    compiled, after = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if "backend_compile" in event else None
    )
    trainer = runs.trainer(runs.tree(), tmp_path)
    steps = trainer.steps
    trainer.steps = lambda *given: (after.append(len(compiled)), steps(*given))[1]
    jax.jit(lambda x: x + 1)(1)
    assert compiled  # there is something to count
    trainer.run(profile=True)
    assert after[runs.CHUNKS.index(3) + 1] == len(compiled)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_the_only_chunk_of_a_run_can_be_traced(tmp_path):
    runs.trainer(runs.tree(**{"train.epochs": 1, "train.log_every": 9}), tmp_path).run(profile=True)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_best_epoch_that_is_damaged_is_reported_before_training_resumes(tmp_path, finished):
    path = tmp_path / "best"
    shutil.copytree(finished, path)
    for file in (path / "checkpoints" / "best").rglob("manifest.ocdbt"):
        file.unlink()
    with pytest.raises(checkpoints.CheckpointError, match=r"best: the checkpoint .* is damaged"):
        runs.trainer(runs.tree(), path)
    shutil.rmtree(path / "checkpoints" / "best")
    with pytest.raises(checkpoints.CheckpointError, match="best holds no checkpoint"):
        runs.trainer(runs.tree(), path)
