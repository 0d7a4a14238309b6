"""`features FOLDER`: the folder is indexed, and its captions are counted by split."""

import json

import pytest

from hlformer_jax.data.extracted import ExtractedReader
from hlformer_jax.search.index import Index


@pytest.fixture
def captions(tmp_path):
    path = tmp_path / "captions.jsonl"
    splits = {"a.film": "train", "b.film": "val", "trips/c.film": "test"}
    lines = [{"video": one, "sentence": "red", "split": split} for one, split in splits.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, lines[0]]))
    return path


def test_a_folder_is_indexed_and_its_captions_become_a_data_set(search, films, captions, tmp_path):
    out = tmp_path / "features"
    flags = [f"--captions={captions}", f"--out={out}", "--fps=2", "--workers=0"]
    done = search("features", films, *flags)
    assert done.status == 0 and "3 indexed" in done.out
    assert f"{out}: captions 2 of train, 1 of val, 1 of test\n" in done.out
    assert f"--config=configs/own.py:{out}" in done.out
    assert Index.open(films / ".hlformer-search").manifest.fps == 2
    splits = ExtractedReader(out).splits
    assert {split: list(of) for split, of in splits.items()} == {
        "train": ["a.film"], "val": ["b.film"], "test": ["trips/c.film"],
    }  # fmt: skip


def test_wrong_captions_are_refused_before_anything_is_indexed(search, films, captions, tmp_path):
    captions.write_text("{}")
    done = search("features", films, f"--captions={captions}", f"--out={tmp_path / 'out'}")
    assert done.status == 1 and 'captions.jsonl:1: "video" is missing' in done.errors[0]
    assert not (films / ".hlformer-search").exists() and not (tmp_path / "out").exists()
    done = search("features", tmp_path / "no", f"--captions={captions}", "--out=out")
    assert done.errors == [f"error: {tmp_path / 'no'} is no folder: give the folder of the videos"]
