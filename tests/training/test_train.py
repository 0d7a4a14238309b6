"""Training end to end on a tiny synthetic corpus: it runs, resumes exactly, says why it stops."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from tensorboardX.proto.event_pb2 import Event

from hlformer_jax import models
from hlformer_jax.config import WEIGHTS, ConfigError, debug, default
from hlformer_jax.retrieval import evaluate
from hlformer_jax.run import checkpoint, files, lock, metrics_log, workdir
from hlformer_jax.training import loop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Runs of one configuration share their compiled functions, as steps of one run do."""
    known = {}

    def shared(make):
        def get(*arguments):
            key = make, *(str(x) for x in arguments if isinstance(x, int | ConfigDict))
            if key not in known:
                known[key] = make(*arguments)
            return known[key]

        return get

    with pytest.MonkeyPatch.context() as patch:
        for name in ("compile_steps", "Evaluator"):
            patch.setattr(loop, name, shared(getattr(loop, name)))
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory for runs, which share what they compile with other processes too."""
    directory = tmp_path_factory.mktemp("train")
    settings = {
        "jax_compilation_cache_dir": str(directory / "cache"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield directory
    for name, value in before.items():
        jax.config.update(name, value)


def _config(directory):
    config = debug(default())
    config.data.update(
        data_dir=str(directory / "prepared"),
        visual_dim=8,
        text_dim=8,
        synthetic_videos=(10, 4, 5),
        max_frames=8,
        max_clips=4,
        max_words=6,
    )
    config.model.update(hidden_size=8, lorentz_dim=7, dropout=0.1, input_dropout=0.1)
    config.train.update(batch_size=4, epochs=3, log_every=2, baseline=True, checkpoint_seconds=0.0)
    return config


@pytest.fixture(scope="module")
def finished(directory):
    """A run that was never interrupted."""
    path = directory / "whole"
    loop.train(_config(directory), path)
    return path


def _arrays(path):
    """The parameters of the newest checkpoint of a run."""
    trainer = loop.Trainer(_config(path.parent), path)
    return jax.device_get(trainer.state)


def test_a_run_leaves_its_records(finished):
    metrics = json.loads((finished / "test_metrics.json").read_text())
    assert list(metrics) == ["R@1", "R@5", "R@10", "R@100", "SumR", "queries", "videos"]
    assert metrics["videos"] == 5
    assert metrics["R@5"] == 100
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if "validation/SumR" in line]
    assert [line["epoch"] for line in validations] == [0, 1, 2]
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == [1, 3, 5, 7]
    terms = {"clip_triplet", "frame_triplet", "clip_nce", "frame_nce"}
    terms |= {"query_diversity", "partial_order"}
    for line in losses:
        weights = _config(finished.parent).loss
        total = sum(weights[term] * line[f"loss/{term}"] for term in terms)
        assert line["loss"] == pytest.approx(total, rel=1e-5)
    assert list((finished / "tensorboard").glob("events.*"))
    saved = json.loads((finished / "config.json").read_text())
    assert saved["config"]["model"]["hidden_size"] == 8


def test_the_best_epoch_is_the_one_with_the_best_validation_sum(finished):
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    sums = [line["validation/SumR"] for line in lines if "validation/SumR" in line]
    info = checkpoint.best(finished).info()
    assert info["epoch"] == int(np.argmax(sums))
    assert info["validation_SumR"] == max(sums)


def test_parameters_move_and_the_first_step_does_not(directory):
    trainer = loop.Trainer(_config(directory), directory / "steps")
    before = jax.device_get(trainer.state.params)
    window = next(trainer.feed.chunks())._replace(num_steps=1)
    trainer.state, _ = trainer.steps(trainer.state, window)
    after = jax.device_get(trainer.state.params)
    # The released warm-up begins with a rate of 0.
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(one, other)
    trainer.state, _ = trainer.steps(trainer.state, window)
    moved = jax.tree.map(lambda a, b: np.any(a != b), after, jax.device_get(trainer.state.params))
    assert np.mean(jax.tree.leaves(moved)) > 0.9


@pytest.fixture
def ctrl_c():
    """Ctrl-C as a program in the foreground has it, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("last", "number"),
    [(4, signal.SIGTERM), (6, signal.SIGINT)],  # in mid epoch, at the end of one
)
def test_a_run_stopped_by_a_signal_ends_as_if_it_never_was(directory, finished, last, number):
    config, path = _config(directory), directory / f"terminated{last}"
    config.train.checkpoint_seconds = 1e9  # what is saved is so because of the signal
    trainer = loop.Trainer(config, path)
    steps = trainer.steps

    def stop(state, window):
        if window.first + window.num_steps == last:
            os.kill(os.getpid(), number)
        return steps(state, window)

    trainer.steps = stop
    with pytest.raises(loop.Stopped, match=f"{number.name}: saved step {last}") as stopped:
        trainer.run()
    assert stopped.value.status == 128 + number
    assert trainer.newest.latest() == last
    loop.train(config, path)
    _assert_same_run(path, finished)


