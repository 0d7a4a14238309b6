"""Times of moments: from every kind of file, from the data set itself, and wrong ones."""

import json

import pytest

from hlformer_jax.config import default
from hlformer_jax.data import spans
from hlformer_jax.data.source import DataError
from hlformer_jax.data.spans import Span
from hlformer_jax.data.synthetic import SyntheticReader
from hlformer_jax.data.trees import annotations, files

ACTIVITYNET = {
    "v_a": {"duration": 20.0, "timestamps": [[1, 5], [4.5, 20]], "sentences": ["One.", " Two."]}
}
EXPECTED = {"v_a#enc#0": Span(1.0, 5.0, 20.0), "v_a#enc#1": Span(4.5, 20.0, 20.0)}


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def asking(moments, **data):
    config = default()
    config.eval.moments = moments
    config.data.update(data)
    return config


def test_every_kind_of_file_gives_the_same_times(tmp_path):
    published = written(tmp_path / "val_1.json", ACTIVITYNET)
    assert spans.read(published) == EXPECTED
    files.write_moments(tmp_path / "moments.jsonl", annotations.read(published).videos)
    assert spans.read(tmp_path / "moments.jsonl") == EXPECTED
    by_caption = {
        name: {"video": "v_a", "start": 0, "start_s": a, "end_s": b, "duration_s": c}
        for name, (a, b, c) in EXPECTED.items()
    }
    assert spans.read(written(tmp_path / "moments.json", by_caption)) == EXPECTED
    tvr = {"vid_name": "v", "duration": 9.0, "ts": [2, 3], "desc": "x", "desc_id": 1}
    assert spans.read(written(tmp_path / "tvr.jsonl", tvr)) == {"v#enc#0": Span(2.0, 3.0, 9.0)}


def test_a_relative_path_begins_at_the_folder_of_the_collection(tmp_path):
    path = written(tmp_path / "tvr" / "times" / "m.json", ACTIVITYNET)
    place = {"manual_dir": str(tmp_path), "collection": "tvr"}
    assert spans.of_splits(asking("times/m.json", **place), [None]) == [EXPECTED]
    assert spans.of_splits(asking(str(path), collection="charades"), [None] * 2) == [EXPECTED] * 2
    assert spans.of_splits(asking(""), [{"spans": {"a": [0, 1, 2]}}]) == [{}]


def test_the_synthetic_corpus_knows_its_own():
    from corpora import SMALL

    reader = SyntheticReader(SMALL)
    noted = json.loads(json.dumps([reader.annotations(split) for split in reader.splits]))
    found = spans.of_splits(asking("data"), noted)
    for videos, known in zip(reader.splits.values(), found, strict=True):
        assert known == {
            caption.caption_id: (*reader.moments[caption.caption_id], reader.num_frames(video))
            for video, captions in videos.items()
            for caption in captions
        }


@pytest.mark.parametrize("known", [None, {"videos": []}])
def test_a_data_set_without_times_is_refused(known):
    with pytest.raises(DataError, match="'activitynet' has no times of moments: give a file"):
        spans.of_splits(asking("data"), [known])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": {"start_s": 1, "end_s": 2}}, "caption 'a': has no \"duration_s\""),
        ({"a": {"start_s": -1, "end_s": 2, "duration_s": 3}}, "start_s is -1; it must be seconds"),
        ({"a": {"start_s": 1, "end_s": 2, "duration_s": 0}}, "duration_s is 0; give the video's"),
        (
            {"b": {"start_s": 1, "end_s": 2, "duration_s": 3}, "a": 3},
            "caption 'a' is 3; it must be",
        ),
        ({"v": {"duration": 3, "sentences": []}}, "video 'v': has no \"timestamps\""),
    ],
)
def test_a_wrong_file_is_one_line_that_says_where(tmp_path, content, message):
    path = written(tmp_path / "m.json", content)
    with pytest.raises(DataError, match=message) as caught:
        spans.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="gone.json: no such file; config.eval.moments"):
        spans.read(tmp_path / "gone.json")
