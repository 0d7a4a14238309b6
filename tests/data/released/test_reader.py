"""The reader of the released layout: values in time order, and lists that must agree."""

import re

import numpy as np
import pytest
from corpora import assert_refused, edit, feature, warnings_of

V2F = "video2frames.txt"


FAULTS = {
    "video_not_listed": (
        feature(V2F, lambda d: d.replace(b"'train_2'", b"'train_9'")),
        ["tinytrain.caption.txt:4", "'train_2'", V2F],
    ),
    "video_without_frames": (
        feature(V2F, lambda d: re.sub(rb"('train_2': )\[.*?\]", rb"\1[]", d)),
        [V2F, "'train_2'", "no frames", "tinytrain.caption.txt:4"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])


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


def test_validation_list_may_be_the_test_list(tiny, write):
    tiny.captions["val"] = tiny.captions["test"]
    with write(tiny).open() as reader:
        assert reader.splits["val"] == reader.splits["test"]


def test_frames_of_videos_without_captions_need_no_rows(tiny, write):
    collection = write(tiny)
    edit(collection.feature_dir / V2F, lambda d: d[:-1] + b", 'left': ['left_0'], 'out': []}")
    warned = warnings_of(collection)
    assert len(warned) == 1
    assert "2 videos have no caption" in warned[0] and V2F in warned[0]


def test_video_in_train_and_test_is_warned_of(tiny, write):
    tiny.captions["test"].append(("train_1#enc#0", "again"))
    warned = warnings_of(write(tiny))
    assert len(warned) == 1
    assert "tinytest.caption.txt" in warned[0] and "'" not in warned[0] and "train_1" in warned[0]


def test_sound_corpus_warns_of_nothing(tiny, write):
    assert warnings_of(write(tiny)) == []
