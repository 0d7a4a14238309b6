"""QVHighlights in Moment-DETR's layout: both protocols and every fault."""

import json
import os

import corpora
import numpy as np
import pytest
from corpora import assert_refused, edit, line, warnings_of

from hlformer_jax.data.sources.protocol import DataError, MissingSourceError
from hlformer_jax.data.sources.released.qvhighlights import QVHighlights


def _rows(parts):
    """Return a clip as Moment-DETR's loader does: unit modalities, cut to the shorter and to 75."""
    count = min(75, *map(len, parts))
    parts = [part[:count].astype(np.float64) for part in parts]
    unit = [part / (np.linalg.norm(part, axis=-1, keepdims=True) + 1e-5) for part in parts]
    return np.concatenate(unit, axis=-1)


def test_clips_are_videos_and_lists_are_splits(tmp_path):
    clips, queries = corpora.write_qvhighlights(tmp_path)
    source = QVHighlights(str(tmp_path))
    sentences, frames, words = corpora.contents(source)
    assert [video for _, video, _, _ in sentences] == [
        *("a_b_0.0_150.0", "a_b_0.0_150.0", "c_60.0_210.0", "a_b_150.0_300.0", "d_0.0_150.0"),
        *("-e_30.0_180.0", "f__0.0_120.0", "g_0.0_150.0"),
    ]
    assert set(frames) == set(clips) and [split for split, *_ in sentences].count("test") == 1
    for clip, parts in clips.items():
        np.testing.assert_allclose(frames[clip], _rows(parts), rtol=1e-6)
    for name, rows in queries.items():
        np.testing.assert_array_equal(words[name], rows)


def test_regrouped_video_joins_its_clips_in_time_order(tmp_path):
    clips, _ = corpora.write_qvhighlights(tmp_path)
    source = QVHighlights(str(tmp_path), regrouped=True)
    assert source.name != QVHighlights(str(tmp_path)).name
    assert source.fingerprint() != QVHighlights(str(tmp_path)).fingerprint()
    frames = np.concatenate([_rows(clips["a_b_0.0_150.0"]), _rows(clips["a_b_150.0_300.0"])])
    with source.open() as reader:
        assert list(reader.splits["train"]) == ["a_b", "c", "d"]
        assert list(reader.splits["val"]) == ["-e", "f_"]
        assert reader.num_frames("a_b") == len(frames)
        np.testing.assert_allclose(reader.read_frames("a_b"), frames, rtol=1e-6)
        assert reader.splits["test"] == reader.splits["val"]
        assert [c.caption_id for c in reader.splits["train"]["a_b"]] == ["qid7", "qid9", "qid11"]
        first = len(clips["a_b_0.0_150.0"][0])
        assert "row 0 of clip 'a_b_150.0_300.0'" in reader.describe_frame("a_b", first)


def test_rewritten_file_changes_the_fingerprint(tmp_path):
    corpora.write_qvhighlights(tmp_path)
    source = QVHighlights(str(tmp_path))
    before, path = source.fingerprint(), source.features("clip_features", "g_0.0_150.0")
    folder = path.parent.stat()
    with path.open("r+b") as file:
        file.write(file.read())
    os.utime(path, ns=(0, 0))
    assert path.parent.stat().st_mtime_ns == folder.st_mtime_ns
    assert source.fingerprint() != before


@pytest.mark.parametrize("regrouped", [False, True])  # regrouped, val and test share videos
@pytest.mark.parametrize("name", ["c_60.0_210.0", "f__0.0_120.0"])
def test_zero_rows_of_one_modality_cause_a_warning(tmp_path, name, regrouped):
    clips, _ = corpora.write_qvhighlights(tmp_path)
    source = QVHighlights(str(tmp_path), regrouped=regrouped)
    assert warnings_of(source) == []
    _, clip = clips[name]
    clip[2] = 0
    path = source.features("clip_features", name)
    np.savez(path, features=clip)
    [message] = warnings_of(source)
    assert "1 clip with" in message and f"row 2 of {path}" in message


