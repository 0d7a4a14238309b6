"""A prepared set: made once, complete or not there, and never mistaken for another."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from corpora import assert_prepared

from hlformer_jax.data.prepared import records
from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.source import DataError


def test_set_is_prepared_once_and_quietly(tiny, write, tmp_path, capfd):
    collection = write(tiny)
    first = prepare(collection, tmp_path / "out")
    out, err = capfd.readouterr()
    assert out == ""
    assert "Preparing tiny/feat" in err
    assert "ownload" not in err and "WARNING" not in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["prvr"]
    times = {path: path.stat().st_mtime_ns for path in first.directory.iterdir()}
    again = prepare(collection, tmp_path / "out")
    assert again.directory == first.directory
    assert {path: path.stat().st_mtime_ns for path in again.directory.iterdir()} == times


def test_changed_source_is_another_set(tiny, write, tmp_path):
    collection = write(tiny)
    first = prepare(collection, tmp_path / "out")
    changed = dataclasses.replace(tiny, frames={**tiny.frames, "val_0": -tiny.frames["val_0"]})
    second = prepare(
        changed.write(tmp_path / "changed", np.random.default_rng(1)), tmp_path / "out"
    )
    assert first.fingerprint != second.fingerprint
    assert_prepared(second, changed)
    assert_prepared(first, tiny)


@pytest.mark.parametrize(("field", "width"), [("visual_dim", 7), ("text_dim", 7)])
def test_other_widths_do_not_find_the_set(tiny, write, tmp_path, field, width):
    collection = write(tiny)
    prepare(collection, tmp_path / "out")
    with pytest.raises(DataError, match=field):
        prepare(dataclasses.replace(collection, **{field: width}), tmp_path / "out")


@pytest.mark.parametrize("gone", [True, False])
def test_the_one_prepared_set_serves_without_its_source(tiny, write, tmp_path, gone):
    collection = write(tiny)
    prepared = prepare(collection, tmp_path / "out")
    prepare(collection, tmp_path / "out", "float16")
    if gone:
        collection.root.rename(tmp_path / "elsewhere")
    else:
        collection = dataclasses.replace(collection, manual_dir="")
    found = prepare(collection, tmp_path / "out")
    assert found.fingerprint == prepared.fingerprint
    assert_prepared(found, tiny)


def test_several_prepared_sets_without_source_are_listed(tiny, write, tmp_path):
    collection = write(tiny)
    sets = [prepare(collection, tmp_path / "out")]
    os.utime(collection.captions("train"), (1, 1))
    sets.append(prepare(collection, tmp_path / "out"))
    with pytest.raises(DataError, match="manual_dir") as error:
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")
    assert all(found.fingerprint in str(error.value) for found in sets)


def test_nothing_at_all_says_what_to_download(tmp_path):
    collection = Collection(tmp_path / "none", "activitynet", "i3d", 1024, 1024)
    with pytest.raises(DataError, match="MS-SL.*FeatureData/i3d/feature.bin") as error:
        prepare(collection, tmp_path / "out")
    assert str(tmp_path / "out") in str(error.value)


def test_storage_that_is_unknown_is_refused(tmp_path):
    with pytest.raises(ValueError, match="data.storage.*float32"):
        prepare(Collection("", "tiny", "feat", 6, 5), tmp_path, "bfloat16")


def test_failed_preparation_leaves_nothing_to_be_taken_for_a_set(tiny, write, tmp_path):
    tiny.frames["test_1"][0, 0] = np.nan  # the last record of all
    collection = write(tiny)
    with pytest.raises(DataError, match="'test_1_0'"):
        prepare(collection, tmp_path / "out")
    assert list((tmp_path / "out").glob("prvr/*/[!.]*")) == []
    with pytest.raises(DataError, match="nor is there a prepared set"):
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")


def test_source_that_changes_while_it_is_read_is_refused(tiny, write, tmp_path, monkeypatch):
    collection = write(tiny)
    make = records.Records.make

    def touching(*args):
        os.utime(collection.captions("test"), (1, 1))
        return make(*args)

    with monkeypatch.context() as patch:
        patch.setattr(records.Records, "make", touching)
        with pytest.raises(DataError, match="changed while"):
            prepare(collection, tmp_path / "out")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)


def test_killed_preparation_is_done_again_in_full(tiny, write, tmp_path, python):
    collection = write(tiny)
    kill = """
import signal
make, calls = Records.make, []
def dying(*args):
    calls.append(args)
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(*args)
Records.make = dying
prepare(collection, data_dir)
"""
    process = python(kill, collection.manual_dir, tmp_path / "out")
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    left = list((tmp_path / "out").glob("prvr/*/incomplete*"))
    assert len(left) == 1 and list(left[0].iterdir())
    with pytest.raises(DataError, match="nor is there a prepared set"):
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")
    again = prepare(collection, tmp_path / "out")
    assert_prepared(again, tiny)
    assert not left[0].exists()
    undisturbed = prepare(collection, tmp_path / "undisturbed")
    for path in undisturbed.directory.glob("*.array_record*"):
        assert (again.directory / path.name).read_bytes() == path.read_bytes()


def test_processes_at_the_same_time_make_one_set(tiny, write, tmp_path, python):
    collection = write(tiny)
    code = """
import time
make = Records.make
def slow(*args):
    time.sleep(0.02)
    return make(*args)
Records.make = slow
prepared = prepare(collection)
assert len(prepared.split('train')[3].frames) == 7
assert 'tensorflow' not in sys.modules
print(prepared.directory)
"""
    out = tmp_path / "out"
    processes = [python(code, collection.manual_dir, "", TFDS_DATA_DIR=str(out)) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert results[0][0] == results[1][0]
    assert sorted("Preparing" in err for _, err in results) == [False, True]
    assert len(list(out.glob("prvr/*/[!.]*"))) == 1
    assert_prepared(prepare(collection, out), tiny)


@pytest.mark.parametrize("damage", ["cut", "missing", "index"])
def test_damaged_set_is_made_anew_and_never_read(tiny, write, tmp_path, damage):
    collection = write(tiny)
    prepared = prepare(collection, tmp_path / "out")
    (shard,) = prepared.directory.glob("prvr-val.array_record*")
    if damage == "cut":
        os.truncate(shard, shard.stat().st_size // 2)
    elif damage == "missing":
        shard.unlink()
    else:
        (prepared.directory / "index.json").write_text("{")
    with pytest.raises(DataError, match="nor is there a prepared set"):
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)
