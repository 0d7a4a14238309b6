"""The data set of a configuration: its source, its splits, its widths."""

import pytest

from hlformer_jax.config import default
from hlformer_jax.data import dataset, synthetic
from hlformer_jax.data.dataset import choose_source, open_data
from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.source import DataError
from hlformer_jax.data.synthetic import SyntheticSource


def test_another_corpus_is_another_data_set(config, data):
    config = config.copy_and_resolve_references()
    config.data.synthetic_videos = (5, 3, 4)
    other = dataset.open_data(config)
    assert len(other.train) == 5
    assert other.fingerprint != data.fingerprint
    assert synthetic.Corpus(videos=(5, 3, 4)) != synthetic.Corpus(videos=(11, 3, 4))


def test_other_widths_than_the_configuration_has_are_refused(config):
    config = config.copy_and_resolve_references()
    config.data.text_dim = 7
    source = SyntheticSource(synthetic.Corpus(visual_dim=6, text_dim=2))
    with pytest.raises(DataError, match="data.text_dim is 7 .* synthetic are 2 wide"):
        open_data(config, source)


def test_a_configuration_names_its_source(monkeypatch):
    config = default()
    config.data.update(manual_dir="", synthetic_videos=(3, 1, 1), collection="mine")
    assert isinstance(choose_source(config.data), SyntheticSource)
    config.data.manual_dir = "there"
    assert isinstance(choose_source(config.data), Collection)
    own = SyntheticSource(synthetic.Corpus())
    monkeypatch.setitem(dataset.SOURCES, "mine", lambda data: own)
    assert choose_source(config.data) is own
