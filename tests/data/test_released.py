"""The strict reader: what must work works, and every fault is named with its file and place."""

import ast
import dataclasses
import logging
import os
import random
import re
import tracemalloc
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from absl import logging as absl_logging

from hlformer_jax.data.prepared.records import Records
from hlformer_jax.data.released.captions import ListedCaption
from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.released.frame_lists import read_frame_lists
from hlformer_jax.data.source import DataError


def read_all(collection):
    """Opens a collection and makes every record of it."""
    with collection.open() as reader:
        records = Records(collection, reader, "float32")
        for split, videos in reader.splits.items():
            for video in videos:
                records.make(split, video)
        records.warn_of_zeros()


def edit(path: Path, change) -> None:
    """Replaces a file's bytes."""
    path.write_bytes(change(path.read_bytes()))


def line(number: int, new: bytes):
    """Replaces a line, counted from 1."""

    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[number - 1] = new
        return b"\n".join(lines)

    return change


def test_values_come_back_in_time_order_from_shuffled_rows(tiny, write):
    with write(tiny).open() as reader:
        for split, captions in tiny.captions.items():
            listed = [c.caption_id for cs in reader.splits[split].values() for c in cs]
            assert listed == [caption for caption, _ in captions]
            assert list(reader.splits[split]) == list(
                dict.fromkeys(v for v in tiny.frames if v.startswith(split))
            )
        for video, frames in tiny.frames.items():
            read = reader.read_frames(video)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, frames)
        for caption, words in tiny.words.items():
            np.testing.assert_array_equal(reader.read_words(caption), words)


def test_order_is_that_of_first_appearance(tiny, write):
    tiny.captions["train"] = [tiny.captions["train"][k] for k in (3, 0, 5, 1, 4, 2, 6)]
    with write(tiny).open() as reader:
        captions = {v: [c.caption_id for c in cs] for v, cs in reader.splits["train"].items()}
    assert captions == {
        "train_2": ["train_2#enc#0", "train_2#enc#2", "train_2#enc#1"],
        "train_0": ["train_0#enc#0"],
        "train_1": ["train_1#enc#0", "train_1#enc#1"],
        "train_3": ["train_3#enc#0"],
    }


# What the released reader takes, and this one must.


def test_crlf_line_ends_are_read(tiny, write):
    collection = write(tiny)
    for path in (collection.captions("train"), collection.feature_dir / "shape.txt"):
        edit(path, lambda data: data.replace(b"\n", b"\r\n"))
    with collection.open() as reader:
        assert reader.splits["train"]["train_0"][0].sentence == "a person does thing 0"


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


def test_float16_text_of_a_hundred_words_is_read(tiny, write):
    tiny.words["val_0#enc#0"] = np.random.default_rng(2).normal(size=(100, 5)).astype(np.float16)
    with write(tiny).open() as reader:
        words = reader.read_words("val_0#enc#0")
    assert words.dtype == np.float32
    np.testing.assert_array_equal(words, tiny.words["val_0#enc#0"])


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


def test_blanks_and_characters_of_real_captions_are_read(tiny, write):
    collection = write(tiny)
    first = 'train_0#enc#0  Zoë says: "#1, it\'s 50\u2028% off"  \n'
    edit(collection.captions("train"), line(1, first.encode().rstrip(b"\n")))
    with collection.open() as reader:
        caption = reader.splits["train"]["train_0"][0]
    assert caption == ListedCaption("train_0#enc#0", 'Zoë says: "#1, it\'s 50\u2028% off"', 1)


def test_validation_list_may_be_the_test_list(tiny, write):
    tiny.captions["val"] = tiny.captions["test"]
    with write(tiny).open() as reader:
        assert reader.splits["val"] == reader.splits["test"]


def test_last_line_may_lack_its_newline(tiny, write):
    collection = write(tiny)
    edit(collection.captions("test"), bytes.rstrip)
    with collection.open() as reader:
        assert len(reader.splits["test"]) == 2


# Faults. Each breaks a sound corpus in one way and says what the message must hold.


def _h5(change):
    def broken(collection):
        with h5py.File(collection.text_features, "r+") as file:
            change(file)

    return broken


def _replace(file, caption, value):
    del file[caption]
    if value is not None:
        file[caption] = value


def _nest(file):
    for name in list(file):
        file.move(name, f"all/{name}")


def _poke(collection, name, value):
    """Writes a value into the row of a frame."""
    row = (collection.feature_dir / "id.txt").read_text().split().index(name)
    features = np.memmap(collection.feature_dir / "feature.bin", "<f4", "r+").reshape(-1, 6)
    features[row, 3] = value
    features.flush()