def test_unlike_modalities_are_cut_with_a_warning(tmp_path):
    clips, _ = corpora.write_qvhighlights(tmp_path)
    source = QVHighlights(str(tmp_path))
    for clip, rows in (("c_60.0_210.0", 2), ("g_0.0_150.0", 80)):
        part = np.ones((rows, 512), np.float32)
        clips[clip][1] = part
        np.savez(source.features("clip_features", clip), features=part)
    [message] = warnings_of(source)
    assert "2 clips" in message and "'c_60.0_210.0'" in message
    with source.open() as reader:
        for clip in ("c_60.0_210.0", "g_0.0_150.0"):
            np.testing.assert_allclose(reader.read_frames(clip), _rows(clips[clip]), rtol=1e-6)


def _npz(folder, name, **arrays):
    """Return a fault that replaces a file of features."""
    return lambda source: np.savez(source.features(folder, name), **arrays)


def _record(split, number, **fields):
    """Return a fault that changes fields of a line; None removes one."""

    def fault(source):
        path = source.queries(split)
        record = json.loads(path.read_text().split("\n")[number - 1]) | fields
        record = {key: value for key, value in record.items() if value is not None}
        edit(path, line(number, json.dumps(record).encode()))

    return fault


VID, CLIP, TEXT = "c_60.0_210.0", "clip_features", "clip_text_features"
FAULTS = [
    (_record("train", 2, qid=7), ["train_release.jsonl:2", "qid7", "twice"]),
    (_record("train", 2, qid="7"), ["train_release.jsonl:2", "whole number"]),
    (_record("val", 1, vid="x_9_9"), ["val_release.jsonl:1", "YOUTUBE-ID_START_END"]),
    (_record("val", 1, query=None), ["val_release.jsonl:1", '"query"']),
    (_record("val", 1, vid=VID), ["val_release.jsonl:1", VID, "another split"]),
    (_record("train", 2, vid="c_1_2"), ["c_1_2.npz", "missing", "slowfast_features"]),
    (_record("train", 2, qid=99), ["train_release.jsonl:2", "qid99.npz", "missing"]),
    (_npz(CLIP, VID, features=np.ones((3, 768), "f4")), [CLIP, f"{VID}.npz", "(3, 768)"]),
    (_npz(CLIP, VID, features=np.ones((3, 512), "i4")), [f"{VID}.npz", "int32"]),
    (_npz(CLIP, VID, feature=np.ones((3, 512), "f4")), [f"{VID}.npz", "'features'"]),
    (_npz(CLIP, VID, features=np.full((3, 512), np.inf)), ["row 0 of clip", VID]),
    (_npz(CLIP, VID, features=np.full((3, 512), -1e300)), ["row 0 of features holds -1e+300", VID]),
    (_npz(TEXT, "qid8", last_hidden_state=np.ones((5, 768), "f4")), ["qid8.npz", "(5, 768)"]),
    (_npz(TEXT, "qid8", last_hidden_state=np.array([{}])), ["qid8.npz", "object"]),
    (lambda s: edit(s.features(CLIP, VID), lambda data: data[:900]), [f"{VID}.npz", "again"]),
    (lambda s: s.queries("val").unlink(), ["val_release.jsonl", "no such file"]),
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS)
def test_fault_is_refused_with_its_place(tmp_path, fault, expected):
    corpora.write_qvhighlights(tmp_path)
    assert_refused(QVHighlights(str(tmp_path)), fault, expected)


def test_overlapping_clips_cannot_be_regrouped(tmp_path):
    corpora.write_qvhighlights(tmp_path)
    fault = _record("train", 3, vid="a_b_100.0_250.0")
    expected = ["a_b_0.0_150.0", "a_b_100.0_250.0", "overlap"]
    assert_refused(QVHighlights(str(tmp_path), regrouped=True), fault, expected)


def test_missing_folder_or_unknown_feature_is_named(tmp_path):
    for folder in ("", str(tmp_path / "none")):
        with pytest.raises(MissingSourceError, match="Moment-DETR"):
            QVHighlights(folder).fingerprint()
    with pytest.raises(DataError, match="slowfast_clip"):
        QVHighlights(str(tmp_path), "i3d").fingerprint()
