"""Records as TFDS writes them: equal to their source, in its order, over any number of shards."""

import os
import subprocess
import sys

import numpy as np
import pytest
from corpora import assert_prepared

from hlformer_jax.data.prepared import builder
from hlformer_jax.data.prepared.preparation import prepare


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_records_are_the_source_in_the_storage(tiny, write, tmp_path, storage):
    prepared = prepare(write(tiny), tmp_path / "out", storage)
    assert_prepared(prepared, tiny, np.dtype(storage))
    assert storage in str(prepared.directory)


def test_order_is_that_of_the_caption_list_over_many_shards(tiny, write, tmp_path, monkeypatch):
    tiny.captions["train"].reverse()
    monkeypatch.setattr(builder, "_SHARD_BYTES", 300)
    prepared = prepare(write(tiny), tmp_path)
    assert len(list(prepared.directory.glob("prvr-train.array_record*"))) > 2
    assert_prepared(prepared, tiny)


def test_validation_list_may_be_the_test_list(tiny, write, tmp_path):
    tiny.captions["val"] = tiny.captions["test"]
    assert_prepared(prepare(write(tiny), tmp_path), tiny)


def test_captions_that_are_not_ascii_come_back(tiny, write, tmp_path):
    caption, _ = tiny.captions["val"][0]
    tiny.captions["val"][0] = (caption, "Zoë isst 寿司, #1")
    assert_prepared(prepare(write(tiny), tmp_path), tiny)


def test_the_package_does_not_import_tfds():
    code = "import sys, hlformer_jax.data; sys.exit('tensorflow_datasets' in sys.modules)"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
