"""The training loop, which resumes to the same bits after a stop, and the log of a run."""

import dataclasses
import functools
import json
import os
import re
import resource
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
import runs
from tensorboardX.proto.event_pb2 import Event

from hlformer_jax import files, training
from hlformer_jax.config import FIELDS, ConfigError
from hlformer_jax.data.feed import Chunk, Schedule
from hlformer_jax.errors import describe
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices
from hlformer_jax.training import checkpoints, loop, run_directory
from hlformer_jax.training.checkpoints import Progress
from hlformer_jax.training.hover import HOVER
from hlformer_jax.training.loop import MetricsLogger, NonFiniteLossError
from hlformer_jax.training.optim import schedule
from hlformer_jax.training.prvr import PRVR


def _fail(*_):
    raise MemoryError


def _set_metrics(trainer, *metrics):
    """Make the validations of a run return these metrics."""
    original, metrics = trainer.family.validate, iter(metrics)

    def validate(params):
        return dataclasses.replace(original(params), metrics={"nearest": next(metrics)})

    trainer.family.validate = validate


def test_run_writes_its_records(finished):
    assert [line["step"] for line in runs.records(finished) if "loss" in line] == [1, 3, 5, 7]
    validations = [line for line in runs.records(finished) if "validation/nearest" in line]
    assert [line["epoch"] for line in validations] == [0, 1, 2]
    metrics = json.loads((finished / "test_metrics.json").read_text())
    assert list(metrics) == ["nearest", "queries", "videos"]
    assert list((finished / "tensorboard").glob("events.*"))
    saved = json.loads((finished / "config.json").read_text())
    assert saved["config"]["eval"]["select"] == "nearest"


def test_best_epoch_has_the_best_validation(finished):
    metrics = [x["validation/nearest"] for x in runs.records(finished) if "validation/nearest" in x]
    info = checkpoints.best(finished).info()
    assert info["epoch"] == int(np.argmax(metrics))
    assert info["validation_nearest"] == max(metrics)
    assert info["nodes"] == 11  # from the description of the family


def test_best_and_last_parameters_are_tested(tmp_path):
    with runs.start(runs.tree(), tmp_path) as trainer:
        _set_metrics(trainer, 50.0, 40.0, 30.0)
        trainer.run()
        tested, original = [], trainer.family.test

        def test(params):
            tested.append(params)
            return original(params)

        trainer.family.test = test
        assert list(trainer.test()) == ["best epoch (1)", "last epoch (3)"]
    best, last = (np.asarray(params["space"]) for params in tested)
    saved = checkpoints.best(tmp_path).restore(trainer.state.params)
    np.testing.assert_array_equal(best, saved["space"])
    np.testing.assert_array_equal(last, trainer.state.params["space"])
    assert np.any(best != last)


def test_unknown_selection_metric_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nearest"):
        runs.train(runs.tree(**{"eval.select": "SumR"}), tmp_path)


@pytest.mark.parametrize("epochs", [1, 2])
def test_selection_metric_that_is_nan_is_named(tmp_path, epochs):
    with runs.start(runs.tree(), tmp_path) as trainer:
        _set_metrics(trainer, *[50.0] * (epochs - 1), np.nan)
        with pytest.raises(ConfigError, match=f"'nearest', which is NaN after epoch {epochs}"):
            trainer.run()


@pytest.mark.parametrize(
    ("make", "field", "value", "family"),
    [
        (runs.retrieval, "train.batch_size", 0, None),
        (runs.hover, "trees.form", "release", None),
        (runs.retrieval, "train.epochs", 0, runs.Tree),
    ],
)
def test_wrong_value_is_refused_from_python_too(tmp_path, make, field, value, family):
    config = make(tmp_path / "data")
    config.update_from_flattened_dict({field: value})
    with pytest.raises(ConfigError, match=f"config.{field} is {value!r}: it must be"):
        loop.train(config, tmp_path / "run", family=family and family(config))
    with pytest.raises(ConfigError, match=f"config.{field} is {value!r}: it must be"):
        training.build(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("last", "number", "line"),
    [  # in mid epoch, at the end of one
        (4, signal.SIGTERM, "stopped in epoch 2 of 3; best nearest"),
        (6, signal.SIGINT, "ended after epoch 2 of 3; best nearest"),
    ],
)
def test_run_stopped_by_a_signal_ends_the_same(tmp_path, finished, capsys, last, number, line):
    config = runs.tree(**{"train.checkpoint_seconds": 1e9})  # only the signal causes a save
    handler = signal.getsignal(number)
    stops = pytest.raises(loop.Stopped, match=f"{number.name}: saved step {last}")
    with stops as stopped, runs.start(config, tmp_path) as trainer:
        runs.signal_before(trainer, last, number)
        trainer.run()
    assert stopped.value.status == 128 + number and signal.getsignal(number) is handler
    assert trainer.checkpoints.newest.latest() == last
    assert line in capsys.readouterr().err
    runs.train(config, tmp_path)
    runs.assert_same(tmp_path, finished)


