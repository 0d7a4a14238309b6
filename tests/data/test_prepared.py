"""Preparation of data sets: once and completely, with every fault of a source named."""

import contextlib
import dataclasses
import errno
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import corpora
import numpy as np
import pytest
from corpora import assert_prepared, assert_refused, feature, read_all, warnings_of

from hlformer_jax.data import prepared as module
from hlformer_jax.data.prepared import prepare
from hlformer_jax.data.sources.protocol import (
    SPLITS,
    Caption,
    DataError,
    Reader,
    Source,
    check_memory,
    digest,
)
from hlformer_jax.data.sources.released.layouts import Collection
from hlformer_jax.data.split import explained_damage


def python(code: str, *args: object, **environment: str) -> subprocess.Popen:
    """Start a process that has a `collection` and a `data_dir`."""
    head = (
        "import sys, os; from hlformer_jax.data.sources.released.layouts import Collection; "
        "from hlformer_jax.data.prepared import prepare; "
        "from hlformer_jax.data.prepared import Records; "
        "collection = Collection(sys.argv[1], 'tiny', 'feat', 6, 5); data_dir = sys.argv[2]\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Records as TFDS writes them


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_records_hold_the_source_in_the_storage_dtype(tiny, write, tmp_path, storage):
    prepared = prepare(write(tiny), tmp_path / "out", storage)
    assert_prepared(prepared, tiny, np.dtype(storage))
    assert storage in str(prepared.directory)


def test_many_shards_keep_the_order_of_the_caption_list(tiny, write, tmp_path, monkeypatch):
    tiny.captions["train"].reverse()
    monkeypatch.setattr(module, "_SHARD_BYTES", 300)
    prepared = prepare(write(tiny), tmp_path)
    assert len(list(prepared.directory.glob("prvr-train.array_record*"))) > 2
    assert_prepared(prepared, tiny)


def test_validation_list_may_be_the_test_list(tiny, write, tmp_path):
    tiny.captions["val"] = tiny.captions["test"]
    caption, _ = tiny.captions["val"][0]
    tiny.captions["val"][0] = (caption, "Zoë isst 寿司, #1")
    assert_prepared(prepare(write(tiny), tmp_path), tiny)


# Values


@pytest.mark.parametrize("value", [np.nan, np.uint32(0x7F800001).view("f4"), -np.inf, 3e30])
@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("frames", r"feature.bin: (frame 'val_1_2' .* of video 'val_1' holds|its numbers make no)"),
        ("words", "hdf5: caption 'val_1#enc#1' holds"),
    ],
)
def test_impossible_feature_values_are_refused(tiny, write, part, expected, value):
    features = tiny.frames["val_1"] if part == "frames" else tiny.words["val_1#enc#1"]
    features[2, 3] = value
    with pytest.raises(DataError, match=expected) as error:
        read_all(write(tiny))
    assert "\n" not in str(error.value)


