"""The planted corpus: sound, the same every time, complete or not there, and worth learning."""

import dataclasses

import numpy as np
import pytest
from corpora import SMALL, assert_equal, contents

from hlformer_jax.data.source import DataError
from hlformer_jax.data.synthetic import Corpus, SyntheticSource
from hlformer_jax.data.transforms import normalise


def test_corpus_is_sound_and_of_the_size_asked_for():
    _, frames, words = contents(SyntheticSource(SMALL))
    with SyntheticSource(SMALL).open() as reader:
        moments, splits = reader.moments, reader.splits
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
                assert len(caption.sentence.split()) == len(words[caption.caption_id]) <= 11


def test_values_are_those_that_runs_were_recorded_with():
    """The sum of all values, and the last sentence, of the corpus that was written to files."""
    sentences, frames, words = contents(SyntheticSource(SMALL))
    total = sum(float(x.sum(dtype=np.float64)) for part in (frames, words) for x in part.values())
    assert total == pytest.approx(-820.221, abs=1e-3)
    assert sentences[-1][-1] == "and near dog someone book table some"


def test_one_video_of_the_fewest_frames_has_a_caption():
    corpus = dataclasses.replace(SMALL, videos=(20, 1, 1), min_frames=1, max_frames=4)
    with SyntheticSource(corpus).open() as reader:
        assert all(reader.splits["train"].values())


def test_equal_seeds_give_equal_corpora_and_others_do_not():
    other = SyntheticSource(dataclasses.replace(SMALL, seed=1))
    assert_equal(contents(SyntheticSource(SMALL)), contents(SyntheticSource(SMALL)))
    assert contents(other)[0] != contents(SyntheticSource(SMALL))[0]
    assert other.fingerprint() != SyntheticSource(SMALL).fingerprint()


@pytest.mark.parametrize("absurd", [{"visual_dim": 10**8}, {"max_frames": 10**11}])
def test_a_corpus_that_no_memory_holds_is_refused_before_it_is_drawn(absurd):
    with pytest.raises(DataError, match="GB of memory.*make it smaller"):
        SyntheticSource(dataclasses.replace(SMALL, **absurd)).open()


def test_a_moment_tells_more_than_the_mean_of_its_video():
    """Ridge from mean words to frames: true moments and best frame against mean pooling."""
    with SyntheticSource(Corpus()).open() as reader:
        moments = reader.moments
        data = {
            split: [
                (c.caption_id, video, normalise(reader.read_words(c.caption_id)).mean(0))
                for video, captions in reader.splits[split].items()
                for c in captions
            ]
            for split in ("train", "test")
        }
        frames = {
            video: normalise(reader.read_frames(video))
            for split in data
            for video in reader.splits[split]
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
