"""The synthetic corpus as files: what is read of them is what is in memory, written once."""

import dataclasses
import json

import numpy as np
import pytest

from hlformer_jax.data.source import SPLITS
from hlformer_jax.data.trees import writer
from hlformer_jax.data.trees.synthetic import SyntheticTrees, TreeCorpus
from hlformer_jax.data.trees.writer import write_corpus

SMALL = TreeCorpus(videos=(8, 4, 6), visual_dim=8, text_dim=6)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("manual"), SMALL)


def test_the_corpus_is_the_same_in_memory_and_in_released_files(written):
    assert write_corpus(written.layout.manual_dir, SMALL) == written, "it is written once"
    with SyntheticTrees(SMALL).open() as one, written.open() as two:
        for split in SPLITS:
            ours, theirs = one.annotations(split), two.annotations(split)
            assert (ours["videos"], ours["words"]) == (theirs["videos"], theirs["words"])
            for video in one.videos[split]:
                np.testing.assert_array_equal(
                    one.read_frames(video.video), two.read_frames(video.video)
                )
                for moment in video.moments:
                    name = moment.moment_id
                    np.testing.assert_array_equal(one.read_words(name), two.read_words(name))
    with pytest.raises(FileExistsError, match="synthetic_trees.*seed"):
        write_corpus(written.layout.manual_dir, dataclasses.replace(SMALL, seed=1))


def test_a_corpus_that_fails_to_be_written_leaves_nothing(tmp_path, monkeypatch):
    def fail(layout, reader):
        assert layout.feature_dir.is_dir()  # not at once
        raise OSError("No space left on device")

    monkeypatch.setattr(writer, "_write_moments", fail)
    with pytest.raises(OSError, match="No space left"):
        write_corpus(tmp_path, SMALL)
    assert not list(tmp_path.iterdir())


def test_every_video_of_a_split_has_its_planted_tree_and_its_moments(written):
    planted = json.loads((written.layout.root / "trees.json").read_text())
    counts = {split: len(planted[split]) for split in SPLITS}
    assert counts == dict(zip(SPLITS, SMALL.videos, strict=True))
    for split in SPLITS:
        lines = written.layout.captions(split).read_text().splitlines()
        assert {json.loads(line)["video"] for line in lines} == planted[split].keys()
