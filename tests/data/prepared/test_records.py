"""What goes into a record, how many into a shard, and what neither storage nor disk can hold."""

from types import SimpleNamespace

import numpy as np
import pytest
from corpora import assert_prepared

from hlformer_jax.data.prepared import records
from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.source import DataError


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([4, 4, 4], [2, 1]), ([9, 9], [1, 1]), ([1], [1]), ([2, 9, 2], [1, 1, 1])],
)
def test_shards_hold_neighbours_and_at_least_one(sizes, expected):
    assert records.shard_lengths(sizes, 8) == expected


def test_overflow_of_float16_names_its_frame_or_caption(tiny, write, tmp_path):
    tiny.frames["val_1"][2, 3] = -7e4
    collection = write(tiny)
    with pytest.raises(DataError, match=r"feature.bin: frame 'val_1_2' .* holds -70000.*float32"):
        prepare(collection, tmp_path / "out", "float16")
    tiny.frames["val_1"][2, 3] = 65504.0
    tiny.words["train_2#enc#1"][0, 0] = 1e6
    collection = tiny.write(tmp_path / "text", np.random.default_rng(1))
    with pytest.raises(DataError, match="hdf5: caption 'train_2#enc#1' holds 1e.06"):
        prepare(collection, tmp_path / "out", "float16")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)


def test_full_disk_is_said_before_anything_is_written(tiny, write, tmp_path, monkeypatch):
    full = SimpleNamespace(total=10, used=10, free=600)
    monkeypatch.setattr(records.shutil, "disk_usage", lambda _: full)
    with pytest.raises(OSError, match="free some.*float16"):
        prepare(write(tiny), tmp_path / "out")
    assert list((tmp_path / "out").glob("prvr/*/[!.]*")) == []