def test_a_run_that_is_seldom_saved_ends_the_same_and_starts_again_if_it_dies(
    directory, finished, monkeypatch
):
    config, path = _config(directory), directory / "seldom"
    config.train.checkpoint_seconds = 1e9
    trainer = loop.Trainer(config, path)
    steps = trainer.steps

    def die(state, window):
        if window.first + window.num_steps == 9:
            raise MemoryError
        return steps(state, window)

    trainer.steps = die
    with pytest.raises(MemoryError):
        trainer.run()
    assert trainer.progress.epochs == 2 and trainer.newest.latest() is None
    saved, save = [], checkpoint.Series.save
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint.Series, "save", lambda *given: (saved.append(given[1]), save(*given))
        )
        loop.train(config, path)
    assert saved == [checkpoint.best(finished).latest(), 9]
    _assert_same_run(path, finished)


@contextlib.contextmanager
def _scored(trainer, *sums):
    """Makes the validations of a run come out with these SumRs."""
    evaluate, sums = trainer.evaluator.evaluate, iter(sums)

    def scored(*given):
        result = evaluate(*given)
        return result._replace(metrics=result.metrics | {"SumR": next(sums)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.evaluator, "evaluate", scored)
        yield


def test_a_best_epoch_that_a_run_does_not_come_to_again_is_forgotten(directory, monkeypatch):
    config, path = _config(directory), directory / "lineage"
    trainer = loop.Trainer(config, path)
    save = trainer.newest.save

    def full(step, *given):
        if step == 6:
            raise checkpoint.CheckpointError("no space left")
        save(step, *given)

    monkeypatch.setattr(trainer.newest, "save", full)
    with _scored(trainer, 100.0, 110.0), pytest.raises(checkpoint.CheckpointError):
        trainer.run()
    assert trainer.best.latest() == 6
    again = loop.Trainer(config, path)
    assert again.best.latest() == again.newest.latest() == 3
    with _scored(again, 90.0, 80.0):
        again.run()
    assert again.progress.best_epoch == again.best.info()["epoch"] == 0
    assert next(iter(again.test())) == "best epoch (1)"


def test_a_signal_that_comes_last_is_not_lost(directory, finished):
    config, path = _config(directory), directory / "late"
    trainer = loop.Trainer(config, path)
    validate = trainer._validate

    def late():
        validate()
        if trainer.progress.epochs == config.train.epochs:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._validate = late
    with pytest.raises(loop.Stopped, match="saved step 9"):
        trainer.run()
    loop.train(config, path)
    _assert_same_run(path, finished)


def test_a_best_epoch_that_is_damaged_is_said_before_training_goes_on(directory, finished):
    path = directory / "best"
    shutil.copytree(finished, path)
    for file in (path / "checkpoints" / "best").rglob("manifest.ocdbt"):
        file.unlink()
    with pytest.raises(checkpoint.CheckpointError, match=r"best: the checkpoint .* is damaged"):
        loop.Trainer(_config(directory), path)
    shutil.rmtree(path / "checkpoints" / "best")
    with pytest.raises(checkpoint.CheckpointError, match="best holds no checkpoint"):
        loop.Trainer(_config(directory), path)


def test_a_full_disk_for_tensorboard_ends_no_run(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    log = metrics_log.ScalarLog(tmp_path, 0, 0)
    monkeypatch.setattr(files.EventsWriter, "write_event", fail)
    for step in range(50):
        log.write(step, {"loss": 1.0})
        log.board(step, {"rate/x": 2.0})
    assert log.position() == (tmp_path / "metrics.jsonl").stat().st_size > 0
    log.close()
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").touch()  # nor when there can be no file at all
    metrics_log.ScalarLog(tmp_path, 0, 0).close()


def test_tensorboard_shows_what_is_recorded(tmp_path):
    log = metrics_log.ScalarLog(tmp_path, 0, 7)
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


def _assert_same_run(path, finished):
    for name in ("metrics.jsonl", "test_metrics.json"):
        assert (path / name).read_bytes() == (finished / name).read_bytes(), name
    one, other = _arrays(path), _arrays(finished)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_streamed_features_train_to_the_same_parameters_bit_for_bit(directory, finished):
    config = _config(directory)
    config.data.resident = "never"
    path = directory / "streamed"
    loop.train(config, path)
    _assert_same_run(path, finished)


def test_nothing_is_compiled_after_the_first_epoch(directory):
    compiled, after = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if "backend_compile" in event else None
    )
    before = len(compiled)
    trainer = loop.Trainer(_config(directory), directory / "counted")
    validate = trainer._validate

    def counting():
        validate()
        after.append(len(compiled))

    trainer._validate = counting
    trainer.run(profile=True)
    assert list((directory / "counted" / "profile").rglob("*.xplane.pb"))
    assert after[0] > before  # there is something to count
    assert after[0] == after[1] == after[2]


def test_a_finished_run_reports_again_and_changes_nothing(directory, finished, capsys):
    names = ("metrics.jsonl", "test_metrics.json")
    before = [(finished / name).read_bytes() for name in names]
    (finished / "test_metrics.json").unlink()
    loop.train(_config(directory), finished)
    assert [(finished / name).read_bytes() for name in names] == before
    assert "last epoch (3)" in capsys.readouterr().out


def test_a_log_that_was_cut_is_not_filled_up(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(OSError, match="shorter than"):
        metrics_log.ScalarLog(tmp_path, 30, 0)


def test_patience_ends_a_run(directory):
    config = _config(directory)
    config.train.patience = 1
    path = directory / "patience"
    trainer = loop.Trainer(config, path)
    # Nothing changes, so no epoch is better than the first.
    trainer.steps = lambda state, window: (
        state.replace(step=state.step + window.num_steps),
        {"loss": np.ones(window.num_steps, np.float32)},
    )
    trainer.run()
    assert checkpoint.newest(path).info()["epochs"] == 2
    assert checkpoint.best(path).info()["epoch"] == 0


def test_results_without_checkpoints_still_say_whose_they_are(directory, finished, tmp_path):
    for name in ("config.json", "test_metrics.json"):
        shutil.copy(finished / name, tmp_path)
    config = _config(directory)
    workdir.check(tmp_path, config)
    config.optim.learning_rate = 0.5
    with pytest.raises(workdir.WorkdirError, match=r"optim\.learning_rate .*0\.5 now"):
        workdir.check(tmp_path, config)


def test_another_configuration_is_refused_with_the_difference_named(directory, finished):
    config = _config(directory)
    config.optim.learning_rate = 0.5
    with pytest.raises(workdir.WorkdirError, match=r"optim\.learning_rate .*0\.5 now"):
        loop.Trainer(config, finished)
    other_data = _config(directory)
    other_data.data.synthetic_videos = (11, 4, 5)
    with pytest.raises(workdir.WorkdirError, match="synthetic_videos"):
        loop.Trainer(other_data, finished)


def test_a_directory_whose_run_is_under_way_is_refused(directory, finished, monkeypatch):
    refused = pytest.raises(workdir.OccupiedError, match="a run is under way in")
    with lock.hold(finished), refused:
        loop.Trainer(_config(directory), finished)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError) as kept:
        patch.setattr(loop, "compile_steps", fail)
        loop.Trainer(_config(directory), finished)
    assert kept.traceback  # with the frame of a Trainer that was not finished, which holds nothing
    loop.Trainer(_config(directory), finished).claim.close()


def test_what_did_not_start_may_be_started_with_another_configuration(directory, monkeypatch):
    def fail(*_):
        raise MemoryError

    config, path = _config(directory), directory / "too_large"
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(loop, "compile_steps", fail)
        loop.Trainer(config, path)
    config.optim.learning_rate = 0.5
    loop.Trainer(config, path).claim.close()
    assert json.loads((path / "config.json").read_text())["config"]["optim"]["learning_rate"] == 0.5


def test_what_cannot_be_trained_is_refused_before_its_data_is_looked_at(directory, tmp_path):
    config = _config(directory)
    config.data.manual_dir = "nowhere"
    config.loss.update({name: 0.0 for name in WEIGHTS})
    with pytest.raises(ConfigError, match="nothing to train"):
        loop.Trainer(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("place", "poison", "message", "saved"),
    [
        # In mid epoch: what is saved is the end of the first epoch.
        (5, {"loss": np.nan, "loss/clip_nce": np.nan}, r"step 4 \(epoch 1\): loss/clip_nce is", 3),
        # At the end of an epoch, before it is saved, though the loss is finite.
        (3, {"gradient_norm": np.inf}, r"step 2 \(epoch 0\): gradient_norm", None),
    ],
)
def test_what_is_not_finite_is_named_with_its_step_and_not_saved(
    directory, place, poison, message, saved
):
    trainer = loop.Trainer(_config(directory), directory / f"broken{place}")
    steps = trainer.steps

    def poisoned(state, window):
        state, scalars = steps(state, window)
        if window.first < place <= window.first + window.num_steps:
            last = place - 1 - window.first
            at = np.arange(len(scalars["loss"])) == last
            put = lambda name, value: np.where(at, value, scalars[name])
            scalars = scalars | {name: put(name, value) for name, value in poison.items()}
        return state, scalars

    trainer.steps = poisoned
    with pytest.raises(loop.NonFiniteLossError, match=message):
        trainer.run()
    assert trainer.newest.latest() == saved


def test_a_checkpoint_of_another_shape_is_refused_with_the_field_to_set(directory, finished):
    config = _config(directory)
    config.model.fusion = "mean"
    with pytest.raises(checkpoint.CheckpointError, match="--config.model.fusion=maim"):
        evaluate.evaluate_checkpoint(config, finished, None, print)
    config.model.hidden_size = 16

    model = models.build(config)
    like = jax.eval_shape(lambda: models.init_params(model, config))
    with pytest.raises(checkpoint.CheckpointError, match=r"shape .* config\.model"):
        checkpoint.open_params(finished).restore(like)
    with pytest.raises(checkpoint.CheckpointError, match="holds no checkpoint"):
        checkpoint.open_params(directory / "nowhere")


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_stops_at_once(directory):
    trainer = loop.Trainer(_config(directory), directory / "impatient")

    def stop(state, window):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    trainer.steps = stop
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _delete(file):
    file.unlink()


def _flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [_delete, _flip_a_bit])
@pytest.mark.parametrize("what", ["manifest.ocdbt", "d/*", "metadata"])
def test_a_damaged_checkpoint_is_one_line(directory, finished, tmp_path, what, damage):
    path = tmp_path / "damaged"
    shutil.copytree(finished, path)
    for file in (path / "checkpoints").rglob(what):
        damage(file)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"of step \d+ is damaged \(.*\): put a copy"
    ):
        loop.Trainer(_config(directory), path)
    shutil.rmtree(path / "checkpoints" / "best")
    with pytest.raises(checkpoint.CheckpointError, match="holds no checkpoint"):
        checkpoint.best(path).info()