def _captions(number, new, split="train"):
    return lambda c: edit(c.captions(split), line(number, new))


def _feature(name, change):
    return lambda c: edit(c.feature_dir / name, change)


def _recode(dtype):
    return _feature("feature.bin", lambda data: np.frombuffer(data, "<f4").astype(dtype).tobytes())


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

    return _h5(change)


def _write_in_part(file):
    del file["val_1#enc#1"]
    data = file.create_dataset("val_1#enc#1", shape=(3, 5), dtype="f4", chunks=(1, 5))
    data[:2] = 1


def _virtual(file):
    del file["val_1#enc#1"]
    layout = h5py.VirtualLayout((3, 5), "f4")
    layout[:] = h5py.VirtualSource("missing.h5", "x", shape=(3, 5))
    file.create_virtual_dataset("val_1#enc#1", layout)


def _zero_rows(share):
    """Zeros in the last rows of feature.bin, as where a download was broken off."""

    def change(data):
        kept = len(data) // 24 * round(24 * (1 - share))
        return data[:kept] + bytes(len(data) - kept)

    return _feature("feature.bin", change)


V2F = "video2frames.txt"
FAULTS = {
    "collection_missing": (
        lambda c: c.root.rename(c.root.with_name("other")),
        [
            "tiny",
            "MS-SL",
            "does not exist",
            "feature.bin",
            "video2frames.txt",
            "tinytest.caption.txt",
        ],
    ),
    **{
        f"missing_{name}": (
            lambda c, name=name: (c.feature_dir / name).unlink(),
            [name, "no such file"],
        )
        for name in ("feature.bin", "id.txt", "shape.txt", V2F)
    },
    **{
        f"missing_{split}": (
            lambda c, split=split: c.captions(split).unlink(),
            [f"tiny{split}.caption.txt", "no such file"],
        )
        for split in ("train", "val", "test")
    },
    "missing_text": (
        lambda c: c.text_features.unlink(),
        ["roberta_tiny_query_feat.hdf5", "no such file"],
    ),
    "bin_long": (
        _feature("feature.bin", lambda d: d + d[:12]),
        ["feature.bin", "12 bytes too long", "shape.txt"],
    ),
    "bin_short": (
        _feature("feature.bin", lambda d: d[:-4]),
        ["feature.bin", "4 bytes too short", "shape.txt"],
    ),
    "bin_float64": (_recode("<f8"), ["feature.bin", "too long", "float64"]),
    "bin_float16": (_recode("<f2"), ["feature.bin", "too short", "float16"]),
    "bin_big_endian": (_recode(">f4"), ["feature.bin", "big-endian"]),
    "bin_of_zeros": (_feature("feature.bin", lambda d: bytes(len(d))), ["feature.bin", "is zero"]),
    "text_damaged": (
        lambda c: edit(c.text_features, lambda d: d[:2000] + bytes(len(d) - 2000)),
        ["roberta_tiny_query_feat.hdf5", "download it again"],
    ),
    "bin_float64_of_right_size": (
        _feature(
            "feature.bin", lambda d: np.frombuffer(d[: len(d) // 2], "<f4").astype("<f8").tobytes()
        ),
        ["feature.bin", "float64"],
    ),
    "shape_three_numbers": (
        _feature("shape.txt", lambda d: b"24 6 1\n"),
        ["shape.txt:1", "24 6 1", "ROWS WIDTH"],
    ),
    "shape_one_number": (_feature("shape.txt", lambda d: b"24\n"), ["shape.txt:1", "ROWS WIDTH"]),
    "shape_words": (_feature("shape.txt", lambda d: b"24 six\n"), ["shape.txt:1", "24 six"]),
    "shape_zero": (_feature("shape.txt", lambda d: b"0 6\n"), ["shape.txt:1", "positive"]),
    "shape_width": (
        _feature("shape.txt", lambda d: b"12 12\n"),
        ["shape.txt:1", "12 wide", "says 6", "data.visual_dim"],
    ),
    "ids_too_few": (
        _feature("id.txt", lambda d: d.rsplit(b" ", 1)[0]),
        ["id.txt", "names 23 rows", "24"],
    ),
    "ids_too_many": (
        _feature("id.txt", lambda d: d + b" extra_1"),
        ["id.txt", "names 25 rows", "24"],
    ),
    "ids_twice": (
        _feature("id.txt", lambda d: re.sub(rb"\btrain_1_0\b", b"train_1_1", d)),
        ["id.txt", "'train_1_1'", "twice"],
    ),
    "video_not_listed": (
        _feature(V2F, lambda d: d.replace(b"'train_2'", b"'train_9'")),
        ["tinytrain.caption.txt:4", "'train_2'", V2F],
    ),
    "frame_not_in_ids": (
        _feature(V2F, lambda d: d.replace(b"'train_2_1'", b"'train_2_99'")),
        [V2F, "'train_2_99'", "'train_2'", "id.txt"],
    ),
    "video_without_frames": (
        _feature(V2F, lambda d: re.sub(rb"('train_2': )\[.*?\]", rb"\1[]", d)),
        [V2F, "'train_2'", "no frames", "tinytrain.caption.txt:4"],
    ),
    "video_twice": (
        _feature(V2F, lambda d: d.replace(b"'train_2':", b"'train_1':")),
        [V2F, "'train_1'", "twice"],
    ),
    "list_is_a_number": (
        _feature(V2F, lambda d: re.sub(rb"('train_2': )\[.*?\]", rb"\1 7", d)),
        [V2F, "'train_2'", "list of frames"],
    ),
    "list_is_cut_off": (_feature(V2F, lambda d: d[: len(d) // 2]), [f"{V2F}:1:", "expected"]),
    "list_has_no_comma": (
        _feature(V2F, lambda d: d.replace(b"'train_2_0',", b"\n'train_2_0'")),
        [f"{V2F}:2:", "expected ','"],
    ),
    "list_is_a_parenthesis": (
        _feature(V2F, lambda d: d.replace(b"['train_0_0']", b"('train_0_0')")),
        [V2F, "not a list"],
    ),
    "text_after_the_dict": (
        _feature(V2F, lambda d: d + b"\nprint()"),
        [f"{V2F}:2:1", "after the end"],
    ),
    "frame_lists_not_utf8": (
        _feature(V2F, lambda d: d.replace(b"'train_2':", b"'train_\xe9':")),
        [V2F, "not UTF-8"],
    ),
    "caption_blank_line": (_captions(3, b""), ["tinytrain.caption.txt:3", "blank line"]),
    "caption_without_sentence": (
        _captions(3, b"train_1#enc#1 "),
        ["tinytrain.caption.txt:3", "'train_1#enc#1'", "no sentence"],
    ),
    "caption_newline_inside": (
        _captions(3, b"train_1#enc#1 a person\ndoes thing"),
        ["tinytrain.caption.txt:4", "'does'", "newline"],
    ),
    "caption_carriage_return_inside": (
        _captions(3, b"train_1#enc#1 a person\rdoes"),
        ["tinytrain.caption.txt:3", "carriage return"],
    ),
    "caption_tab": (
        _captions(3, b"train_1#enc#1\ta person"),
        ["tinytrain.caption.txt:3", "'train_1#enc#1'", r"\t"],
    ),
    "caption_video_with_blank": (
        _captions(3, b"train 1#enc#1 a person"),
        ["tinytrain.caption.txt:3", "'train'", "blank"],
    ),
    "caption_without_video": (
        _captions(3, b"#enc#1 a person"),
        ["tinytrain.caption.txt:3", "'#enc#1'", "no caption id"],
    ),
    "caption_slash": (
        _captions(3, b"train/1#enc#1 a person"),
        ["tinytrain.caption.txt:3", "'train/1#enc#1'"],
    ),
    "caption_bom": (
        lambda c: edit(c.captions("val"), lambda d: b"\xef\xbb\xbf" + d),
        ["tinyval.caption.txt:1", "byte order mark"],
    ),
    "caption_utf16": (
        lambda c: edit(c.captions("val"), lambda d: d.decode().encode("utf-16")),
        ["tinyval.caption.txt:1", "byte order mark"],
    ),
    "caption_latin1": (
        _captions(3, b"train_1#enc#1 caf\xe9"),
        ["tinytrain.caption.txt:3", "0xe9", "UTF-8"],
    ),
    "caption_twice": (
        _captions(3, b"train_1#enc#0 again"),
        ["tinytrain.caption.txt:3", "'train_1#enc#0'", "line 2"],
    ),
    "caption_twice_in_test": (
        _captions(3, b"test_1#enc#0 again", "test"),
        ["tinytest.caption.txt:3", "'test_1#enc#0'", "line 2"],
    ),
    "caption_list_empty": (
        lambda c: c.captions("val").write_bytes(b""),
        ["tinyval.caption.txt", "no caption"],
    ),
    "caption_other_infix": (
        _captions(3, b"train_1#dec#1 a person"),
        ["tinytrain.caption.txt:3", "'train_1#dec#1'", "no features", ".hdf5"],
    ),
    "text_missing": (
        _h5(lambda f: _replace(f, "val_1#enc#1", None)),
        ["tinyval.caption.txt:3", "'val_1#enc#1'", "no features", ".hdf5"],
    ),
    "text_nested": (_h5(_nest), [".hdf5", "'train_0#enc#0'", "'all'", "top level"]),
    "text_group": (
        _h5(lambda f: f.move("val_1#enc#1", "x") or f.move("x", "val_1#enc#1/feat")),
        [".hdf5", "'val_1#enc#1'", "group"],
    ),
    "text_1d": (
        _h5(lambda f: _replace(f, "val_1#enc#1", np.zeros(5, "f4"))),
        [".hdf5", "'val_1#enc#1'", "(5,)"],
    ),
    "text_3d": (
        _h5(lambda f: _replace(f, "val_1#enc#1", np.zeros((1, 3, 5), "f4"))),
        [".hdf5", "'val_1#enc#1'", "(1, 3, 5)"],
    ),
    "text_no_words": (
        _h5(lambda f: _replace(f, "val_1#enc#1", np.zeros((0, 5), "f4"))),
        [".hdf5", "'val_1#enc#1'", "no words"],
    ),
    "text_width": (
        _h5(lambda f: _replace(f, "val_1#enc#1", np.zeros((3, 7), "f4"))),
        [".hdf5", "'val_1#enc#1'", "7 wide", "says 5", "data.text_dim"],
    ),
    "text_integers": (
        _h5(lambda f: _replace(f, "val_1#enc#1", np.zeros((3, 5), "i8"))),
        [".hdf5", "'val_1#enc#1'", "int64"],
    ),
    "text_nan": (
        _h5(lambda f: f["val_1#enc#1"].write_direct(np.full((3, 5), np.nan, "f4"))),
        [".hdf5", "'val_1#enc#1'", "nan"],
    ),
    "text_inf": (
        _h5(lambda f: f["val_1#enc#1"].write_direct(np.full((3, 5), -np.inf, "f4"))),
        [".hdf5", "'val_1#enc#1'", "inf"],
    ),
    "text_null": (_low_level("val_1#enc#1", shape=None), [".hdf5", "'val_1#enc#1'", "shape None"]),
    "text_of_terabytes": (
        _low_level("val_1#enc#1", shape=(2**40, 5), set_chunk=((1000, 5),)),
        [".hdf5", "'val_1#enc#1'", "1099511627776 words"],
    ),
    "text_of_huge_chunks": (
        _h5(
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
    "text_written_in_part": (_h5(_write_in_part), [".hdf5", "'val_1#enc#1'", "in part"]),
    "text_virtual": (_h5(_virtual), [".hdf5", "'val_1#enc#1'", "another file"]),
    "text_of_a_device": (
        _low_level("val_1#enc#1", set_external=(b"/dev/zero", 0, 60)),
        [".hdf5", "'val_1#enc#1'", "another file"],
    ),
    "text_linked_to_another_file": (
        _h5(lambda f: _replace(f, "val_1#enc#1", h5py.ExternalLink("/dev/zero", "x"))),
        [".hdf5", "'val_1#enc#1'", "are a link"],
    ),
    "text_of_zeros": (
        _h5(lambda f: [f[name].write_direct(np.zeros(f[name].shape, "f4")) for name in f]),
        [".hdf5: caption 'train_0#enc#0'", "is zero", "captions", "broken off"],
    ),
    "bin_half_zero": (
        _zero_rows(0.5),
        ["feature.bin: frame 'train_", "is zero", "frames", "(", "%)", "broken off"],
    ),
    "shape_of_many_digits": (
        _feature("shape.txt", lambda d: b"9" * 5000 + b" 6\n"),
        ["shape.txt:1", "ROWS WIDTH"],
    ),
    "string_without_end": (
        _feature(V2F, lambda d: b"{'train_0': ['" + b"x" * 30_000_000),
        [f"{V2F}:1:14", "expected a frame's name in quotes"],
    ),
    "text_not_hdf5": (
        lambda c: c.text_features.write_bytes(b"version https://git-lfs"),
        [".hdf5", "HDF5"],
    ),
    "frame_nan": (
        lambda c: _poke(c, "val_1_2", np.nan),
        ["feature.bin", "'val_1_2'", "'val_1'", "nan"],
    ),
    "frame_signalling_nan": (
        lambda c: _poke(c, "val_1_2", np.uint32(0x7F800001).view("f4")),
        ["feature.bin", "'val_1_2'", "nan"],
    ),
    "frame_inf": (lambda c: _poke(c, "val_1_2", -np.inf), ["feature.bin", "'val_1_2'", "inf"]),
    "frame_absurd": (lambda c: _poke(c, "val_1_2", 3e30), ["feature.bin", "float32"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    collection = write(tiny)
    read_all(collection)
    break_it, expected = FAULTS[fault]
    break_it(collection)
    with pytest.raises(DataError) as error:
        read_all(collection)
    message = str(error.value)
    assert "\n" not in message
    assert [part for part in expected if part not in message] == [], message


@pytest.mark.parametrize("name", ["val_1#enc#1", "other"])
def test_a_link_to_a_pipe_is_not_opened_for_that_would_never_return(tiny, write, tmp_path, name):
    collection = write(tiny)
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(collection.text_features, "r+") as file:
        del file["val_1#enc#1"]
        file[name] = h5py.ExternalLink(str(tmp_path / "pipe"), "x")
    with pytest.raises(DataError, match="are a link|has no features"):
        read_all(collection)


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


def test_a_few_zero_rows_are_padding_and_warned_of(tiny, write):
    tiny.frames["train_3"][2] = 0
    tiny.words["val_1#enc#1"][0] = 0
    warned = _warnings(write(tiny))
    assert len(warned) == 2
    assert "frame 'train_3_2'" in warned[0] and "1 (4.2%) of the 24 frames" in warned[0]
    assert "caption 'val_1#enc#1'" in warned[1] and "all words of 0" in warned[1]


def test_zeros_throughout_one_video_are_refused(tiny, write):
    tiny.frames["val_1"][:] = 0
    with pytest.raises(DataError, match=r"all frames of 1 \(.*%\) of the 6 videos"):
        read_all(write(tiny))


@pytest.mark.parametrize("name", ["../../x", "", "..", "a/b", "a\nb"])
def test_a_collection_is_the_name_of_one_folder(tmp_path, name):
    for names, field in (((name, "i3d"), "collection"), (("tvr", name), "feature")):
        with pytest.raises(DataError, match=f"data.{field} is .* the name of one folder"):
            Collection(tmp_path, *names, 6, 5)


def test_missing_manual_dir_says_what_to_download():
    collection = Collection("", "tvr", "i3d_resnet", 3072, 768)
    with pytest.raises(DataError, match="manual_dir is not set.*MS-SL.*tvrtrain.caption"):
        collection.open()


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
    pieces = [
        "a",
        "b_1",
        "v[1]",
        "it's",
        'q"q',
        "back\\slash",
        "]",
        "(",
        "é",
        "日本",
        ",",
        ":",
        "}",
        "x#y",
        "'",
    ]
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


def test_frames_of_videos_without_captions_need_no_rows(tiny, write):
    collection = write(tiny)
    edit(collection.feature_dir / V2F, lambda d: d[:-1] + b", 'left': ['left_0'], 'out': []}")
    warned = _warnings(collection)
    assert len(warned) == 1
    assert "2 videos have no caption" in warned[0] and V2F in warned[0]


def test_video_in_train_and_test_is_warned_of(tiny, write):
    tiny.captions["test"].append(("train_1#enc#0", "again"))
    warned = _warnings(write(tiny))
    assert len(warned) == 1
    assert "tinytest.caption.txt" in warned[0] and "'" not in warned[0] and "train_1" in warned[0]


def test_sound_corpus_warns_of_nothing(tiny, write):
    assert _warnings(write(tiny)) == []


def _warnings(collection):
    class Collect(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    messages = []
    handler = Collect(logging.WARNING)
    absl_logging.get_absl_logger().addHandler(handler)
    try:
        read_all(collection)
    finally:
        absl_logging.get_absl_logger().removeHandler(handler)
    return messages


def test_fingerprint_follows_the_files(tiny, write, tmp_path):
    collection = write(tiny)
    before = collection.fingerprint()
    assert collection.fingerprint() == before
    assert dataclasses.replace(collection, visual_dim=7).fingerprint() == before
    edit(collection.captions("train"), lambda data: data.replace(b"thing", b"THING"))
    assert collection.fingerprint() != before
