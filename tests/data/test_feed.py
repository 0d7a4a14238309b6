"""Batches: a function of the step, wherever the features lie."""

import chex
import jax
import numpy as np
import pytest

from hlformer_jax.data import feed
from hlformer_jax.data.feed import VideoFeed
from hlformer_jax.data.schedule import Schedule, in_order


def test_a_run_that_starts_late_sees_the_same_batches(data, read_batches):
    whole, schedule = read_batches(data.train, range(0, 7))
    late, _ = read_batches(data.train, range(4, 7))
    assert schedule.steps_per_epoch == 3
    chex.assert_trees_all_equal(whole[4:], late)


def test_resident_and_streamed_features_give_the_same_batches(data, read_batches):
    streamed, _ = read_batches(data.train, range(0, 9))
    resident, _ = read_batches(data.train, range(0, 9), resident=True)
    longer, _ = read_batches(data.train, range(0, 9), longest=100)
    chex.assert_trees_all_equal(streamed, resident)
    chex.assert_trees_all_equal(streamed, longer)


@pytest.mark.parametrize("resident", [False, True])
def test_a_finished_run_has_no_chunks_left(data, mesh, resident):
    chunks = VideoFeed(data.train, Schedule(11, 4, 0).groups(3, 2), mesh, 4, resident)
    assert len(list(chunks.chunks(8))) == 1
    assert list(chunks.chunks(9)) == []


def test_chunks_have_the_shapes_that_were_promised(data, mesh):
    for resident in (False, True):
        chunks = VideoFeed(data.train, Schedule(11, 4, 0).groups(3, 2), mesh, 4, resident)
        shapes = chunks.shapes()
        for chunk in chunks.chunks():
            for got, promised in zip(
                jax.tree.leaves(chunk[2:]), jax.tree.leaves(shapes), strict=True
            ):
                assert (got.shape, got.dtype) == (promised.shape, promised.dtype)
                assert got.sharding.is_equivalent_to(promised.sharding, got.ndim)


def test_what_fits_is_decided_by_the_configuration_and_the_memory(config, data, mesh):
    config = config.copy_and_resolve_references()
    decided = {}
    for resident in ("auto", "always", "never"):
        config.data.resident = resident
        decided[resident] = feed.fits(data.train, mesh, config)
    assert decided == {"auto": True, "always": True, "never": False}
    config.data.update(resident="auto", cache_gib=1e-6)
    assert not feed.fits(data.train, mesh, config)


def test_an_epoch_holds_every_video_and_every_caption_once(data, read_batches):
    batches, schedule = read_batches(data.train, range(3, 6))
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


@pytest.mark.parametrize("size", [1, 3, 64])
def test_evaluation_batches_cover_the_split_in_order(data, mesh, read_feed, size):
    chunks = VideoFeed(data.val, in_order(len(data.val), size, 2), mesh, size, resident=False)
    batches = read_feed(chunks)
    clips = np.concatenate([batch.videos.clips[batch.videos.mask] for batch in batches])
    expected = np.stack([data.val[index].clips for index in range(len(data.val))])
    np.testing.assert_array_equal(clips, expected)
    video = [
        place * size + batch.captions.video[batch.captions.mask]
        for place, batch in enumerate(batches)
    ]
    np.testing.assert_array_equal(np.concatenate(video), data.val.caption_video)
