"""A split: what is transformed, kept and rounded."""

import chex
import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.data import dataset
from hlformer_jax.data.split import SimulatedVideos, Split


def test_a_cache_of_any_size_gives_the_same_batches(config, data, read_batches):
    with_cache, _ = read_batches(data.train, range(0, 6))
    config = config.copy_and_resolve_references()
    config.data.cache_gib = 0.0
    uncached = dataset.open_data(config).train
    without, _ = read_batches(uncached, range(0, 6))
    assert not uncached._cache
    assert data.train._cache
    chex.assert_trees_all_equal(with_cache, without)


def test_caption_ids_follow_the_order_of_the_captions(data):
    ids = data.val.caption_ids()
    assert [name.split("#")[0] for name in ids] == [
        data.val.video_ids[index] for index in data.val.caption_video
    ]


def test_half_precision_storage_changes_features_by_its_rounding_alone(config, data):
    config = config.copy_and_resolve_references()
    config.data.storage = "float16"
    half = dataset.open_data(config).train
    assert half.video_ids == data.train.video_ids
    # Each element is rounded by at most 2^-11, then pooled and divided by the norm of its vector.
    np.testing.assert_allclose(half[0].clips, data.train[0].clips, atol=2**-10)
    assert not np.array_equal(half[0].clips, data.train[0].clips)


def test_half_precision_in_memory_changes_features_by_its_rounding_alone(
    config, data, read_batches
):
    config = config.copy_and_resolve_references()
    config.data.dtype = "float16"
    half = dataset.open_data(config).train
    assert half[0].clips.dtype == half[0].words[0].dtype == np.float16
    # Normalised vectors: each element is rounded by at most 2^-12 of its size, at most 1.
    np.testing.assert_allclose(half[0].clips, data.train[0].clips, rtol=2**-11, atol=2**-24)
    batches, _ = read_batches(half, range(0, 1))
    assert batches[0].videos.clips.dtype == np.float16


# Simulated videos


@pytest.mark.parametrize("captions", [30, 7])
def test_records_have_the_sizes_that_were_said_and_fill_a_split(captions):
    data = default().data
    data.update(visual_dim=6, text_dim=5, max_frames=9, max_clips=4, max_words=3)
    videos = SimulatedVideos(7, captions, data)
    assert len(videos) == len(videos.video_ids) == len(set(videos.video_ids)) == 7
    assert videos.captions_per_video.sum() == captions and videos.captions_per_video.min() >= 1
    for index in range(len(videos)):
        record = videos[index]
        assert record.frames.shape == (videos.frames_per_video[index], 6)
        assert record.words.shape == (videos.words_per_video[index], 5)
        assert len(record.caption_ids) == len(record.word_counts)
        assert len(record.caption_ids) == videos.captions_per_video[index]
        assert record.word_counts.sum() == len(record.words)
        np.testing.assert_array_equal(record.frames, videos[index].frames)
    split = Split(videos, data)
    assert len(split.caption_video) == captions
    assert split[3].clips.shape == (4, 6) and len(split[3].words) == videos.captions_per_video[3]
