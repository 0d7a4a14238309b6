"""Sources: the guide in the docstring runs, and what a source gets wrong is said in one line."""

import contextlib
import doctest
import os
from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.data import dataset
from hlformer_jax.data.prepared import prepare
from hlformer_jax.data.source import (
    Caption,
    DataError,
    MissingSourceError,
    Reader,
    Source,
    check_memory,
    digest,
)

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"


class Toy(Source, Reader):
    """Two videos a split, of three frames and two words."""

    name, feature, visual_dim, text_dim = "toy", "constant", 3, 2
    splits = {}  # of each instance its own

    def __init__(self):
        self.splits = {
            split: {f"{split}_{k}": [Caption(f"{split}_{k}#0", "a toy")] for k in range(2)}
            for split in ("train", "val", "test")
        }
        self.there = True

    def fingerprint(self):
        if not self.there:
            raise MissingSourceError("toys are gone", "buy some", expected=False)
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


def test_the_guide_to_adding_a_data_set_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "SOURCES", {})
    names = {"folder": str(tmp_path)}
    results = doctest.testfile(
        str(GUIDE), module_relative=False, globs=names, raise_on_error=True, encoding="utf-8"
    )
    assert results.attempted >= 10 and results.failed == 0


def test_a_source_is_prepared_and_read_back_without_it(tmp_path):
    toy = Toy()
    prepared = prepare(toy, tmp_path)
    record = prepared.split("val")[1]
    assert (record.video_id, record.caption_ids, record.sentences) == (
        "val_1",
        ["val_1#0"],
        ["a toy"],
    )
    np.testing.assert_array_equal(record.frames, np.full((3, 3), 2, np.float32))
    toy.there = False
    assert prepare(toy, tmp_path).directory == prepared.directory
    with pytest.raises(DataError, match="toys are gone: buy some .nor is there a prepared set"):
        prepare(toy, tmp_path / "elsewhere")


WRONG = {
    "a split is missing": (lambda t: t.splits.pop("val"), "toy: has the splits .'test', 'train'.;"),
    "a split is empty": (lambda t: t.splits["val"].clear(), "toy: split 'val' has no video"),
    "no caption": (lambda t: t.splits["val"].update(val_1=[]), "'val_1' of val has no caption"),
    "no frame": (lambda t: setattr(t, "num_frames", lambda v: 0), "'train_0' .* has no frame"),
    "no word": (lambda t: setattr(t, "num_words", lambda c: 0), "'train_0#0' .* has no word"),
    "an id twice": (
        lambda t: t.splits["val"].update(val_1=[Caption("val_0#0", "again")]),
        "caption 'val_0#0' stands twice in val",
    ),
    "other shape": (
        lambda t: setattr(t, "read_frames", lambda v: np.ones((4, 3), np.float32)),
        r"frame 0 of video 'train_0': the source gave float32 of shape \(4, 3\).*\(3, 3\)",
    ),
    "other dtype": (
        lambda t: setattr(t, "read_words", lambda c: np.ones((2, 2))),
        "caption 'train_0#0': the source gave float64",
    ),
    "not finite": (
        lambda t: setattr(t, "read_words", lambda c: np.full((2, 2), np.nan, np.float32)),
        "caption 'train_0#0' holds nan",
    ),
    "more than memory": (
        lambda t: setattr(t, "num_frames", lambda v: 10**15),
        "video 'train_0' would take .* GB of memory",
    ),
    "no fingerprint": (lambda t: setattr(t, "fingerprint", lambda: "a/b"), "'a/b'; it must be"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_a_source_gets_wrong_is_refused_in_one_line(tmp_path, fault):
    toy = Toy()
    break_it, expected = WRONG[fault]
    break_it(toy)
    with pytest.raises(DataError, match=expected) as error:
        prepare(toy, tmp_path)
    assert "\n" not in str(error.value)


def test_the_whole_memory_is_the_limit(monkeypatch):
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    check_memory(4_096_000, "a corpus", "make it smaller")
    with pytest.raises(DataError, match="a corpus would take .* GB of memory.*; make it smaller"):
        check_memory(4_096_001, "a corpus", "make it smaller")
