"""Synthetic corpora: their structure, their reproducibility, and that they can be learnt."""

import dataclasses

import numpy as np
import pytest
from corpora import SMALL, assert_equal, contents

from hlformer_jax.data import dataset, transforms, trees
from hlformer_jax.data.prepared import prepare
from hlformer_jax.data.sources import synthetic
from hlformer_jax.data.sources.protocol import SPLITS, DataError
from hlformer_jax.data.sources.synthetic import (
    CONCEPTS,
    LEAVES,
    Corpus,
    CorpusMaps,
    TreeCorpus,
    write_corpus,
)
from hlformer_jax.data.transforms import normalise

SMALL_WITH_TEACHER = dataclasses.replace(SMALL, teacher_dim=16)
SMALL_TREES = TreeCorpus(videos=(60, 4, 6), visual_dim=8, text_dim=6)


@pytest.mark.parametrize(
    ("corpus", "fingerprint"),
    [
        (Corpus(), "a6452207b7c9"),
        (Corpus(videos=(20, 5, 5), teacher_dim=16), "48b487701682"),
        (TreeCorpus(), "e5545db943db"),
    ],
)
def test_fingerprints_do_not_change_between_versions(corpus, fingerprint):
    assert corpus.fingerprint() == fingerprint


def test_frame_is_the_map_of_its_concepts():
    corpus = Corpus(noise=0.0, style=0.0)
    maps, rng = CorpusMaps(corpus), np.random.default_rng(0)
    latents = np.concatenate([maps.latent(np.array([k, k + 1]), 1, rng) for k in range(30)])
    frames = maps.render(latents, rng)
    assert 0.8 < frames.std() < 1.2
    for latent, frame in zip(latents, frames, strict=True):
        expected = np.einsum(
            "h,hd->d", np.tanh(np.einsum("l,lh->h", latent, maps.first)), maps.second
        )
        # A sum of 128 products of about 0.1 rounds by 1e-15 even where it is 0.
        np.testing.assert_allclose(frame, expected, rtol=1e-12, atol=1e-14)


def test_caption_names_concepts_of_its_moment():
    maps = CorpusMaps(Corpus())
    words, features = maps.caption(np.array([3, 5, 8]), np.random.default_rng(1))
    assert {CONCEPTS[k] for k in (3, 5, 8)} == set(words) & set(CONCEPTS)
    noise = features - np.stack([maps.words[word] for word in words])
    assert 0.15 < noise.std() < 0.25


# Captions


def test_corpus_is_consistent_and_of_the_requested_size():
    _, frames, words = contents(SMALL)
    with SMALL.open() as reader:
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


def test_values_do_not_change_between_versions():
    """Compare the sum of all values and the last sentence."""
    sentences, frames, words = contents(SMALL)
    total = sum(float(x.sum(dtype=np.float64)) for part in (frames, words) for x in part.values())
    assert total == pytest.approx(-820.221, abs=1e-3)
    assert sentences[-1][-1] == "and near dog someone book table some"
    sentences, frames, _ = contents(SMALL_TREES)
    total = sum(float(x.sum(dtype=np.float64)) for x in frames.values())
    assert total == pytest.approx(-1881.3772, abs=1e-3)
    assert sentences[-1][-1] == "a while and with a book then child some with climb."


def test_shortest_videos_have_a_caption():
    corpus = dataclasses.replace(SMALL, videos=(20, 1, 1), min_frames=1, max_frames=4)
    with corpus.open() as reader:
        assert all(reader.splits["train"].values())


def test_equal_seeds_give_equal_corpora():
    reseeded = dataclasses.replace(SMALL, seed=1)
    assert_equal(contents(SMALL), contents(SMALL))
    assert contents(reseeded)[0] != contents(SMALL)[0]
    assert reseeded.fingerprint() != SMALL.fingerprint()


