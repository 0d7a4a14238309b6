"""The files of the released layout: read as they are, never run, and every fault named."""

import ast
import os
import random
import re
import tracemalloc
import warnings

import corpora
import h5py
import numpy as np
import pytest
from corpora import assert_refused, edit, feature, line, read_all

from hlformer_jax.data.released_files import read_frame_lists
from hlformer_jax.data.source import DataError

# id.txt and video2frames.txt


V2F, BIN = "video2frames.txt", "feature.bin"


def recode(data, dtype):
    return np.frombuffer(data, "<f4").astype(dtype).tobytes()


def sub(old, new):
    return lambda data: re.sub(old, new, data)


FRAME_FAULTS = [
    ("id.txt", sub(rb" \S+\Z", b""), ["names 23 rows", "24"]),
    ("id.txt", lambda d: d + b" extra_1", ["names 25 rows", "24"]),
    ("id.txt", sub(rb"\btrain_1_0\b", b"train_1_1"), ["'train_1_1'", "twice"]),
    (V2F, sub(b"'train_2_1'", b"'train_2_99'"), ["'train_2_99'", "'train_2'", "id.txt"]),
    (V2F, sub(b"'train_2':", b"'train_1':"), ["'train_1'", "twice"]),
    (V2F, sub(rb"('train_2': )\[.*?\]", rb"\1 7"), ["'train_2'", "list of frames"]),
    (V2F, lambda d: d[: len(d) // 2], [f"{V2F}:1:", "expected"]),
    (V2F, sub(b"'train_2_0',", b"\n'train_2_0'"), [f"{V2F}:2:", "expected ','"]),
    (V2F, sub(rb"\['train_0_0'\]", b"('train_0_0')"), ["not a list"]),
    (V2F, lambda d: d + b"\nprint()", [f"{V2F}:2:1", "after the end"]),
    (V2F, sub(b"'train_2':", b"'train_\xe9':"), ["not UTF-8"]),
    (V2F, lambda d: b"{'train_0': ['" + b"x" * 30_000_000, [f"{V2F}:1:14", "frame's name in quot"]),
    (BIN, lambda d: d + d[:12], ["12 bytes too long", "shape.txt"]),
    (BIN, lambda d: d[:-4], ["4 bytes too short", "shape.txt"]),
    (BIN, lambda d: recode(d, "<f8"), ["too long", "float64"]),
    (BIN, lambda d: recode(d, "<f2"), ["too short", "float16"]),
    (BIN, lambda d: recode(d, ">f4"), ["big-endian"]),
    (BIN, lambda d: recode(d[: len(d) // 2], "<f8"), ["float64"]),
    (BIN, lambda d: bytes(len(d)), ["is zero"]),
    ("shape.txt", lambda d: b"24 6 1\n", ["shape.txt:1", "24 6 1", "ROWS WIDTH"]),
    ("shape.txt", lambda d: b"24\n", ["shape.txt:1", "ROWS WIDTH"]),
    ("shape.txt", lambda d: b"24 six\n", ["shape.txt:1", "24 six"]),
    ("shape.txt", lambda d: b"0 6\n", ["shape.txt:1", "positive"]),
    ("shape.txt", lambda d: b"12 12\n", ["shape.txt:1", "12 wide", "says 6", "data.visual_dim"]),
    ("shape.txt", lambda d: b"9" * 5000 + b" 6\n", ["shape.txt:1", "ROWS WIDTH"]),
]


@pytest.mark.parametrize(("name", "change", "expected"), FRAME_FAULTS)
def test_a_file_of_frames_that_is_wrong_is_refused(tiny, write, name, change, expected):
    assert_refused(write(tiny), feature(name, change), [name, *expected])


def test_names_separated_by_newlines_are_read(tiny, write):
    collection = write(tiny)
    edit(collection.feature_dir / "id.txt", lambda data: data.replace(b" ", b"\r\n"))
    with collection.open() as reader:
        np.testing.assert_array_equal(reader.read_frames("train_3"), tiny.frames["train_3"])


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-8"])
def test_names_that_are_not_ascii_are_read(tiny, write, encoding):
    # In UTF-8, à ends in a byte that is a blank in ISO-8859-1.
    collection = write(tiny)
    for name, code in (("id.txt", encoding), ("video2frames.txt", "utf-8")):
        edit(
            collection.feature_dir / name,
            lambda data, code=code: data.decode().replace("train_3_", "éà_").encode(code),
        )
    with collection.open() as reader:
        np.testing.assert_array_equal(reader.read_frames("train_3"), tiny.frames["train_3"])


def test_frame_lists_may_be_tuples_over_many_lines(tiny, write):
    collection = write(tiny)
    lists = {
        video: tuple(f"{video}_{k}" for k in range(len(x))) for video, x in tiny.frames.items()
    }
    text = repr(lists).replace("), ", "),\n ").replace("', '", "' ,\t'")
    (collection.feature_dir / "video2frames.txt").write_text("\n" + text + "\n")
    with collection.open() as reader:
        for video, frames in tiny.frames.items():
            np.testing.assert_array_equal(reader.read_frames(video), frames)


def test_a_string_without_end_takes_no_memory_beyond_the_file(tmp_path):
    path = tmp_path / V2F
    path.write_bytes(b"{'train_0': ['" + b"x" * 4_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="expected a frame"):
            read_frame_lists(path, {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_expression_in_frame_lists_is_refused_and_not_run(tiny, write, tmp_path):
    collection = write(tiny)
    trace = tmp_path / "ran"
    planted = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    path = collection.feature_dir / V2F
    sound = path.read_text()
    for text in (planted, sound[:-1] + f", 'x': {planted}}}", sound[:-1] + f", 'x': [{planted}]}}"):
        path.write_text(text)
        with pytest.raises(DataError, match="never run as code"):
            collection.open()
    assert not trace.exists()


def test_frame_lists_are_read_as_python_reads_them(tmp_path):
    rng = random.Random(0)
    pieces = ["back\\slash", *"a b_1 v[1] it's q\"q ] ( é 日本 , : } x#y '".split()]
    names = [first + second for first in pieces for second in pieces]
    row_of = {name.encode(): row for row, name in enumerate(names)}
    path = tmp_path / V2F
    read, refused = 0, 0
    for _ in range(3000):
        lists = {
            rng.choice(names): rng.choice((list, tuple))(rng.choices(names, k=rng.randint(0, 4)))
            for _ in range(rng.randint(0, 3))
        }
        text = repr(lists)
        if rng.random() < 0.5:  # a text that is broken or not must never be taken for another one
            at = rng.randrange(len(text))
            text = (
                text[:at] + rng.choice(["", *"'\"[](){},:\\ \n1#"]) + text[at + rng.randint(0, 1) :]
            )
        path.write_text(text)
        try:
            found = read_frame_lists(path, row_of)
        except DataError:
            refused += 1
            assert text != repr(lists)
            continue
        read += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            expected = {video: list(frames) for video, frames in ast.literal_eval(text).items()}
        assert {v: [names[row] for row in rows] for v, rows in found.items()} == expected
    assert read > 1500 and refused > 500


# HDF5


def _replace(file, caption, value):
    del file[caption]
    if value is not None:
        file[caption] = value


def _nest(file):
    for name in list(file):
        file.move(name, f"all/{name}")


def _low_level(file, dtype=h5py.h5t.IEEE_F32LE, shape=(3, 5), **properties):
    """Puts a dataset of such a shape and storage in a caption's place, without writing to it."""
    del file[NAME]
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for name, value in properties.items():
        getattr(creation, name)(*value)
    space = h5py.h5s.create(h5py.h5s.NULL) if shape is None else shape
    if isinstance(space, tuple):
        most = tuple(h5py.h5s.UNLIMITED if "set_chunk" in properties else n for n in space)
        space = h5py.h5s.create_simple(space, most)
    h5py.h5d.create(file.id, NAME.encode(), dtype, space, creation)


def _chunked(file, chunks, values):
    """Writes some values of three words in chunks."""
    del file[NAME]
    data = file.create_dataset(NAME, (3, 5), "f4", chunks=chunks, maxshape=(None, 5))
    data[: len(values)] = values


def _virtual(file):
    del file[NAME]
    layout = h5py.VirtualLayout((3, 5), "f4")
    layout[:] = h5py.VirtualSource("missing.h5", "x", shape=(3, 5))
    file.create_virtual_dataset(NAME, layout)


NAME = "val_1#enc#1"
HDF5_FAULTS = [
    (lambda f: _replace(f, NAME, np.zeros(5, "f4")), "(5,)"),
    (lambda f: _replace(f, NAME, np.zeros((1, 3, 5), "f4")), "(1, 3, 5)"),
    (lambda f: _replace(f, NAME, np.zeros((0, 5), "f4")), "no words"),
    (lambda f: _replace(f, NAME, np.zeros((3, 7), "f4")), "7 wide, the configuration says 5; set"),
    (lambda f: _replace(f, NAME, np.zeros((3, 5), "i8")), "int64"),
    (lambda f: f.move(NAME, "x") or f.move("x", f"{NAME}/feat"), "group"),
    (lambda f: _low_level(f, shape=None), "shape None"),
    (lambda f: _low_level(f, shape=(2**40, 5), set_chunk=((1000, 5),)), "1099511627776 words"),
    (lambda f: _low_level(f, h5py.h5t.STD_REF_OBJ), "not floating point"),
    (lambda f: _low_level(f), "never written"),
    (lambda f: _low_level(f, set_chunk=((1, 5),)), "never written"),
    (lambda f: _low_level(f, set_external=(b"/dev/zero", 0, 60)), "another file"),
    (lambda f: _chunked(f, (2**18, 5), np.ones((3, 5), "f4")), "chunks of (262144, 5)"),
    (lambda f: _chunked(f, (1, 5), np.ones((2, 5), "f4")), "in part"),
    (lambda f: _virtual(f), "another file"),
    (lambda f: _replace(f, NAME, h5py.ExternalLink("/dev/zero", "x")), "are a link"),
]


@pytest.mark.parametrize(("change", "expected"), HDF5_FAULTS)
def test_a_dataset_that_is_wrong_is_refused(tiny, write, change, expected):
    assert_refused(write(tiny), corpora.words(change), [".hdf5", f"'{NAME}'", expected])


FILE_FAULTS = {
    "damaged": (
        lambda c: edit(c.text_features, lambda d: d[:2000] + bytes(len(d) - 2000)),
        ["roberta_tiny_query_feat.hdf5", "damaged"],
    ),
    "not_hdf5": (lambda c: c.text_features.write_bytes(b"version https://git"), [".hdf5", "HDF5"]),
    "other_infix": (
        lambda c: edit(c.captions("train"), line(3, b"train_1#dec#1 a person")),
        ["tinytrain.caption.txt:3", "'train_1#dec#1'", "no features", ".hdf5"],
    ),
    "missing": (
        corpora.words(lambda f: _replace(f, NAME, None)),
        ["tinyval.caption.txt:3", f"'{NAME}'", "no features", ".hdf5"],
    ),
    "nested": (corpora.words(_nest), [".hdf5", "'train_0#enc#0'", "'all'", "top level"]),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_a_file_of_words_that_is_wrong_is_refused(tiny, write, fault):
    assert_refused(write(tiny), *FILE_FAULTS[fault])


def test_float16_text_of_a_hundred_words_is_read(tiny, write):
    tiny.words["val_0#enc#0"] = np.random.default_rng(2).normal(size=(100, 5)).astype(np.float16)
    with write(tiny).open() as reader:
        words = reader.read_words("val_0#enc#0")
    assert words.dtype == np.float32
    np.testing.assert_array_equal(words, tiny.words["val_0#enc#0"])


@pytest.mark.parametrize("name", ["val_1#enc#1", "other"])
def test_a_link_to_a_pipe_is_not_opened_for_that_would_never_return(tiny, write, tmp_path, name):
    collection = write(tiny)
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(collection.text_features, "r+") as file:
        del file["val_1#enc#1"]
        file[name] = h5py.ExternalLink(str(tmp_path / "pipe"), "x")
    with pytest.raises(DataError, match="are a link|has no features"):
        read_all(collection)
