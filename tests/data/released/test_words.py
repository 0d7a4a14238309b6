"""The HDF5 file of words: what it holds is read, what it only declares is refused."""

import os

import corpora
import h5py
import numpy as np
import pytest
from corpora import assert_refused, edit, line, read_all

from hlformer_jax.data.source import DataError


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


FAULTS = {
    "text_damaged": (
        lambda c: edit(c.text_features, lambda d: d[:2000] + bytes(len(d) - 2000)),
        ["roberta_tiny_query_feat.hdf5", "download it again"],
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


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])


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