@pytest.mark.parametrize(
    "absurd", [Corpus(visual_dim=10**8), Corpus(max_frames=10**11), TreeCorpus(visual_dim=10**8)]
)
def test_too_large_corpus_is_refused_before_drawing(absurd):
    with pytest.raises(DataError, match="smaller"):
        absurd.open()


@pytest.mark.slow  # it takes seconds
def test_words_predict_frames_of_moments_better_than_of_videos():
    """Compare ridge regressions from words to the frames of moments and to means of videos."""
    with Corpus().open() as reader:
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
        true_scores = scores[np.arange(len(truth)), truth]
        return np.mean((scores > true_scores[:, None]).sum(axis=1) < 10)

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


def test_released_files_have_the_values_of_the_corpus(tmp_path):
    collection = write_corpus(tmp_path, SMALL)
    assert_equal(contents(SMALL), contents(collection))
    before = collection.fingerprint()
    with pytest.raises(FileExistsError):
        write_corpus(tmp_path, dataclasses.replace(SMALL, seed=1))
    assert collection.fingerprint() == before


# A teacher


def test_teacher_does_not_change_the_corpus():
    assert_equal(contents(SMALL_WITH_TEACHER), contents(SMALL))


def test_less_teacher_noise_separates_moments_better():
    margins = []
    for noise in (0.0, 1.0, 10.0):
        with Corpus(videos=(30, 1, 1), teacher_dim=32, teacher_noise=noise).open() as reader:
            differences = []
            for video, captions in reader.splits["train"].items():
                names = [caption.caption_id for caption in captions]
                teacher = reader.read_teacher(video, names)
                cosines = transforms.teacher_cosines(*teacher, len(teacher.frames))
                for name, row in zip(names, cosines, strict=True):
                    start, end = reader.moments[name]
                    outside = np.concatenate([row[:start], row[end:]])
                    if len(outside):
                        differences.append(row[start:end].mean() - outside.mean())
            margins.append(np.mean(differences))
    assert margins[0] > 0.8 and 0.3 < margins[1] < 0.6 and abs(margins[2]) < 0.1, margins


def test_teacher_cosines_reach_training_batches_only(config, read_batches):
    config = config.copy_and_resolve_references()
    config.data.teacher_dim = 16
    data = dataset.open_data(config)
    source = dataset.choose_source(config.data)
    assert "_6x5x16_" in str(prepare(source, config.data.data_dir).directory)
    assert data.train.taught and not data.val.taught and not data.test.taught
    batches, schedule = read_batches(data.train, range(0, 1))
    batch = batches[0]
    with source.open() as reader:
        row = 0
        for place, index in enumerate(schedule.order(0)[:4]):
            video = data.train.video_ids[index]
            names = [caption.caption_id for caption in reader.splits["train"][video]]
            count = int(batch.videos.frame_mask[place].sum())
            expected = transforms.teacher_cosines(*reader.read_teacher(video, names), count)
            cosines = batch.captions.teacher[row : row + len(names)]
            np.testing.assert_array_equal(cosines[:, :count], expected)
            assert not cosines[:, count:].any()
            row += len(names)
    assert batch.captions.mask.sum() == row and not batch.captions.teacher[row:].any()
    assert np.abs(batch.captions.teacher).max() > 0.2
    config.data.teacher_dim = 0
    plain, _ = read_batches(dataset.open_data(config).train, range(0, 1))
    assert plain[0].captions.teacher is None
    np.testing.assert_array_equal(plain[0].videos.frames, batch.videos.frames)


def test_missing_teacher_is_refused(config):
    config = config.copy_and_resolve_references()
    config.data.teacher_dim = 16
    with pytest.raises(DataError, match="teacher_dim"):
        dataset.open_data(config, Corpus(visual_dim=6, text_dim=5))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t._replace(frames=t.frames[:, :3]), "teacher's frames of video 'train_0000"),
        (lambda t: t._replace(captions=t.captions[:1]), "teacher's captions of video 'train_0000"),
        (lambda t: t._replace(frames=0 * t.frames), "teacher's frames .*: all values are zero"),
        (lambda t: t._replace(captions=np.nan * t.captions), "holds nan, but features are numb"),
    ],
)
def test_bad_teacher_is_refused_in_one_line(tmp_path, monkeypatch, change, expected):
    read = synthetic.SyntheticReader.read_teacher

    def read_changed(self, video, names):
        return change(read(self, video, names))

    monkeypatch.setattr(synthetic.SyntheticReader, "read_teacher", read_changed)
    with pytest.raises(DataError, match=expected) as error:
        prepare(SMALL_WITH_TEACHER, tmp_path)
    assert "\n" not in str(error.value)


