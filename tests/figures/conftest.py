"""Runs for figures: small models with random parameters on synthetic corpora."""

import json

import pytest
import runs
import tiny

from hlformer_jax.figures.corpus import Options, Subject
from hlformer_jax.models import hover
from hlformer_jax.training import loaded_run


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """The directory of a run of HLFormer."""
    root = tmp_path_factory.mktemp("figures")
    config = runs.retrieval(root / "data")
    config.model.update(name="hlformer", glance=True, lorentz_blocks=1, lorentz_dim=7)
    config.model.update(fusion="maim", euclidean_widths=(2.0,), lorentz_widths=(4.0,))
    config.eval.update(moments="data", video_batch=3)
    path = tiny.save_run(root / "run", config, tiny.params(config))
    metrics = {"R@1": 12.5, "SumR": 100.0, "queries": 15, "videos": 5}
    (path / "test_metrics.json").write_text(json.dumps(metrics))
    return path


@pytest.fixture(scope="session")
def subject(directory):
    return Subject("HLFormer", loaded_run.load(directory))


@pytest.fixture(scope="session")
def gmmformer(tmp_path_factory, directory):
    """A run of GMMFormer on the same data: without weights and without a lift."""
    config = loaded_run.read_config(directory)
    config.model.update(name="gmmformer", fusion="mean", lorentz_blocks=0, lorentz_widths=())
    path = tiny.save_run(tmp_path_factory.mktemp("gmmformer") / "run", config, tiny.params(config))
    return Subject("GMMFormer", loaded_run.load(path))


@pytest.fixture(scope="session")
def dl_dkd(tmp_path_factory, directory):
    """A run of DL-DKD on the same data: both its branches read frames, without windows."""
    config = loaded_run.read_config(directory)
    config.model.update(name="dl_dkd", fusion="mean", lorentz_blocks=0, lorentz_widths=())
    config.model.euclidean_widths = ()
    config.data.max_clips = 1  # as configs/dl_dkd.py has it
    path = tiny.save_run(tmp_path_factory.mktemp("dl_dkd") / "run", config, tiny.params(config))
    return Subject("DL-DKD", loaded_run.load(path))


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """A run of HOVER on synthetic trees."""
    root = tmp_path_factory.mktemp("trees")
    config = runs.hover(root / "data")
    path = tiny.save_run(root / "run", config, hover.init_params(config))
    return Subject("HOVER", loaded_run.load(path))


@pytest.fixture
def options():
    return Options()
