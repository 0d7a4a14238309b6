"""Corpora for tests: comparison of their values, and faults in their files."""

import json
import logging
from pathlib import Path

import h5py
import numpy as np
import pytest
from absl import logging as absl_logging

from hlformer_jax.data.prepared import Records
from hlformer_jax.data.sources.protocol import SPLITS, DataError
from hlformer_jax.data.sources.released.qvhighlights import (
    TEXT_DIM,
    TEXT_FOLDER,
    WIDTHS,
    QVHighlights,
)
from hlformer_jax.data.sources.synthetic import Corpus

SMALL = Corpus(videos=(6, 2, 3), visual_dim=8, text_dim=6)


def contents(source):
    """Return the sentences, frame features and word features of a corpus."""
    with source.open() as reader:
        videos = [video for split in SPLITS for video in reader.splits[split]]
        ids = [c.caption_id for split in SPLITS for cs in reader.splits[split].values() for c in cs]
        frames = {video: reader.read_frames(video) for video in videos}
        words = {caption_id: reader.read_words(caption_id) for caption_id in ids}
        sentences = [
            (split, video, caption.caption_id, caption.sentence)
            for split in SPLITS
            for video, captions in reader.splits[split].items()
            for caption in captions
        ]
        assert [len(x) for x in frames.values()] == [reader.num_frames(v) for v in videos]
        assert [len(x) for x in words.values()] == [reader.num_words(name) for name in ids]
    return sentences, frames, words


def assert_equal(first, second):
    """Assert that two corpora have the same values in the same order."""
    assert first[0] == second[0]
    for part in (1, 2):
        assert list(first[part]) == list(second[part])
        for key in first[part]:
            assert first[part][key].dtype == second[part][key].dtype == np.float32
            np.testing.assert_array_equal(first[part][key], second[part][key])


CLIPS = {
    "train": [("a_b", 0, 150), ("c", 60, 210), ("a_b", 150, 300), ("d", 0, 150), ("a_b", 0, 150)],
    "val": [("-e", 30, 180), ("f_", 0, 120)],
    "test": [("g", 0, 150)],
}
"""Annotated clips of the queries of `write_qvhighlights`: YouTube id, start and end in seconds."""


def write_qvhighlights(manual_dir):
    """Write QVHighlights as Moment-DETR's authors do; return the values by clip and by query."""
    source = QVHighlights(str(manual_dir))
    rng = np.random.default_rng(4)
    clips, queries = {}, {}
    for folder in (*WIDTHS, TEXT_FOLDER):
        source.features(folder).mkdir(parents=True)
    source.queries("train").parent.mkdir()
    for split, clips_of_split in CLIPS.items():
        lines = []
        for youtube, start, end in clips_of_split:
            clip, name = f"{youtube}_{start:.1f}_{end:.1f}", f"qid{7 + len(queries)}"
            record = {"qid": 7 + len(queries), "query": "a thing", "duration": 150, "vid": clip}
            lines.append(json.dumps(record | {"relevant_windows": [[0, 4], [8, 12]]}))
            queries[name] = rng.normal(size=(5, TEXT_DIM)).astype(np.float16)
            np.savez(
                source.features(TEXT_FOLDER, name),
                last_hidden_state=queries[name],
                pooler_output=queries[name][0],
            )
            if clip not in clips:
                rows = 3 + len(clips)
                clips[clip] = [
                    rng.normal(size=(rows, width)).astype(np.float16) for width in WIDTHS.values()
                ]
                for folder, features in zip(WIDTHS, clips[clip], strict=True):
                    np.savez(source.features(folder, clip), features=features)
        source.queries(split).write_text("\n".join(lines))  # the last line does not end
    return clips, queries


def read_all(collection):
    """Open a collection and make all of its records."""
    with collection.open() as reader:
        records = Records(collection, reader, "float32")
        for split, videos in reader.splits.items():
            for video in videos:
                records.make(split, video)
        records.warn_of_zeros()


def edit(path: Path, change) -> None:
    """Replace the bytes of a file by `change` of them."""
    path.write_bytes(change(path.read_bytes()))


def line(number: int, new: bytes):
    """Return a change that replaces a line, counted from 1."""

    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[number - 1] = new
        return b"\n".join(lines)

    return change


def feature(name, change):
    """Return a fault in the bytes of a file of frame features."""
    return lambda collection: edit(collection.feature_dir / name, change)


def words(change):
    """Return a fault in the file of word features."""

    def fault(collection):
        with h5py.File(collection.text_features, "r+") as file:
            change(file)

    return fault


def assert_refused(collection, fault, expected):
    """Add a fault to a valid collection and assert that its error is one line with these parts."""
    read_all(collection)
    fault(collection)
    with pytest.raises(DataError) as error:
        read_all(collection)
    message = str(error.value)
    assert "\n" not in message
    assert [part for part in expected if part not in message] == [], message


def warnings_of(collection):
    """Return the warnings that are logged while a collection is read."""

    class Collect(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    messages = []
    handler = Collect(logging.WARNING)
    absl_logging.get_absl_logger().addHandler(handler)
    try:
        read_all(collection)
    finally:
        absl_logging.get_absl_logger().removeHandler(handler)
    return messages


def assert_prepared(prepared, tiny, dtype=np.float32):
    """Assert that all records and the index have the values that the corpus was written from."""
    for split in SPLITS:
        videos = {}
        for caption, sentence in tiny.captions[split]:
            videos.setdefault(caption.split("#")[0], []).append((caption, sentence))
        source = prepared.split(split)
        assert source.video_ids == tuple(videos)
        assert len(source) == len(videos)
        for k, (video, captions) in enumerate(videos.items()):
            record = source[k]
            words = [tiny.words[caption].astype(dtype) for caption, _ in captions]
            assert record.video_id == video
            assert list(zip(record.caption_ids, record.sentences, strict=True)) == captions
            assert record.frames.dtype == record.words.dtype == dtype
            np.testing.assert_array_equal(record.frames, tiny.frames[video].astype(dtype))
            np.testing.assert_array_equal(record.words, np.concatenate(words))
            assert record.word_counts.dtype == np.int32
            np.testing.assert_array_equal(record.word_counts, [len(w) for w in words])
            assert source.frames_per_video[k] == len(record.frames)
            assert source.captions_per_video[k] == len(captions)
            assert source.words_per_video[k] == len(record.words)
