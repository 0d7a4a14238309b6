"""Evaluation of a checkpoint: the metrics that the run reported, and what is refused."""

import json

import numpy as np
import pytest
import runs

from hlformer_jax.training import checkpoints
from hlformer_jax.training.evaluate import evaluate_checkpoint


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
    with pytest.raises(checkpoints.CheckpointError, match=r"fusion=mean --config.*hidden_size=8"):
        evaluate_checkpoint(config, retrieval.path, None, print)


def test_an_evaluation_does_not_overwrite_the_result_on_other_data(retrieval, data_dir, tmp_path):
    saved = json.loads((retrieval.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(saved | {"data_fingerprint": "other"}))
    with pytest.raises(checkpoints.WorkdirError, match="holds a run on other data"):
        evaluate_checkpoint(runs.retrieval(data_dir), retrieval.path, None, print, tmp_path)


def test_scores_that_cannot_be_written_are_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(OSError, match="is a directory: give the name of a file"):
        evaluate_checkpoint(runs.retrieval(tmp_path), tmp_path / "nowhere", tmp_path, print)