ZEROS = [
    (  # the last half of feature.bin, as where a download was broken off
        feature("feature.bin", lambda data: data[: len(data) // 2] + bytes(len(data) // 2)),
        ["feature.bin: frame 'train_", "row is zero", "frames", "(", "%)", "interrupted download"],
    ),
    (
        corpora.words(lambda f: [f[name].write_direct(np.zeros_like(f[name][:])) for name in f]),
        [".hdf5: caption 'train_0#enc#0'", "row is zero", "captions", "interrupted download"],
    ),
]


@pytest.mark.parametrize(("fault", "expected"), ZEROS)
def test_too_many_zeros_are_refused(tiny, write, fault, expected):
    assert_refused(write(tiny), fault, expected)


def test_few_zero_rows_are_padding_with_a_warning(tiny, write):
    tiny.frames["train_3"][2] = 0
    tiny.words["val_1#enc#1"][0] = 0
    messages = warnings_of(write(tiny))
    assert len(messages) == 2
    assert "frame 'train_3_2'" in messages[0] and "1 (4.2%) of the 24 frames" in messages[0]
    assert "caption 'val_1#enc#1'" in messages[1] and "all words of 0" in messages[1]


def test_single_video_and_caption_of_zeros_are_reported(tiny, write):
    tiny.frames["val_1"][:] = 0
    tiny.words["val_1#enc#1"][:] = 0
    messages = warnings_of(write(tiny))
    assert len(messages) == 2
    assert "all frames of 1 (" in messages[0] and "all words of 1 (" in messages[1]


def test_zeros_throughout_two_captions_are_refused(tiny, write):
    for name in ("val_1#enc#0", "val_1#enc#1"):
        tiny.words[name][:] = 0
    with pytest.raises(DataError, match=r"all words of 2 \(.*%\) of the .* captions read so far"):
        read_all(write(tiny))


# Preparation: once, and complete or absent


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
def test_prepared_set_is_not_used_for_other_widths(tiny, write, tmp_path, field, width):
    collection = write(tiny)
    prepare(collection, tmp_path / "out")
    with pytest.raises(DataError, match=field):
        prepare(dataclasses.replace(collection, **{field: width}), tmp_path / "out")


@pytest.mark.parametrize("is_moved", [True, False])
def test_single_prepared_set_serves_without_its_source(tiny, write, tmp_path, is_moved):
    collection = write(tiny)
    prepared = prepare(collection, tmp_path / "out")
    prepare(collection, tmp_path / "out", "float16")
    if is_moved:
        collection.root.rename(tmp_path / "elsewhere")
    else:
        collection = dataclasses.replace(collection, manual_dir="")
    reopened = prepare(collection, tmp_path / "out")
    assert reopened.fingerprint == prepared.fingerprint
    assert_prepared(reopened, tiny)


def test_several_prepared_sets_without_source_are_listed(tiny, write, tmp_path):
    collection = write(tiny)
    sets = [prepare(collection, tmp_path / "out")]
    os.utime(collection.captions("train"), (1, 1))
    sets.append(prepare(collection, tmp_path / "out"))
    with pytest.raises(DataError, match="manual_dir") as error:
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")
    assert all(prepared.fingerprint in str(error.value) for prepared in sets)


def test_unknown_storage_is_refused(tmp_path):
    with pytest.raises(ValueError, match="data.storage.*float32"):
        prepare(Collection("", "tiny", "feat", 6, 5), tmp_path, "bfloat16")


def test_failed_preparation_leaves_no_set(tiny, write, tmp_path):
    tiny.frames["test_1"][0, 0] = np.nan  # the last record of all
    collection = write(tiny)
    with pytest.raises(DataError, match="'test_1_0'"):
        prepare(collection, tmp_path / "out")
    assert list((tmp_path / "out").glob("prvr/*/[!.]*")) == []
    with pytest.raises(DataError, match="prepared"):
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")


def test_source_that_changes_while_read_is_refused(tiny, write, tmp_path, monkeypatch):
    collection = write(tiny)
    make = module.Records.make

    def touching(*args):
        os.utime(collection.captions("test"), (1, 1))
        return make(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module.Records, "make", touching)
        with pytest.raises(DataError, match="changed"):
            prepare(collection, tmp_path / "out")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)


def test_killed_preparation_is_done_again_in_full(tiny, write, tmp_path):
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
    incomplete = list((tmp_path / "out").glob("prvr/*/incomplete*"))
    assert len(incomplete) == 1 and list(incomplete[0].iterdir())
    with pytest.raises(DataError, match="prepared"):
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")
    again = prepare(collection, tmp_path / "out")
    assert_prepared(again, tiny)
    assert not incomplete[0].exists()
    undisturbed = prepare(collection, tmp_path / "undisturbed")
    for path in undisturbed.directory.glob("*.array_record*"):
        assert (again.directory / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow  # it takes seconds
def test_processes_at_the_same_time_make_one_set(tiny, write, tmp_path):
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
def test_damaged_set_is_prepared_again_and_never_read(tiny, write, tmp_path, damage):
    collection = write(tiny)
    prepared = prepare(collection, tmp_path / "out")
    (shard,) = prepared.directory.glob("prvr-val.array_record*")
    if damage == "cut":
        os.truncate(shard, shard.stat().st_size // 2)
    elif damage == "missing":
        shard.unlink()
    else:
        (prepared.directory / "index.json").write_text("{")
    with pytest.raises(DataError, match="prepared"):
        prepare(dataclasses.replace(collection, manual_dir=""), tmp_path / "out")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)


@pytest.mark.parametrize("name", ["prvr-val.array_record*", "dataset_info.json", "features.json"])
def test_damaged_file_of_its_full_size_names_the_folder(tiny, write, tmp_path, name):
    collection = write(tiny)
    directory = prepare(collection, tmp_path / "out").directory
    (file,) = directory.glob(name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(DataError) as error:
        prepare(collection, tmp_path / "out").split("val")[0]
    assert str(error.value).startswith(f"{directory} is damaged (")
    assert str(error.value).endswith("remove it, and the same command prepares it again")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "is_damage"),
    [
        (OSError(errno.EMFILE, "Too many open files"), False),
        (MemoryError(), False),
        (OSError("bad record\nof two lines"), True),
    ],
)
def test_lack_of_files_or_memory_is_not_damage(error, is_damage):
    message = r"^here is damaged \(bad record\): remove it" if is_damage else None
    with pytest.raises(DataError if is_damage else type(error), match=message):
        with explained_damage("here"):
            raise error


def test_damaged_set_with_foreign_files_is_kept(tiny, write, tmp_path):
    collection = write(tiny)
    directory = prepare(collection, tmp_path / "out").directory
    (directory / "index.json").unlink()
    incomplete = directory.with_name(f"incomplete.ABC123_{directory.name}")
    for folder in (incomplete, directory):
        (folder / "notes").mkdir(parents=True)
        (folder / "notes" / "foreign.txt").write_text("foreign")
    before = sorted(directory.iterdir())
    with pytest.raises(OSError, match="notes"):
        prepare(collection, tmp_path / "out")
    assert sorted(directory.iterdir()) == before
    elsewhere = directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(elsewhere)
    with pytest.raises(OSError, match="link"):
        prepare(collection, tmp_path / "out")
    assert len(list(elsewhere.iterdir())) == len(before)
    directory.unlink()
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)
    assert (incomplete / "notes" / "foreign.txt").read_text() == "foreign"


