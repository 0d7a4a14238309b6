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


V2F = "video2frames.txt"


FRAME_LIST_FAULTS = {
    "ids_too_few": (
        feature("id.txt", lambda d: d.rsplit(b" ", 1)[0]),
        ["id.txt", "names 23 rows", "24"],
    ),
    "ids_too_many": (
        feature("id.txt", lambda d: d + b" extra_1"),
        ["id.txt", "names 25 rows", "24"],
    ),
    "ids_twice": (
        feature("id.txt", lambda d: re.sub(rb"\btrain_1_0\b", b"train_1_1", d)),
        ["id.txt", "'train_1_1'", "twice"],
    ),
    "frame_not_in_ids": (
        feature(V2F, lambda d: d.replace(b"'train_2_1'", b"'train_2_99'")),
        [V2F, "'train_2_99'", "'train_2'", "id.txt"],
    ),
    "video_twice": (
        feature(V2F, lambda d: d.replace(b"'train_2':", b"'train_1':")),
        [V2F, "'train_1'", "twice"],
    ),
    "list_is_a_number": (
        feature(V2F, lambda d: re.sub(rb"('train_2': )\[.*?\]", rb"\1 7", d)),
        [V2F, "'train_2'", "list of frames"],
    ),
    "list_is_cut_off": (feature(V2F, lambda d: d[: len(d) // 2]), [f"{V2F}:1:", "expected"]),
    "list_has_no_comma": (
        feature(V2F, lambda d: d.replace(b"'train_2_0',", b"\n'train_2_0'")),
        [f"{V2F}:2:", "expected ','"],
    ),
    "list_is_a_parenthesis": (
        feature(V2F, lambda d: d.replace(b"['train_0_0']", b"('train_0_0')")),
        [V2F, "not a list"],
    ),
    "text_after_the_dict": (
        feature(V2F, lambda d: d + b"\nprint()"),
        [f"{V2F}:2:1", "after the end"],
    ),
    "frame_lists_not_utf8": (
        feature(V2F, lambda d: d.replace(b"'train_2':", b"'train_\xe9':")),
        [V2F, "not UTF-8"],
    ),
    "string_without_end": (
        feature(V2F, lambda d: b"{'train_0': ['" + b"x" * 30_000_000),
        [f"{V2F}:1:14", "expected a frame's name in quotes"],
    ),
}


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


# shape.txt and feature.bin


def _recode(dtype):
    return feature("feature.bin", lambda data: np.frombuffer(data, "<f4").astype(dtype).tobytes())


FEATURE_FAULTS = {
    "bin_long": (
        feature("feature.bin", lambda d: d + d[:12]),
        ["feature.bin", "12 bytes too long", "shape.txt"],
    ),
    "bin_short": (
        feature("feature.bin", lambda d: d[:-4]),
        ["feature.bin", "4 bytes too short", "shape.txt"],
    ),
    "bin_float64": (_recode("<f8"), ["feature.bin", "too long", "float64"]),
    "bin_float16": (_recode("<f2"), ["feature.bin", "too short", "float16"]),
    "bin_big_endian": (_recode(">f4"), ["feature.bin", "big-endian"]),
    "bin_of_zeros": (feature("feature.bin", lambda d: bytes(len(d))), ["feature.bin", "is zero"]),
    "bin_float64_of_right_size": (
        feature(
            "feature.bin", lambda d: np.frombuffer(d[: len(d) // 2], "<f4").astype("<f8").tobytes()
        ),
        ["feature.bin", "float64"],
    ),
    "shape_three_numbers": (
        feature("shape.txt", lambda d: b"24 6 1\n"),
        ["shape.txt:1", "24 6 1", "ROWS WIDTH"],
    ),
    "shape_one_number": (feature("shape.txt", lambda d: b"24\n"), ["shape.txt:1", "ROWS WIDTH"]),
    "shape_words": (feature("shape.txt", lambda d: b"24 six\n"), ["shape.txt:1", "24 six"]),
    "shape_zero": (feature("shape.txt", lambda d: b"0 6\n"), ["shape.txt:1", "positive"]),
    "shape_width": (
        feature("shape.txt", lambda d: b"12 12\n"),
        ["shape.txt:1", "12 wide", "says 6", "data.visual_dim"],
    ),
    "shape_of_many_digits": (
        feature("shape.txt", lambda d: b"9" * 5000 + b" 6\n"),
        ["shape.txt:1", "ROWS WIDTH"],
    ),
}


# HDF5


def _replace(file, caption, value):
    del file[caption]
    if value is not None:
        file[caption] = value


def _nest(file):
    for name in list(file):
        file.move(name, f"all/{name}")


def _low_level(caption, dtype=h5py.h5t.IEEE_F32LE, shape=(3, 5), **properties):
    """Puts a dataset of such a shape and storage in a caption's place, without writing to it."""

    def change(file):
        del file[caption]
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        for name, value in properties.items():
            getattr(creation, name)(*value)
        space = h5py.h5s.create(h5py.h5s.NULL) if shape is None else shape
        if isinstance(space, tuple):
            most = tuple(h5py.h5s.UNLIMITED if "set_chunk" in properties else n for n in space)
            space = h5py.h5s.create_simple(space, most)
        h5py.h5d.create(file.id, caption.encode(), dtype, space, creation)

    return corpora.words(change)


def _write_in_part(file):
    del file["val_1#enc#1"]
    data = file.create_dataset("val_1#enc#1", shape=(3, 5), dtype="f4", chunks=(1, 5))
    data[:2] = 1


def _virtual(file):
    del file["val_1#enc#1"]
    layout = h5py.VirtualLayout((3, 5), "f4")
    layout[:] = h5py.VirtualSource("missing.h5", "x", shape=(3, 5))
    file.create_virtual_dataset("val_1#enc#1", layout)


def _captions(number, new, split="train"):
    return lambda c: edit(c.captions(split), line(number, new))


HDF5_FAULTS = {
    "text_damaged": (
        lambda c: edit(c.text_features, lambda d: d[:2000] + bytes(len(d) - 2000)),
        ["roberta_tiny_query_feat.hdf5", "damaged"],
    ),
    "caption_other_infix": (
        _captions(3, b"train_1#dec#1 a person"),
        ["tinytrain.caption.txt:3", "'train_1#dec#1'", "no features", ".hdf5"],
    ),
    "text_missing": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", None)),
        ["tinyval.caption.txt:3", "'val_1#enc#1'", "no features", ".hdf5"],
    ),
    "text_nested": (corpora.words(_nest), [".hdf5", "'train_0#enc#0'", "'all'", "top level"]),
    "text_group": (
        corpora.words(lambda f: f.move("val_1#enc#1", "x") or f.move("x", "val_1#enc#1/feat")),
        [".hdf5", "'val_1#enc#1'", "group"],
    ),
    "text_1d": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", np.zeros(5, "f4"))),
        [".hdf5", "'val_1#enc#1'", "(5,)"],
    ),
    "text_3d": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", np.zeros((1, 3, 5), "f4"))),
        [".hdf5", "'val_1#enc#1'", "(1, 3, 5)"],
    ),
    "text_no_words": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", np.zeros((0, 5), "f4"))),
        [".hdf5", "'val_1#enc#1'", "no words"],
    ),
    "text_width": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", np.zeros((3, 7), "f4"))),
        [".hdf5", "'val_1#enc#1'", "7 wide", "says 5", "data.text_dim"],
    ),
    "text_integers": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", np.zeros((3, 5), "i8"))),
        [".hdf5", "'val_1#enc#1'", "int64"],
    ),
    "text_null": (_low_level("val_1#enc#1", shape=None), [".hdf5", "'val_1#enc#1'", "shape None"]),
    "text_of_terabytes": (
        _low_level("val_1#enc#1", shape=(2**40, 5), set_chunk=((1000, 5),)),
        [".hdf5", "'val_1#enc#1'", "1099511627776 words"],
    ),
    "text_of_huge_chunks": (
        corpora.words(
            lambda f: (
                f.__delitem__("val_1#enc#1"),
                f.create_dataset(
                    "val_1#enc#1",
                    data=np.ones((3, 5), "f4"),
                    chunks=(2**18, 5),
                    maxshape=(None, 5),
                ),
            )
        ),
        [".hdf5", "'val_1#enc#1'", "chunks of (262144, 5)"],
    ),
    "text_without_numpy_type": (
        _low_level("val_1#enc#1", h5py.h5t.STD_REF_OBJ),
        [".hdf5", "'val_1#enc#1'", "not floating point"],
    ),
    "text_never_written": (
        _low_level("val_1#enc#1"),
        [".hdf5", "'val_1#enc#1'", "never written"],
    ),
    "text_chunks_never_written": (
        _low_level("val_1#enc#1", set_chunk=((1, 5),)),
        [".hdf5", "'val_1#enc#1'", "never written"],
    ),
    "text_written_in_part": (corpora.words(_write_in_part), [".hdf5", "'val_1#enc#1'", "in part"]),
    "text_virtual": (corpora.words(_virtual), [".hdf5", "'val_1#enc#1'", "another file"]),
    "text_of_a_device": (
        _low_level("val_1#enc#1", set_external=(b"/dev/zero", 0, 60)),
        [".hdf5", "'val_1#enc#1'", "another file"],
    ),
    "text_linked_to_another_file": (
        corpora.words(lambda f: _replace(f, "val_1#enc#1", h5py.ExternalLink("/dev/zero", "x"))),
        [".hdf5", "'val_1#enc#1'", "are a link"],
    ),
    "text_not_hdf5": (
        lambda c: c.text_features.write_bytes(b"version https://git-lfs"),
        [".hdf5", "HDF5"],
    ),
}


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


FAULTS = FRAME_LIST_FAULTS | FEATURE_FAULTS | HDF5_FAULTS


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])
