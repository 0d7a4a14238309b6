"""id.txt and video2frames.txt: read as Python reads them, never run, and every fault named."""

import ast
import random
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from corpora import assert_refused, edit, feature

from hlformer_jax.data.released.frame_lists import read_frame_lists
from hlformer_jax.data.source import DataError

V2F = "video2frames.txt"


FAULTS = {
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


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])


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