# Reading by index


def test_index_beyond_the_split_is_an_index_error(tiny, write, tmp_path):
    source = prepare(write(tiny), tmp_path).split("train")
    assert source[-1].video_id == source[3].video_id == "train_3"
    for index in (4, -5):
        with pytest.raises(IndexError, match="of 4"):
            source[index]
    assert [record.video_id for record in source] == list(source.video_ids)


@pytest.mark.slow  # it takes seconds
def test_prepared_set_is_read_from_threads_pickles_and_forks(tiny, write, tmp_path):
    source = prepare(write(tiny), tmp_path).split("train")

    def read(k):
        return source[k % 4].frames.tobytes()

    expected = [read(k) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(200))) == expected * 50
    assert pickle.loads(pickle.dumps(source))[2].frames.tobytes() == expected[2]
    fork = """
source = prepare(collection, data_dir).split('train')
first = source[2].frames.tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if source[2].frames.tobytes() == first else 1)
sys.exit(os.waitpid(child, 0)[1])
"""
    process = python(fork, tmp_path / "manual", tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


# Sizes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([4, 4, 4], [2, 1]), ([9, 9], [1, 1]), ([1], [1]), ([2, 9, 2], [1, 1, 1])],
)
def test_shards_hold_consecutive_records_and_at_least_one(sizes, expected):
    assert module.shard_lengths(sizes, 8) == expected


def test_overflow_of_float16_names_its_frame_or_caption(tiny, write, tmp_path):
    tiny.frames["val_1"][2, 3] = -7e4
    collection = write(tiny)
    with pytest.raises(DataError, match="'val_1_2' .*-70000"):
        prepare(collection, tmp_path / "out", "float16")
    tiny.frames["val_1"][2, 3] = 65504.0
    tiny.words["train_2#enc#1"][0, 0] = 1e6
    collection = tiny.write(tmp_path / "text", np.random.default_rng(1))
    with pytest.raises(DataError, match="'train_2#enc#1' .*1e.06"):
        prepare(collection, tmp_path / "out", "float16")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)


def test_underflow_of_float16_names_its_frame_or_caption(tiny, write, tmp_path):
    tiny.frames["val_1"][2] = 1e-9
    collection = write(tiny)
    with pytest.raises(DataError, match="'val_1_2' .* holds no value above 1e-09, and float16 .*0"):
        prepare(collection, tmp_path / "out", "float16")
    tiny.frames["val_1"][2] = 0.5
    tiny.words["train_2#enc#1"][0] = -1e-9
    collection = tiny.write(tmp_path / "text", np.random.default_rng(1))
    with pytest.raises(DataError, match="'train_2#enc#1' .*holds no value above 1e-09"):
        prepare(collection, tmp_path / "out", "float16")
    assert_prepared(prepare(collection, tmp_path / "out"), tiny)


def test_many_values_that_float16_stores_as_zero_are_counted(tiny, write, tmp_path, caplog):
    for frames in tiny.frames.values():
        frames[:, 1:] = 1e-9
    collection = write(tiny)
    prepare(collection, tmp_path / "out", "float16")
    number, share, total = re.search(
        r"(\d+) \((.*?)%\) of (\d+) values are too small for float16", caplog.text
    ).groups()
    assert int(number) == sum(frames[:, 1:].size for frames in tiny.frames.values())
    assert float(share) == pytest.approx(100 * int(number) / int(total), abs=0.06)