def test_stopped_run_with_initial_parameters_continues(tmp_path, finished, capsys):
    config = runs.tree()
    stops = pytest.raises(loop.Stopped, match="SIGTERM: saved step 4")
    with (
        stops as stopped,
        loop.start(config, str(tmp_path), runs.Tree(config), str(finished)) as trainer,
    ):
        runs.signal_before(trainer, 4, signal.SIGTERM)
        trainer.run()
    assert stopped.value.status == 143
    assert [line["step"] for line in runs.records(tmp_path) if "loss" in line] == [1, 3]
    assert "stopped in epoch 2 of 3; best nearest" in capsys.readouterr().err
    with loop.start(config, tmp_path, runs.Tree(config), finished) as again:
        assert int(again.state.step) == 4 and again.progress == trainer.progress
        jax.tree.map(np.testing.assert_array_equal, again.state, trainer.state)
    assert "resumed after step 4, in epoch 2" in capsys.readouterr().err


def test_subclass_of_a_family_shares_no_program(tmp_path, data_dir, monkeypatch):
    class Faster(PRVR):
        def optimiser(self, total_steps):
            return optax.sgd(0.1)

    def compile_steps(*arguments):
        constants.append(arguments[-1])
        raise MemoryError

    constants, config = [], runs.retrieval(data_dir)
    monkeypatch.setattr(loop, "compile_steps", compile_steps)
    for family in (PRVR, Faster):
        trainer = loop.start(config, tmp_path, family(config, devices.mesh()))
        with pytest.raises(MemoryError), trainer:
            pass
    assert constants[0] is not None and constants[1] is None


def test_family_gets_the_steps_and_order_of_its_run(tmp_path):
    arguments = {}

    class RecordingTree(runs.Tree):
        def loss(self, steps_per_epoch):
            arguments["loss"] = steps_per_epoch
            return super().loss(steps_per_epoch)

        def optimiser(self, total_steps):
            arguments["optimiser"] = total_steps
            return super().optimiser(total_steps)

        def feed(self, groups):
            arguments["order"] = np.concatenate([x for group in groups for x in group.steps])
            return super().feed(groups)

    config = runs.tree(seed=3)
    with loop.start(config, tmp_path, family=RecordingTree(config)):
        order = arguments.pop("order")
    np.testing.assert_array_equal(order[:10], Schedule(10, 4, seed=3).order(0))
    assert len(order) == 30 and arguments == {"loss": 3, "optimiser": 9}


def test_finished_run_is_not_lengthened(finished):
    with pytest.raises(run_directory.WorkdirError, match=r"train\.epochs \(3 there, 5 now\)"):
        runs.train(runs.tree(**{"train.epochs": 5}), finished)


def test_signal_after_the_last_step_is_not_lost(tmp_path, finished):
    stops = pytest.raises(loop.Stopped, match="saved step 9")
    with stops, runs.start(runs.tree(), tmp_path) as trainer:
        validate = trainer.family.validate

        def stop_late(params):
            if trainer.progress.epochs == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return validate(params)

        trainer.family.validate = stop_late
        trainer.run()
    runs.train(runs.tree(), tmp_path)
    runs.assert_same(tmp_path, finished)


