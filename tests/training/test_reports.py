"""Reports of runs: their start, epochs, end and results."""

import json
import re
import shutil

import numpy as np
import pytest
import runs

from hlformer_jax import terminal, training
from hlformer_jax.config import ConfigError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.training import checkpoints, loaded_run, loop, optim
from hlformer_jax.training.checkpoints import CheckpointError
from hlformer_jax.training.run_directory import WorkdirError


def test_run_reports_start_epochs_and_end(retrieval):
    err = retrieval.stderr
    assert re.search(r"data: synthetic corpus: train 10 videos, \d+ captions; val 4 videos", err)
    assert re.search(r"model: [\d,]+ parameters; 1 x cpu; a step takes \d\.\d\d GB on each", err)
    epochs = re.findall(
        r"^epoch (\d) of 3: validation SumR (\S+) \(best (\S+) in epoch \d, chance 325\), R@1 .*"
        r"loss \S+, learning rate \S+, \S+ s$",
        err,
        re.M,
    )
    assert epochs and [int(epoch) for epoch, *_ in epochs] == list(range(1, len(epochs) + 1))
    assert "ended after epoch 3 of 3; best SumR" in err
    assert f"metrics: {retrieval.path / 'test_metrics.json'}" in err
    assert "Training:" not in err  # no bar in a file


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_long_compilation_is_announced(seconds, tmp_path, data_dir, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "SLOW_SECONDS", seconds)
    with loop.start(runs.retrieval(data_dir), tmp_path / "run"):
        lines = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    compiling = "compiling the training step"
    announcements = [line for line in lines if line in ("data", compiling, "model")]
    assert announcements == ["data", *([] if seconds else [compiling]), "model"]


def test_learning_rate_and_test_metrics_are_recorded(retrieval, data_dir):
    config = runs.retrieval(data_dir)
    records = runs.records(retrieval.path)
    rate = optim.learning_rate(config.optim, runs.STEPS)
    steps = [record for record in records if "loss" in record]
    for record in steps:
        assert record["learning_rate"] == pytest.approx(float(rate(record["step"])), rel=1e-6)
    best, last = records[-2:]
    written = json.loads((retrieval.path / "test_metrics.json").read_text())
    assert best["test/best/SumR"] == written["SumR"] and "test/last/SumR" in last
    assert best["step"] == runs.STEPS


def test_cut_captions_are_counted(data_dir):
    family = training.build(runs.retrieval(data_dir, **{"data.max_words": 2}))
    train, long = family.data.train, 0
    for index in range(len(train)):
        assert family.notes() == []  # unknown before all are read
        train.read(index)
        long += int(np.sum(train._videos[index].word_counts > 2))
    assert long > 0 and family.notes() == [
        f"{long} of {len(train.caption_video)} captions of train have more than 2 words; the rest"
        " of each is not read (config.data.max_words)"
    ]
    family._config.data.feature = "clip_L14"
    assert "the middle of each" in family.notes()[0]


@pytest.mark.slow  # it trains
def test_cut_captions_of_every_split_are_reported(tmp_path, data_dir, capsys):
    config = runs.retrieval(data_dir, **{"data.max_words": 2})
    loop.train(config, tmp_path / "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if "more than 2 words" in line]
    assert [line.partition(" have")[0].split()[-1] for line in lines] == ["train", "val", "test"]
    loaded_run.evaluate_checkpoint(config, tmp_path / "run", None, print)
    assert lines[-1] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "select", "suggestion"),
    [
        (runs.retrieval, "SunR", "'SumR'"),
        (runs.retrieval, "mIoU", "use R@1"),
        (runs.hover, "t2v/MRRR", "'t2v/MRR'"),
        # A lower MedR is better, but the highest metric is selected.
        (runs.hover, "t2v/MedR", "is 't2v/MedR': use t2v/R@1, [^:]*t2v/MRR, v2t/R@1"),
    ],
)
def test_selection_metric_is_checked_before_data(tmp_path, make, select, suggestion):
    config = make(tmp_path / "data", **{"eval.select": select})
    with pytest.raises(ConfigError, match=suggestion):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("R@1", 20.0), ("SumR", 320.0), ("t2v/R@1", 5.0), ("t2v/MRR", 0.1798870), ("mIoU", None)],
)
def test_chance_is_a_random_ranking(name, expected):
    chance = ranking.chance(name, Result({}, queries=20, videos=5))
    assert chance == (None if expected is None else pytest.approx(expected, rel=1e-6))