def test_a_save_that_was_killed_before_its_sums_were_written_is_there(tmp_path):
    tree, series = {"x": np.arange(3.0, dtype=np.float32)}, checkpoint.Series(tmp_path)
    series.save(3, tree, {})
    (tmp_path / "3" / "SHA256SUMS").rename(tmp_path / "3" / ".SHA256SUMS")
    again = checkpoint.Series(tmp_path)
    np.testing.assert_array_equal(again.restore(tree)["x"], tree["x"])
    again.save(4, tree, {})
    assert again.latest() == 4


def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    series = checkpoint.Series(tmp_path)

    def fail(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: no space left\nand more")

    monkeypatch.setattr(series._manager, "save", fail)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"step 3 cannot .* left\): make room there"
    ):
        series.save(3, {"x": np.zeros(2)}, {})


def test_an_evaluation_does_not_overwrite_the_result_on_other_data(directory, finished, tmp_path):
    config = _config(directory)
    config.data.synthetic_videos = (11, 4, 5)
    with pytest.raises(workdir.WorkdirError, match="holds a run on other data"):
        evaluate.evaluate_checkpoint(config, finished, None, print, finished)
    evaluate.evaluate_checkpoint(config, finished, None, print, tmp_path)


def test_scores_that_cannot_be_written_are_refused_before_anything_is_computed(directory, finished):
    with pytest.raises(OSError, match="is a directory: give the name of a file"):
        evaluate.evaluate_checkpoint(_config(directory), finished, directory, print)


