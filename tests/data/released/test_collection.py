"""A published collection: its files are there or named, and what identifies them."""

import dataclasses

import pytest
from corpora import assert_refused, edit

from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.source import DataError

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
        for name in ("feature.bin", "id.txt", "shape.txt", "video2frames.txt")
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
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])


def test_missing_manual_dir_says_what_to_download():
    collection = Collection("", "tvr", "i3d_resnet", 3072, 768)
    with pytest.raises(DataError, match="manual_dir is not set.*MS-SL.*tvrtrain.caption"):
        collection.open()


def test_fingerprint_follows_the_files(tiny, write, tmp_path):
    collection = write(tiny)
    before = collection.fingerprint()
    assert collection.fingerprint() == before
    assert dataclasses.replace(collection, visual_dim=7).fingerprint() == before
    edit(collection.captions("train"), lambda data: data.replace(b"thing", b"THING"))
    assert collection.fingerprint() != before