@pytest.mark.slow  # it takes seconds
def test_run_starts_from_parameters_of_another(tmp_path, finished, capsys):
    directory = tmp_path / "tuned"
    config = runs.tree(**{"optim.learning_rate": 0.01})
    with loop.start(config, directory, family=runs.Tree(config), init=finished) as trainer:
        saved = checkpoints.best(finished).restore(trainer.state.params)
        np.testing.assert_array_equal(trainer.state.params["space"], saved["space"])
        assert int(trainer.state.step) == 0
        assert not np.any(trainer.state.optimiser[0].trace["space"])
        trainer.run()
    record = json.loads((directory / "config.json").read_text())
    assert record["init"] == str(finished.resolve())
    info = checkpoints.best(finished).info()
    facts = f"(epoch {info['epoch'] + 1}, step {info['step']}, validation nearest "
    assert f"initial parameters: {finished.resolve()} {facts}" in capsys.readouterr().err
    # The run resumes with or without `init`, but not with another one.
    runs.train(config, directory)
    assert json.loads((directory / "config.json").read_text())["init"] == record["init"]
    copy = shutil.copytree(finished, tmp_path / "copy")
    with pytest.raises(WorkdirError, match="`init` is"):
        loop.train(config, directory, family=runs.Tree(config), init=copy)
    # A run that was killed at its start begins with the same parameters again.
    shutil.rmtree(directory / "checkpoints")
    (directory / "test_metrics.json").unlink()
    with loop.start(config, directory, family=runs.Tree(config), init=finished) as trainer:
        np.testing.assert_array_equal(trainer.state.params["space"], saved["space"])


def test_initial_parameters_of_another_shape_are_refused(tmp_path, retrieval):
    config = runs.tree()
    with pytest.raises(CheckpointError, match="shape"):
        loop.train(config, tmp_path / "run", family=runs.Tree(config), init=retrieval.path)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        loop.train(config, tmp_path / "run", family=runs.Tree(config), init=tmp_path / "nowhere")


def test_last_epoch_may_be_selected(tmp_path, capsys, monkeypatch):
    config = runs.tree(**{"eval.select": "last", "train.patience": 1})
    with runs.start(config, tmp_path) as trainer:
        metrics = iter([50.0, 40.0, 30.0])
        monkeypatch.setattr(
            trainer.family, "validate", lambda params: Result({"nearest": next(metrics)}, 10, 11)
        )
        trainer.run()
        best = trainer.checkpoints.best.restore(trainer.state.params)
        np.testing.assert_array_equal(best["space"], trainer.state.params["space"])
    assert trainer.progress.epochs == 3 and trainer.progress.best_epoch == 2
    assert "ended after epoch 3 of 3; the last epoch is used" in capsys.readouterr().err


def test_patience_may_change_on_resume(tmp_path, monkeypatch):
    first = runs.tree(**{"train.patience": 1, "train.epochs": 3})
    with runs.start(first, tmp_path) as trainer, monkeypatch.context() as patch:
        patch.setattr(trainer.family, "validate", lambda params: Result({"nearest": 50.0}, 10, 11))
        trainer.run()
        assert trainer.progress.epochs == 2
    with runs.start(runs.tree(**{"train.patience": 9}), tmp_path) as trainer:
        trainer.run()
    assert trainer.progress.epochs == 3
    assert json.loads((tmp_path / "config.json").read_text())["config"]["train"]["patience"] == 9


@pytest.mark.slow  # it takes seconds
def test_family_of_any_length_may_be_trained_longer(tmp_path):
    class Longer(runs.Tree):
        any_length = True

    config = runs.tree()
    loop.train(config, tmp_path / "run", family=Longer(config))
    longer = runs.tree(**{"train.epochs": 5})
    with pytest.raises(WorkdirError, match=r"train\.epochs \(3 there, 5 now\).*`init`="):
        runs.train(longer, tmp_path / "run")
    loop.train(longer, tmp_path / "run", family=Longer(longer))
    loop.train(longer, tmp_path / "long", family=Longer(longer))
    runs.assert_same(tmp_path / "run", tmp_path / "long")