@pytest.mark.usefixtures("ctrl_c")
def test_second_ctrl_c_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt), runs.start(runs.tree(), tmp_path) as trainer:
        runs.signal_before(trainer, 2, signal.SIGINT, signal.SIGINT)
        trainer.run()
    assert trainer.checkpoints.newest.latest() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_rarely_saved_run_ends_the_same_after_a_crash(tmp_path, finished, monkeypatch):
    config = runs.tree(**{"train.checkpoint_seconds": 1e9})
    with pytest.raises(MemoryError), runs.start(config, tmp_path) as trainer:
        original = trainer.steps

        def steps(state, chunk):
            return _fail() if chunk.first == 8 else original(state, chunk)

        trainer.steps = steps
        trainer.run()
    assert trainer.progress.epochs == 2 and trainer.checkpoints.newest.latest() is None
    saved, original = [], checkpoints.Series.save

    def save(series, step, *arguments):
        saved.append(step)
        original(series, step, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Series, "save", save)
        runs.train(config, tmp_path)
    assert saved == [checkpoints.best(tmp_path).latest(), runs.STEPS]
    runs.assert_same(tmp_path, finished)


def test_best_epoch_after_the_newest_state_is_dropped(tmp_path, monkeypatch):
    full = pytest.raises(checkpoints.CheckpointError)
    with full, runs.start(runs.tree(), tmp_path) as trainer:
        save = trainer.checkpoints.newest.save

        def fail_late(step, *arguments):
            if step == 6:
                raise checkpoints.CheckpointError("no space left")
            save(step, *arguments)

        monkeypatch.setattr(trainer.checkpoints.newest, "save", fail_late)
        _set_metrics(trainer, 50.0, 60.0)
        trainer.run()
    assert trainer.checkpoints.best.latest() == 6
    with runs.start(runs.tree(), tmp_path) as again:
        assert again.checkpoints.best.latest() == again.checkpoints.newest.latest() == 3
        _set_metrics(again, 40.0, 30.0)
        again.run()
    assert again.progress.best_epoch == again.checkpoints.best.info()["epoch"] == 0
    assert next(iter(again.test())) == "best epoch (1)"


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("size", "warns"), [(10, True), (9, False)])
def test_epoch_without_training_is_announced(tmp_path, capsys, monkeypatch, size, warns):
    options = {"train.batch_size": size, "train.epochs": 1}
    with runs.start(runs.tree(**options), tmp_path) as trainer:
        rate = functools.partial(schedule, "linear", 0.1, 0.1)
        monkeypatch.setattr(trainer.family, "learning_rate", rate, raising=False)
        trainer.run()
    warning = "epoch 1 trains nothing: the learning rate of its only step is 0"
    assert (warning in capsys.readouterr().err) == warns


@pytest.mark.parametrize(
    ("metrics", "best", "line"),
    [
        ((50.0, 50.0), 0, "stopped after epoch 2 of 3: nearest did not improve in 1 epochs"),
        ((50.0, 60.0, 60.0), 1, "ended after epoch 3 of 3; best nearest 60 in epoch 2"),
    ],
)
def test_patience_ends_a_run(tmp_path, capsys, metrics, best, line):
    with runs.start(runs.tree(**{"train.patience": 1}), tmp_path) as trainer:
        _set_metrics(trainer, *metrics)
        trainer.run()
    assert checkpoints.newest(tmp_path).info()["epochs"] == len(metrics)
    assert checkpoints.best(tmp_path).info()["epoch"] == best
    assert line in capsys.readouterr().err


def test_finished_run_reports_again_without_changes(finished, capsys):
    names = ("metrics.jsonl", "test_metrics.json")
    before = [(finished / name).read_bytes() for name in names]
    (finished / "test_metrics.json").unlink()
    outcome = runs.train(runs.tree(), finished)
    assert len(outcome.results) == 2 and outcome.references == ()
    assert [(finished / name).read_bytes() for name in names] == before
    assert re.search(r"best epoch.*\n.*last epoch \(3\)", capsys.readouterr().out)


@pytest.mark.slow  # it takes seconds
def test_directory_is_claimed_while_its_run_lasts(tmp_path, monkeypatch):
    with files.lock(tmp_path), pytest.raises(run_directory.OccupiedError):
        runs.train(runs.tree(), tmp_path)
    with runs.start(runs.tree(), tmp_path), pytest.raises(run_directory.OccupiedError):
        runs.train(runs.tree(), tmp_path)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(loop, "compile_steps", _fail)
        runs.train(runs.tree(), tmp_path)
    # A run that did not start may be started with another configuration.
    with runs.start(runs.tree(**{"optim.learning_rate": 0.5}), tmp_path):
        saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["config"]["optim"]["learning_rate"] == 0.5


