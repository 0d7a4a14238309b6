"""The released files of a teacher: read as they are, refused with their place."""

import dataclasses

import h5py
import numpy as np
import pytest
from corpora import assert_refused, edit

from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.released.layout import Layout
from hlformer_jax.data.released.teacher import TaughtCollection
from hlformer_jax.data.source import DataError, TaughtReader, TaughtSource

WIDTH = 4


def _teach(collection):
    """Puts a teacher's files beside the released ones: of the training split, as published."""
    fields = (getattr(collection, field.name) for field in dataclasses.fields(Layout))
    taught = TaughtCollection(*fields, WIDTH)
    rng = np.random.default_rng(3)
    lines = taught.captions("train").read_text().splitlines()
    ids = [line.split(" ", 1)[0] for line in lines]
    with h5py.File(taught.teacher_captions, "w") as file:
        for row, name in enumerate(ids):  # both forms, and both shapes
            vector = rng.normal(size=(1, WIDTH)).astype("f4" if row % 2 else "f2")
            name = name.replace("#enc#", "#") if row == 1 else name
            file[name] = vector[0] if row == 2 else vector
    with h5py.File(taught.teacher_frames, "w") as file:
        for row, video in enumerate(dict.fromkeys(name.split("#")[0] for name in ids)):
            file[video] = rng.normal(size=(2 + 3 * row, WIDTH)).astype("f4")
    return taught


def test_the_teacher_is_read_and_prepared(tiny, write, tmp_path):
    collection = _teach(write(tiny))
    assert isinstance(collection, TaughtSource)
    with collection.open() as reader, h5py.File(collection.teacher_frames) as frames:
        assert isinstance(reader, TaughtReader)
        ids = [caption.caption_id for caption in reader.splits["train"]["train_1"]]
        teacher = reader.read_teacher("train_1", ids)
        np.testing.assert_array_equal(teacher.frames, frames["train_1"])
        assert teacher.captions.shape == (len(ids), WIDTH)
        assert teacher.frames.dtype == teacher.captions.dtype == np.float32
    train = prepare(collection, tmp_path / "out").split("train")
    record = train[train.video_ids.index("train_1")]
    assert (record.teacher_frames == teacher.frames).all()
    assert (record.teacher_captions == teacher.captions).all()
    plain = prepare(collection, tmp_path / "out").split("val")[0]
    assert plain.teacher_frames is None and plain.teacher_captions is None


def test_the_fingerprint_follows_the_teacher(tiny, write):
    plain = write(tiny)
    collection = _teach(plain)
    before = collection.fingerprint()
    assert before != plain.fingerprint()
    edit(collection.teacher_frames, lambda data: data + b"more")
    assert collection.fingerprint() != before


def _change(path, name, value):
    def fault(collection):
        with h5py.File(getattr(collection, path), "r+") as file:
            del file[name]
            if value is not None:
                file[name] = value

    return fault


FAULTS = {
    "no_frames_file": (
        lambda c: c.teacher_frames.unlink(),
        ["new_clip_vit_32_tiny_vid_features.hdf5", "no such file", "DL-DKD", "data.teacher_dim"],
    ),
    "no_captions_file": (
        lambda c: c.teacher_captions.unlink(),
        ["clip_ViT_B_32_tiny_query_feat.hdf5", "no such file"],
    ),
    "no_words_file": (lambda c: c.text_features.unlink(), ["roberta_tiny", "MS-SL"]),
    # The words are read before the teacher's files are open.
    "words_missing": (
        _change("text_features", "train_0#enc#0", None),
        ["tinytrain.caption.txt:1", "'train_0#enc#0'", "no features", "roberta_tiny"],
    ),
    "video_missing": (
        _change("teacher_frames", "train_2", None),
        ["tinytrain.caption.txt:4", "video 'train_2'", "no features", "vid_features.hdf5"],
    ),
    "caption_missing": (
        _change("teacher_captions", "train_0#enc#0", None),
        ["tinytrain.caption.txt:1", "caption 'train_0#0'", "no features", "query_feat.hdf5"],
    ),
    "video_of_another_width": (
        _change("teacher_frames", "train_2", np.ones((3, 7), "f4")),
        ["video 'train_2'", "7 wide", "says 4", "data.teacher_dim", "teacher's features"],
    ),
    "caption_of_two_vectors": (
        _change("teacher_captions", "train_0#enc#0", np.ones((2, WIDTH), "f4")),
        ["caption 'train_0#enc#0'", "2 vectors, more than 1"],
    ),
    "video_without_frames": (
        _change("teacher_frames", "train_2", np.ones((0, WIDTH), "f4")),
        ["video 'train_2'", "no frames; remove the video"],
    ),
    "video_of_zeros": (
        _change("teacher_frames", "train_2", np.zeros((3, WIDTH), "f4")),
        ["vid_features.hdf5: the teacher's frames of video 'train_2': all are zero"],
    ),
    "caption_of_nans": (
        _change("teacher_captions", "train_0#enc#0", np.full((1, WIDTH), np.nan, "f4")),
        ["query_feat.hdf5: the teacher's captions of video 'train_0': row 0 holds nan"],
    ),
    "not_hdf5": (lambda c: c.teacher_frames.write_bytes(b"version"), ["vid_features.hdf5", "HDF5"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(_teach(write(tiny)), *FAULTS[fault])


def test_a_missing_folder_names_the_files_to_put_there(tmp_path):
    collection = TaughtCollection(tmp_path, "tvr", "i3d_resnet", 3072, 768, 512)
    with pytest.raises(DataError, match="does not exist.*new_clip_vit_32_tvr_vid_features.hdf5"):
        collection.open()