def test_full_disk_is_reported_before_writing(tiny, write, tmp_path, monkeypatch):
    collection = write(tiny)
    full = SimpleNamespace(total=10, used=10, free=600)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: full)
    with pytest.raises(OSError, match="or halve the need with data.storage = 'float16'$"):
        prepare(collection, tmp_path / "out")
    full.free = 300
    with pytest.raises(OSError, match="set data.data_dir to another disk$"):
        prepare(collection, tmp_path / "out", storage="float16")
    assert list((tmp_path / "out").glob("prvr/*/[!.]*")) == []


def test_failed_write_is_an_error_of_the_system(tiny, write, tmp_path):
    collection, (soft, hard) = write(tiny), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"1\.0\.0: write\(\) failed: File too large"):
            prepare(collection, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "out").glob("prvr/*/[!.]*")) == []


# Sources


class Toy(Source, Reader):
    """Two videos a split, of three frames and two words."""

    name, feature, visual_dim, text_dim = "toy", "constant", 3, 2
    splits = {}  # replaced in each instance

    def __init__(self):
        self.splits = {
            split: {f"{split}_{k}": [Caption(f"{split}_{k}#0", "a toy")] for k in range(2)}
            for split in SPLITS
        }

    def fingerprint(self):
        return digest("toy")

    def open(self):
        return contextlib.nullcontext(self)

    def num_frames(self, video):
        return 3

    def num_words(self, caption_id):
        return 2

    def read_frames(self, video):
        return np.full((3, 3), int(video[-1]) + 1, np.float32)

    def read_words(self, caption_id):
        return np.ones((2, 2), np.float32)


SOURCE_FAULTS = {
    "a split is missing": (lambda t: t.splits.pop("val"), "toy: has the splits .'test', 'train'.;"),
    "a split is empty": (lambda t: t.splits["val"].clear(), "toy: split 'val' has no video"),
    "no caption": (lambda t: t.splits["val"].update(val_1=[]), "'val_1' of val has no caption"),
    "no frame": (lambda t: setattr(t, "num_frames", lambda v: 0), "'train_0' .* has no frame"),
    "no word": (lambda t: setattr(t, "num_words", lambda c: 0), "'train_0#0' .* has no word"),
    "an id twice": (
        lambda t: t.splits["val"].update(val_1=[Caption("val_0#0", "again")]),
        "caption 'val_0#0' appears twice in val",
    ),
    "other shape": (
        lambda t: setattr(t, "read_frames", lambda v: np.ones((4, 3), np.float32)),
        r"frame 0 of video 'train_0': the source gave float32 of shape \(4, 3\).*\(3, 3\)",
    ),
    "other dtype": (
        lambda t: setattr(t, "read_words", lambda c: np.ones((2, 2))),
        "caption 'train_0#0': the source gave float64",
    ),
    "more than memory": (
        lambda t: setattr(t, "num_frames", lambda v: 10**15),
        "video 'train_0' would take .* GB of memory",
    ),
    "no array": (
        lambda t: setattr(t, "read_words", lambda c: None),
        r"caption 'train_0#0': the source gave None; .* of float32 of shape \(2, 2\)",
    ),
    "a list": (
        lambda t: setattr(t, "read_frames", lambda v: [[1.0, 2.0, 3.0]] * 3),
        r"frame 0 of video 'train_0': the source gave \[\[1.0, .*; it must be an array of float32",
    ),
    "a caption without an id": (
        lambda t: t.splits["val"].update(val_1=["a person"]),
        "'val_1' of val has the caption 'a person'; captions must be",
    ),
    "fingerprint of no text": (
        lambda t: setattr(t, "fingerprint", lambda: None),
        "its fingerprint is None; it must be",
    ),
    "no fingerprint": (lambda t: setattr(t, "fingerprint", lambda: "a/b"), "'a/b'; it must be"),
}


@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_fault_of_a_source_is_one_line(tmp_path, fault):
    toy = Toy()
    break_it, expected = SOURCE_FAULTS[fault]
    break_it(toy)
    with pytest.raises(DataError, match=expected) as error:
        prepare(toy, tmp_path)
    assert "\n" not in str(error.value)


def test_size_of_the_memory_is_the_limit(monkeypatch):
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    check_memory(4_096_000, "a corpus", "make it smaller")
    with pytest.raises(DataError, match="a corpus .* GB .*smaller"):
        check_memory(4_096_001, "a corpus", "make it smaller")
