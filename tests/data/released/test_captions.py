"""Caption lists: real captions are read, and every fault is named with its line."""

import pytest
from corpora import assert_refused, edit, line

from hlformer_jax.data.released.captions import ListedCaption


def _captions(number, new, split="train"):
    return lambda c: edit(c.captions(split), line(number, new))


FAULTS = {
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
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])


def test_blanks_and_characters_of_real_captions_are_read(tiny, write):
    collection = write(tiny)
    first = 'train_0#enc#0  Zoë says: "#1, it\'s 50\u2028% off"  \n'
    edit(collection.captions("train"), line(1, first.encode().rstrip(b"\n")))
    with collection.open() as reader:
        caption = reader.splits["train"]["train_0"][0]
    assert caption == ListedCaption("train_0#enc#0", 'Zoë says: "#1, it\'s 50\u2028% off"', 1)


def test_crlf_line_ends_are_read(tiny, write):
    collection = write(tiny)
    for path in (collection.captions("train"), collection.feature_dir / "shape.txt"):
        edit(path, lambda data: data.replace(b"\n", b"\r\n"))
    with collection.open() as reader:
        assert reader.splits["train"]["train_0"][0].sentence == "a person does thing 0"


def test_last_line_may_lack_its_newline(tiny, write):
    collection = write(tiny)
    edit(collection.captions("test"), bytes.rstrip)
    with collection.open() as reader:
        assert len(reader.splits["test"]) == 2
