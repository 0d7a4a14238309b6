"""The family of HLFormer and its ancestors, trained by the loop on a tiny synthetic corpus."""

import json
import os
import re
import signal

import jax
import numpy as np
import pytest
import runs

from hlformer_jax import models
from hlformer_jax.config import WEIGHTS, ConfigError
from hlformer_jax.training import checkpoints, loop, prvr


def test_a_run_reports_its_metrics_and_the_weighted_sum_of_its_terms(retrieval, data_dir):
    metrics = json.loads((retrieval.path / "test_metrics.json").read_text())
    assert list(metrics) == ["R@1", "R@5", "R@10", "R@100", "SumR", "queries", "videos"]
    assert metrics["videos"] == 5
    assert metrics["R@5"] == 100
    losses = [line for line in runs.records(retrieval.path) if "loss" in line]
    weights = runs.retrieval(data_dir).loss
    assert [line["step"] for line in losses] == [1, 3, 5, 7]
    for line in losses:
        total = sum(weights[x] * line[f"loss/{x}"] for x in WEIGHTS if f"loss/{x}" in line)
        assert line["loss"] == pytest.approx(total, rel=1e-5)
    assert set(losses[0]) == {
        *("step", "epoch", "loss", "gradient_norm"),
        *("loss/frame_triplet", "loss/frame_nce", "loss/query_diversity"),
    }
    assert checkpoints.best(retrieval.path).info()["model.name"] == "gmmformer_v2"


@pytest.mark.slow
def test_a_run_with_a_teacher_draws_less_from_it_in_every_epoch(data_dir, tmp_path):
    options = {"model.name": "dl_dkd", "model.glance": True, "data.teacher_dim": 8}
    config = runs.retrieval(data_dir, **options, **{"loss.distillation": 0.1})
    config.loss.distillation_rate = 0.5
    loop.train(config, tmp_path)
    losses = [line for line in runs.records(tmp_path) if "loss" in line]
    assert [line["epoch"] for line in losses] == [0, 1, 1, 2]
    for line in losses:
        weights = {**config.loss, "distillation": 0.1 * 0.5 ** line["epoch"]}
        total = sum(weights[x] * line[f"loss/{x}"] for x in WEIGHTS if f"loss/{x}" in line)
        assert line["loss"] == pytest.approx(total, rel=1e-5)
        assert line["loss/distillation"] > 0


def test_training_moves_the_parameters(retrieval):
    moved = jax.tree.map(lambda a, b: np.any(a != b), retrieval.initial, retrieval.final)
    assert np.mean(jax.tree.leaves(moved)) > 0.9


def test_nothing_is_compiled_after_the_first_epoch(retrieval):
    second = retrieval.compiled[runs.CHUNKS.index(3) + 1]
    assert 0 < retrieval.compiled[0] < second == retrieval.compiled[-1]


def test_a_run_is_held_against_a_linear_baseline_and_chance(retrieval):
    names = ["best epoch", "last epoch", "mean-pooled linear baseline", "chance"]
    assert [re.sub(r" \(\d\)", "", name) for name in retrieval.results] == names
    chance = retrieval.results["chance"].metrics
    assert chance == {"R@1": 20, "R@5": 100, "R@10": 100, "R@100": 100, "SumR": 320}


def test_a_run_that_is_stopped_and_streams_its_features_ends_bit_for_bit_the_same(
    data_dir, tmp_path, retrieval
):
    config = runs.retrieval(data_dir, **{"data.resident": "never", "train.baseline": True})
    trainer = loop.Trainer(config, tmp_path)
    steps = trainer.steps

    def stop(state, chunk):
        if chunk.first == 3:  # in mid epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return steps(state, chunk)

    trainer.steps = stop
    with pytest.raises(loop.Stopped, match="saved step 4"):
        trainer.run()
    loop.train(config, tmp_path)
    runs.assert_same(tmp_path, retrieval.path)


def test_initial_parameters_depend_on_the_seed(data_dir, retrieval):
    config = runs.retrieval(data_dir, seed=1)
    other = models.init_params(models.build(config), config)
    kernel = lambda params: np.asarray(params["query_input"]["dense"]["kernel"])
    assert not np.array_equal(kernel(other), kernel(retrieval.initial))


def test_what_cannot_be_trained_is_refused_before_its_data_is_looked_at(tmp_path):
    config = runs.retrieval(tmp_path, **{"data.manual_dir": "nowhere"})
    config.loss.update({name: 0.0 for name in WEIGHTS})
    with pytest.raises(ConfigError, match="nothing to train"):
        loop.Trainer(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "num_devices", "message"),
    [
        ({"train.encode_parts": 3}, 1, r"multiple of .*encode_parts .*, 3 x 1"),
        ({"train.encode_parts": 4}, 4, r"batch_size is 4: .* 4 x 4"),
    ],
)
def test_what_the_devices_cannot_train_is_refused_with_the_reason(options, num_devices, message):
    with pytest.raises(ConfigError, match=message):
        prvr.check_trainable(runs.retrieval("", **options), num_devices)
    prvr.check_trainable(runs.retrieval("", **{"train.encode_parts": 2}), 2)