@pytest.mark.parametrize(
    ("step", "poison", "message", "saved"),
    [
        # In mid epoch: the end of the first epoch is saved.
        (
            4,
            {"loss": np.nan, "loss/attraction": np.nan},
            r"step 4 \(epoch 2\): loss/attraction is",
            3,
        ),
        # At the end of an epoch, before it is saved, though the loss is finite.
        (2, {"gradient_norm": np.inf}, r"step 2 \(epoch 1\): gradient_norm is", None),
    ],
)
def test_non_finite_loss_is_named_and_not_saved(tmp_path, step, poison, message, saved):
    stops = pytest.raises(NonFiniteLossError, match=message)
    with stops, runs.start(runs.tree(), tmp_path) as trainer:
        steps = trainer.steps

        def poisoned(state, chunk):
            state, scalars = steps(state, chunk)
            at = np.arange(len(scalars["loss"])) == step - chunk.first
            return state, scalars | {
                name: np.where(at, value, scalars[name]) for name, value in poison.items()
            }

        trainer.steps = poisoned
        trainer.run()
    assert trainer.checkpoints.newest.latest() == saved


@pytest.mark.parametrize(
    ("step", "saved"),
    [(8, 6), (7, 6)],  # the last update of the run, and one before a signal
)
def test_non_finite_parameters_are_not_saved(tmp_path, step, saved):
    stops = pytest.raises(NonFiniteLossError, match=rf"step {step} \(epoch 3\): a parameter")
    with stops, runs.start(runs.tree(), tmp_path) as trainer:
        steps = trainer.steps

        def steps_with_nan(state, chunk):
            state, scalars = steps(state, chunk)
            if chunk.first + chunk.num_steps == step + 1:
                params = jax.tree.map(lambda x: x.at[0].set(np.nan), state.params)
                state = dataclasses.replace(state, params=params)
            return state, scalars

        trainer.steps = steps_with_nan
        if step < runs.STEPS - 1:
            runs.signal_before(trainer, step + 1, signal.SIGTERM)
        trainer.run()
    assert trainer.checkpoints.newest.latest() == saved


def test_single_nan_element_is_not_finite():
    params = {"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}
    assert loop._is_finite(params)
    params["b"][1] = np.nan
    assert not loop._is_finite(params)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"train.epochs": 1, "train.log_every": 9}, marks=pytest.mark.slow)],
)
def test_second_or_only_chunk_can_be_traced(tmp_path, options):
    with runs.start(runs.tree(**options), tmp_path) as trainer:
        trainer.run(profile=True)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_damaged_best_epoch_is_reported_before_training(tmp_path, finished):
    path = tmp_path / "best"
    shutil.copytree(finished, path)
    for file in (path / "checkpoints" / "best").rglob("manifest.ocdbt"):
        file.unlink()
    with pytest.raises(checkpoints.CheckpointError, match="damaged"):
        runs.train(runs.tree(), path)
    shutil.rmtree(path / "checkpoints" / "best")
    with pytest.raises(checkpoints.CheckpointError, match="no checkpoint"):
        runs.train(runs.tree(), path)


def test_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with loop.received_signal() as received:
            os.kill(os.getpid(), signal.SIGINT)
            assert received() is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_are_left_to_the_main_thread():
    def enter():
        with loop.received_signal() as received:
            return received()

    with ThreadPoolExecutor(1) as pool:  # as tools for hyperparameters run a training
        assert pool.submit(enter).result() is None


def test_every_configured_family_can_be_trained():
    assert list(training.FAMILIES) == list(FIELDS)


@pytest.mark.parametrize(
    ("make", "family"), [(runs.retrieval, PRVR), (runs.hover, HOVER)], ids=["prvr", "hover"]
)
def test_building_a_family_opens_no_data(tmp_path, make, family):
    built = training.build(make(tmp_path / "data"))
    assert type(built) is family
    assert built.describe()["model.name"] == make(tmp_path / "data").model.name
    assert not list(tmp_path.iterdir())


