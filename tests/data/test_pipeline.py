"""Batches: a function of the step, packed exactly, whatever threads and caches do."""

import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.data import builder, pipeline, synthetic, transforms


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = default()
    config.data.update(
        data_dir=str(tmp_path_factory.mktemp("prepared")),
        synthetic_videos=(11, 3, 4),
        visual_dim=6,
        text_dim=5,
        max_frames=32,
        max_clips=8,
        max_words=7,
    )
    return config


@pytest.fixture(scope="module")
def data(config):
    return pipeline.open_data(config)


def _batches(split, steps, seed=0, size=4, capacity=None):
    schedule = pipeline.Schedule(len(split), size, seed)
    capacity = capacity or schedule.capacity(split.captions_per_video, 3)
    return list(pipeline.train_batches(split, schedule, capacity, 7, 32, steps)), schedule


def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    schedule = pipeline.Schedule(50, 8, seed=3)
    orders = [schedule.order(epoch) for epoch in (0, 1, 0)]
    np.testing.assert_array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], pipeline.Schedule(50, 8, seed=4).order(0))
    np.testing.assert_array_equal(np.sort(orders[1]), np.arange(50))


def test_a_run_that_starts_late_sees_the_same_batches(data):
    whole, schedule = _batches(data.train, range(0, 7))
    late, _ = _batches(data.train, range(4, 7))
    assert schedule.steps_per_epoch == 3
    for one, other in zip(whole[4:], late, strict=True):
        for a, b in zip(one.videos + one.captions, other.videos + other.captions, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_epoch_holds_every_video_and_every_caption_once(data):
    batches, schedule = _batches(data.train, range(3, 6))
    videos = sum(int(batch.videos.mask.sum()) for batch in batches)
    captions = sum(int(batch.captions.mask.sum()) for batch in batches)
    assert videos == len(data.train) == 11
    assert captions == data.train.captions_per_video.sum()
    assert [int(batch.videos.mask.sum()) for batch in batches] == [4, 4, 3]
    order = schedule.order(1)
    for number, batch in enumerate(batches):
        chosen = order[4 * number : 4 * number + 4]
        counts = np.bincount(batch.captions.video[batch.captions.mask], minlength=len(chosen))
        np.testing.assert_array_equal(counts, data.train.captions_per_video[chosen])


def test_a_batch_holds_the_transformed_features_and_zeros(config, data):
    batches, schedule = _batches(data.train, range(0, 1))
    batch = batches[0]
    prepared = builder.prepare(_collection(config), config.data.data_dir)
    source = prepared.split("train")
    row = 0
    for place, index in enumerate(schedule.order(0)[:4]):
        record = source[int(index)]
        clips = transforms.normalise(transforms.pool_to_clips(record.frames, 8))
        frames = transforms.normalise(transforms.sample_frames(record.frames, 32))
        np.testing.assert_array_equal(batch.videos.clips[place], clips)
        np.testing.assert_array_equal(batch.videos.frames[place, : len(frames)], frames)
        assert not batch.videos.frames[place, len(frames) :].any()
        assert batch.videos.frame_mask[place].sum() == len(frames)
        start = 0
        for count in record.word_counts:
            words = transforms.normalise(record.words[start : start + count][:7])
            np.testing.assert_array_equal(batch.captions.words[row, : len(words)], words)
            assert not batch.captions.words[row, len(words) :].any()
            assert batch.captions.word_mask[row].sum() == len(words)
            assert batch.captions.video[row] == place
            start, row = start + count, row + 1
    assert batch.captions.mask.sum() == row
    assert not batch.captions.words[row:].any()


def _collection(config):
    data = config.data
    return pipeline._synthetic(data)


def test_a_cache_of_any_size_gives_the_same_batches(config, data):
    with_cache, _ = _batches(data.train, range(0, 6))
    config = config.copy_and_resolve_references()
    config.data.cache_gib = 0.0
    uncached = pipeline.open_data(config).train
    without, _ = _batches(uncached, range(0, 6))
    assert not uncached._cache
    assert data.train._cache
    for one, other in zip(with_cache, without, strict=True):
        np.testing.assert_array_equal(one.videos.frames, other.videos.frames)
        np.testing.assert_array_equal(one.captions.words, other.captions.words)


def test_the_capacity_holds_every_batch_and_no_more_than_it_must(data):
    counts = data.train.captions_per_video
    schedule = pipeline.Schedule(len(counts), 4, seed=0)
    capacity = schedule.capacity(counts, 5)
    sums = [
        counts[schedule.order(epoch)[start : start + 4]].sum()
        for epoch in range(5)
        for start in range(0, len(counts), 4)
    ]
    assert max(sums) <= capacity < max(sums) + pipeline.CAPACITY_MULTIPLE


@pytest.mark.parametrize("size", [1, 3, 64])
def test_evaluation_batches_cover_the_split_in_order(data, size):
    captions = list(pipeline.caption_batches(data.val, size, 7))
    video = np.concatenate([batch.video[batch.mask] for batch in captions])
    np.testing.assert_array_equal(video, data.val.caption_video)
    assert {batch.words.shape for batch in captions} == {(size, 7, 5)}
    videos = list(pipeline.video_batches(data.val, size, 32))
    clips = np.concatenate([batch.clips[batch.mask] for batch in videos])
    expected = np.stack([data.val[index].clips for index in range(len(data.val))])
    np.testing.assert_array_equal(clips, expected)


def test_caption_ids_follow_the_order_of_the_captions(data):
    ids = data.val.caption_ids()
    assert [name.split("#")[0] for name in ids] == [
        data.val.video_ids[index] for index in data.val.caption_video
    ]


def test_half_precision_storage_changes_features_by_its_rounding_alone(config, data):
    config = config.copy_and_resolve_references()
    config.data.storage = "float16"
    half = pipeline.open_data(config).train
    assert half.video_ids == data.train.video_ids
    # Each element is rounded by at most 2^-11, then pooled and divided by the norm of its vector.
    np.testing.assert_allclose(half[0].clips, data.train[0].clips, atol=2**-10)
    assert not np.array_equal(half[0].clips, data.train[0].clips)


def test_another_corpus_is_another_data_set(config, data):
    config = config.copy_and_resolve_references()
    config.data.synthetic_videos = (5, 3, 4)
    other = pipeline.open_data(config)
    assert len(other.train) == 5
    assert other.fingerprint != data.fingerprint
    assert synthetic.Corpus(videos=(5, 3, 4)) != synthetic.Corpus(videos=(11, 3, 4))
