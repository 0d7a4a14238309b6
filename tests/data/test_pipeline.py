"""Batches: a function of the step, packed exactly, whatever lies where."""

import jax
import numpy as np
import pytest

from hlformer_jax.config import default
from hlformer_jax.data import dataset, feed, packing, synthetic, transforms
from hlformer_jax.data.feed import DeviceFeed
from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.schedule import Schedule, in_order
from hlformer_jax.parallel import devices


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
        dtype="float32",
    )
    return config


@pytest.fixture(scope="module")
def data(config):
    return dataset.open_data(config)


@pytest.fixture(scope="module")
def mesh():
    return devices.mesh()


def _read(feed, first=0):
    """Batches of all steps from the first on, as NumPy."""
    return [
        jax.device_get(feed.batch(chunk, step))
        for chunk in feed.chunks(first)
        for step in range(chunk.num_steps)
    ]


def _batches(split, steps, seed=0, size=4, resident=False, longest=2):
    schedule = Schedule(len(split), size, seed)
    mesh = devices.mesh()
    chunks = DeviceFeed(split, schedule.groups(3, longest), mesh, size, resident)
    return _read(chunks, steps.start)[: len(steps)], schedule


def _assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    schedule = Schedule(50, 8, seed=3)
    orders = [schedule.order(epoch) for epoch in (0, 1, 0)]
    np.testing.assert_array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], Schedule(50, 8, seed=4).order(0))
    np.testing.assert_array_equal(np.sort(orders[1]), np.arange(50))


def test_a_run_that_starts_late_sees_the_same_batches(data):
    whole, schedule = _batches(data.train, range(0, 7))
    late, _ = _batches(data.train, range(4, 7))
    assert schedule.steps_per_epoch == 3
    _assert_same(whole[4:], late)


@pytest.mark.parametrize("longest", [1, 2, 5, 100])
def test_groups_hold_every_step_once_and_end_where_records_are_due(longest):
    schedule = Schedule(11, 4, seed=0)
    groups = schedule.groups(4, longest)
    assert [group.first for group in groups[1:]] == [group.end for group in groups[:-1]]
    assert (groups[0].first, groups[-1].end) == (0, 12)
    ends = {end for end in range(1, 13) if end % longest == 0 or end % 3 == 0}
    assert {group.end for group in groups} == ends
    videos = np.concatenate([np.concatenate(group.steps) for group in groups])
    for epoch in range(4):
        np.testing.assert_array_equal(videos[11 * epoch : 11 * epoch + 11], schedule.order(epoch))


def test_resident_and_streamed_features_give_the_same_batches(data):
    streamed, _ = _batches(data.train, range(0, 9))
    resident, _ = _batches(data.train, range(0, 9), resident=True)
    longer, _ = _batches(data.train, range(0, 9), longest=100)
    _assert_same(streamed, resident)
    _assert_same(streamed, longer)


@pytest.mark.parametrize("resident", [False, True])
def test_a_finished_run_has_no_chunks_left(data, mesh, resident):
    chunks = DeviceFeed(data.train, Schedule(11, 4, 0).groups(3, 2), mesh, 4, resident)
    assert len(list(chunks.chunks(8))) == 1
    assert list(chunks.chunks(9)) == []


def test_chunks_have_the_shapes_that_were_promised(data, mesh):
    for resident in (False, True):
        chunks = DeviceFeed(data.train, Schedule(11, 4, 0).groups(3, 2), mesh, 4, resident)
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
    prepared = prepare(dataset.choose_source(config.data), config.data.data_dir)
    videos = prepared.split("train")
    row = 0
    for place, index in enumerate(schedule.order(0)[:4]):
        record = videos[int(index)]
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


def test_a_cache_of_any_size_gives_the_same_batches(config, data):
    with_cache, _ = _batches(data.train, range(0, 6))
    config = config.copy_and_resolve_references()
    config.data.cache_gib = 0.0
    uncached = dataset.open_data(config).train
    without, _ = _batches(uncached, range(0, 6))
    assert not uncached._cache
    assert data.train._cache
    _assert_same(with_cache, without)


def test_the_capacity_holds_every_batch_and_no_more_than_it_must(data, mesh):
    counts = data.train.captions_per_video
    groups = Schedule(len(counts), 4, seed=0).groups(5, 3)
    chunks = DeviceFeed(data.train, groups, mesh, 4, resident=False)
    sums = [counts[step].sum() for group in groups for step in group.steps]
    assert max(sums) <= chunks.captions < max(sums) + packing.CAPTION_MULTIPLE
    assert chunks.videos == 4


@pytest.mark.parametrize("size", [1, 3, 64])
def test_evaluation_batches_cover_the_split_in_order(data, mesh, size):
    chunks = DeviceFeed(data.val, in_order(len(data.val), size, 2), mesh, size, resident=False)
    batches = _read(chunks)
    clips = np.concatenate([batch.videos.clips[batch.videos.mask] for batch in batches])
    expected = np.stack([data.val[index].clips for index in range(len(data.val))])
    np.testing.assert_array_equal(clips, expected)
    video = [
        place * size + batch.captions.video[batch.captions.mask]
        for place, batch in enumerate(batches)
    ]
    np.testing.assert_array_equal(np.concatenate(video), data.val.caption_video)


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


def test_half_precision_in_memory_changes_features_by_its_rounding_alone(config, data):
    config = config.copy_and_resolve_references()
    config.data.dtype = "float16"
    half = dataset.open_data(config).train
    assert half[0].clips.dtype == half[0].words[0].dtype == np.float16
    # Normalised vectors: each element is rounded by at most 2^-12 of its size, at most 1.
    np.testing.assert_allclose(half[0].clips, data.train[0].clips, rtol=2**-11, atol=2**-24)
    batches, _ = _batches(half, range(0, 1))
    assert batches[0].videos.clips.dtype == np.float16


def test_another_corpus_is_another_data_set(config, data):
    config = config.copy_and_resolve_references()
    config.data.synthetic_videos = (5, 3, 4)
    other = dataset.open_data(config)
    assert len(other.train) == 5
    assert other.fingerprint != data.fingerprint
    assert synthetic.Corpus(videos=(5, 3, 4)) != synthetic.Corpus(videos=(11, 3, 4))
