"""A run's directory gives its configuration and parameters, and a checkpoint its test metrics."""

import json

import jax
import numpy as np
import pytest
import runs
import tiny
from tiny import configuration, write_run

from hlformer_jax.config import ConfigError
from hlformer_jax.training import checkpoints, loaded_run
from hlformer_jax.training.checkpoints import CheckpointError
from hlformer_jax.training.loaded_run import RunError, evaluate_checkpoint


def test_a_run_gives_back_its_parameters_and_what_was_moved_is_elsewhere(tmp_path):
    config = configuration("gmmformer_v2")
    write_run(tmp_path / "run", config)
    found = loaded_run.load(tmp_path / "run", {"data.data_dir": "elsewhere"})
    assert found.config.model == config.model
    assert found.config.data.data_dir == "elsewhere"
    jax.tree.map(np.testing.assert_array_equal, found.params, tiny.params(config))


def test_a_configuration_of_another_family_is_read_with_that_family_s_fields(tmp_path):
    config = runs.hover(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"config": json.loads(config.to_json())}))
    assert loaded_run.read_config(tmp_path) == config


def test_a_field_that_earlier_versions_recorded_does_not_matter(tmp_path):
    config = runs.retrieval(tmp_path)
    recorded = json.loads(config.to_json()) | {"kernels": "xla"}
    recorded.pop("precision")  # nor does one that they did not
    (tmp_path / "config.json").write_text(json.dumps({"config": recorded}))
    assert loaded_run.read_config(tmp_path) == config


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(RunError, match="config.json"):
        loaded_run.load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="version"):
        loaded_run.load(tmp_path)
    config = configuration("gmmformer_v2")
    content = {"config": json.loads(config.to_json())}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        loaded_run.load(tmp_path)
    content["config"]["model"]["fusion"] = "sum"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="model.fusion"):
        loaded_run.load(tmp_path)


def test_a_run_is_evaluated_to_the_metrics_it_reported(retrieval, data_dir, tmp_path):
    told, scores = [], tmp_path / "scores.npz"
    config = runs.retrieval(data_dir)
    result = evaluate_checkpoint(config, retrieval.path, scores, told.append, retrieval.path)
    reported = json.loads((retrieval.path / "test_metrics.json").read_text())
    assert result.as_json() == reported
    assert evaluate_checkpoint(config, retrieval.path, None, told.append).as_json() == reported
    with np.load(scores) as file:
        assert file["scores"].shape == (len(file["queries"]), len(file["videos"]))
        assert file["scores"].shape == (reported["queries"], 5)
    assert f"checkpoint {retrieval.path} (epoch " in told[0]
    assert "validation_SumR" in told[0]


def test_a_checkpoint_of_another_model_is_refused_with_the_field_to_set(retrieval, data_dir):
    config = runs.retrieval(data_dir, **{"model.fusion": "maim"})
    config.model.hidden_size = 16
    with pytest.raises(checkpoints.CheckpointError, match="hidden_size=8"):
        evaluate_checkpoint(config, retrieval.path, None, print)


def test_an_evaluation_does_not_overwrite_the_result_on_other_data(retrieval, data_dir, tmp_path):
    saved = json.loads((retrieval.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(saved | {"data_fingerprint": "other"}))
    with pytest.raises(checkpoints.WorkdirError, match="other data"):
        evaluate_checkpoint(runs.retrieval(data_dir), retrieval.path, None, print, tmp_path)


def test_scores_that_cannot_be_written_are_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(OSError, match="directory"):
        evaluate_checkpoint(runs.retrieval(tmp_path), tmp_path / "nowhere", tmp_path, print)
