"""The planted trees: what the rule finds is what was planted, and the order is worth learning."""

import dataclasses
import json

import numpy as np
import pytest

from hlformer_jax.data.source import SPLITS, DataError
from hlformer_jax.data.synthetic import CONCEPTS
from hlformer_jax.data.trees import files, rule
from hlformer_jax.data.trees.synthetic import LEAVES, SyntheticTrees, TreeCorpus
from hlformer_jax.data.trees.writer import write_corpus

SMALL = TreeCorpus(videos=(60, 4, 6), visual_dim=8, text_dim=6)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("manual"), SMALL)


def test_the_rule_finds_the_trees_that_were_planted(written):
    planted = json.loads((written.layout.root / "trees.json").read_text())
    found = {
        split: {
            tree.video: tree
            for tree in rule.build_all(
                [video for video, _ in files.read_moments(written.layout.captions(split))]
            )
        }
        for split in SPLITS
    }
    for split in SPLITS:
        assert found[split].keys() == planted[split].keys()
        for name, tree in found[split].items():
            true = planted[split][name]
            assert [[node.start, node.end] for node in tree.nodes] == true["nodes"]
            assert sorted(map(list, tree.edges)) == sorted(true["edges"])
            assert sorted(map(list, tree.siblings)) == sorted(true["order"])


def test_trees_of_every_number_of_leaves_are_drawn():
    corpus = dataclasses.replace(SMALL, videos=(1000, 1, 1), visual_dim=2, text_dim=2)
    with SyntheticTrees(corpus).open() as reader:
        leaves = [len(tree.leaves) for tree in rule.build_all(reader.videos["train"])]
    for count, chance in LEAVES.items():
        assert abs(leaves.count(count) / 1000 - chance) < 4 * np.sqrt(chance * (1 - chance) / 1000)


def test_features_are_those_of_the_moments_and_a_frame_is_a_second():
    with SyntheticTrees(SMALL).open() as reader:
        for split in SPLITS:
            notes = reader.annotations(split)
            for video, words in zip(reader.videos[split], notes["words"], strict=True):
                assert reader.num_frames(video.video) == video.duration
                for moment, count in zip(video.moments, words, strict=True):
                    assert 5 <= moment.end - moment.start <= 10
                    features = reader.read_words(moment.moment_id)
                    assert features.shape == (count, 6) and features.dtype == np.float32
                    assert len(moment.text.rstrip(".").split()) == count


def test_values_are_those_that_runs_are_recorded_with():
    with SyntheticTrees(SMALL).open() as reader:
        videos = [video for split in SPLITS for video in reader.videos[split]]
        frames = sum(float(reader.read_frames(one.video).sum(dtype=np.float64)) for one in videos)
        last = videos[-1].moments[-1]
    assert frames == pytest.approx(-1881.3772, abs=1e-3)
    assert last.text == "a while and with a book then child some with climb."


def test_equal_fields_give_equal_corpora_and_others_another_fingerprint():
    same, other = SyntheticTrees(SMALL), SyntheticTrees(dataclasses.replace(SMALL, precedence=0.0))
    assert same.fingerprint() == SyntheticTrees(SMALL).fingerprint() != other.fingerprint()
    with same.open() as one, SyntheticTrees(SMALL).open() as two:
        assert one.videos == two.videos
        np.testing.assert_array_equal(one.read_frames("val_00001"), two.read_frames("val_00001"))


def places_in_time(precedence):
    """Of every concept, the mean place in their video of the moments that tell it."""
    corpus = TreeCorpus(videos=(600, 1, 1), visual_dim=2, text_dim=2, precedence=precedence)
    told = {concept: [] for concept in CONCEPTS}
    with SyntheticTrees(corpus).open() as reader:
        for video in reader.videos["train"]:
            for k, moment in enumerate(video.moments):
                for word in set(moment.text.rstrip(".").split()) & set(CONCEPTS):
                    told[word].append(k / (len(video.moments) - 1))
    return np.array([np.mean(places) for places in told.values()])


def test_precedence_makes_some_concepts_early_and_others_late():
    # About 160 moments tell a concept, so that its mean place is known to 0.45 / sqrt(160) = 0.04.
    assert np.std(places_in_time(0.0)) < 0.06
    assert np.std(places_in_time(1.0)) > 0.25


def test_siblings_share_concepts_when_asked():
    corpus = dataclasses.replace(SMALL, shared=2)
    with SyntheticTrees(corpus).open() as reader:
        for video in reader.videos["train"]:
            told = [set(one.text.rstrip(".").split()) & set(CONCEPTS) for one in video.moments]
            assert all(len(concepts) == 3 for concepts in told)
            assert all(len(a & b) >= 2 for a, b in zip(told, told[1:], strict=False))


def test_a_corpus_that_no_memory_holds_is_refused_before_it_is_drawn():
    with pytest.raises(DataError, match="GB of memory.*make it smaller"):
        SyntheticTrees(dataclasses.replace(SMALL, visual_dim=10**8)).open()