def test_mesh_is_the_argument_or_all_devices(tmp_path, monkeypatch):
    meshes = []
    monkeypatch.setitem(training.FAMILIES, "hover", lambda config, mesh: meshes.append(mesh))
    mesh = devices.mesh(devices.mesh().devices.ravel().tolist()[:1])
    training.build(runs.hover(tmp_path), mesh)
    training.build(runs.hover(tmp_path))
    assert meshes[0] is mesh and meshes[1] == devices.mesh()


def test_resumed_log_drops_lines_after_its_checkpoint(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 0)
    log.write(1, {"loss": 1.0}, epoch=0)
    position = log.position()
    log.write(2, {"loss": 2.0}, epoch=0)
    log.close()
    log = loop.ScalarLog(tmp_path, position, 1)
    log.write(2, {"loss": 3.0}, epoch=0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "epoch": 0, "loss": 1.0}, {"step": 2, "epoch": 0, "loss": 3.0}]


def test_undefined_metric_is_null_in_the_log(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 0)
    log.write(1, {"test/best/x": np.nan, "test/best/y": 0.0})
    log.close()
    line = (tmp_path / "metrics.jsonl").read_text()
    assert line == '{"step": 1, "test/best/x": null, "test/best/y": 0.0}\n'


def test_shortened_log_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(OSError, match="shorter"):
        loop.ScalarLog(tmp_path, 30, 0)


def test_edited_log_is_refused(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 0)
    for step in range(3):
        log.write(step, {"loss": 0.5 + step})
    position, digest = log.position(), log.digest()
    log.close()
    content = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(content + b"incomplete")
    loop.ScalarLog(tmp_path, position, 3, digest=digest).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == content
    (tmp_path / "metrics.jsonl").write_bytes(content.replace(b"1.5", b"1.4"))
    with pytest.raises(OSError, match="has changed since the newest checkpoint"):
        loop.ScalarLog(tmp_path, position, 3, digest=digest)
    loop.ScalarLog(tmp_path, position, 3).close()  # as of a run without a recorded digest


