"""A trained model on the vectors of an index: runs that are refused."""

import numpy as np
import pytest
from trained_runs import configuration, write_run

from hlformer_jax.data import extracted
from hlformer_jax.search import trained
from hlformer_jax.search.errors import SearchError


def test_a_run_of_another_encoder_or_none_is_refused_in_one_line(index, tmp_path):
    records = list(index.manifest.videos.values())
    config = configuration("gmmformer_v2")
    run = write_run(tmp_path / "run", config, fingerprint="0" * 64)
    with pytest.raises(SearchError, match="features of the encoder 'colours', and the index has"):
        trained.Trained(run, index, records)
    (run / "features" / extracted.ENCODER).unlink()
    with pytest.raises(SearchError, match="does not say which encoder made its features"):
        trained.Trained(run, index, records)
    with pytest.raises(SearchError, match=r"has no config.json: give the directory of a run"):
        trained.Trained(tmp_path / "nowhere", index, records)
    (run / "config.json").write_text("{}")
    with pytest.raises(SearchError, match="is no configuration of this version"):
        trained.Trained(run, index, records)


def test_a_run_of_other_widths_is_refused(index, tmp_path):
    config = configuration("gmmformer_v2")
    config.data.visual_dim = 7
    run = write_run(tmp_path / "run", config)
    with pytest.raises(SearchError, match="features of width 7, and the index has vectors of"):
        trained.Trained(run, index, list(index.manifest.videos.values()))
    found = trained.Model(config, None, None, None)
    with pytest.raises(SearchError, match="token features of width 12, and the encoder gives 5"):
        trained.encode_query(found, np.zeros((2, 5), np.float32))