def test_initial_parameters_depend_on_the_seed_alone(directory):
    config = _config(directory)

    model = models.build(config)
    one, two = (models.init_params(model, config) for _ in range(2))
    config.seed = 1
    other = models.init_params(model, config)
    kernel = lambda params: np.asarray(params["query_input"]["dense"]["kernel"])
    np.testing.assert_array_equal(kernel(one), kernel(two))
    assert not np.array_equal(kernel(one), kernel(other))


# --- as a person runs it -----------------------------------------------------------------------


def _command(directory, workdir, *more):
    """The command of a run with the configuration of the other tests."""
    config = directory / "config.py"
    config.write_text(
        "from ml_collections import ConfigDict\n\n\n"
        f"def get_config():\n    return ConfigDict({_config(directory).to_dict()!r})\n"
    )
    return [
        sys.executable,
        "-m",
        "hlformer_jax.main",
        f"--config={config}",
        f"--workdir={workdir}",
        *more,
    ]


def _environment(directory):
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(directory / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in this process, see conftest.py
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }


def _run(directory, workdir, *more):
    return subprocess.run(
        _command(directory, workdir, *more),
        env=_environment(directory),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _kill_when(directory, workdir, condition):
    """Starts the run and kills it without warning as soon as the condition holds."""
    process = subprocess.Popen(
        _command(directory, workdir),
        env=_environment(directory),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if condition():
            process.kill()
            break
        time.sleep(0.0005)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"


def test_runs_killed_without_warning_end_bit_for_bit_like_one_that_was_not(directory, finished):
    killed = directory / "killed"

    def lines(count):
        path = killed / "metrics.jsonl"
        return path.exists() and path.read_bytes().count(b"\n") >= count

    newest = killed / "checkpoints" / "newest"
    # In mid epoch; then in the middle of a save, while orbax's temporary directory is there.
    _kill_when(directory, killed, lambda: lines(3))
    saving = lambda: any("tmp" in path.name for path in newest.glob("*"))
    _kill_when(directory, killed, saving)
    again = _run(directory, killed)
    assert again.returncode == 0, again.stderr
    assert re.search(r"best epoch.*\n.*last epoch", again.stdout)
    assert "chance" in again.stdout
    for name in ("metrics.jsonl", "test_metrics.json"):
        assert (killed / name).read_bytes() == (finished / name).read_bytes(), name
    states = [_restored(path) for path in (finished, killed)]
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_seed_is_refused_with_one_clear_line(directory, finished):
    refused = _run(directory, finished, "--config.seed=5")
    assert refused.returncode == 1
    assert refused.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "config.seed (0 there, 5 now)" in refused.stderr


def test_a_run_is_evaluated_to_the_metrics_it_reported(directory, finished):
    other, scores = directory / "other", directory / "scores.npz"
    options = ("--mode=evaluate", f"--checkpoint={finished}", f"--scores={scores}")
    evaluated = _run(directory, other, *options)
    assert evaluated.returncode == 0, evaluated.stderr
    reported = (finished / "test_metrics.json").read_bytes()
    assert (other / "test_metrics.json").read_bytes() == reported
    with np.load(scores) as file:
        assert file["scores"].shape == (len(file["queries"]), len(file["videos"]))
        assert file["scores"].shape == (json.loads(reported)["queries"], 5)


def _restored(path):
    import orbax.checkpoint as ocp

    step = checkpoint.newest(path).latest()
    return ocp.StandardCheckpointer().restore(
        (path / "checkpoints" / "newest" / str(step) / "tree").absolute()
    )


def test_a_log_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path):
    log = metrics_log.ScalarLog(tmp_path, 0, 0)
    log.write(1, {"loss": 1.0}, epoch=0)
    position = log.position()
    log.write(2, {"loss": 2.0}, epoch=0)
    log.close()
    log = metrics_log.ScalarLog(tmp_path, position, 1)
    log.write(2, {"loss": 3.0}, epoch=0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [1.0, 3.0]