def test_log_of_a_process_that_does_not_write_is_empty(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 0, writes=False)
    log.write(1, {"loss": 1.0})
    assert log.position() == 0
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_failed_write_of_the_log_names_the_file(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "metrics.jsonl").write_text(4090 * " ")
    log = loop.ScalarLog(tmp_path, 4090, 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large") as writing:
            log.write(1, {"loss": 0.5})
        with pytest.raises(OSError, match="File too large") as closing:
            log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for error in (writing, closing):
        assert describe(error.value) == f"{tmp_path}/metrics.jsonl: File too large"


def test_full_disk_for_tensorboard_does_not_end_the_run(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    log = loop.ScalarLog(tmp_path, 0, 0)
    monkeypatch.setattr(loop.EventsWriter, "write_event", fail)
    for step in range(50):
        log.write(step, {"loss": 1.0})
        log.board(step, {"rate/x": 2.0})
    assert log.position() == (tmp_path / "metrics.jsonl").stat().st_size > 0
    log.close()
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").touch()  # not even a folder can be made
    loop.ScalarLog(tmp_path, 0, 0).close()


def test_tensorboard_has_all_recorded_metrics(tmp_path):
    log = loop.ScalarLog(tmp_path, 0, 7)
    log.write(8, {"validation/R@1": 2.5}, epoch=0)
    log.position()
    [path] = (tmp_path / "tensorboard").iterdir()
    content, events = path.read_bytes(), []
    while content:  # length, its sum, the event, its sum
        size = int.from_bytes(content[:8], "little")
        events.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    assert [event.session_log.status for event in events if event.step == 7] == [0, 1]
    [value] = events[-1].summary.value
    assert (events[-1].step, value.tag, value.simple_value) == (8, "validation/R_1", 2.5)
    log.close()


@pytest.fixture
def logger(tmp_path):
    logger = MetricsLogger(tmp_path, runs.tree(), steps_per_epoch=3, first=0, progress=Progress())
    yield logger
    logger.close()


def _chunk(first, *losses):
    scalars = {"loss": np.asarray(losses, np.float32), "loss/attraction": np.ones(len(losses))}
    return Chunk(first, len(losses), None, None), scalars


def test_chunk_is_recorded_during_the_next_chunk(logger, tmp_path):
    logger.steps(*_chunk(0, 0.5, 0.25), wait=False)
    assert runs.records(tmp_path) == []
    logger.steps(*_chunk(2, 4.0, 2.0), wait=False)
    assert [line["loss"] for line in runs.records(tmp_path)] == [0.25]  # every second step
    logger.steps(*_chunk(4, 1.0, 8.0), wait=True)
    records = [(line["step"], line["epoch"], line["loss"]) for line in runs.records(tmp_path)]
    assert records == [(1, 0, 0.25), (3, 1, 2.0), (5, 1, 8.0)]
    assert logger.log.position() == (tmp_path / "metrics.jsonl").stat().st_size


def test_scalars_beyond_the_last_step_are_not_read(logger, tmp_path):
    chunk, scalars = _chunk(0, 1.0, np.nan)
    logger.steps(chunk._replace(num_steps=1), scalars, wait=True)
    assert runs.records(tmp_path) == []


def test_rates_count_the_time_since_the_last_validation(tmp_path, monkeypatch, capsys):
    clock, boarded = [100.0], []
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    rates = np.arange(9) / 10
    logger = MetricsLogger(tmp_path, runs.tree(), 3, 2, Progress(), rates)
    monkeypatch.setattr(logger.log, "board", lambda step, scalars: boarded.append(scalars))
    for first, clock[0] in ((2, 140.0), (4, 160.0)):
        logger.steps(*_chunk(first, 1.0, 0.5), wait=True)
    result = Result({"nearest": 70.0, "MRR": 0.5, "ratio=0-0.2/R@1": 9.0}, 10, 11)
    for step, clock[0] in ((5, 171.0), (8, 181.0)):
        logger.validation(step, step // 3 - 1, result, 0.1, Progress().validated(0, 70.0))
    logger.restart_clock(6)
    clock[0] = 191.0
    logger.steps(*_chunk(6, 1.0, 0.5), wait=True)
    logger.close()
    measured = [x["rate/examples_per_second"] for x in boarded if "rate/examples_per_second" in x]
    assert measured == pytest.approx([4 * 2 / 40, 4 * 4 / 60, 4 * 2 / 10])  # batches of 4
    epoch = "epoch {} of 3: validation nearest 70 (best 70 in epoch 1), MRR 0.5, loss 0.5"
    assert capsys.readouterr().err.splitlines() == [
        "step 6 of 9: loss 0.5, 0 examples/s",  # a minute after the first
        f"{epoch.format(1)}, learning rate 0.5, 71.0 s",
        f"{epoch.format(2)}, learning rate 0.8, 10.0 s",
    ]


@pytest.mark.parametrize(("last", "num_chunks"), [(9, 6), (4, 3)])  # the second is stopped
def test_time_of_validations_is_not_training_time(tmp_path, monkeypatch, last, num_chunks):
    clock, boarded = [0.0], []
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))

    def board(log, step, scalars):
        boarded.extend(scalars.items())

    monkeypatch.setattr(loop.ScalarLog, "board", board)

    def take_time(seconds, call):
        def timed_call(*arguments):
            clock[0] += seconds
            return call(*arguments)

        return timed_call

    with runs.start(runs.tree(), tmp_path) as trainer:
        trainer.steps = take_time(10, trainer.steps)
        trainer.family.validate = take_time(100, trainer.family.validate)
        runs.signal_before(trainer, last, signal.SIGTERM)
        with pytest.raises(loop.Stopped):
            trainer.run()
    assert trainer.progress.seconds == 10 * num_chunks
    rates = [rate for name, rate in boarded if name == "rate/examples_per_second"]
    assert len(rates) == num_chunks  # three batches in the two chunks of an epoch
    assert rates[1::2] == pytest.approx([4 * 3 / 20] * (num_chunks // 2))


def test_validation_metrics_have_their_own_names(logger, tmp_path):
    result = Result({"nearest": 70.0}, 10, 11)
    logger.validation(2, 0, result, 0.1, Progress().validated(0, 70.0))
    assert runs.records(tmp_path) == [{"step": 2, "epoch": 0, "validation/nearest": 70.0}]
