"""A run's directory gives its configuration and its parameters, or one line that says why not."""

import json

import jax
import numpy as np
import pytest
import runs
import tiny
from trained_runs import configuration, write_run

from hlformer_jax.config import ConfigError
from hlformer_jax.training import finished
from hlformer_jax.training.checkpoints import CheckpointError
from hlformer_jax.training.finished import FinishedError


def test_a_run_gives_back_its_parameters_and_what_was_moved_is_elsewhere(tmp_path):
    config = configuration("gmmformer_v2")
    write_run(tmp_path / "run", config)
    found = finished.load(tmp_path / "run", {"data.data_dir": "elsewhere"})
    assert found.config.model == config.model
    assert found.config.data.data_dir == "elsewhere"
    jax.tree.map(np.testing.assert_array_equal, found.params, tiny.params(config))


def test_a_configuration_of_another_family_is_read_with_that_family_s_fields(tmp_path):
    config = runs.hover(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"config": json.loads(config.to_json())}))
    assert finished.read_config(tmp_path) == config


def test_a_field_that_earlier_versions_recorded_does_not_matter(tmp_path):
    config = runs.retrieval(tmp_path)
    recorded = json.loads(config.to_json()) | {"kernels": "xla"}
    (tmp_path / "config.json").write_text(json.dumps({"config": recorded}))
    assert finished.read_config(tmp_path) == config


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(FinishedError, match="has no config.json: give the directory of a run"):
        finished.load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FinishedError, match="is no configuration of this version"):
        finished.load(tmp_path)
    config = configuration("gmmformer_v2")
    content = {"config": json.loads(config.to_json())}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        finished.load(tmp_path)
    content["config"]["model"]["fusion"] = "sum"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="model.fusion 'sum' is unknown"):
        finished.load(tmp_path)
