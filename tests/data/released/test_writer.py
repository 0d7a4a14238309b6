"""The synthetic corpus as released files: the same values, written once and complete."""

import dataclasses

import pytest
from corpora import SMALL, assert_equal, contents

from hlformer_jax.data.released.writer import write_corpus
from hlformer_jax.data.synthetic import SyntheticSource


def test_the_corpus_is_the_same_in_memory_and_in_released_files(tmp_path):
    assert_equal(contents(SyntheticSource(SMALL)), contents(write_corpus(tmp_path, SMALL)))


def test_corpus_is_written_once(tmp_path):
    collection = write_corpus(tmp_path, SMALL)
    before = collection.fingerprint()
    assert write_corpus(tmp_path, SMALL) == collection
    assert collection.fingerprint() == before
    assert [path.name for path in tmp_path.iterdir()] == ["synthetic"]


def test_another_corpus_is_not_overwritten(tmp_path):
    collection = write_corpus(tmp_path, SMALL)
    before = collection.fingerprint()
    with pytest.raises(FileExistsError, match="synthetic.*seed"):
        write_corpus(tmp_path, dataclasses.replace(SMALL, seed=1))
    assert collection.fingerprint() == before
    (collection.root / "meta.json").unlink()
    with pytest.raises(FileExistsError, match="something else"):
        write_corpus(tmp_path, SMALL)


def test_interrupted_corpus_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hlformer_jax.data.released.writer._write_features", stop)
        with pytest.raises(KeyboardInterrupt):
            write_corpus(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []
    write_corpus(tmp_path, SMALL)
