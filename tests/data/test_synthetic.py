"""The planted corpus: sound, the same every time, complete or not there, and worth learning."""

import dataclasses
import json

import numpy as np
import pytest

from hlformer_jax.data.released.reader import open_collection
from hlformer_jax.data.synthetic import Corpus, write_corpus
from hlformer_jax.data.transforms import normalise

SMALL = Corpus(videos=(6, 2, 3), visual_dim=8, text_dim=6)


def contents(collection):
    """Every value of a corpus, and its moments."""
    with open_collection(collection) as source:
        frames = {video: source.read_video(video) for video in source.rows}
        words = {caption: source.read_words(caption) for caption in source.word_counts}
        return source.splits, frames, words


def test_corpus_is_sound_and_of_the_size_asked_for(tmp_path):
    collection = write_corpus(tmp_path, SMALL)
    splits, frames, words = contents(collection)
    moments = json.loads((collection.root / "moments.json").read_text())
    assert [len(videos) for videos in splits.values()] == [6, 2, 3]
    assert all(24 <= len(x) <= 96 for x in frames.values())
    assert moments.keys() == words.keys()
    for videos in splits.values():
        for video, captions in videos.items():
            assert 1 <= len(captions) <= 5
            spans = sorted(moments[caption.caption_id] for caption in captions)
            assert spans[0][0] >= 0 and spans[-1][1] <= len(frames[video])
            assert all(a[1] < b[0] for a, b in zip(spans[:-1], spans[1:], strict=True))
            for caption in captions:
                assert len(caption.sentence.split()) == len(words[caption.caption_id]) <= 12


def test_one_video_of_the_fewest_frames_has_a_caption(tmp_path):
    corpus = dataclasses.replace(SMALL, videos=(20, 1, 1), min_frames=1, max_frames=4)
    splits, _, _ = contents(write_corpus(tmp_path, corpus))
    assert len(splits["train"]) == 20


def test_equal_seeds_give_equal_corpora_and_others_do_not(tmp_path):
    first = contents(write_corpus(tmp_path / "a", SMALL))
    again = contents(write_corpus(tmp_path / "b", SMALL))
    other = contents(write_corpus(tmp_path / "c", dataclasses.replace(SMALL, seed=1)))
    assert first[0] == again[0]
    for part in (1, 2):
        assert first[part].keys() == again[part].keys()
        for key in first[part]:
            np.testing.assert_array_equal(first[part][key], again[part][key])
    assert first[0] != other[0]


def test_corpus_is_written_once(tmp_path):
    collection = write_corpus(tmp_path, SMALL)
    before = collection.fingerprint()
    assert write_corpus(tmp_path, SMALL) == collection
    assert collection.fingerprint() == before
    assert [path.name for path in tmp_path.iterdir()] == ["synthetic"]


def test_another_corpus_is_not_overwritten(tmp_path):
    collection = write_corpus(tmp_path, SMALL)
    before = collection.fingerprint()
    with pytest.raises(FileExistsError, match="synthetic.*seed"):
        write_corpus(tmp_path, dataclasses.replace(SMALL, seed=1))
    assert collection.fingerprint() == before
    (collection.root / "meta.json").unlink()
    with pytest.raises(FileExistsError, match="something else"):
        write_corpus(tmp_path, SMALL)


def test_interrupted_corpus_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hlformer_jax.data.synthetic._write_features", stop)
        with pytest.raises(KeyboardInterrupt):
            write_corpus(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []
    write_corpus(tmp_path, SMALL)


def test_a_moment_tells_more_than_the_mean_of_its_video(tmp_path):
    """Ridge from mean words to frames: true moments and best frame against mean pooling."""
    collection = write_corpus(tmp_path)
    moments = json.loads((collection.root / "moments.json").read_text())
    with open_collection(collection) as source:
        data = {
            split: [
                (c.caption_id, video, normalise(source.read_words(c.caption_id)).mean(0))
                for video, captions in source.splits[split].items()
                for c in captions
            ]
            for split in ("train", "test")
        }
        frames = {
            video: normalise(source.read_video(video))
            for video in source.rows
            if video[:3] != "val"
        }
    pooled = {video: x.mean(0) for video, x in frames.items()}
    centre = np.mean([pooled[video] for _, video, _ in data["train"]], axis=0)
    videos = list(dict.fromkeys(video for _, video, _ in data["test"]))
    truth = np.asarray([videos.index(video) for _, video, _ in data["test"]])

    def recall_at_10(targets, candidates):
        x, queries = (
            np.stack([np.append(words, 1.0) for _, _, words in data[split]])
            for split in ("train", "test")
        )
        weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (targets - centre))
        predicted = normalise(queries @ weights)
        scores = np.stack(
            [(predicted @ normalise(c - centre).T).max(axis=1) for c in candidates], axis=1
        )
        own = scores[np.arange(len(truth)), truth]
        return np.mean((scores > own[:, None]).sum(axis=1) < 10)

    mean_pooled = recall_at_10(
        np.stack([pooled[video] for _, video, _ in data["train"]]),
        [pooled[video][None] for video in videos],
    )
    by_moment = recall_at_10(
        np.stack([frames[v][slice(*moments[c])].mean(0) for c, v, _ in data["train"]]),
        [frames[video] for video in videos],
    )
    # Chance is 0.08; measured: 0.16 and 0.84.
    assert mean_pooled < 0.3
    assert by_moment > 0.7