# Trees


def planted_tree(video):
    """Return spans, edges and siblings of the tree that was planted in the moments of a video."""
    spans = [(moment.start, moment.end) for moment in video.moments]
    if spans[0][1] < spans[1][0]:  # distant moments
        leaf = max(spans, key=lambda span: span[1] - span[0])
        return [leaf, (spans[0][0], spans[-1][1])], [(1, 0)], []
    edges, siblings = [], []
    first, count = 0, len(spans)
    while count > 1:
        num_parents = (count + 1) // 2
        for k in range(num_parents):
            # The last parent of an odd level has the last two nodes; it shares the first of them.
            child = first + min(2 * k, count - 2)
            edges += [(len(spans), child), (len(spans), child + 1)]
            siblings.append((child, child + 1))
            spans.append((spans[child][0], spans[child + 1][1]))
        first, count = first + count, num_parents
    return spans, edges, siblings


def test_planted_trees_are_built():
    with SMALL_TREES.open() as reader:
        videos = [video for split in SPLITS for video in reader.videos[split]]
    for video in videos:
        tree = trees.build(video)
        spans, edges, siblings = planted_tree(video)
        assert [(node.start, node.end) for node in tree.nodes] == spans
        assert sorted(tree.edges) == sorted(edges) and sorted(tree.siblings) == sorted(siblings)


def test_numbers_of_leaves_have_their_probabilities():
    corpus = dataclasses.replace(SMALL_TREES, videos=(1000, 1, 1), visual_dim=2, text_dim=2)
    with corpus.open() as reader:
        leaves = [len(tree.leaves) for tree in trees.build_all(reader.videos["train"])]
    for count, chance in LEAVES.items():
        assert abs(leaves.count(count) / 1000 - chance) < 4 * np.sqrt(chance * (1 - chance) / 1000)


def test_tree_corpus_has_one_frame_per_second():
    with SMALL_TREES.open() as reader:
        for split in SPLITS:
            notes = reader.annotations(split)
            for video, words in zip(reader.videos[split], notes["words"], strict=True):
                assert reader.num_frames(video.video) == video.duration
                for moment, count in zip(video.moments, words, strict=True):
                    assert 5 <= moment.end - moment.start <= 10
                    features = reader.read_words(moment.moment_id)
                    assert features.shape == (count, 6) and features.dtype == np.float32
                    assert len(moment.text.rstrip(".").split()) == count


def concepts_of(moment):
    """Return the concepts in the text of a moment."""
    return set(moment.text.rstrip(".").split()) & set(CONCEPTS)


def places_in_time(precedence):
    """Return the mean relative place, in their videos, of the moments with each concept."""
    corpus = TreeCorpus(videos=(600, 1, 1), visual_dim=2, text_dim=2, precedence=precedence)
    places = {concept: [] for concept in CONCEPTS}
    with corpus.open() as reader:
        for video in reader.videos["train"]:
            for k, moment in enumerate(video.moments):
                for word in concepts_of(moment):
                    places[word].append(k / (len(video.moments) - 1))
    return np.array([np.mean(places_of_concept) for places_of_concept in places.values()])


def test_precedence_makes_some_concepts_early_and_others_late():
    # About 160 moments have a concept: its mean place has an error of 0.45 / sqrt(160) = 0.04.
    assert np.std(places_in_time(0.0)) < 0.06
    assert np.std(places_in_time(1.0)) > 0.25
